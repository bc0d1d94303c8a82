"""Colourings of the interaction graph: which sites may be redrawn at the same time.

Two sites interact if the mixed second difference log pi(i, j changed) - log pi(i) - log pi(j) + log pi is not zero
somewhere. Sites of one colour must not interact; then, given the rest, they are independent.
The graph is found from the Hessian (differentiable targets) or from finite differences at random configurations, and
every colouring is *verified* on fresh configurations before use: all sites of a colour are changed at once, and the
change of log pi must be the sum of the single changes. This runs on the host, before anything is compiled.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import UnsupportedError
from terrazzo.targets import Target

BATCH = 4096
MAX_PAIR_EVALUATIONS = 2_000_000


def is_traced(target: Target) -> bool:
    """Whether the target's arrays are abstract (inside a compiled function), so that it cannot be evaluated now."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(target))


def _evaluate(target: Target, theta: np.ndarray) -> np.ndarray:
    theta = np.asarray(theta, np.int32)
    with jax.ensure_compile_time_eval():
        evaluate = jax.jit(jax.vmap(target.log_prob))
        out = []
        for first in range(0, len(theta), BATCH):
            part = theta[first : first + BATCH]
            filled = np.concatenate(
                [part, np.repeat(part[:1], (-len(part)) % BATCH if len(theta) > BATCH else 0, axis=0)]
            )
            out.append(np.asarray(evaluate(jnp.asarray(filled)))[: len(part)])
    return np.concatenate(out).astype(float)


def _tolerance(values: np.ndarray) -> float:
    eps = float(jnp.finfo(jnp.result_type(float)).eps)
    finite = values[np.isfinite(values)]
    return 200.0 * eps * (1.0 + float(np.abs(finite).max(initial=0.0)))


def _differs(joint: np.ndarray, expected: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether two log-probabilities differ; both impossible counts as the same."""
    both_impossible = (joint == -np.inf) & (expected == -np.inf)
    with np.errstate(invalid="ignore"):
        return ~both_impossible & ~(np.abs(joint - expected) <= tolerance)


def _random_pair(target: Target, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """A configuration of positive probability and another value for each of its sites."""
    sizes = target.space.sizes
    points = rng.integers(0, sizes, (64, len(sizes)))
    possible = np.isfinite(_evaluate(target, points))
    theta = points[possible.argmax()]
    return theta, (theta + rng.integers(1, sizes)) % sizes


def _graph_by_differences(target: Target, num_points: int, rng: np.random.Generator) -> np.ndarray:
    d = target.space.num_dims
    rows, columns = np.triu_indices(d, 1)
    if len(rows) * num_points > MAX_PAIR_EVALUATIONS:
        raise UnsupportedError(
            "colours",
            f"cannot be found: {len(rows)} pairs of sites are too many to test",
            "give Target(..., colours=...)",
        )
    graph = np.zeros((d, d), bool)
    for _ in range(num_points):
        theta, other = _random_pair(target, rng)
        base = _evaluate(target, theta[None])[0]
        single = np.tile(theta, (d, 1))
        single[np.arange(d), np.arange(d)] = other
        singles = _evaluate(target, single)
        joint = np.empty(len(rows))
        for first in range(0, len(rows), BATCH):
            i, j = rows[first : first + BATCH], columns[first : first + BATCH]
            double = np.tile(theta, (len(i), 1))
            double[np.arange(len(i)), i] = other[i]
            double[np.arange(len(i)), j] = other[j]
            joint[first : first + BATCH] = _evaluate(target, double)
        with np.errstate(invalid="ignore"):
            expected = singles[rows] + singles[columns] - base
        differs = _differs(joint, expected, _tolerance(np.concatenate([joint, singles, [base]])))
        graph[rows[differs], columns[differs]] = True
    return graph | graph.T


def _graph_by_hessian(target: Target, num_points: int, rng: np.random.Generator) -> np.ndarray:
    d = target.space.num_dims
    graph = np.zeros((d, d), bool)
    with jax.ensure_compile_time_eval():
        slope = jax.grad(target.log_prob_relaxed)
        column = lambda theta, e: jax.jvp(slope, (theta,), (e,))[1]
        hessian = jax.jit(lambda theta: jax.lax.map(lambda e: column(theta, e), jnp.eye(d), batch_size=64))
        for _ in range(num_points):
            theta, _ = _random_pair(target, rng)
            matrix = np.asarray(hessian(jnp.asarray(theta, jnp.result_type(float))))
            matrix = np.where(np.isfinite(matrix), matrix, 1.0)
            graph |= np.abs(matrix) > _tolerance(matrix)
    graph = graph | graph.T
    np.fill_diagonal(graph, False)
    return graph


def greedy_colours(graph: np.ndarray) -> tuple[int, ...]:
    """A proper colouring of a graph (Welsh & Powell 1967): largest degree first, the smallest free colour.

    >>> greedy_colours(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool))
    (1, 0, 1)
    """
    colours = np.full(len(graph), -1)
    for i in np.argsort(-graph.sum(axis=1), kind="stable"):
        used = set(colours[graph[i]].tolist())
        colours[i] = next(c for c in range(len(graph)) if c not in used)
    return tuple(int(c) for c in colours)


def verify_colours(target: Target, colours: Any, *, num_points: int = 8, seed: int = 0) -> bool:
    """Whether sites of one colour change log pi independently of each other, at random configurations.

    Args:
        target: The target.
        colours: One colour per coordinate.
        num_points: Configurations tried; each costs d + 1 evaluations and one per colour.
        seed: Of the configurations.
    """
    colours = np.asarray(colours)
    rng = np.random.default_rng([seed, 1])
    d = target.space.num_dims
    names = np.unique(colours)
    for _ in range(num_points):
        theta, other = _random_pair(target, rng)
        points = np.tile(theta, (1 + d + len(names), 1))
        points[1 + np.arange(d), np.arange(d)] = other
        for c, name in enumerate(names):
            points[1 + d + c, colours == name] = other[colours == name]
        values = _evaluate(target, points)
        base, singles, joint = values[0], values[1 : 1 + d], values[1 + d :]
        expected = np.array([base + (singles[colours == name] - base).sum() for name in names])
        if _differs(joint, expected, np.sqrt(d) * _tolerance(values)).any():
            return False
    return True


def find_colours(target: Target, *, num_points: int = 3, seed: int = 0) -> tuple[int, ...]:
    """A verified colouring of the target's interaction graph: its own if it has one, else found by probing.

    >>> import terrazzo as tz
    >>> chain = tz.Target(lambda t: 0.5 * (t[1:] * t[:-1]).sum(), tz.binary(5))
    >>> find_colours(chain)
    (1, 0, 1, 0, 1)
    """
    if target.colours is not None:
        return checked_colours(target, target.colours)
    rng = np.random.default_rng([seed, 0])
    if target.has_gradient:
        try:
            graph = _graph_by_hessian(target, num_points, rng)
        except Exception:  # a gradient does not promise a second one (custom derivatives)
            graph = None
        if graph is not None and verify_colours(target, colours := greedy_colours(graph), seed=seed):
            return colours
    # rare interactions may escape a few points: try again with more of them before giving up
    for factor in (1, 4):
        colours = greedy_colours(_graph_by_differences(target, factor * num_points, rng))
        if verify_colours(target, colours, seed=seed):
            return colours
    return tuple(range(target.space.num_dims))


def checked_colours(target: Target, colours: Any) -> tuple[int, ...]:
    """The colours as a tuple; raises `UnsupportedError` if sites of one colour interact."""
    colours = tuple(int(c) for c in np.asarray(colours))
    if len(colours) != target.space.num_dims:
        raise UnsupportedError(
            "colours", f"has {len(colours)} entries for {target.space.num_dims} coordinates", "one each"
        )
    if not verify_colours(target, colours):
        raise UnsupportedError(
            "colours",
            "is not a colouring: changing the sites of one colour together changes log pi by another amount",
            "leave colours out to have them found, or use sampler='gibbs'",
        )
    return colours
