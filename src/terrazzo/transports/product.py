"""The product transport: independent categoricals, the trivial member and the control in benchmarks.

    theta_i = inverse CDF of softmax(logits_i) at Phi(z_i),    v(z) = log p(z) - sum_i log q_i(theta_i)

so the weight p~/p = pi / q depends on theta alone (docs/theory.md, section 1).
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import TransportError
from terrazzo.errors.arguments import shown
from terrazzo.spaces import Space, as_discrete_space
from terrazzo.transports import inverse_cdf, normal
from terrazzo.transports.base import AbstractClampableTransport, Scored


class ProductTransport(AbstractClampableTransport):
    """Independent categoricals q(theta) = prod_i softmax(logits_i)[theta_i]. Build it with `product_transport`."""

    space: Space = eqx.field(static=True)
    logits: Float[Array, "dim max_size"]

    def _log_probs(self) -> Float[Array, "dim max_size"]:
        return inverse_cdf.masked_log_probs(self.logits, jnp.asarray(self.space.sizes))

    def _cells(self) -> inverse_cdf.Layout:
        return jax.vmap(inverse_cdf.layout)(self._log_probs(), jnp.asarray(self.space.is_ordered))

    def decode(self, z: Float[Array, " dim"], clamped: Int[Array, " dim"] | None = None) -> tuple[Array, Array]:
        theta = jax.vmap(inverse_cdf.select)(self._cells(), z)
        if clamped is None:
            return theta, self.log_prob(theta)
        theta = jnp.where(clamped < 0, theta, clamped)
        return theta, self.log_prob(theta, clamped < 0)

    def drawer(self, theta: Int[Array, " dim"]) -> Callable[[Array], Float[Array, " dim"]]:
        cells = self._cells()

        def draw(key: Array) -> Array:
            return jax.vmap(inverse_cdf.draw_inside)(jax.random.split(key, self.num_dims), cells, theta)

        return draw

    def push_scored(self, z: Float[Array, " dim"]) -> Scored:
        theta, log_volume = self.push(z)
        log_q = normal.log_density(z) - log_volume
        return Scored(theta, jax.lax.stop_gradient(log_volume), log_q, jnp.zeros((), z.dtype))

    def log_prob(self, theta: Int[Array, " dim"], is_free: Bool[Array, " dim"] | None = None) -> Float[Array, ""]:
        terms = jnp.take_along_axis(self._log_probs(), theta[:, None], axis=1)[:, 0]
        return jnp.sum(terms if is_free is None else jnp.where(is_free, terms, 0.0))


def product_transport(space: Any, *, logits: Any = None) -> ProductTransport:
    """Independent categoricals, uniform unless `logits` of shape (d, K_max) are given.

    >>> import terrazzo as tz, jax.numpy as jnp
    >>> transport = product_transport(tz.binary(3))
    >>> transport.push(jnp.array([-1.0, 0.5, 2.0])).theta.shape
    (3,)
    """
    space = as_discrete_space(space, "transport")
    shape = (space.num_dims, space.max_size)
    try:
        logits = jnp.zeros(shape) if logits is None else jnp.asarray(logits, jnp.result_type(float))
    except (TypeError, ValueError):
        raise TransportError("logits", f"must be numbers, got {shown(logits)}", "one row per coordinate") from None
    if logits.shape != shape:
        raise TransportError("logits", f"have shape {logits.shape}, expected {shape}", "one row per coordinate")
    return ProductTransport(space, logits)
