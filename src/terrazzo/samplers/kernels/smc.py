"""Sequential Monte Carlo on discrete spaces: particles carried from the uniform law to pi, with log Z.

Particles start uniform on the possible configurations. The exponent beta rises from 0 to 1 in steps that keep the
effective sample size at a given share of the particles; at each step they are resampled and moved by any of our kernels
on pi^beta. The product of the mean incremental weights is an unbiased estimate of Z / Z_0 (Z_0, the number of possible
configurations), so independent runs give log Z with an honest standard error.

The loop is BlackJAX's adaptive tempered SMC. Its kernels are handed a log-density; ours need a target at a temperature.
Since that log-density is  log prior + beta * log likelihood,  we let both answer to `None` (0 and 1), and so read beta.

References: Schaefer & Chopin (2013), Sequential Monte Carlo on large binary sampling spaces, Statistics and Computing
23; Del Moral, Doucet, Jasra (2006).
"""

from collections.abc import Callable
from typing import Any

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.smc import resampling
from jaxtyping import Array

from terrazzo.diagnostics import importance_summary
from terrazzo.errors import StartError, arguments
from terrazzo.runtime.compilation import jit
from terrazzo.samplers.kernels.tempering import prepared_inner, resolve_kernel
from terrazzo.samplers.parts.base import Drawn, as_float
from terrazzo.targets.target import Target

MAX_STAGES = 1000


def _possible_particles(key: Array, target: Target, num_particles: int) -> tuple[Array, Array]:
    """Uniform particles on the support, and the log-number of possible configurations."""
    draw_key, fill_key = jax.random.split(key)
    theta = target.space.random(draw_key, (num_particles,))
    is_possible = jax.vmap(target.log_prob)(theta) > -jnp.inf
    logits = jnp.where(is_possible, 0.0, -jnp.inf)
    fill = jax.random.categorical(fill_key, jnp.where(is_possible.any(), logits, 0.0), shape=(num_particles,))
    share = jnp.mean(is_possible.astype(jnp.result_type(float)))
    log_states = as_float(np.log(target.space.sizes.astype(float)).sum())
    return jnp.where(is_possible[:, None], theta, theta[fill]), log_states + jnp.log(share)


@jit
def _run(
    key: Array, target: Target, num_particles: int, target_ess: float, num_moves: int, factory: Callable
) -> tuple[Array, ...]:
    start_key, loop_key, last_key, order_key = jax.random.split(key, 4)
    particles, log_z = _possible_particles(start_key, target, num_particles)
    dtype = log_z.dtype

    def log_likelihood(theta: Any) -> Array:
        return jnp.ones((), dtype) if theta is None else target.log_prob(theta)

    def log_prior(theta: Any) -> Array:
        return jnp.zeros((), dtype)

    def at_temperature(logdensity_fn: Callable) -> Any:
        return factory(target.tempered(logdensity_fn(None)))

    algorithm = blackjax.adaptive_tempered_smc(
        log_prior,
        log_likelihood,
        lambda rng_key, state, logdensity_fn: at_temperature(logdensity_fn).step(rng_key, state),
        lambda position, logdensity_fn: at_temperature(logdensity_fn).init(position, None),
        {},
        resampling.systematic,
        target_ess,
        num_mcmc_steps=num_moves,
    )
    state = algorithm.init(particles)
    state = state._replace(tempering_param=jnp.zeros((), dtype), weights=state.weights.astype(dtype))
    schedule = jnp.full(MAX_STAGES, jnp.nan, dtype)

    def is_rising(carry: tuple) -> Array:
        return (carry[1].tempering_param < 1) & (carry[0] < MAX_STAGES)

    def stage(carry: tuple) -> tuple:
        count, state, log_z, schedule = carry
        state, info = algorithm.step(jax.random.fold_in(loop_key, count), state)
        log_z = log_z + info.log_likelihood_increment.astype(dtype)
        state = state._replace(tempering_param=state.tempering_param.astype(dtype))
        return count + 1, state, log_z, schedule.at[count].set(state.tempering_param)

    start = (jnp.zeros((), jnp.int32), state, log_z, schedule)
    count, state, log_z, schedule = jax.lax.while_loop(is_rising, stage, start)
    state, _ = algorithm.step(last_key, state)  # beta is 1 now: resamples, moves, and adds no weight
    theta = jax.random.permutation(order_key, state.particles, axis=0)
    return theta, jax.vmap(target.log_prob)(theta), log_z, count, schedule


def smc(
    key: Array,
    target: Target,
    chains: int,
    draws: int,
    *,
    target_ess: float = 0.5,
    kernel: Any = None,
    kernel_options: Any = None,
    num_moves: int = 3,
) -> Drawn:
    """Adaptive tempered sequential Monte Carlo from the uniform law to pi.

    Draws are the particles at beta = 1, equally weighted, in random order. R-hat compares the runs; particles of a run
    share ancestors, so their effective sample size is an upper bound.

    Args:
        key: A JAX key.
        target: The target.
        chains: Independent runs; the standard error of log Z comes from their spread.
        draws: Particles a run.
        target_ess: The share of particles that the next temperature must keep effective.
        kernel: The sampler that moves the particles: `tz.samplers.gibbs(num_updates=4)`, a name, or a factory; by
            default a Gibbs sweep in the form that suits the target.
        kernel_options: Options of a kernel that is given by name.
        num_moves: Kernel steps a temperature.

    >>> import terrazzo as tz
    >>> log_prob = lambda s: -0.5 * s.sum()
    >>> result = tz.sample(log_prob, tz.binary(6), seed=0, sampler="smc", chains=4, draws=256, progress="off")
    >>> bool(abs(result.log_z - 6 * np.log1p(np.exp(-0.5))) < 0.2)
    True
    """
    draws = arguments.count("draws", draws, low=2)
    num_moves = arguments.count("num_moves", num_moves)
    target_ess = arguments.number("target_ess", target_ess, at_most=0.999, remedy="e.g. target_ess=0.5")
    arguments.memory(f"{chains} runs x {draws} particles", 16 * chains * draws * target.space.num_dims)
    factory = resolve_kernel(**prepared_inner(target, kernel, kernel_options))
    runs = [_run(k, target, draws, target_ess, num_moves, factory) for k in jax.random.split(key, chains)]
    theta, log_prob, log_z, count, schedule = (np.stack([np.asarray(run[i]) for run in runs]) for i in range(5))
    if (log_z == -np.inf).any():
        raise StartError(
            "log_prob",
            f"is -inf at all of {draws} uniform configurations",
            "ask for more draws, or take another sampler with init=...",
        )
    notes = {"log_z": log_z, "num_stages": count, "inverse_temperatures": schedule[:, : int(count.max())]}
    return Drawn(theta=theta, log_prob=log_prob, evidence=importance_summary(log_z), log_weights=None, notes=notes)
