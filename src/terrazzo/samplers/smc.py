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
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from blackjax.smc import resampling
from jaxtyping import Array

from terrazzo import arguments
from terrazzo.compilation import jit
from terrazzo.diagnostics import LogZ, importance_summary
from terrazzo.errors import StartError, TargetError
from terrazzo.results import Result
from terrazzo.samplers.base import as_float
from terrazzo.samplers.tempering import DEFAULT_KERNEL, prepare, resolve_kernel
from terrazzo.spaces import Space
from terrazzo.targets import Target

MAX_STAGES = 1000


class SMCResult(NamedTuple):
    """Particles of independent runs.

    Attributes:
        space: The target's space.
        theta: Equally weighted particles at beta = 1, shape (run, particle, d), in random order.
        log_prob: Their log pi, shape (run, particle).
        evidence: log Z over all runs; its `ess` is that of the runs' estimates of Z.
        log_z: The estimate of each run.
        num_stages: Temperatures used by each run.
        inverse_temperatures: Each run's schedule, shape (run, stage), NaN beyond its end.
    """

    space: Space
    theta: np.ndarray
    log_prob: np.ndarray
    evidence: LogZ
    log_z: np.ndarray
    num_stages: np.ndarray
    inverse_temperatures: np.ndarray

    def to_result(self) -> Result:
        """The particles as a `Result`: one chain a run, one draw a particle.

        R-hat compares the runs. Particles of a run share ancestors, so the effective sample size is an upper bound.
        """
        return Result(
            space=self.space,
            theta=self.theta,
            sample_stats={"log_prob": self.log_prob},
            evidence=self.evidence,
            provenance={"sampler": "smc", "num_stages": self.num_stages, "log_z": self.log_z},
        )


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
    *,
    num_particles: int = 1024,
    num_runs: int = 4,
    target_ess: float = 0.5,
    kernel: Any = DEFAULT_KERNEL,
    kernel_options: Any = None,
    num_moves: int = 3,
) -> SMCResult:
    """Adaptive tempered sequential Monte Carlo from the uniform law to pi.

    Args:
        key: A JAX key.
        target: The target.
        num_particles: Particles a run.
        num_runs: Independent runs; the standard error of log Z comes from their spread.
        target_ess: The share of particles that the next temperature must keep effective.
        kernel: The kernel that moves the particles, by name or as a factory.
        kernel_options: Its options.
        num_moves: Kernel steps a temperature.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda s: -0.5 * s.sum(), tz.binary(6))
    >>> out = smc(jax.random.key(0), target, num_particles=256, num_runs=2)
    >>> bool(abs(out.evidence.log_z - 6 * np.log1p(np.exp(-0.5))) < 0.2)
    True
    """
    arguments.random_key(key)
    arguments.instance("target", target, Target, "e.g. tz.Target(log_prob, tz.binary(20))", TargetError)
    num_particles = arguments.count("num_particles", num_particles, low=2)
    num_runs, num_moves = arguments.count("num_runs", num_runs), arguments.count("num_moves", num_moves)
    target_ess = arguments.number("target_ess", target_ess, at_most=0.999, remedy="e.g. target_ess=0.5")
    arguments.memory(
        f"{num_runs} runs x {num_particles} particles", 16 * num_runs * num_particles * target.space.num_dims
    )
    prepared = prepare(target, kernel=kernel, kernel_options=kernel_options)
    factory = resolve_kernel(**prepared)
    runs = [_run(k, target, num_particles, target_ess, num_moves, factory) for k in jax.random.split(key, num_runs)]
    theta, log_prob, log_z, count, schedule = (np.stack([np.asarray(run[i]) for run in runs]) for i in range(5))
    if (log_z == -np.inf).any():
        raise StartError(
            "log_prob",
            f"is -inf at all of {num_particles} uniform configurations",
            "raise num_particles, or draw by tz.sample(..., init=...)",
        )
    stages = int(count.max())
    evidence = importance_summary(log_z)
    theta = theta.astype(np.int64)
    return SMCResult(target.space, theta, log_prob, evidence, log_z, count, schedule[:, :stages])
