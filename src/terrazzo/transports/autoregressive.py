"""The autoregressive transport: theta_i = inverse CDF of a learned conditional q(theta_i | theta_<i) at Phi(z_i).

    v(z) = log p(z) - log q(theta),   log q(theta) = sum_i log q(theta_i | theta_<i)

The dequantizer is exact, so the weight p~/p = pi / q depends on theta alone: no dequantization gap (docs/theory.md).
The network is causal by construction (`causal`); its heads are those of `sites`.

References: Uria, Murray & Larochelle (2014), NADE; Germain et al. (2015), MADE; Salimans et al. (2017).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from terrazzo.spaces import as_space
from terrazzo.transports import normal
from terrazzo.transports.base import AbstractClampableTransport, Scored
from terrazzo.transports.causal import AbstractCausalTransport, causal_network
from terrazzo.transports.mixed_autoregressive import MixedAutoregressiveTransport, build_mixed
from terrazzo.transports.sites import SiteHead


class AutoregressiveTransport(AbstractCausalTransport, AbstractClampableTransport):
    """A causal network over the coordinates in a given order. Build it with `autoregressive_transport`."""

    def _constants(self) -> tuple[Array, Array]:
        """Sizes and orderedness in the order of decoding."""
        return jnp.asarray(self.space.sizes)[self.order], jnp.asarray(self.space.is_ordered)[self.order]

    def _all_outputs(self, ordered: Int[Array, " dim"]) -> Float[Array, "dim outputs"]:
        """The head's outputs at every position, in parallel, for a configuration in decoding order."""
        sizes, _ = self._constants()
        return self.network.all_outputs(jax.vmap(self._site.features)(ordered, sizes))

    def log_prob(self, theta: Int[Array, " dim"], is_free: Bool[Array, " dim"] | None = None) -> Float[Array, ""]:
        """In one parallel pass."""
        with jax.default_matmul_precision("highest"):
            ordered = theta[self.order]
            sizes, _ = self._constants()
            terms = jax.vmap(self._site.log_mass)(self._all_outputs(ordered), ordered, sizes)
            return jnp.sum(terms if is_free is None else jnp.where(is_free[self.order], terms, 0.0))

    def decode(
        self, z: Float[Array, " dim"], clamped: Int[Array, " dim"] | None = None, *, is_rough: bool = False
    ) -> tuple[Array, Array]:
        """theta and log q(theta), one coordinate after the other, with the hidden sum carried along.

        Coordinates with `clamped` >= 0 keep that value; their log-probability is left out of the sum. A rough decode
        draws from the same conditionals, but not by the cells that `push` and `lift` agree on.
        """
        sizes, is_ordered = self._constants()
        clamped = jnp.full(z.shape, -1, jnp.int32) if clamped is None else clamped[self.order]
        select = self._site.select_roughly if is_rough else self._site.select

        def place(outputs: Array, given: tuple) -> tuple[Array, tuple[Array, Array]]:
            z_t, size, ordered, fixed = given
            theta = jnp.where(fixed < 0, select(outputs, z_t, size, ordered), fixed)
            log_q = jnp.where(fixed < 0, self._site.log_mass(outputs, theta, size), 0.0)
            return self._site.features(theta, size), (theta, log_q)

        ordered, log_q = self.network.decode(place, (z[self.order], sizes, is_ordered, clamped))
        return self.network.scattered(ordered), jnp.sum(log_q)

    def drawer(self, theta: Int[Array, " dim"]) -> Callable[[Array], Float[Array, " dim"]]:
        sizes, is_ordered = self._constants()
        ordered = theta[self.order]
        with jax.default_matmul_precision("highest"):
            outputs = self._all_outputs(ordered)

        def draw(key: Array) -> Array:
            keys = jax.random.split(key, self.num_dims)
            return self.network.scattered(jax.vmap(self._site.draw_inside)(keys, outputs, ordered, sizes, is_ordered))

        return draw

    def push_scored(self, z: Float[Array, " dim"]) -> Scored:
        theta, _ = jax.lax.stop_gradient(self.decode(z, is_rough=True))
        log_q = self.log_prob(theta)
        log_volume = normal.log_density(z) - jax.lax.stop_gradient(log_q)
        return Scored(theta, log_volume, log_q, jnp.zeros((), z.dtype))


def autoregressive_transport(
    space: Any,
    *,
    key: Array,
    width: int | None = None,
    num_blocks: int = 1,
    hidden: int | None = None,
    order: Any = None,
) -> AutoregressiveTransport | MixedAutoregressiveTransport:
    """Builds an untrained autoregressive transport with defaults from the numbers of coordinates and values alone.

    On a space with real variables, real coordinates have conditional spline bijections in place of categoricals.

    Args:
        space: The space (or a single variable).
        key: Random key for the initial weights.
        width: Size of the running hidden sum.
        num_blocks: Residual blocks between the sum and the heads.
        hidden: Hidden width of each block; `width` by default.
        order: The order of decoding, a permutation of 0..d-1; the natural order by default. `coupling_order` finds one
            that keeps interacting coordinates together. Real coordinates are numbered after the d discrete ones.

    >>> import jax, terrazzo as tz
    >>> transport = autoregressive_transport(tz.binary(4), key=jax.random.key(0))
    >>> jax.jit(jax.vmap(transport.push))(jax.numpy.zeros((5, 4))).theta.shape
    (5, 4)
    >>> mixed = autoregressive_transport(tz.Space(k=tz.binary(4), x=tz.real(2)), key=jax.random.key(0))
    >>> jax.jit(jax.vmap(mixed.push))(jax.numpy.zeros((5, 6))).theta.reals.shape
    (5, 2)
    """
    space = as_space(space)
    if space.num_reals:
        return build_mixed(space, key, width=width, num_blocks=num_blocks, hidden=hidden, order=order)
    site = SiteHead(space.max_size)
    network = causal_network(
        key, site.initial_bias(space.num_dims), inputs=site.num_inputs, width=width, num_blocks=num_blocks,
        hidden=hidden, order=order,
    )  # fmt: skip
    return AutoregressiveTransport(space, network)
