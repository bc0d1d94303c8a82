"""Integer adaptive Metropolis: rounded, correlated Gaussian steps for ordered variables.

    y = x + round(s L e) + n,    e ~ N(0, I),    L L^T = covariance of the target, learned in warm-up

with a nudge n that is +1 or -1 at one coordinate, drawn uniformly, in half of the steps, and zero in the others.
Rounding half to even is odd (round(-a) = -round(a)), so the step is symmetric: a = min(1, pi(y) / pi(x)).
Outside the range the step is rejected, or wraps around; both keep the symmetry. Reflection does *not*: a reflected
coordinate changes the sign of its step alone, and a correlated Gaussian is not symmetric under that.
The nudge keeps the walk irreducible where the learned scale is below half an integer.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.samplers.kernels.gibbs import start
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.acceptance import metropolis_hastings
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State, Tuning, as_float
from terrazzo.samplers.parts.tuning import Moments, moments_init, moments_update, windowed_tuning
from terrazzo.targets.target import Target

BOUNDARIES = ("reject", "wrap")


def check(target: Target) -> None:
    """Raises unless all variables are ordered."""
    if not target.space.is_ordered.all():
        raise UnsupportedError(
            "target", "has unordered variables, on which a Gaussian step means nothing", "use metropolis or gibbs"
        )


def nudge(key: randomness.Key, num_dims: int) -> Int[Array, " dim"]:
    """Plus or minus one at one coordinate in half of all cases, else nothing."""
    outcome = randomness.uniform_index(key, 4 * num_dims)
    way = jnp.asarray([-1, 1, 0, 0], jnp.int32)[outcome % 4]
    return jnp.where(jnp.arange(num_dims, dtype=jnp.int32) == outcome // 4, way, 0)


def whole(change: Float[Array, " dim"]) -> Int[Array, " dim"]:
    """The step as integers: an odd function of the real step (clipped, far outside any range, to fit 32 bits)."""
    return jnp.clip(jnp.round(change), -(2.0**30), 2.0**30).astype(jnp.int32)


def bounded(
    moved: Int[Array, " dim"], sizes: Int[Array, " dim"], boundary: str
) -> tuple[Int[Array, " dim"], Bool[Array, ""]]:
    """The configuration inside the range that a step leads to, and whether there is one."""
    if boundary == "wrap":
        return moved % sizes, jnp.asarray(True)
    position = jnp.clip(moved, 0, sizes - 1)
    return position, jnp.all(position == moved)


def integer_metropolis(
    target: Target, *, scale: Any = 1.0, factor: Any = None, boundary: str = "reject"
) -> SamplingAlgorithm:
    """Metropolis with rounded Gaussian steps of learned covariance.

    Args:
        target: A target whose variables are all ordered.
        scale: s (tuned in warm-up to an acceptance of 0.234).
        factor: L, a (d, d) lower triangle (learned in warm-up; default the identity, without a product).
        boundary: "reject" or "wrap".

    Returns:
        The sampler. One evaluation a step.

    Reference: Haario, Saksman & Tamminen (2001), An adaptive Metropolis algorithm; here on integers.

    >>> import jax, terrazzo as tz
    >>> sampler = integer_metropolis(tz.Target(lambda theta: -0.5 * theta.sum(), tz.integers(0, 9, 3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    check(target)
    if boundary not in BOUNDARIES:
        raise OptionError("boundary", f"{boundary!r} is unknown", f"one of {', '.join(BOUNDARIES)}")
    num_dims, sizes = target.space.num_dims, jnp.asarray(target.space.sizes)
    lower = None if factor is None else jnp.asarray(factor, jnp.result_type(float))

    def step(rng_key: randomness.Key, state: State) -> tuple[State, Info]:
        noise_key, nudge_key, accept_key = randomness.split(rng_key, 3)
        noise = randomness.normal(noise_key, (num_dims,))
        change = whole(as_float(scale) * (noise if lower is None else lower @ noise)) + nudge(nudge_key, num_dims)
        position, is_inside = bounded(state.position + change, sizes, boundary)
        log_prob = jnp.where(is_inside, target.log_prob(position), -jnp.inf)
        position = jnp.where(is_inside, position, state.position)  # from an impossible state, even this is accepted
        proposed = State(position, jnp.where(is_inside, log_prob, -jnp.inf))
        return metropolis_hastings(accept_key, state, proposed, num_evaluations=1)

    return SamplingAlgorithm(start(target), step)


def tuning(target: Target, **_: Any) -> Tuning:
    """Learns the covariance over doubling windows of the pooled chains, and tunes the scale to 0.234 acceptance."""
    num_dims = target.space.num_dims

    def add(moments: Moments, theta: Int[Array, "chain dim"]) -> Moments:
        real = theta.astype(jnp.result_type(float))
        return moments_update(moments, real, real)

    def learn(moments: Moments, factor: Float[Array, "dim dim"]) -> Float[Array, "dim dim"]:
        covariance = moments.products / moments.number
        found = jnp.linalg.cholesky(covariance + jnp.diag(jnp.diag(covariance) * 1e-3 + 1e-3))
        return jnp.where(jnp.all(jnp.isfinite(found)), found, factor)

    return windowed_tuning(
        "factor", 0.234, first=jnp.eye(num_dims), first_scale=float(np.log(2.38 / np.sqrt(num_dims))),
        no_moments=lambda: moments_init(num_dims, num_dims), add=add, learn=learn,
        observe=lambda state, info: (state.position,),
    )  # fmt: skip
