"""The floor surjection: y in R^d -> x = K sigmoid(y) -> theta = floor(x), u = x - theta, all in log space.

The cell of theta_i = k is b_k < y_i < b_{k+1} with b_k = logit(k/K). Nothing is clamped (docs/theory.md, traps 1
and 2): log u and log(1 - u) come from y itself by

    sigmoid(a) - sigmoid(b) = sigmoid(a) sigmoid(-b) (1 - exp(b - a)),

so they are accurate for any y, theta = K cannot happen, and a y exactly on a border gets density 0.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

log_sigmoid = jax.nn.log_sigmoid


def border(k: Float[Array, " dim"], size: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """b_k = logit(k / K): -inf at k = 0, +inf at k = K.

    In the middle the difference of two large logarithms would lose the digits that tell thin cells apart.
    """
    x = (2.0 * k - size) / size
    inner = jnp.log1p(x) - jnp.log1p(-x)
    return jnp.where(jnp.abs(x) < 0.9, inner, jnp.log(k) - jnp.log(size - k))


def cell(y: Float[Array, " dim"], size: Float[Array, " dim"]) -> Int[Array, " dim"]:
    """theta = the k with b_k <= y < b_{k+1}, always inside 0..K-1 (also for infinite y)."""
    y = jax.lax.stop_gradient(y)
    guess = jnp.clip(jnp.floor(size * jax.nn.sigmoid(y)), 0.0, size - 1.0)
    guess = jnp.where(jnp.isnan(guess), 0.0, guess)
    too_high = (y < border(guess, size)) & (guess > 0)
    too_low = (y >= border(guess + 1.0, size)) & (guess < size - 1.0)
    return (guess - too_high.astype(y.dtype) + too_low.astype(y.dtype)).astype(jnp.int32)


def log_offsets(
    y: Float[Array, " dim"], theta: Float[Array, " dim"], size: Float[Array, " dim"]
) -> tuple[Float[Array, " dim"], Float[Array, " dim"]]:
    """log u and log(1 - u) of u = K sigmoid(y) - theta; du/dx = 1, since theta is a constant here."""
    lower, upper = border(theta, size), border(theta + 1.0, size)
    log_u = jnp.log(size) + log_sigmoid(y) + log_sigmoid(-lower) + jnp.log(-jnp.expm1(lower - y))
    log_1mu = jnp.log(size) + log_sigmoid(upper) + log_sigmoid(-y) + jnp.log(-jnp.expm1(y - upper))
    return log_u, log_1mu


def is_inside(y: Float[Array, " dim"], theta: Float[Array, " dim"], size: Float[Array, " dim"]) -> Array:
    """Whether y is finite and strictly inside the cell of theta."""
    return jnp.isfinite(y) & (y > border(theta, size)) & (y < border(theta + 1.0, size))


def embed(
    theta: Float[Array, " dim"], logit_u: Float[Array, " dim"], size: Float[Array, " dim"]
) -> Float[Array, " dim"]:
    """The y with K sigmoid(y) = theta + sigmoid(logit_u)."""
    u, one_minus_u = jax.nn.sigmoid(logit_u), jax.nn.sigmoid(-logit_u)
    below = jnp.where(theta == 0, log_sigmoid(logit_u), jnp.log(theta + u))
    rest = size - 1.0 - theta
    above = jnp.where(rest == 0, log_sigmoid(-logit_u), jnp.log(rest + one_minus_u))
    return below - above


def log_det(y: Float[Array, " dim"], size: Float[Array, " dim"]) -> Float[Array, ""]:
    """log |dx/dy| of x = K sigmoid(y), summed over coordinates."""
    return jnp.sum(jnp.log(size) + log_sigmoid(y) + log_sigmoid(-y))
