"""Discrete Langevin Monte Carlo: a Wasserstein gradient flow, run for a time tau in every coordinate (Sun et al. 2023).

With nu = softmax over all values of the log-ratios D (so that D = 0 at the current value) and rates g(exp D):

    interpolate:    q_i(k) = nu_k (1 - exp(-tau g(e^D_k) / nu_k)),    k != theta_i
    euler:          q_i(k) = min(tau g(e^D_k), nu_k)

and staying takes what is left. For tau -> infinity both tend to the (linearised) conditional itself. The time is set at
each configuration by the expected number of changes, tau = n / sum of all rates: far from the mass, where the rates are
huge, a fixed time would change everything at once and be rejected forever.
"""

from typing import Any

import jax
import jax.numpy as jnp

from terrazzo.errors import OptionError
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.balancing import balancing_function
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, as_float
from terrazzo.samplers.parts.informed import GradientState, factorised_step, gradient_start
from terrazzo.samplers.parts.ratios import offsets_of, taylor_log_ratios
from terrazzo.samplers.parts.tables import Table, log_sum, normalised
from terrazzo.samplers.parts.tuning import dual_averaging_tuning, for_any_target
from terrazzo.targets.target import Target

FORMS = ("interpolate", "euler")

# On ordered coordinates nu runs away with the slope (one value further on is better still), so that a step back has
# probability exp(-2 |D|), not exp(-|D|). Holding D to this keeps uphill moves acceptable far from the mass.
STEEPEST = 5.0


def dlmc(
    target: Target, *, num_changes: Any = 1.0, form: str = "interpolate", balancing: str = "sqrt", reach: int | None = 1
) -> SamplingAlgorithm:
    """Discrete Langevin Monte Carlo with MH correction.

    Args:
        target: A target with a gradient (and `one_hot_log_prob` for unordered variables).
        num_changes: n, the expected number of changes but for saturation; sets the time tau (tuned in warm-up).
        form: "interpolate" (exact flow of the linearised rates) or "euler" (DLMCf).
        balancing: "sqrt", "barker", "min" or "max".
        reach: The largest change of an ordered coordinate; None allows all values.

    Returns:
        The sampler. One evaluation and one gradient a step.

    Reference: Sun, Dai, Dai, Zhou & Schuurmans (2023), Discrete Langevin samplers via Wasserstein gradient flow.

    >>> import terrazzo as tz
    >>> sampler = dlmc(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    if form not in FORMS:
        raise OptionError("form", f"{form!r} is unknown", f"one of {', '.join(FORMS)}")
    init = gradient_start(target)
    log_g = balancing_function(balancing)
    offsets = offsets_of(target.space, reach)
    is_held = jnp.asarray(offsets.is_ordered & (offsets.sizes > 2))

    def log_table(state: GradientState) -> Table:
        is_allowed = offsets.is_allowed(state.position, reach)
        ratios = taylor_log_ratios(target, offsets, state.position, state.gradient)
        ratios = jnp.where(is_held, jnp.clip(ratios, -STEEPEST, STEEPEST), ratios)
        log_rates = log_g(ratios)
        nu = normalised(jnp.where(is_allowed, ratios, -jnp.inf))
        # the time, on the scale on which the flow saturates: tau g / nu
        log_tau = jnp.log(as_float(num_changes)) - jax.nn.logsumexp(jnp.where(is_allowed, log_rates, -jnp.inf))
        log_time = jnp.where(nu.moved > -jnp.inf, log_tau + log_rates - nu.moved, 0.0)
        if form == "interpolate":
            log_left = -jnp.exp(log_time)
            log_gone = jnp.where(log_time < -40.0, log_time, randomness.log1mexp(log_left))  # exp may underflow
        else:
            log_gone = jnp.minimum(log_time, 0.0)
            log_left = randomness.log1mexp(log_gone)
        # staying: nu of the current value, and what has not yet flowed to the others; no cancellation anywhere
        return Table(log_sum(nu.moved + log_left, nu.stay), nu.moved + log_gone)

    def step(rng_key: randomness.Key, state: GradientState) -> tuple[GradientState, Info]:
        return factorised_step(rng_key, target, state, offsets, log_table)

    return SamplingAlgorithm(init, step)


# to the optimal acceptance of Langevin methods
tuning = for_any_target(dual_averaging_tuning("num_changes", 1.0, 0.574, bounds=(0.05, 1e6)))
