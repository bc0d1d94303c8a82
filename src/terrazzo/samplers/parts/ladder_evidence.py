"""log Z from all temperatures of a ladder.

With draws of all rungs, each ratio Z_{r+1} / Z_r of neighbours follows from Bennett's acceptance ratio: the root D of

    sum_{draws of r} sigmoid(l - D) = sum_{draws of r+1} sigmoid(D - l),    l = (beta_{r+1} - beta_r) log (pi / q0),

the combination of both stepping stones that has the least variance. log Z = log Z_0 + sum_r D_r, where Z_0, at
beta = 0, is what q0 gives to the possible configurations. Without a q0 it is their number.

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
from terrazzo.targets.pair_models import PairReference
from terrazzo.targets.target import Target

FIRST_SUPPORT_DRAWS, NUM_SUPPORT_DRAWS = 2**13, 2**16
SUPPORT_BATCH = 256


def stepping_stones(log_probs: Any, inverse_temperatures: Any, log_z0: float) -> LogZ:
    """Log Z at beta = 1 from log pi - log q0 of all replicas.

    Args:
        log_probs: Untempered log pi - log q0, shape (chain, draw, replica), hottest first.
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
def _num_possible(key: Array, target: Target, base: PairReference | None, num_batches: Array) -> Array:
    """How many draws of so many batches are possible, uniform ones or of a product: a wide batch would not fit."""
    is_value = np.arange(target.space.max_size) < target.space.sizes[:, None]

    def draw(key: Array) -> Array:
        if base is None:
            return target.space.random(key, (SUPPORT_BATCH,))
        logits = jnp.where(is_value, base.terms.fields, -jnp.inf)
        return jax.random.categorical(key, logits, shape=(SUPPORT_BATCH, len(is_value))).astype(jnp.int32)

    def counted(i: Array, count: Array) -> Array:
        theta = draw(jax.random.fold_in(key, i))
        return count + jnp.sum(jax.vmap(target.log_prob)(theta) > -jnp.inf, dtype=jnp.int32)

    return jax.lax.fori_loop(0, num_batches, counted, jnp.zeros((), jnp.int32))


def _share_possible(key: Array, target: Target, base: PairReference | None, num_draws: int) -> float:
    count = _num_possible(key, target, base, jnp.asarray(num_draws // SUPPORT_BATCH, jnp.int32))
    return int(count) / num_draws


def evidence_ahead(target: Target) -> Iterator[Array]:
    """Compiles the count of possible configurations, without a draw."""
    yield _num_possible(jax.random.key(0), target, None, jnp.zeros((), jnp.int32))


def log_possible(key: Array, target: Target, base: PairReference | None = None) -> tuple[float, float]:
    """The log-number of possible configurations, or the log of what a base gives to them, and its standard error.

    If a first, short look finds nothing impossible, all are taken to be possible, with no error; else a long one
    counts. In a pair model nothing is impossible.
    """
    log_states = float(np.log(target.space.sizes.astype(float)).sum()) if base is None else 0.0
    if (base is not None and base.has_edges) or _share_possible(key, target, base, FIRST_SUPPORT_DRAWS) == 1:
        return log_states, 0.0
    share = _share_possible(key, target, base, NUM_SUPPORT_DRAWS)
    if share == 0:
        return float("nan"), float("nan")
    return log_states + float(np.log(share)), float(np.sqrt((1 - share) / (share * NUM_SUPPORT_DRAWS)))


def ladder_evidence(
    key: Array, target: Target, log_probs: np.ndarray, betas: np.ndarray, base: PairReference | None = None
) -> LogZ | None:
    """Log Z from all replicas, (chain, draw, replica); None unless the ladder begins at beta = 0; none if softened.

    Args:
        key: A JAX key.
        target: The target.
        log_probs: log pi - log q0.
        betas: The ladder; a second leg falls from 1 to 0 again.
        base: q0; None for the uniform law. Of two legs, the second one starts from it; the better estimate is taken.
    """
    if float(betas[0]) != 0 or target.soft_level is not None:
        return None
    count = int(np.argmax(betas)) + 1
    if count < len(betas):
        first = ladder_evidence(key, target, log_probs[..., :count], betas[:count])
        second = ladder_evidence(key, target, log_probs[..., count:][..., ::-1], betas[count:][::-1], base)
        legs = [leg for leg in (first, second) if leg is not None]
        return min(legs, key=lambda leg: np.nan_to_num(leg.standard_error, nan=np.inf), default=None)
    log_z0, error = log_possible(key, target, base)
    evidence = stepping_stones(log_probs, betas, log_z0)
    return evidence._replace(standard_error=float(np.hypot(evidence.standard_error, error)))
