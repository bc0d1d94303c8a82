"""A network over coordinates in an order, in which each sees those before it and no other.

Position t sees h_t = c_t + sum_{s < t} E_s(x_s), then residual blocks shared by all positions, then its own head.
Scoring a configuration is one parallel pass (an exclusive cumulative sum); decoding keeps h as a running sum, so a
coordinate costs the same whatever their number is.

References: Uria, Murray & Larochelle (2014), NADE; Germain et al. (2015), MADE.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import OptionError, arguments
from terrazzo.spaces import Space
from terrazzo.transports import networks
from terrazzo.transports.base import AbstractExactTransport
from terrazzo.transports.sites import SiteHead


class ResidualBlock(eqx.Module):
    """h + W_2 relu(W_1 relu(h) + b_1)."""

    inner: Float[Array, "hidden width"]
    bias: Float[Array, " hidden"]
    outer: Float[Array, "width hidden"]

    def __call__(self, h: Float[Array, " width"]) -> Float[Array, " width"]:
        return h + jax.nn.relu(jax.nn.relu(h) @ self.inner.T + self.bias) @ self.outer.T  # rows on the left are faster


class CausalNetwork(eqx.Module):
    """A causal network. Build it with `causal_network`.

    Attributes:
        order: The coordinates in the order of decoding.
        embedding: E_s of each position, linear in the features of its value.
        bias: c_t of each position.
        blocks: What all positions share.
        head: Of each position.
        head_bias: Of each position.
    """

    order: Int[Array, " dim"]
    embedding: Float[Array, "dim inputs width"]
    bias: Float[Array, "dim width"]
    blocks: tuple[ResidualBlock, ...]
    head: Float[Array, "dim outputs width"]
    head_bias: Float[Array, "dim outputs"]

    def _outputs(self, h: Float[Array, " width"], blocks: Any, head: Array, head_bias: Array) -> Array:
        for block in blocks:
            h = block(h)
        return head @ jax.nn.relu(h) + head_bias

    def all_outputs(self, features: Float[Array, "dim inputs"]) -> Float[Array, "dim outputs"]:
        """The head's outputs at every position, in parallel, from the features of the values in decoding order.

        All of it is matrix products: a table lookup and a running sum have slow gradients on every device. On an
        accelerator every position gets its own copy of the shared blocks, so that the gradient is a sum of products of
        moderate size instead of one very long one.
        """
        num_dims = self.order.shape[0]
        inputs = jnp.einsum("sk,skw->sw", features.astype(self.embedding.dtype), self.embedding)
        is_before = jnp.asarray(np.tri(num_dims, k=-1), inputs.dtype)
        hidden, blocks, axis = self.bias + is_before @ inputs, self.blocks, None
        if jax.default_backend() != "cpu":
            blocks, axis = jax.tree.map(lambda x: jnp.broadcast_to(x, (num_dims, *x.shape)), self.blocks), 0
        return jax.vmap(self._outputs, in_axes=(0, axis, 0, 0))(hidden, blocks, self.head, self.head_bias)

    def decode(self, place: Callable[[Array, Any], tuple[Array, Any]], given: Any) -> Any:
        """What `place(outputs, given) -> (features, found)` finds at each position, one after the other.

        Args:
            place: Finds the value of a position, and its features, which later positions see.
            given: Arrays with a leading axis of positions.
        """

        def body(hidden: Array, position: Any) -> tuple[Array, Any]:
            given, embedding, bias, head, head_bias = position
            features, found = place(self._outputs(hidden + bias, self.blocks, head, head_bias), given)
            return hidden + features.astype(embedding.dtype) @ embedding, found

        positions = (given, self.embedding, self.bias, self.head, self.head_bias)
        with jax.default_matmul_precision("highest"):
            return jax.lax.scan(body, jnp.zeros(self.bias.shape[1], self.bias.dtype), positions)[1]

    def scattered(self, ordered: Array) -> Array:
        """Values in decoding order, each at its own coordinate."""
        return jnp.zeros(ordered.shape, ordered.dtype).at[self.order].set(ordered)

    def describe(self) -> dict[str, Any]:
        """The options that build the same shapes."""
        hidden = self.blocks[0].inner.shape[0] if self.blocks else None
        return {"width": self.bias.shape[1], "num_blocks": len(self.blocks), "hidden": hidden}


class AbstractCausalTransport(AbstractExactTransport):
    """A transport that decodes the coordinates of its space one after the other, by a causal network.

    Attributes:
        space: The space.
        network: Over all coordinates.
    """

    space: Space = eqx.field(static=True)
    network: CausalNetwork

    @property
    def order(self) -> Int[Array, " all"]:
        """The coordinates in the order of decoding."""
        return self.network.order

    @property
    def _site(self) -> SiteHead:
        return SiteHead(self.space.max_size)

    def describe(self) -> dict[str, Any]:
        """The options of `autoregressive_transport` that build the same shapes."""
        return self.network.describe()


def causal_network(
    key: Array, head_bias: Array, *, inputs: int, width: int | None, num_blocks: int, hidden: int | None, order: Any
) -> CausalNetwork:
    """An untrained causal network whose positions all start at the outputs `head_bias`, nearly.

    Args:
        key: Random key for the weights.
        head_bias: Outputs, (coordinate, output), in decoding order.
        inputs: Features of a value.
        width: Size of the running hidden sum; by the number of coordinates if None.
        num_blocks: Residual blocks.
        hidden: Hidden width of each; `width` if None.
        order: The order of decoding; the natural one if None.
    """
    d, outputs = head_bias.shape
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
    blocks = tuple(
        ResidualBlock(
            networks.uniform(rng, (hidden, width), width**-0.5),
            jnp.zeros(hidden),
            networks.uniform(rng, (width, hidden), 0.1 * hidden**-0.5),
        )
        for _ in range(num_blocks)
    )
    return CausalNetwork(
        order=jnp.asarray(order, jnp.int32),
        embedding=networks.uniform(rng, (d, inputs, width), (3.0 / max(d, 1)) ** 0.5),
        bias=networks.uniform(rng, (d, width), 1.0), blocks=blocks,
        head=networks.uniform(rng, (d, outputs, width), 0.01 * width**-0.5), head_bias=head_bias,
    )  # fmt: skip
