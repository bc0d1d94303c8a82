"""The census: where a space is small enough, every configuration is evaluated, and nothing is left to chance.

log Z is a sum and draws are independent, by inversion of the cumulative probabilities in double precision. A needle
that no chain would ever find is found here. Spaces of up to 2^24 configurations are counted where the first batches
predict that it takes seconds; where they do not, the other phases go on as if nothing had been asked.
"""

import time

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.auto.budget import Budget
from terrazzo.errors import StartError
from terrazzo.runtime.compilation import jit
from terrazzo.runtime.progress import Progress
from terrazzo.samplers.kernels.exact import Census as Census
from terrazzo.targets.probing import non_finite_error
from terrazzo.targets.target import Target


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
    number, policy = target.space.num_states, budget.policy
    if number > policy.census_states or number > budget.total_left:
        return None
    limit = min(policy.census_seconds, policy.census_share * (budget.seconds or np.inf))
    batch = min(number, policy.census_box_batch if target.is_blackbox else policy.census_batch)
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
        if seconds > policy.timing_seconds and seconds * number / max(counted, 1) > limit:
            return None
    if (values == -np.inf).all():
        raise StartError("log_prob", f"is -inf at all of the {number} configurations", "check the constraints")
    budget.spend_evaluations("exploration", number)
    top = values.max()
    return Census(values, float(top + np.log(np.exp(values - top).sum())))
