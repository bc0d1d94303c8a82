"""The any-scale balanced sampler: a quadratic model of log pi, from small steps to global ones (Sun et al. 2023).

With the gradient G at x, a curvature W and a diagonal metric S, the wanted proposal of a displacement e = y - x is

    q(e) ~ exp( b (G'e + e'W e / 2) - e'S e / (2 s) )

Small s is a Langevin step with b = 1/2; s -> infinity with b = 1 proposes from the quadratic model itself. In between
b = (s - 2 + sqrt(s^2 + 4)) / (2 s), which makes the proposal exactly reversible for a Gaussian target with metric S
(there the step is an autoregression of coefficient 1 / (1 + b s) and must keep the variance).

The quadratic couples the coordinates. The Gaussian integral trick uncouples them: with A'A = b (W + c S), where c makes
this positive, draw n ~ N(0, I) and the coordinates of e become independent,

    q(e | n) ~ prod_i exp( (b G + A'n)_i e_i - (b c + 1 / s) S_i e_i^2 / 2 ).

Seen from y the same auxiliary variable is n - A e, so n is an extra variable of an extended target and MH on
pi(x) N(n) leaves pi invariant, whatever W is. Only the tilt t = A'n enters, which from y is t - A'A e, and

    log N(n - A e) - log N(n) = e't - e'A'A e / 2.

W is learned in warm-up by regressing gradients on positions, which is exact for a quadratic log pi.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from terrazzo.errors import UnsupportedError
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.acceptance import metropolis_hastings
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, Tuning, as_float
from terrazzo.samplers.parts.informed import GradientState, evaluate, gradient_start, num_evaluations
from terrazzo.samplers.parts.ratios import offsets_of
from terrazzo.samplers.parts.tables import Table, normalised
from terrazzo.samplers.parts.tuning import Moments, moments_init, moments_update, windowed_tuning
from terrazzo.targets.target import Target


class Curvature(NamedTuple):
    """A factored quadratic model: matrix = root' root = W + shift * diag(metric), which is positive."""

    root: Float[Array, "dim dim"]
    matrix: Float[Array, "dim dim"]
    metric: Float[Array, " dim"]
    shift: Float[Array, ""]


def flat_curvature(num_dims: int) -> Curvature:
    """No curvature known: W = 0 and the unit metric, which is discrete Langevin."""
    nothing = jnp.zeros((num_dims, num_dims))
    return Curvature(nothing, nothing, jnp.ones(num_dims), as_float(0.0))


def curvature_of(matrix: Float[Array, "dim dim"]) -> Curvature:
    """Factors W, with the metric |W_ii| and the smallest shift that makes it positive."""
    matrix = 0.5 * (matrix + matrix.T)
    diagonal = jnp.abs(jnp.diag(matrix))
    metric = jnp.maximum(diagonal, 1e-3 * jnp.max(diagonal) + 1e-6)
    scale = jnp.sqrt(metric)
    values, vectors = jnp.linalg.eigh(matrix / scale / scale[:, None])
    shift = jnp.maximum(-values[0], 0.0)
    root = jnp.sqrt(jnp.maximum(values + shift, 0.0))[:, None] * vectors.T * scale
    return Curvature(root, jnp.matmul(root.T, root, precision="highest"), metric, shift)


def balance_of(scale: Float[Array, ""]) -> Float[Array, ""]:
    """The exponent b: 1/2 for small steps, 1 for large ones."""
    # (s - 2 + sqrt(s^2 + 4)) / (2 s), with the difference sqrt(s^2 + 4) - 2 rationalised
    return 0.5 + 0.5 * scale / (jnp.sqrt(scale**2 + 4.0) + 2.0)


def check(target: Target) -> None:
    """Raises unless all variables are ordered (or have two values) and the target has a gradient."""
    if (~target.space.is_ordered & (target.space.sizes > 2)).any():
        raise UnsupportedError(
            "target", "has unordered variables, which a quadratic model does not fit", "use discrete_langevin or gibbs"
        )
    if not target.has_gradient:
        raise UnsupportedError("target", "cannot be differentiated at real theta", "use gibbs or locally_balanced")


def tilt_from_there(
    tilt: Float[Array, " dim"], pull: Float[Array, " dim"], displacement: Float[Array, " dim"]
) -> tuple[Float[Array, " dim"], Float[Array, ""]]:
    """The tilt seen from the proposal, t - A'A e, and log N(n - A e) - log N(n); `pull` is A'A e."""
    return tilt - pull, jnp.sum(displacement * (tilt - 0.5 * pull))


def any_scale(target: Target, *, scale: Any = 1.0, curvature: Curvature | None = None) -> SamplingAlgorithm:
    """The any-scale balanced sampler.

    Args:
        target: A target with a gradient, on ordered (or two-valued) variables.
        scale: s (tuned in warm-up); large means global proposals.
        curvature: The factored quadratic model (learned in warm-up; default: none, and then no auxiliary variable).

    Returns:
        The sampler. One evaluation and one gradient a step, and two products with (d, d) matrices if there is a model.

    Reference: Sun, Dai, Sutton, Schuurmans & Dai (2023), Any-scale balanced samplers for discrete space.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.integers(0, 9, 3))
    >>> sampler = any_scale(target, scale=4.0)
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    check(target)
    init = gradient_start(target)
    offsets = offsets_of(target.space)
    size = as_float(scale)
    balance = balance_of(size)
    precision = jnp.full(target.space.num_dims, 1.0 / size)
    if curvature is not None:
        precision = (balance * curvature.shift + 1.0 / size) * curvature.metric
    # tamed as in discrete_langevin: the drift is held to two standard deviations of the step
    largest_slope = precision * jnp.maximum(1.0, 2.0 / jnp.sqrt(precision)) / balance

    def draw_tilt(key: randomness.Key) -> Float[Array, " dim"]:
        if curvature is None:
            return jnp.zeros_like(precision)
        noise = randomness.normal(key, precision.shape)
        return jnp.sqrt(balance) * jnp.matmul(noise, curvature.root, precision="highest")

    def log_table(state: GradientState, tilt: Float[Array, " dim"]) -> Table:
        change = offsets.distances(state.position).astype(tilt.dtype)
        slope = jnp.clip(state.gradient.slope, -largest_slope, largest_slope)
        log_weights = (balance * slope + tilt) * change - 0.5 * precision * change**2
        return normalised(jnp.where(offsets.is_allowed(state.position), log_weights, -jnp.inf))

    def step(rng_key: randomness.Key, state: GradientState) -> tuple[GradientState, Info]:
        noise_key, value_key, accept_key = randomness.split(rng_key, 3)
        tilt = draw_tilt(noise_key)
        forward = log_table(state, tilt)
        choice = forward.draw(value_key, offsets.num_choices)
        proposed = evaluate(target, offsets.apply(state.position, choice))
        log_noise = as_float(0.0)
        if curvature is not None:
            displacement = (proposed.position - state.position).astype(tilt.dtype)
            pull = balance * jnp.matmul(curvature.matrix, displacement, precision="highest")
            tilt, log_noise = tilt_from_there(tilt, pull, displacement)
        log_backward = log_table(proposed, tilt).log_prob(offsets.undone(choice))
        log_hastings = log_backward - forward.log_prob(choice) + log_noise
        return metropolis_hastings(accept_key, state, proposed, log_hastings, num_evaluations=num_evaluations(target))

    return SamplingAlgorithm(init, step)


def tuning(target: Target, **_: Any) -> Tuning:
    """Learns the curvature over doubling windows of the pooled chains, and tunes the scale to the acceptance."""
    d = target.space.num_dims

    def add(moments: tuple[Moments, Moments], theta: Array, slope: Array) -> tuple[Moments, Moments]:
        real = theta.astype(slope.dtype)
        return moments_update(moments[0], real, real), moments_update(moments[1], slope, real)

    def learn(moments: tuple[Moments, Moments], curvature: Curvature) -> Curvature:
        by_position, by_gradient = moments
        ridge = 1e-3 * jnp.diag(jnp.diag(by_position.products)) + 1e-6 * by_position.number * jnp.eye(d)
        matrix = jnp.linalg.solve(by_position.products + ridge, by_gradient.products.T).T
        is_good = jnp.all(jnp.isfinite(matrix))
        found = curvature_of(jnp.where(is_good, matrix, jnp.eye(d)))
        return jax.tree.map(lambda new, old: jnp.where(is_good, new, old), found, curvature)

    return windowed_tuning(
        "curvature", 0.574, first=flat_curvature(d), first_scale=0.0,
        no_moments=lambda: (moments_init(d, d), moments_init(d, d)), add=add, learn=learn,
        observe=lambda state, info: (state.position, state.gradient.slope),
        scale_after=lambda line: jnp.minimum(line, 0.0), bounds=(float(np.log(1e-6)), float(np.log(1e6))),
    )  # fmt: skip
