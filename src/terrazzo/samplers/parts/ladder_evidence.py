"""log Z from all temperatures of a ladder.

With draws of all rungs, each ratio Z_{r+1} / Z_r of neighbours follows from Bennett's acceptance ratio: the root D of

    sum_{draws of r} sigmoid(l - D) = sum_{draws of r+1} sigmoid(D - l),    l = (beta_{r+1} - beta_r) log pi,

the combination of both stepping stones that has the least variance. log Z = log Z_0 + sum_r D_r, where Z_0, at
beta = 0, is the number of possible configurations.

Reference: Bennett (1976), Efficient estimation of free energy differences from Monte Carlo data.
"""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.diagnostics import LogZ, bennett
from terrazzo.diagnostics.bridge import newton_steps
from terrazzo.errors import OptionError
from terrazzo.runtime.compilation import jit
from terrazzo.targets.target import Target

FIRST_SUPPORT_DRAWS, NUM_SUPPORT_DRAWS = 2**13, 2**16
SUPPORT_BATCH = 256


def stepping_stones(log_probs: Any, inverse_temperatures: Any, log_z0: float) -> LogZ:
    """Log Z at beta = 1 from log pi of all replicas.

    Args:
        log_probs: Untempered log pi, shape (chain, draw, replica), hottest first.
        inverse_temperatures: The ladder; log Z is relative to its first rung.
        log_z0: log Z of the first rung: at beta = 0 the log-number of possible configurations.

    Returns:
        The pooled estimate. Its standard error is that of one Newton step of each chain from the pooled root, added
        up over the ladder; NaN for one chain.
    """
    v, betas = np.asarray(log_probs, float), np.asarray(inverse_temperatures, float)
    if v.ndim != 3 or v.shape[2] != len(betas):
        raise OptionError("log_probs", f"has shape {v.shape}", f"must be (chain, draw, {len(betas)})")

    log_z, steps = log_z0, np.zeros(len(v))
    for r, gap in enumerate(np.diff(betas)):
        forward, backward = gap * v[..., r], gap * v[..., r + 1]
        ratio = bennett(forward, backward)
        log_z, steps = log_z + ratio, steps + newton_steps(forward, backward, ratio)
    error = float(steps.std(ddof=1) / np.sqrt(len(v))) if len(v) > 1 else float("nan")
    return LogZ(log_z, error, float("nan"), float("nan"))


@jit
def _num_possible(key: Array, target: Target, num_batches: Array) -> Array:
    """How many of the uniform draws of so many batches are possible: a wide batch would not fit everywhere."""

    def counted(i: Array, count: Array) -> Array:
        theta = target.space.random(jax.random.fold_in(key, i), (SUPPORT_BATCH,))
        return count + jnp.sum(jax.vmap(target.log_prob)(theta) > -jnp.inf, dtype=jnp.int32)

    return jax.lax.fori_loop(0, num_batches, counted, jnp.zeros((), jnp.int32))


def _share_possible(key: Array, target: Target, num_draws: int) -> float:
    count = _num_possible(key, target, jnp.asarray(num_draws // SUPPORT_BATCH, jnp.int32))
    return int(count) / num_draws


def evidence_ahead(target: Target) -> Iterator[Array]:
    """Compiles the count of possible configurations, without a draw."""
    yield _num_possible(jax.random.key(0), target, jnp.zeros((), jnp.int32))


def log_num_possible(key: Array, target: Target) -> tuple[float, float]:
    """The log-number of possible configurations and its standard error, from uniform draws.

    If a first, short look finds nothing impossible, all are taken to be possible, with no error; else a long one
    counts.
    """
    log_states = float(np.log(target.space.sizes.astype(float)).sum())
    if _share_possible(key, target, FIRST_SUPPORT_DRAWS) == 1:
        return log_states, 0.0
    share = _share_possible(key, target, NUM_SUPPORT_DRAWS)
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
