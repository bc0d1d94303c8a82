"""Mixtures of discretised logistics: conditionals over many ordered values (K up to 2^24) with five components.

With edges e_k = (2k - K) / K scaled to [-1, 1], the mass of k is the mixture's mass between e_k and e_{k+1}; the first
and the last value take the tails. CDF and survival function are closed forms, kept in log space, so that cells deep in
either tail keep their relative size.

Reference: Salimans, Karpathy, Chen & Kingma (2017), PixelCNN++.
"""

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Array, Float, Int

from terrazzo.transports import normal

NUM_COMPONENTS = 5
NUM_OUTPUTS = 3 * NUM_COMPONENTS
NUM_FREQUENCIES = 6
NUM_FEATURES = 1 + 2 * NUM_FREQUENCIES
NUM_BISECTIONS = 25


def ordered_features(theta: Int[Array, ""], size: Int[Array, ""]) -> Float[Array, " features"]:
    """theta scaled to [-1, 1], and sines and cosines of it at doubling frequencies."""
    dtype = jnp.result_type(float)
    x = (2.0 * theta.astype(dtype) + 1.0) / size.astype(dtype) - 1.0
    angles = jnp.pi * x * 2.0 ** jnp.arange(NUM_FREQUENCIES, dtype=dtype)
    return jnp.concatenate([x[None], jnp.sin(angles), jnp.cos(angles)])


def initial_bias(num_dims: int) -> Float[Array, "dim outputs"]:
    """Components spread over the range, wide enough to be nearly uniform together."""
    means = jnp.linspace(-0.8, 0.8, NUM_COMPONENTS)
    row = jnp.concatenate([jnp.zeros(NUM_COMPONENTS), means, jnp.full(NUM_COMPONENTS, -1.5)])
    return jnp.tile(row, (num_dims, 1))


def _components(outputs: Float[Array, " outputs"]) -> tuple[Array, Array, Array]:
    raw_weight, mean, raw_scale = jnp.split(outputs, 3)
    return jax.nn.log_softmax(raw_weight), mean, jnp.exp(jnp.clip(raw_scale, -20.0, 10.0))


def _standardised(outputs: Array, edge: Array, size: Array) -> tuple[Array, Array]:
    """Log-weights and (e - mean) / scale at the lower edge of value `edge`; infinite beyond both ends."""
    log_weight, mean, scale = _components(outputs)
    real, count = edge.astype(mean.dtype), size.astype(mean.dtype)
    t = (2.0 * real / count - 1.0 - mean) / scale
    return log_weight, jnp.where(edge <= 0, -jnp.inf, jnp.where(edge >= size, jnp.inf, t))


def log_below(outputs: Array, theta: Int[Array, ""], size: Int[Array, ""]) -> Float[Array, ""]:
    """log P(value < theta)."""
    log_weight, t = _standardised(outputs, theta, size)
    return logsumexp(log_weight + jax.nn.log_sigmoid(t))


def log_from(outputs: Array, theta: Int[Array, ""], size: Int[Array, ""]) -> Float[Array, ""]:
    """log P(value >= theta)."""
    log_weight, t = _standardised(outputs, theta, size)
    return logsumexp(log_weight + jax.nn.log_sigmoid(-t))


def log_mass(outputs: Array, theta: Int[Array, ""], size: Int[Array, ""]) -> Float[Array, ""]:
    """log q(theta), by sigmoid(b) - sigmoid(a) = sigmoid(b) sigmoid(-a) (1 - exp(a - b))."""
    log_weight, mean, scale = _components(outputs)
    real, count = theta.astype(mean.dtype), size.astype(mean.dtype)
    a = (2.0 * real / count - 1.0 - mean) / scale
    b = a + 2.0 / (count * scale)
    lower = jnp.where(theta <= 0, 0.0, jax.nn.log_sigmoid(-a))
    upper = jnp.where(theta >= size - 1, 0.0, jax.nn.log_sigmoid(b))
    is_end = (theta <= 0) | (theta >= size - 1)
    gap = jnp.where(is_end, 0.0, jnp.log(-jnp.expm1(-2.0 / (count * scale))))
    return logsumexp(log_weight + lower + upper + gap)


def select(outputs: Array, z: Float[Array, ""], size: Int[Array, ""]) -> Int[Array, ""]:
    """The largest theta with P(value < theta) <= Phi(z), by bisection, comparing the smaller tails."""
    t_low, t_high = log_ndtr(z), log_ndtr(-z)

    def reached(theta: Array) -> Array:
        """Whether z lies at or above the lower edge of theta's cell."""
        return jnp.where(z < 0, log_below(outputs, theta, size) <= t_low, log_from(outputs, theta, size) >= t_high)

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends  # reached(low) holds, reached(high) does not
        middle = (low + high) // 2
        is_reached = reached(middle)
        return jnp.where(is_reached, middle, low), jnp.where(is_reached, high, middle)

    low, _ = jax.lax.fori_loop(0, NUM_BISECTIONS, halve, (jnp.zeros_like(size), size))
    return low.astype(jnp.int32)


def draw_inside(key: Array, outputs: Array, theta: Int[Array, ""], size: Int[Array, ""]) -> Float[Array, ""]:
    """A standard normal draw restricted to the cell of theta."""
    dtype = outputs.dtype
    uniform = jax.random.uniform(key, (), dtype, minval=jnp.finfo(dtype).tiny)
    log_q = log_mass(outputs, theta, size)
    from_below = jnp.logaddexp(log_below(outputs, theta, size), log_q + jnp.log(uniform))
    from_above = jnp.logaddexp(log_from(outputs, theta + 1, size), log_q + jnp.log1p(-uniform))
    is_low = from_below < from_above
    z = normal.log_ndtri(jnp.minimum(jnp.minimum(from_below, from_above), -1e-7))
    return jnp.where(is_low, z, -z)
