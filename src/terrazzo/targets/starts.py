"""Where chains start: configurations of positive probability, found by chance, or by descent of a penalty.

Most targets are positive nearly everywhere, and a few uniform draws do. Where constraints make most configurations
impossible, up to a million are tried, for two seconds at most. Where even these fail, a `penalty` of the target (how
many constraints a configuration violates) is walked down by annealing from many random configurations: at each step
some random changes of one or two sites are weighed by exp(-penalty / T), and T falls.

Starts are spread: chains get different configurations as far as enough were found. Where they were not, copies walk at
random among the possible configurations before they are handed out.
"""

import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import StartError, TargetError
from terrazzo.runtime.compilation import jit

MOST_TRIES = 1_000_000
SECONDS = 2.0  # for random tries, without compilation
PENALTY_SECONDS = 15.0  # for the descent of a penalty, without compilation
WALK_SECONDS = 1.0  # for spreading copies of starts
ROUND = 200  # steps from hot to cold
CHANGES = 16  # that are weighed in one step of a row
HOT, COLD = 1.0, 0.05  # temperatures, in violated constraints
LEAST_ROWS = 32
MOST_WALKED = 2000  # steps
MAP_BATCH = 256
LARGEST_BATCH = 4096
NUMBERS = 2**24  # coordinates of one batch of random configurations, at most


@jit
def _values(fn: Callable, theta: jax.Array) -> jax.Array:
    return jax.lax.map(fn, theta, batch_size=MAP_BATCH)


class Evaluator:
    """A function of flat configurations, evaluated in batches: compiled, or on the host for a black box.

    Args:
        fn: Of one flat configuration; of a batch if it runs on the host.
        is_on_host: Whether it is plain Python.
        on_bad: The error for a configuration where it is NaN or +inf.

    Attributes:
        num_evaluations: How many configurations were evaluated.
        seconds: How long that took, compilation left out.
    """

    def __init__(self, fn: Callable, *, is_on_host: bool, on_bad: Callable[[np.ndarray], Exception]):
        self.fn, self.is_on_host, self.on_bad = fn, is_on_host, on_bad
        self.num_evaluations, self.seconds = 0, 0.0
        self._sizes: set[int] = set()

    def __call__(self, theta: np.ndarray) -> np.ndarray:
        began = time.perf_counter()
        if self.is_on_host:
            values = np.asarray(self.fn(theta), float)
        else:
            size = _padded(len(theta))
            rows = np.concatenate([theta, np.repeat(theta[:1], -len(theta) % size, axis=0)]).astype(np.int32)
            parts = [_values(self.fn, jnp.asarray(rows[i : i + size])) for i in range(0, len(rows), size)]
            values = np.concatenate([np.asarray(part, float) for part in parts])[: len(theta)]
        is_compiled = self.is_on_host or size in self._sizes
        if not self.is_on_host:
            self._sizes.add(size)
        self.num_evaluations += len(theta)
        self.seconds += time.perf_counter() - began if is_compiled else 0.0
        is_bad = np.isnan(values) | (values == np.inf)
        if is_bad.any():
            raise self.on_bad(theta[is_bad.argmax()]) from None
        return values


def _padded(count: int) -> int:
    """The size of a batch, a power of four: few sizes, so that little is compiled."""
    size = 16
    while size < min(count, LARGEST_BATCH):
        size *= 4
    return size


def find_starts(
    log_prob: Evaluator,
    sizes: np.ndarray,
    rng: np.random.Generator,
    num_chains: int,
    *,
    given: np.ndarray,
    penalty: Evaluator | None = None,
) -> np.ndarray:
    """Configurations of positive probability, one a chain.

    Args:
        log_prob: log pi.
        sizes: The number of values of each coordinate.
        rng: Where random numbers come from.
        num_chains: How many there must be.
        given: Some that are known already.
        penalty: How many constraints a configuration violates, if that is known.

    Raises:
        StartError: If none was found.
    """
    num_wanted = num_chains - len(given)
    if penalty is None:
        found = random_possible(log_prob, sizes, rng, num_wanted)
    else:
        found, least = descend(penalty, sizes, rng, num_wanted)
        if not len(found) and not len(given):
            raise StartError(
                "penalty",
                f"stayed above 0: the least of {penalty.num_evaluations} configurations is {least:g}",
                "pass init=... to tz.sample, or a penalty that falls step by step towards 0",
            )
        is_possible = np.isfinite(log_prob(found)) if len(found) else np.zeros(0, bool)
        if len(found) and not is_possible.any():
            raise TargetError(
                "penalty", "is 0 at configurations where log_prob is -inf", "count every constraint of log_prob"
            )
        found = found[is_possible]
    found = np.concatenate([given, found]).astype(np.int32)
    if not len(found):
        raise StartError(
            "log_prob",
            f"is -inf at all of {log_prob.num_evaluations} random configurations that were tried",
            "pass init=... to tz.sample with a possible configuration, or tz.Target(..., penalty=...): the number of"
            " violated constraints",
        )
    return _spread(log_prob, sizes, rng, found, num_chains)


def random_possible(
    log_prob: Evaluator,
    sizes: np.ndarray,
    rng: np.random.Generator,
    num_wanted: int,
    *,
    most: int = MOST_TRIES,
    seconds: float = SECONDS,
) -> np.ndarray:
    """Uniform configurations of positive probability; fewer than wanted if tries or time run out."""
    found: list[np.ndarray] = []
    num_found, tried, began, drawing = 0, 0, log_prob.seconds, 0.0
    size = 16 if log_prob.is_on_host else 4096
    largest = max(16, min(2**16, NUMBERS // len(sizes)))
    size = min(size, largest)
    while tried < most and num_found < num_wanted and log_prob.seconds - began + drawing < seconds:
        tick = time.perf_counter()
        theta = rng.integers(0, sizes, (size, len(sizes)), np.int32)
        drawing += time.perf_counter() - tick
        before = log_prob.seconds
        values = log_prob(theta)
        found.append(theta[values > -np.inf])
        num_found += len(found[-1])
        tried += size
        if log_prob.is_on_host:  # as many as take a tenth of the time
            each = (log_prob.seconds - before) / size
            size = int(np.clip(0.1 * seconds / max(each, 1e-9), 1, largest))
        elif tried == size:
            size = largest
    return np.concatenate(found)[:num_wanted]


def _changed(theta: np.ndarray, sizes: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Each row with a random change: one site redrawn, two sites redrawn, or two sites with their values exchanged."""
    rows, d = np.arange(len(theta)), len(sizes)
    i, j = rng.integers(0, d, (2, len(theta)))
    kind = rng.random(len(theta))
    is_exchange = (kind > 0.6) & (theta[rows, j] < sizes[i]) & (theta[rows, i] < sizes[j])
    is_double = (kind > 0.4) & ~is_exchange
    first = (theta[rows, i] + rng.integers(1, sizes[i])) % sizes[i]
    second = (theta[rows, j] + rng.integers(1, sizes[j])) % sizes[j]
    out = theta.copy()
    out[rows, j] = np.where(is_exchange, theta[rows, i], np.where(is_double, second, theta[rows, j]))
    out[rows, i] = np.where(is_exchange, theta[rows, j], first)
    return out


def descend(
    penalty: Evaluator, sizes: np.ndarray, rng: np.random.Generator, num_chains: int
) -> tuple[np.ndarray, float]:
    """Rows of penalty 0 by annealing from random configurations, and the least penalty that was met."""
    num_rows = max(LEAST_ROWS, num_chains)
    theta = rng.integers(0, sizes, (num_rows, len(sizes)), np.int32)
    value = penalty(theta)
    began, best = penalty.seconds, float(value.min())
    num_steps = ROUND
    while True:
        for temperature in np.geomspace(HOT, COLD, num_steps):
            if penalty.seconds - began > PENALTY_SECONDS:
                break
            if (value == 0).sum() >= num_chains:
                break
            others = _changed(np.repeat(theta, CHANGES, axis=0), sizes, rng)
            values = np.concatenate([value[:, None], penalty(others).reshape(num_rows, CHANGES)], axis=1)
            best = min(best, float(values.min()))
            with np.errstate(invalid="ignore"):
                score = -values / temperature + rng.gumbel(size=values.shape)
            score[np.isnan(score)] = -np.inf
            pick = np.where(value == 0, 0, score.argmax(axis=1))  # what is found stays
            others = others.reshape(num_rows, CHANGES, -1)
            theta = np.where((pick > 0)[:, None], others[np.arange(num_rows), pick - 1], theta)
            value = values[np.arange(num_rows), pick]
        is_found = value == 0
        if is_found.sum() >= num_chains or penalty.seconds - began > PENALTY_SECONDS:
            return np.unique(theta[is_found], axis=0) if is_found.any() else theta[:0], best
        num_steps *= 2  # slower cooling


def _spread(
    log_prob: Evaluator, sizes: np.ndarray, rng: np.random.Generator, found: np.ndarray, num_chains: int
) -> np.ndarray:
    """As many starts as chains: different ones as far as they go, then copies that have walked."""
    if len(found) >= num_chains:
        return found[rng.permutation(len(found))[:num_chains]]
    theta = np.resize(found, (num_chains, len(sizes))).astype(np.int32)
    is_copy = np.arange(num_chains) >= len(found)
    began = log_prob.seconds
    for _ in range(min(MOST_WALKED, 20 * len(sizes))):
        if log_prob.seconds - began > WALK_SECONDS:
            break
        new = _changed(theta, sizes, rng)
        is_possible = np.isfinite(log_prob(new)) & is_copy
        theta = np.where(is_possible[:, None], new, theta)
    return theta


@jit
def uniform_starts(target: Any, key: jax.Array, num_chains: int, most: int) -> tuple[jax.Array, jax.Array]:
    """Uniform configurations, redrawn up to so many times where they are impossible, and their log pi."""

    def redraw(carry):
        count, theta, log_prob = carry
        fresh = target.space.random(jax.random.fold_in(key, count), (num_chains,))
        fresh_log_prob = jax.vmap(target.log_prob)(fresh)
        is_impossible = log_prob == -jnp.inf
        theta = jnp.where(is_impossible[:, None], fresh, theta)
        return count + 1, theta, jnp.where(is_impossible, fresh_log_prob, log_prob)

    start = (0, jnp.zeros((num_chains, target.space.num_dims), jnp.int32), jnp.full(num_chains, -jnp.inf))
    _, theta, log_prob = jax.lax.while_loop(lambda c: (c[0] < most) & jnp.any(c[2] == -jnp.inf), redraw, start)
    return theta, log_prob
