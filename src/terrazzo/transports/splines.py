"""Elementwise monotone maps driven by raw network outputs: affine with a bounded scale, rational-quadratic splines.

Each is a pair (transform, inverse) on one coordinate, `(x, raw) -> (y, log dy/dx)`, and a number of raw parameters.
Raw zeros give the identity.

References: Dinh et al. (2017) for affine couplings; Durkan et al. (2019), Neural Spline Flows, for the splines.
"""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

MIN_BIN = 1e-3
MIN_DERIVATIVE = 1e-3
NUM_BINS = 8
INTERVAL = 5.0


class Transformer(NamedTuple):
    """One family of elementwise maps.

    Attributes:
        num_parameters: Raw numbers per coordinate.
        transform: `(x, raw) -> (y, log_det)`, scalars.
        inverse: `(y, raw) -> (x, log_det of the inverse)`.
    """

    num_parameters: int
    transform: Callable[[Array, Array], tuple[Array, Array]]
    inverse: Callable[[Array, Array], tuple[Array, Array]]


def _log_scale(raw: Array) -> Array:
    """The tanh-exp scale of the paper: log s = 2 tanh(raw / 2), so s lies between e^-2 and e^2."""
    return 2.0 * jnp.tanh(0.5 * raw)


def _affine_transform(x: Float[Array, ""], raw: Float[Array, " 2"]) -> tuple[Array, Array]:
    log_scale = _log_scale(raw[0])
    return x * jnp.exp(log_scale) + raw[1], log_scale


def _affine_inverse(y: Float[Array, ""], raw: Float[Array, " 2"]) -> tuple[Array, Array]:
    log_scale = _log_scale(raw[0])
    return (y - raw[1]) * jnp.exp(-log_scale), -log_scale


affine = Transformer(2, _affine_transform, _affine_inverse)


class _Knots(NamedTuple):
    """The bin of a point: left ends, sizes, and the derivatives at both ends."""

    x: Array
    y: Array
    width: Array
    height: Array
    d_left: Array
    d_right: Array


def _bins(raw: Float[Array, " parameters"]) -> tuple[Array, Array, Array]:
    """Widths, heights (each summing to 2 INTERVAL) and the NUM_BINS + 1 derivatives (1 at both ends)."""
    raw_width, raw_height, raw_derivative = jnp.split(raw, (NUM_BINS, 2 * NUM_BINS))
    share = 1.0 - MIN_BIN * NUM_BINS
    widths = 2.0 * INTERVAL * (MIN_BIN + share * jax.nn.softmax(raw_width))
    heights = 2.0 * INTERVAL * (MIN_BIN + share * jax.nn.softmax(raw_height))
    shift = jnp.log(jnp.expm1(jnp.asarray(1.0 - MIN_DERIVATIVE, raw.dtype)))
    inner = MIN_DERIVATIVE + jax.nn.softplus(raw_derivative + shift)
    one = jnp.ones(1, raw.dtype)
    return widths, heights, jnp.concatenate([one, inner, one])


def _find(point: Array, edges: Array, raw_bins: tuple[Array, Array, Array]) -> _Knots:
    """The bin of `point` among `edges` (left ends of the bins), by masks: no gather, no scatter in the gradient."""
    widths, heights, derivatives = raw_bins
    begun = (point >= edges).astype(point.dtype)
    mask = begun - jnp.concatenate([begun[1:], jnp.zeros(1, point.dtype)])
    mask = jax.lax.stop_gradient(mask)
    x_left = jnp.cumsum(widths) - widths - INTERVAL
    y_left = jnp.cumsum(heights) - heights - INTERVAL

    def pick(values: Array) -> Array:
        return jnp.sum(mask * values)

    return _Knots(
        x=pick(x_left), y=pick(y_left), width=pick(widths), height=pick(heights), d_left=pick(derivatives[:-1]),
        d_right=pick(derivatives[1:]),
    )  # fmt: skip


def _log_derivative(k: _Knots, t: Array) -> Array:
    slope = k.height / k.width
    t1 = t * (1.0 - t)
    numerator = slope**2 * (k.d_right * t**2 + 2.0 * slope * t1 + k.d_left * (1.0 - t) ** 2)
    return jnp.log(numerator) - 2.0 * jnp.log(slope + (k.d_right + k.d_left - 2.0 * slope) * t1)


def _spline_transform(x: Float[Array, ""], raw: Float[Array, " parameters"]) -> tuple[Array, Array]:
    bins = _bins(raw)
    is_inside = (x > -INTERVAL) & (x < INTERVAL)
    safe = jnp.where(is_inside, x, 0.0)
    k = _find(safe, _left_ends(bins[0]), bins)
    t = (safe - k.x) / k.width
    slope = k.height / k.width
    t1 = t * (1.0 - t)
    y = k.y + k.height * (slope * t**2 + k.d_left * t1) / (slope + (k.d_right + k.d_left - 2.0 * slope) * t1)
    return jnp.where(is_inside, y, x), jnp.where(is_inside, _log_derivative(k, t), 0.0)


def _spline_inverse(y: Float[Array, ""], raw: Float[Array, " parameters"]) -> tuple[Array, Array]:
    bins = _bins(raw)
    is_inside = (y > -INTERVAL) & (y < INTERVAL)
    safe = jnp.where(is_inside, y, 0.0)
    k = _find(safe, _left_ends(bins[1]), bins)
    slope = k.height / k.width
    dy = safe - k.y
    curvature = k.d_right + k.d_left - 2.0 * slope
    a = k.height * (slope - k.d_left) + dy * curvature
    b = k.height * k.d_left - dy * curvature
    c = -slope * dy
    t = 2.0 * c / (-b - jnp.sqrt(jnp.maximum(b**2 - 4.0 * a * c, 0.0)))
    x = k.x + t * k.width
    return jnp.where(is_inside, x, y), jnp.where(is_inside, -_log_derivative(k, t), 0.0)


def _left_ends(sizes: Float[Array, " bins"]) -> Float[Array, " bins"]:
    """Left ends of the bins; the first is -inf so that every inner point has a bin."""
    ends = jnp.cumsum(sizes) - sizes - INTERVAL
    return jnp.concatenate([jnp.full(1, -jnp.inf, sizes.dtype), ends[1:]])


rational_quadratic_spline = Transformer(3 * NUM_BINS - 1, _spline_transform, _spline_inverse)
