"""The autoregressive transport: theta_i = inverse CDF of a learned conditional q(theta_i | theta_<i) at Phi(z_i).

    v(z) = log p(z) - log q(theta),   log q(theta) = sum_i log q(theta_i | theta_<i)

The dequantizer is exact, so the weight p~/p = pi / q depends on theta alone: no dequantization gap (docs/theory.md).

The network is causal by construction: position t sees h_t = c_t + sum_{s < t} E_s(theta_s), then residual blocks shared
by all positions, then its own head. Scoring a configuration is one parallel pass (an exclusive cumulative sum);
decoding keeps h as a running sum, so a coordinate costs the same whatever d is. Up to 64 values a coordinate has a
softmax head; beyond that, inputs are encoded by their order and the head is a mixture of discretised logistics.

References: Uria, Murray & Larochelle (2014), NADE; Germain et al. (2015), MADE; Salimans et al. (2017).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtr
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import OptionError, arguments
from terrazzo.spaces import Space, as_discrete_space
from terrazzo.transports import heads, inverse_cdf, networks, normal
from terrazzo.transports.base import AbstractExactTransport, Scored

SOFTMAX_LIMIT = 64


class ResidualBlock(eqx.Module):
    """h + W_2 relu(W_1 relu(h) + b_1)."""

    inner: Float[Array, "hidden width"]
    bias: Float[Array, " hidden"]
    outer: Float[Array, "width hidden"]

    def __call__(self, h: Float[Array, " width"]) -> Float[Array, " width"]:
        return h + jax.nn.relu(jax.nn.relu(h) @ self.inner.T + self.bias) @ self.outer.T  # rows on the left are faster


class AutoregressiveTransport(AbstractExactTransport):
    """A causal network over the coordinates in a given order. Build it with `autoregressive_transport`."""

    space: Space = eqx.field(static=True)
    order: Int[Array, " dim"]
    embedding: Float[Array, "dim inputs width"]
    bias: Float[Array, "dim width"]
    blocks: tuple[ResidualBlock, ...]
    head: Float[Array, "dim outputs width"]
    head_bias: Float[Array, "dim outputs"]

    @property
    def is_large(self) -> bool:
        """Whether values are encoded by their order and drawn from logistic mixtures."""
        return self.space.max_size > SOFTMAX_LIMIT

    def _constants(self) -> tuple[Array, Array]:
        """Sizes and orderedness in the order of decoding."""
        return jnp.asarray(self.space.sizes)[self.order], jnp.asarray(self.space.is_ordered)[self.order]

    def _features(self, theta: Int[Array, ""], size: Int[Array, ""]) -> Float[Array, " inputs"]:
        """What E_s is linear in: the value as a unit vector, or features of its order."""
        if self.is_large:
            return heads.ordered_features(theta, size)
        return jax.nn.one_hot(theta, self.embedding.shape[1], dtype=self.embedding.dtype)

    def _outputs(self, h: Float[Array, " width"], blocks: Any, head: Array, head_bias: Array) -> Array:
        for block in blocks:
            h = block(h)
        return head @ jax.nn.relu(h) + head_bias

    def _all_outputs(self, ordered: Int[Array, " dim"]) -> Float[Array, "dim outputs"]:
        """The head's outputs at every position, in parallel, for a configuration in decoding order.

        All of it is matrix products: a table lookup and a running sum have slow gradients on every device. On an
        accelerator every position gets its own copy of the shared blocks, so that the gradient is a sum of products of
        moderate size instead of one very long one.
        """
        sizes, _ = self._constants()
        inputs = jnp.einsum("sk,skw->sw", jax.vmap(self._features)(ordered, sizes), self.embedding)
        is_before = jnp.asarray(np.tri(self.num_dims, k=-1), inputs.dtype)
        hidden, blocks, axis = self.bias + is_before @ inputs, self.blocks, None
        if jax.default_backend() != "cpu":
            blocks, axis = jax.tree.map(lambda x: jnp.broadcast_to(x, (self.num_dims, *x.shape)), self.blocks), 0
        return jax.vmap(self._outputs, in_axes=(0, axis, 0, 0))(hidden, blocks, self.head, self.head_bias)

    def log_prob(self, theta: Int[Array, " dim"], is_free: Bool[Array, " dim"] | None = None) -> Float[Array, ""]:
        """log q(theta), in one parallel pass; only the terms log q(theta_i | theta_<i) of free coordinates if given."""
        with jax.default_matmul_precision("highest"):
            ordered = theta[self.order]
            sizes, _ = self._constants()
            terms = jax.vmap(self._log_mass)(self._all_outputs(ordered), ordered, sizes)
            return jnp.sum(terms if is_free is None else jnp.where(is_free[self.order], terms, 0.0))

    def _log_mass(self, outputs: Array, theta: Array, size: Array) -> Float[Array, ""]:
        if self.is_large:
            return heads.log_mass(outputs, theta, size)
        return inverse_cdf.masked_log_probs(outputs, size)[theta]

    def _select(self, outputs: Array, z: Array, size: Array, is_ordered: Array) -> Int[Array, ""]:
        if self.is_large:
            return heads.select(outputs, z, size)
        return inverse_cdf.select(inverse_cdf.layout(inverse_cdf.masked_log_probs(outputs, size), is_ordered), z)

    def _draw_inside(self, key: Array, outputs: Array, theta: Array, size: Array, is_ordered: Array) -> Array:
        if self.is_large:
            return heads.draw_inside(key, outputs, theta, size)
        cells = inverse_cdf.layout(inverse_cdf.masked_log_probs(outputs, size), is_ordered)
        return inverse_cdf.draw_inside(key, cells, theta)

    def _select_roughly(self, outputs: Array, z: Array, size: Array, is_ordered: Array) -> Int[Array, ""]:
        """A draw from the conditional, from the same z, without care for the tails: what training needs of a draw."""
        if self.is_large:
            return heads.select(outputs, z, size)
        log_probs = inverse_cdf.masked_log_probs(outputs, size)
        sums = jnp.exp(log_probs) @ jnp.asarray(np.tri(log_probs.size).T, log_probs.dtype)
        last = jnp.minimum(size, jnp.sum(sums < sums[-1], dtype=jnp.int32) + 1) - 1  # beyond it there is no mass
        return jnp.minimum(jnp.sum(sums <= ndtr(z), dtype=jnp.int32), last)

    def decode(
        self, z: Float[Array, " dim"], clamped: Int[Array, " dim"] | None = None, *, is_rough: bool = False
    ) -> tuple[Array, Array]:
        """theta and log q(theta), one coordinate after the other, with the hidden sum carried along.

        Coordinates with `clamped` >= 0 keep that value; their log-probability is left out of the sum. A rough decode
        draws from the same conditionals, but not by the cells that `push` and `lift` agree on.
        """
        sizes, is_ordered = self._constants()
        clamped = jnp.full(z.shape, -1, jnp.int32) if clamped is None else clamped[self.order]
        select = self._select_roughly if is_rough else self._select

        def body(hidden: Array, position: Any) -> tuple[Array, tuple[Array, Array]]:
            z_t, size, ordered, embedding, bias, head, head_bias, fixed = position
            outputs = self._outputs(hidden + bias, self.blocks, head, head_bias)
            theta = jnp.where(fixed < 0, select(outputs, z_t, size, ordered), fixed)
            log_q = jnp.where(fixed < 0, self._log_mass(outputs, theta, size), 0.0)
            return hidden + self._features(theta, size) @ embedding, (theta, log_q)

        positions = (z[self.order], sizes, is_ordered, self.embedding, self.bias, self.head, self.head_bias, clamped)
        with jax.default_matmul_precision("highest"):
            start = jnp.zeros(self.bias.shape[1], self.bias.dtype)
            _, (ordered, log_q) = jax.lax.scan(body, start, positions)
        theta = jnp.zeros(z.shape, jnp.int32).at[self.order].set(ordered)
        return theta, jnp.sum(log_q)

    def drawer(self, theta: Int[Array, " dim"]) -> Callable[[Array], Float[Array, " dim"]]:
        """`key -> z`, draws inside the cell of theta, up to rounding at its borders: what `lift` tries."""
        sizes, is_ordered = self._constants()
        ordered = theta[self.order]
        with jax.default_matmul_precision("highest"):
            outputs = self._all_outputs(ordered)

        def draw(key: Array) -> Array:
            keys = jax.random.split(key, self.num_dims)
            z = jax.vmap(self._draw_inside)(keys, outputs, ordered, sizes, is_ordered)
            return jnp.zeros(z.shape, z.dtype).at[self.order].set(z)

        return draw

    def push_scored(self, z: Float[Array, " dim"]) -> Scored:
        theta, _ = jax.lax.stop_gradient(self.decode(z, is_rough=True))
        log_q = self.log_prob(theta)
        log_volume = normal.log_density(z) - jax.lax.stop_gradient(log_q)
        return Scored(theta, log_volume, log_q, jnp.zeros((), z.dtype))

    def describe(self) -> dict[str, Any]:
        """The options of `autoregressive_transport` that build the same shapes."""
        hidden = self.blocks[0].inner.shape[0] if self.blocks else None
        return {"width": self.bias.shape[1], "num_blocks": len(self.blocks), "hidden": hidden}


def autoregressive_transport(
    space: Any,
    *,
    key: Array,
    width: int | None = None,
    num_blocks: int = 1,
    hidden: int | None = None,
    order: Any = None,
) -> AutoregressiveTransport:
    """Builds an untrained autoregressive transport with defaults from d and K alone.

    Args:
        space: The space (or a single variable).
        key: Random key for the initial weights.
        width: Size of the running hidden sum.
        num_blocks: Residual blocks between the sum and the heads.
        hidden: Hidden width of each block; `width` by default.
        order: The order of decoding, a permutation of 0..d-1; the natural order by default. `coupling_order` finds one
            that keeps interacting coordinates together.

    >>> import jax, terrazzo as tz
    >>> transport = autoregressive_transport(tz.binary(4), key=jax.random.key(0))
    >>> transport.push(jax.numpy.zeros(4)).theta.shape
    (4,)
    """
    space = as_discrete_space(space, "transport")
    d = space.num_dims
    width = (64 if d <= 24 else 128 if d <= 200 else 256) if width is None else width
    hidden = width if hidden is None else hidden
    for name, value, low in (("width", width, 1), ("num_blocks", num_blocks, 0), ("hidden", hidden, 1)):
        arguments.count(name, value, low=low, high=2**20)
    arguments.random_key(key)
    shown = arguments.shown(order)
    order = np.arange(d) if order is None else np.asarray(order)
    if order.shape != (d,) or order.dtype.kind not in "iu" or sorted(order.tolist()) != list(range(d)):
        raise OptionError("order", f"must be a permutation of 0..{d - 1}, got {shown}", "leave it out")
    rng = networks.generator(key)
    is_large = space.max_size > SOFTMAX_LIMIT
    inputs = heads.NUM_FEATURES if is_large else space.max_size
    outputs = heads.NUM_OUTPUTS if is_large else space.max_size
    blocks = tuple(
        ResidualBlock(
            networks.uniform(rng, (hidden, width), width**-0.5),
            jnp.zeros(hidden),
            networks.uniform(rng, (width, hidden), 0.1 * hidden**-0.5),
        )
        for _ in range(num_blocks)
    )
    return AutoregressiveTransport(
        space,
        jnp.asarray(order, jnp.int32),
        networks.uniform(rng, (d, inputs, width), (3.0 / max(d, 1)) ** 0.5),
        networks.uniform(rng, (d, width), 1.0),
        blocks,
        networks.uniform(rng, (d, outputs, width), 0.01 * width**-0.5),
        heads.initial_bias(d) if is_large else jnp.zeros((d, outputs)),
    )
