"""A transport with some coordinates held fixed: a transport on the others.

If q(theta) = prod_i q(theta_i | theta_<i), then for any fixed values of some coordinates

    q~(free) = prod_{i free} q(theta_i | theta_<i),    with the fixed values wherever they are conditioned on,

is a normalised law of the free ones, drawn by the same decoding. It is the exact conditional q(free | fixed) if the
fixed coordinates come first in the order (always, for the product transport); else it is still a law with a known
probability, so that its weights against pi, and every sampler that uses it, are exact.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import TransportError
from terrazzo.spaces import Space
from terrazzo.transports.base import AbstractClampableTransport, AbstractExactTransport, AbstractTransport, Scored


class ClampedTransport(AbstractExactTransport):
    """A transport on the free coordinates of another. Build it with `clamp_transport`."""

    space: Space = eqx.field(static=True)
    inner: AbstractClampableTransport
    clamped: Int[Array, " all"]
    free: tuple[int, ...] = eqx.field(static=True)

    @property
    def codes(self) -> Int[Array, " all"]:
        """The value of each fixed coordinate, -1 for the free ones."""
        return self.clamped

    def full(self, theta: Int[Array, " dim"]) -> Int[Array, " all"]:
        """The whole configuration."""
        return self.clamped.at[np.asarray(self.free)].set(theta)

    def decode(self, z: Float[Array, " dim"]) -> tuple[Array, Array]:
        places = np.asarray(self.free)
        padded = jnp.zeros(self.clamped.shape, z.dtype).at[places].set(z)
        theta, log_q = self.inner.decode(padded, self.clamped)
        return theta[places], log_q

    def drawer(self, theta: Int[Array, " dim"]) -> Callable[[Array], Float[Array, " dim"]]:
        draw, places = self.inner.drawer(self.full(theta)), np.asarray(self.free)
        return lambda key: draw(key)[places]

    def log_prob(self, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        """log q~(theta)."""
        return self.inner.log_prob(self.full(theta), self.clamped < 0)

    def push_scored(self, z: Float[Array, " dim"]) -> Scored:
        theta, log_volume = self.push(z)
        return Scored(theta, jax.lax.stop_gradient(log_volume), self.log_prob(theta), jnp.zeros((), z.dtype))


def is_clampable(transport: AbstractTransport | None) -> bool:
    """Whether coordinates of the transport can be held fixed: it decodes them one by one."""
    return isinstance(transport, AbstractClampableTransport)


def clamp_transport(transport: AbstractTransport, clamped: np.ndarray, space: Space) -> ClampedTransport:
    """Holds coordinates of an autoregressive or product transport fixed.

    Args:
        transport: The transport.
        clamped: The inner integer of each clamped coordinate, -1 for the free ones.
        space: The space of the free coordinates, in order.

    >>> import terrazzo as tz
    >>> whole = tz.transports.product_transport(tz.binary(3))
    >>> transport = clamp_transport(whole, np.array([1, -1, -1]), tz.Space(tz.binary(2)))
    >>> transport.full(jnp.array([0, 1])).tolist()
    [1, 0, 1]
    """
    codes = np.asarray(clamped)
    if not isinstance(transport, AbstractClampableTransport):
        raise TransportError(
            "transport", f"{type(transport).__name__} cannot hold coordinates fixed", "use an autoregressive one"
        )
    free = np.flatnonzero(codes < 0)
    if codes.shape != (transport.num_dims,) or (transport.space.sizes[free].tolist() != space.sizes.tolist()):
        raise TransportError("clamped", "does not fit the transport and the space", "one code each, -1 if free")
    return ClampedTransport(space, transport, jnp.asarray(codes, jnp.int32), tuple(int(i) for i in free))
