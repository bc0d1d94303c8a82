"""Collapsed: NUTS on the reals with all discrete variables summed out, and theta drawn exactly given them.

    y' ~ K_real(. | y; sum_theta pi(theta, x) |dx / dy|),    theta' ~ pi(. | y')

Where the terms of log pi tie few discrete sites together, the sum is taken site by site at every y
(`targets.structure.summation`); it is differentiable. The gradient kernel then sees one smooth density instead of one
for each theta, and theta needs no mixing of its own: what Stan's users do by hand.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from terrazzo.errors import UnsupportedError
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, Tuning
from terrazzo.samplers.parts.real_moves import (
    MAX_DOUBLINGS,
    MixedState,
    check_mixed,
    chosen_kernel,
    move_reals,
    real_tuning,
    summed_info,
)
from terrazzo.spaces import Configuration
from terrazzo.targets.reading import adds_up, structure_of
from terrazzo.targets.structure import Summation
from terrazzo.targets.target import Target

# Gibbs sweeps that a sum of the default may cost, by the entries of its tables. With 8 indicators of a regression, all
# tied together (32 sweeps), the collapsed kernel made 38 effective draws a second and the blocked one 2,600; labels and
# change points cost 1 sweep, hidden Markov chains of two states 3.5, and there the collapsed kernel is ahead.
MAX_SWEEPS = 16


def find_summation(target: Target) -> Summation | None:
    """How to sum out the discrete variables at every y; None where that is too large, or the terms are not log pi."""
    structure = structure_of(target) if target.space.num_reals and target.space.num_dims else None
    found = None if structure is None else structure.summation
    if found is None or not adds_up(target, found.terms, found):
        return None
    return found


def affordable_summation(target: Target) -> Summation | None:
    """The same, where a sum costs no more than a few Gibbs sweeps."""
    found = find_summation(target)
    is_cheap = found is not None and found.num_entries <= MAX_SWEEPS * int(target.space.sizes.sum())
    return found if is_cheap else None


def check(target: Target) -> None:
    """Raises where the discrete variables cannot be summed out."""
    check_mixed(target)
    if not target.space.num_dims:
        raise UnsupportedError("sampler", "'collapsed' needs discrete variables", "sampler='blocked' is NUTS alone")
    if find_summation(target) is None:
        raise UnsupportedError(
            "sampler", "'collapsed' cannot sum out the discrete variables: too many are tied together",
            "sampler='blocked'; tz.explain(log_prob, space) says what ties them together",
        )  # fmt: skip


def prepare(target: Target, *, summation: Any = None, real: Any = "auto", **others: Any) -> dict[str, Any]:
    """Plans the sum on the host."""
    found = find_summation(target) if summation is None else summation
    return {**others, "summation": found, "real": chosen_kernel(target, real)}


def collapsed(
    target: Target,
    *,
    real: Any = "auto",
    scale: Any = 0.1,
    inverse_mass_matrix: Any = None,
    max_doublings: int = MAX_DOUBLINGS,
    summation: Summation | None = None,
) -> SamplingAlgorithm:
    """A gradient kernel on the reals with the discrete variables summed out; then theta is drawn given the reals.

    Args:
        target: A target with real and discrete variables.
        real: "nuts", "hmc", "mala" or "random_walk"; "auto" is NUTS.
        scale: The step size; tuned in warm-up.
        inverse_mass_matrix: The variances of the unconstrained reals; tuned in warm-up.
        max_doublings: The longest trajectory of NUTS, in doublings.
        summation: How to sum, as `prepare` finds it.

    Returns:
        The sampler. An evaluation here is one of the sum.

    >>> import terrazzo as tz
    >>> space = tz.Space(k=tz.binary(), x=tz.real())
    >>> target = tz.Target(lambda v: -0.5 * (v["x"] - 2.0 * v["k"]) ** 2, space)
    >>> sampler = collapsed(target)
    >>> state = sampler.init(Configuration(jnp.zeros(1, jnp.int32), jnp.zeros(1)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), state)
    >>> state.position.shape, state.reals.shape
    ((1,), (1,))
    """
    plan = find_summation(target) if summation is None else summation
    if plan is None:
        check(target)
    assert plan is not None
    kernel = chosen_kernel(target, real)

    def log_marginal(y: Array) -> Array:
        value = plan(y) + target.space.log_jacobian(y)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    def init(position: Configuration, rng_key: Any = None) -> MixedState:
        y = jnp.asarray(position.reals, jnp.result_type(float))
        return MixedState(position.theta, y, target.log_prob_of(position.theta, y), jnp.asarray(False))

    def step(rng_key: Array, state: MixedState) -> tuple[MixedState, Info]:
        real_key, theta_key = jax.random.split(rng_key)
        moved = move_reals(
            real_key, log_marginal, state.reals, kernel=kernel, scale=scale, inverse_mass_matrix=inverse_mass_matrix,
            max_doublings=max_doublings,
        )  # fmt: skip
        theta = plan.backward(theta_key, plan.forward(moved.reals)[1])
        new = MixedState(theta, moved.reals, target.log_prob_of(theta, moved.reals), moved.is_divergent)
        is_accepted = jnp.any(theta != state.position) | jnp.any(moved.reals != state.reals)
        return new, summed_info(moved, is_accepted, moved.num_evaluations + 2)

    return SamplingAlgorithm(init, step)


def tuning(target: Target, *, real: Any = "auto", **_: Any) -> Tuning:
    """Finds the step size and the variances of the reals in warm-up."""
    return real_tuning(chosen_kernel(target, real), target.space.num_reals)
