"""Runs of parallel tempering that keep every temperature, and log Z from them.

With draws of all rungs, each ratio Z_{r+1} / Z_r of neighbours follows from Bennett's acceptance ratio: the root D of

    sum_{draws of r} sigmoid(l - D) = sum_{draws of r+1} sigmoid(D - l),    l = (beta_{r+1} - beta_r) log pi,

the combination of both stepping stones that has the least variance. log Z = log Z_0 + sum_r D_r, where Z_0, at
beta = 0, is the number of possible configurations.

Reference: Bennett (1976), Efficient estimation of free energy differences from Monte Carlo data.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo import arguments
from terrazzo.compilation import jit
from terrazzo.diagnostics import LogZ, bennett
from terrazzo.errors import OptionError, TargetError
from terrazzo.samplers.tempering import checked_ladder, default_ladder, parallel_tempering, prepare, tuning
from terrazzo.targets import Target

FIRST_SUPPORT_DRAWS, NUM_SUPPORT_DRAWS = 2**13, 2**16
SUPPORT_BATCH = 256


class TemperedRun(NamedTuple):
    """All temperatures of a run.

    Attributes:
        theta: Cold draws, shape (chain, draw, d).
        log_probs: log pi of every replica, shape (chain, draw, replica), hottest first.
        tempered_theta: Draws of every replica, shape (chain, draw, replica, d), or None.
        inverse_temperatures: The adapted ladder.
        swap_rates: The mean swap probability of each pair.
        evidence: log Z, if the ladder begins at 0.
    """

    theta: np.ndarray
    log_probs: np.ndarray
    tempered_theta: np.ndarray | None
    inverse_temperatures: np.ndarray
    swap_rates: np.ndarray
    evidence: LogZ | None


def stepping_stones(log_probs: Any, inverse_temperatures: Any, log_z0: float) -> LogZ:
    """Log Z at beta = 1 from log pi of all replicas.

    Args:
        log_probs: Untempered log pi, shape (chain, draw, replica), hottest first.
        inverse_temperatures: The ladder; log Z is relative to its first rung.
        log_z0: log Z of the first rung: at beta = 0 the log-number of possible configurations.

    Returns:
        The pooled estimate. Its standard error is that of the per-chain estimates, NaN for one chain.
    """
    v, betas = np.asarray(log_probs, float), np.asarray(inverse_temperatures, float)
    if v.ndim != 3 or v.shape[2] != len(betas):
        raise OptionError("log_probs", f"has shape {v.shape}", f"must be (chain, draw, {len(betas)})")

    def total(part: np.ndarray) -> float:
        gaps = np.diff(betas)
        return sum(bennett(gaps[r] * part[..., r], gaps[r] * part[..., r + 1]) for r in range(len(gaps)))

    per_chain = np.array([total(chain) for chain in v])
    error = float(per_chain.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else float("nan")
    return LogZ(log_z0 + total(v), error, float("nan"), float("nan"))


@jit
def _share_possible(key: Array, target: Target, num_draws: int) -> Array:
    theta = target.space.random(key, (num_draws,))
    log_prob = jax.lax.map(target.log_prob, theta, batch_size=SUPPORT_BATCH)  # a wide batch would not fit everywhere
    return jnp.mean(jnp.where(log_prob > -jnp.inf, 1.0, 0.0))


def log_num_possible(key: Array, target: Target) -> tuple[float, float]:
    """The log-number of possible configurations and its standard error, from uniform draws.

    If a first, short look finds nothing impossible, all are taken to be possible, with no error; else a long one
    counts.
    """
    log_states = float(np.log(target.space.sizes.astype(float)).sum())
    if float(_share_possible(key, target, FIRST_SUPPORT_DRAWS)) == 1:
        return log_states, 0.0
    share = float(_share_possible(key, target, NUM_SUPPORT_DRAWS))
    if share == 0:
        return float("nan"), float("nan")
    return log_states + float(np.log(share)), float(np.sqrt((1 - share) / (share * NUM_SUPPORT_DRAWS)))


def ladder_evidence(key: Array, target: Target, log_probs: np.ndarray, betas: np.ndarray) -> LogZ | None:
    """Log Z from all replicas, (chain, draw, replica); None unless the ladder begins at beta = 0; none if softened."""
    if float(betas[0]) != 0 or target.soft_level is not None:
        return None
    log_z0, error = log_num_possible(key, target)
    evidence = stepping_stones(log_probs, betas, log_z0)
    return evidence._replace(standard_error=float(np.hypot(evidence.standard_error, error)))


@jit
def _warm_up(key: Array, target: Target, theta: Array, ladder: Array, num_steps: int, make: Callable) -> tuple:
    tune = tuning(target, inverse_temperatures=ladder)
    first = make(target, **tune.parameters(tune.init()))
    states = jax.vmap(first.init)(theta, jax.random.split(key, len(theta)))

    def body(carry: tuple, step_key: Array) -> tuple:
        states, tuning_state = carry
        sampler = make(target, **tune.parameters(tuning_state))
        states, infos = jax.vmap(sampler.step)(jax.random.split(step_key, len(theta)), states)
        return (states, tune.update(tuning_state, jax.vmap(tune.observe)(states, infos))), None

    keys = jax.random.split(jax.random.fold_in(key, 1), num_steps)
    (states, tuning_state), _ = jax.lax.scan(body, (states, tune.init()), keys)
    return states, tune.final(tuning_state)["inverse_temperatures"]


@jit
def _draw(
    key: Array, target: Target, states: Any, betas: Array, num_draws: int, thinning: int, make: Callable, keep: bool
) -> tuple[Any, ...]:
    sampler = make(target, inverse_temperatures=betas)
    num_chains = states.position.shape[0]

    def once(states: Any, step_key: Array) -> tuple:
        states, infos = jax.vmap(sampler.step)(jax.random.split(step_key, num_chains), states)
        return states, infos.swap_rates.mean(axis=0)

    def body(states: Any, step_key: Array) -> tuple:
        rates: Array
        states, rates = jax.lax.scan(once, states, jax.random.split(step_key, thinning))
        tempered = states.positions if keep else None
        return states, (states.position, states.log_probs, tempered, rates.mean(axis=0))

    out: tuple[Any, ...]
    _, out = jax.lax.scan(body, states, jax.random.split(key, num_draws))
    return out


def run_tempering(
    key: Array,
    target: Target,
    *,
    num_chains: int = 8,
    num_warmup: int = 500,
    num_draws: int = 1000,
    thinning: int = 1,
    num_temperatures: int = 16,
    inverse_temperatures: Any = None,
    keep_tempered: bool = False,
    **options: Any,
) -> TemperedRun:
    """Adapts a ladder, freezes it, and draws, keeping what all temperatures say.

    Args:
        key: A JAX key.
        target: The target.
        num_chains: Independent ladders.
        num_warmup: Rounds of adaptation.
        num_draws: Kept draws a chain.
        thinning: Rounds between kept draws.
        num_temperatures: The length of the ladder.
        inverse_temperatures: The ladder before adaptation, rising strictly to 1; from 0 to 1 if None.
        keep_tempered: Whether to keep the configurations of all temperatures.
        **options: `kernel`, `kernel_options`, `num_moves` of `parallel_tempering`.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> run = run_tempering(jax.random.key(0), target, num_warmup=5, num_draws=10, num_temperatures=3)
    >>> run.theta.shape
    (8, 10, 3)
    """
    arguments.random_key(key)
    arguments.instance("target", target, Target, "e.g. tz.Target(log_prob, tz.binary(20))", TargetError)
    num_chains, num_draws = arguments.count("num_chains", num_chains), arguments.count("num_draws", num_draws)
    num_warmup = arguments.count("num_warmup", num_warmup, low=0)
    thinning = arguments.count("thinning", thinning)
    num_temperatures = arguments.count("num_temperatures", num_temperatures)
    keep_tempered = arguments.flag("keep_tempered", keep_tempered)
    first = default_ladder(num_temperatures) if inverse_temperatures is None else checked_ladder(inverse_temperatures)
    unknown = sorted(set(options) - {"kernel", "kernel_options", "num_moves"})
    if unknown:
        raise OptionError(unknown[0], "is not an option", "those are kernel, kernel_options and num_moves")
    arguments.count("num_moves", options.get("num_moves", 1))
    d, replicas = target.space.num_dims, len(first)
    kept = num_chains * num_draws * (d + replicas + (replicas * d if keep_tempered else 0))
    arguments.memory(f"{num_chains} chains x {num_draws} draws", 8.0 * kept, "ask for fewer")
    make = eqx.Partial(parallel_tempering, num_temperatures=len(first), **prepare(target, **options))
    start_key, warmup_key, draw_key, support_key = jax.random.split(key, 4)
    theta = target.possible_starts(start_key, num_chains)
    ladder = jnp.asarray(first, jnp.result_type(float))
    states, betas = _warm_up(warmup_key, target, theta, ladder, num_warmup, make)
    out = _draw(draw_key, target, states, betas, num_draws, thinning, make, keep_tempered)
    cold, log_probs = (np.moveaxis(np.asarray(x), 0, 1) for x in out[:2])
    tempered = np.moveaxis(np.asarray(out[2]), 0, 1).astype(np.int64) if keep_tempered else None
    evidence = ladder_evidence(support_key, target, log_probs, np.asarray(betas))
    return TemperedRun(
        cold.astype(np.int64),
        log_probs,
        tempered,
        np.asarray(betas),
        np.asarray(out[3]).mean(axis=0),
        evidence,
    )
