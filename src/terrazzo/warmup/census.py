"""The census: where a space is small enough, every configuration is evaluated, and nothing is left to chance.

log Z is a sum and draws are independent, by inversion of the cumulative probabilities in double precision. A needle
that no chain would ever find is found here. Spaces of up to 2^24 configurations are counted where a first batch
foretells that it takes seconds; where it does not, the other phases go on as if nothing had been asked.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.compilation import jit
from terrazzo.errors import StartError
from terrazzo.progress import Progress
from terrazzo.targets import Target, non_finite_error
from terrazzo.warmup.budget import Budget

MAX_STATES = 2**24  # their log-probabilities take 128 MiB
MAX_SECONDS, MAX_SHARE = 20.0, 0.3  # that a census may take: in all, and of the seconds of a whole run
BATCH, BLACK_BOX_BATCH = 2**16, 64


class Census(NamedTuple):
    """All of a space.

    Attributes:
        log_prob: log pi of every configuration, in the order of `Space.enumerate`.
        log_z: Their log-sum.
    """

    log_prob: np.ndarray
    log_z: float

    def draw(self, seed: int, num_chains: int, num_draws: int) -> np.ndarray:
        """Numbers of independent draws, (chain, draw): the first draws of a chain do not depend on how many follow."""
        cumulative = np.cumsum(np.exp(self.log_prob - self.log_prob.max()))
        levels = np.stack([np.random.default_rng([seed, c]).random(num_draws) for c in range(num_chains)])
        # The first place whose running sum exceeds the level: never one of probability zero.
        found = np.searchsorted(cumulative, levels * cumulative[-1], side="right")
        last = np.flatnonzero(np.isfinite(self.log_prob))[-1]
        return np.minimum(found, last)


@jit
def _evaluated(target: Target, first: Array, count: int) -> Array:
    numbers = first + jnp.arange(count, dtype=jnp.int32)
    return jax.vmap(lambda n: target.log_prob(configuration(target, n)))(numbers)


def configuration(target: Target, number: Array) -> Array:
    """The configuration with this number: the last coordinate counts fastest."""
    sizes = target.space.sizes
    strides = np.concatenate([np.cumprod(sizes[::-1].astype(np.int64))[::-1][1:], [1]]).astype(np.int32)
    return (number // jnp.asarray(strides)) % jnp.asarray(sizes, jnp.int32)


def take_census(target: Target, *, budget: Budget, progress: Progress) -> Census | None:
    """Evaluates every configuration; None where the space is too large, or it would take too long.

    Raises:
        StartError: If no configuration is possible.
    """
    number = target.space.num_states
    if number > MAX_STATES or number > budget.total_left:
        return None
    limit = MAX_SECONDS if budget.seconds is None else min(MAX_SECONDS, MAX_SHARE * budget.seconds)
    batch = min(number, BLACK_BOX_BATCH if target.is_blackbox else BATCH)
    progress.phase("enumerating", number, "configurations")
    values = np.empty(number)
    done, seconds = 0, 0.0
    while done < number:
        tick = time.perf_counter()
        first = min(done, number - batch)  # the last batch overlaps: one compiled size
        values[first : first + batch] = np.asarray(_evaluated(target, jnp.asarray(first, jnp.int32), batch), float)
        done = first + batch
        bad = np.isnan(values[first:done]) | (values[first:done] == np.inf)
        if bad.any():
            place = jnp.asarray(first + int(bad.argmax()), jnp.int32)
            raise non_finite_error(target, np.asarray(configuration(target, place)))
        elapsed = time.perf_counter() - tick
        progress.update(done)
        if done == batch and not target.is_blackbox:
            continue  # it compiled
        seconds += elapsed
        counted = done if target.is_blackbox else done - batch
        if seconds > 0.05 and seconds * number / max(counted, 1) > limit:
            return None
    if (values == -np.inf).all():
        raise StartError("log_prob", f"is -inf at all of the {number} configurations", "check the constraints")
    budget.spend_evaluations("exploration", number)
    top = values.max()
    return Census(values, float(top + np.log(np.exp(values - top).sum())))
