"""Which coordinates of a target interact, and how strongly: mixed second differences and second derivatives.

    c_ij = log pi(i and j changed) - log pi(i changed) - log pi(j changed) + log pi

is zero for all changes and configurations exactly if i and j are independent given the rest. Colourings (which sites
may be redrawn together) and the variable order of the autoregressive transport both start from here. Everything runs on
the host, at a few configurations, before anything is compiled; non-finite entries count as infinitely strong.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.runtime.compilation import jit
from terrazzo.spaces import Configuration
from terrazzo.targets.target import Target

BATCH = 4096
NUM_TRIES, MOST_TRIED = 64, 2**22  # configurations, and coordinates of all of them: a million sites are tried 4 times


@jit
def _log_probs(target: Target, theta: Array) -> Array:
    return jax.vmap(target.log_prob)(theta)


def evaluate(target: Target, theta: np.ndarray) -> np.ndarray:
    """The log-probabilities of many flat configurations, in batches of one compiled size; works while tracing.

    A few configurations are filled up to `NUM_TRIES`, which takes less than compiling another size; black boxes compile
    nothing.
    """
    theta = np.asarray(theta, np.int32)
    if not len(theta):
        return np.zeros(0)
    few = 1 if target.is_blackbox else min(NUM_TRIES, MOST_TRIED // max(theta.shape[1], 1))
    size = BATCH if len(theta) > BATCH else max(len(theta), few)
    with jax.ensure_compile_time_eval():
        out = []
        for first in range(0, len(theta), BATCH):
            part = theta[first : first + BATCH]
            filled = np.concatenate([part, np.repeat(part[:1], size - len(part), axis=0)])
            out.append(np.asarray(_log_probs(target, jnp.asarray(filled)))[: len(part)])
    return np.concatenate(out).astype(float)


def tolerance(values: np.ndarray) -> float:
    """What rounding can make of a difference of numbers of this size."""
    eps = float(jnp.finfo(jnp.result_type(float)).eps)
    finite = values[np.isfinite(values)]
    return 200.0 * eps * (1.0 + float(np.abs(finite).max(initial=0.0)))


def random_pair(target: Target, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A configuration of positive probability (if one is found) and another value for each of its sites."""
    sizes = target.space.sizes
    points = rng.integers(0, sizes, (max(1, min(NUM_TRIES, MOST_TRIED // len(sizes))), len(sizes)))
    theta = points[np.isfinite(evaluate(target, points)).argmax()]
    return theta, other_values(target, theta, rng)


def other_values(target: Target, theta: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """For each site a value that it does not have, uniformly."""
    sizes = target.space.sizes
    return (theta + rng.integers(1, sizes)) % sizes


@jit
def _log_densities(target: Target, theta: Array, y: Array) -> Array:
    return jax.vmap(target.log_density)(theta, y)


def evaluate_mixed(target: Target, rows: np.ndarray) -> np.ndarray:
    """The log-densities of many mixed configurations, each a row of codes and unconstrained reals."""
    d, out = target.space.num_dims, []
    with jax.ensure_compile_time_eval():
        for first in range(0, len(rows), BATCH):
            part = rows[first : first + BATCH]
            y = jnp.asarray(part[:, d:], jnp.result_type(float))
            out.append(np.asarray(_log_densities(target, jnp.asarray(part[:, :d], jnp.int32), y)))
    return np.concatenate([np.zeros(0), *out]).astype(float)


def random_mixed_pair(target: Target, seed: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A mixed configuration of positive probability, as one row, and another value for each of its coordinates."""
    starts = target.possible_starts(jax.random.key(seed), 2)
    assert isinstance(starts, Configuration)
    theta, y = np.asarray(starts.theta), np.asarray(starts.reals)
    return np.concatenate([theta[0], y[0]]), np.concatenate([other_values(target, theta[0], rng), y[1]])


def mixed_differences(
    target: Target, theta: np.ndarray, other: np.ndarray, *, evaluate: Callable = evaluate
) -> tuple[np.ndarray, float]:
    """All c_ij at one configuration for one change of each site, and the size that rounding alone can give them.

    Takes 1 + d + d (d - 1) / 2 evaluations. A pair that is impossible both as expected and in fact has c = 0; any other
    comparison with an impossible configuration is infinite.
    """
    d = len(theta)
    rows, columns = np.triu_indices(d, 1)
    single = np.tile(theta, (d + 1, 1))
    single[np.arange(d), np.arange(d)] = other
    singles = evaluate(target, single)
    singles, base = singles[:d], singles[d]
    joint = np.empty(len(rows))
    for first in range(0, len(rows), BATCH):
        i, j = rows[first : first + BATCH], columns[first : first + BATCH]
        double = np.tile(theta, (len(i), 1))
        double[np.arange(len(i)), i] = other[i]
        double[np.arange(len(i)), j] = other[j]
        joint[first : first + BATCH] = evaluate(target, double)
    with np.errstate(invalid="ignore"):
        expected = singles[rows] + singles[columns] - base
        values = np.where((joint == -np.inf) & (expected == -np.inf), 0.0, joint - expected)
    matrix = np.zeros((d, d))
    matrix[rows, columns] = np.where(np.isfinite(values), values, np.inf)
    return matrix + matrix.T, tolerance(np.concatenate([joint, singles, [base]]))


def hessian_of(target: Target) -> Callable[[np.ndarray], np.ndarray]:
    """The second derivatives of log pi at a configuration, with the diagonal left at zero."""
    d = target.space.num_dims
    with jax.ensure_compile_time_eval():
        slope = jax.grad(target.log_prob_relaxed)
        column = lambda theta, e: jax.jvp(slope, (theta,), (e,))[1]
        compiled = jax.jit(lambda theta: jax.lax.map(lambda e: column(theta, e), jnp.eye(d), batch_size=64))

    def hessian(theta: np.ndarray) -> np.ndarray:
        with jax.ensure_compile_time_eval():
            matrix = np.array(compiled(jnp.asarray(theta, jnp.result_type(float))), float)
        matrix[~np.isfinite(matrix)] = np.inf
        np.fill_diagonal(matrix, 0.0)
        return matrix

    return hessian
