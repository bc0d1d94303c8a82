"""Discrete Langevin (DMALA): all coordinates move at once along the gradient, then MH (Zhang et al. 2022).

    q_i(k) ~ exp( log g(D_ik) - c_ik / (2 alpha) ),    D_ik = first-order log-ratio of theta_i -> k,

with c = (k - theta_i)^2 for ordered coordinates (the discretised Gaussian of a Langevin step) and c = 1 for any change
of an unordered one (the one-hot form). alpha is the step size.

Far from the mass the gradient is huge, and a step tuned for the mass would move everything at once, overshoot, and be
rejected forever. So the proposal is *tamed*: the drift alpha G / 2 is held to one standard deviation of the step, and
the summed weight of all changes to twice what it is without a gradient (but at least three changes). Both are functions
of the current configuration alone, which is all that MH asks for, and neither binds in the mass.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from terrazzo.errors import OptionError
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.balancing import balancing_function
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, as_float
from terrazzo.samplers.parts.informed import GradientState, factorised_step, gradient_start
from terrazzo.samplers.parts.ratios import offsets_of, taylor_log_ratios
from terrazzo.samplers.parts.tables import Table, normalised
from terrazzo.samplers.parts.tuning import dual_averaging_tuning, for_any_target
from terrazzo.targets.target import Target

FORMS = ("ordinal", "one_hot")


def largest_slope(step_size: Float[Array, ""]) -> Float[Array, ""]:
    """The slope whose drift, alpha G / 2, is one standard deviation of the step, and at least one unit."""
    return 2.0 * jnp.maximum(1.0, jnp.sqrt(step_size)) / step_size


def discrete_langevin(
    target: Target, *, step_size: Any = 0.2, form: str = "ordinal", balancing: str = "sqrt"
) -> SamplingAlgorithm:
    """The Metropolis-adjusted discrete Langevin sampler.

    Args:
        target: A target with a gradient (and `one_hot_log_prob` for unordered variables).
        step_size: alpha (tuned in warm-up, from the first proposals on: gradients at random starts are huge).
        form: "ordinal" (ordered coordinates take short steps) or "one_hot" (all changes of value cost the same).
        balancing: "sqrt" (the original), "barker", "min" or "max".

    Returns:
        The sampler. One evaluation and one gradient a step.

    Reference: Zhang, Liu & Liu (2022), A Langevin-like sampler for discrete distributions.

    >>> import terrazzo as tz
    >>> sampler = discrete_langevin(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> int(info.num_evaluations)
    2
    """
    if form not in FORMS:
        raise OptionError("form", f"{form!r} is unknown", f"one of {', '.join(FORMS)}")
    init = gradient_start(target)
    log_g = balancing_function(balancing)
    offsets = offsets_of(target.space)

    def log_table(state: GradientState) -> Table:
        exists = offsets.is_allowed(state.position)
        ratios = taylor_log_ratios(target, offsets, state.position, state.gradient)
        distance = jnp.abs(offsets.distances(state.position)).astype(ratios.dtype)
        distance = jnp.where(jnp.asarray(offsets.is_ordered & (form == "ordinal")), distance, 1.0)
        limit = largest_slope(as_float(step_size)) * distance
        log_free = jnp.where(exists, -(distance**2) / (2.0 * as_float(step_size)), -jnp.inf)
        log_weights = log_g(jnp.clip(ratios, -limit, limit)) + log_free
        log_most = jnp.maximum(np.log(3.0), np.log(2.0) + jax.nn.logsumexp(log_free))
        log_weights = log_weights - jnp.maximum(jax.nn.logsumexp(log_weights) - log_most, 0.0)
        return normalised(log_weights)

    def step(rng_key: randomness.Key, state: GradientState) -> tuple[GradientState, Info]:
        return factorised_step(rng_key, target, state, offsets, log_table)

    return SamplingAlgorithm(init, step)


# to the optimal acceptance of Langevin methods
tuning = for_any_target(dual_averaging_tuning("step_size", 0.2, 0.574, bounds=(1e-6, 1e6)))
