"""The standard normal in log space: what transports need of it, accurate far in both tails."""

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, ndtri
from jaxtyping import Array, Float

_LOG_SQRT_2PI = 0.9189385332046727


def log_density(z: Float[Array, " dim"]) -> Float[Array, ""]:
    """log p(z) of N(0, I_d)."""
    return -0.5 * jnp.sum(z * z) - z.size * _LOG_SQRT_2PI


def log_pdf(z: Array) -> Array:
    """log of the standard normal density, elementwise."""
    return -0.5 * z * z - _LOG_SQRT_2PI


def log_ndtri(log_p: Array) -> Array:
    """The z with log Phi(z) = log_p, elementwise, for any log_p < 0 down to -1e4 and beyond.

    Where exp(log_p) underflows, z starts from the tail expansion log Phi(z) ~ -z^2/2 - log(-z sqrt(2 pi)) and Newton's
    method on log Phi finishes; near zero the upper tail is used.
    """
    log_p = jnp.asarray(log_p)
    tiny = jnp.log(jnp.finfo(log_p.dtype).tiny) + 1.0
    is_far = log_p < tiny
    near = ndtri(jnp.exp(jnp.where(is_far, -1.0, log_p)))
    far_log_p = jnp.where(is_far, log_p, 2.0 * tiny)

    def newton(_, z):
        log_cdf = log_ndtr(z)
        return z - (log_cdf - far_log_p) * jnp.exp(log_cdf - log_pdf(z))

    far = jax.lax.fori_loop(0, 4, newton, -jnp.sqrt(-2.0 * far_log_p))
    return jnp.where(is_far, far, near)


def normal_to_logistic(y: Array) -> tuple[Array, Array]:
    """Maps a normal variable to a logistic one: w = logit(Phi(y)), with log dw/dy, elementwise.

    A sigmoid after it is Phi: a standard normal becomes exactly uniform, with Gaussian (not logistic) tails.
    """
    lower, upper = log_ndtr(y), log_ndtr(-y)
    return lower - upper, log_pdf(y) - lower - upper


def logistic_to_normal(w: Array) -> Array:
    """The inverse of `normal_to_logistic`: y = Phi^-1(sigmoid(w))."""
    return -jnp.sign(w) * log_ndtri(jax.nn.log_sigmoid(-jnp.abs(w)))
