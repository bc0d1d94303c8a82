"""The order in which an autoregressive transport decodes its coordinates, from how strongly they interact.

A causal network of fixed width finds q(theta_i | theta_<i) easier the more of what matters to theta_i has been decoded
already. So the next coordinate is the one coupled most strongly, in total, to those already placed (a maximum-adjacency
order): neighbours follow each other, and parts that do not interact come one after the other.
"""

from typing import Any

import numpy as np

from terrazzo.errors import OptionError, TargetError, arguments
from terrazzo.targets.interactions import (
    evaluate,
    evaluate_mixed,
    hessian_of,
    mixed_differences,
    other_values,
    random_mixed_pair,
    random_pair,
)
from terrazzo.targets.target import Target

HESSIAN_COST = 4  # a derivative of a gradient, in evaluations


def adjacency_order(strengths: np.ndarray) -> np.ndarray:
    """The maximum-adjacency order of a symmetric table of strengths, from the strongest coordinate on.

    Among equals the one tied to the coordinate placed last wins, so that a chain is followed to its end.

    >>> adjacency_order(np.array([[0, 0, 2.0], [0, 0, 1.0], [2.0, 1.0, 0]])).tolist()
    [2, 0, 1]
    """
    strengths = np.array(strengths, float)
    d = len(strengths)
    np.fill_diagonal(strengths, 0.0)
    total = strengths.sum(axis=1)
    near = 1e-6 * max(float(total.max(initial=0.0)), np.finfo(float).tiny)  # rounding decides nothing
    is_left, tied, latest = np.ones(d, bool), np.zeros(d), np.full(d, -1)
    order = np.empty(d, np.int32)
    for place in range(d):
        first = is_left & (tied >= tied[is_left].max() - near)
        first &= latest == latest[first].max()
        order[place] = chosen = int(np.where(first, total, -1.0).argmax())
        is_left[chosen] = False
        tied += strengths[chosen]
        latest = np.where(strengths[chosen] > near, place, latest)
    return order


def coupling_strengths(
    target: Target, *, theta: Any = None, num_points: int = 4, max_evaluations: int = 100_000, seed: int = 0
) -> np.ndarray | None:
    """How strongly each pair of coordinates interacts, on average over a few configurations.

    |c_ij| of the mixed second differences of log pi, or second derivatives times the spread of both coordinates where
    log pi has them. Impossible combinations count as stronger than all others.

    Args:
        target: The target.
        theta: Flat configurations to look at, (point, dim): draws of a chain, say. Random ones by default.
        num_points: How many configurations to look at, at most.
        max_evaluations: How many evaluations of log pi may be spent.
        seed: Of the random configurations and changes.

    Returns:
        A symmetric (d, d) table, or None if there are too many pairs for `max_evaluations`.

    >>> import terrazzo as tz
    >>> chain = tz.Target(lambda t: 0.5 * (t[1:] * t[:-1]).sum(), tz.binary(3))
    >>> coupling_strengths(chain).round(3).tolist()
    [[0.0, 0.125, 0.0], [0.125, 0.0, 0.125], [0.0, 0.125, 0.0]]
    """
    d = target.space.num_dims + target.space.num_reals
    rng = np.random.default_rng([seed, 2])
    if target.space.num_reals:
        count = min(num_points, max_evaluations // (1 + d + d * (d - 1) // 2))
        if count < 1:
            return None
        pairs = (random_mixed_pair(target, seed + k, rng) for k in range(count))
        return _averaged([mixed_differences(target, *pair, evaluate=evaluate_mixed) for pair in pairs])
    points = None if theta is None else _possible(target, theta, num_points, rng)

    def pair() -> tuple[np.ndarray, np.ndarray]:
        if points is None:
            return random_pair(target, rng)
        here = points[rng.integers(len(points))]
        return here, other_values(target, here, rng)

    tables = []
    if target.has_gradient and HESSIAN_COST * d <= max_evaluations:
        spread = np.sqrt((target.space.sizes.astype(float) ** 2 - 1) / 12)
        try:
            hessian = hessian_of(target)
            count = min(num_points, max_evaluations // (HESSIAN_COST * d))
            tables = [np.abs(hessian(pair()[0])) * np.outer(spread, spread) for _ in range(count)]
        except Exception:  # a gradient does not promise a second one (custom derivatives)
            tables = []
    if not any(table.any() for table in tables):
        count = min(num_points, max_evaluations // (1 + d + d * (d - 1) // 2))
        if count < 1:
            return None
        return _averaged([mixed_differences(target, *pair()) for _ in range(count)])
    return _mean(np.stack(tables))


def _averaged(found: list[tuple[np.ndarray, float]]) -> np.ndarray:
    """The mean size of mixed differences, those that rounding alone can give left out."""
    return _mean(np.stack([np.where(np.abs(c) > noise, np.abs(c), 0.0) for c, noise in found]))


def _mean(table: np.ndarray) -> np.ndarray:
    finite = table[np.isfinite(table)]
    table = np.where(np.isfinite(table), table, 2 * finite.max(initial=0.5))
    mean = table.mean(axis=0)
    return (mean + mean.T) / 2


def _possible(target: Target, theta: Any, num_points: int, rng: np.random.Generator) -> np.ndarray:
    rows = np.asarray(theta)
    if rows.ndim < 2 or rows.shape[-1] != target.space.num_dims or not rows.size:
        raise OptionError("theta", f"has shape {rows.shape}", f"(point, {target.space.num_dims}) flat configurations")
    rows = rows.reshape(-1, target.space.num_dims)
    rows = rows[rng.integers(len(rows), size=16 * num_points)].astype(np.int32)
    possible = rows[np.isfinite(evaluate(target, rows))]
    return possible if len(possible) else rows


def coupling_order(
    target: Target, *, theta: Any = None, num_points: int = 4, max_evaluations: int = 100_000, seed: int = 0
) -> np.ndarray:
    """An order of decoding that keeps interacting coordinates together.

    Each next coordinate has the largest total coupling to those already placed; the first is the most strongly coupled
    of all. Targets with a second derivative need d products with it at each configuration, others all d (d - 1) / 2
    mixed differences.

    Args:
        target: The target.
        theta: Flat configurations to look at, (point, dim): draws of a chain, say. Random ones by default, and always
            with real variables.
        num_points: How many configurations to look at, at most.
        max_evaluations: How many evaluations of log pi may be spent; if they do not reach for one configuration, the
            order is the natural one.
        seed: Of the random configurations and changes.

    Returns:
        A permutation of 0..d-1, for `autoregressive_transport(space, order=...)`; real coordinates are numbered after
        the discrete ones.

    >>> import terrazzo as tz
    >>> scrambled = [3, 0, 4, 1, 2]  # the chain runs through the coordinates in this order
    >>> def log_prob(theta):
    ...     chain = theta[np.array(scrambled)]
    ...     return 0.5 * (chain[1:] * chain[:-1]).sum()
    >>> coupling_order(tz.Target(log_prob, tz.binary(5))).tolist()
    [0, 4, 1, 2, 3]

    Reference: Nagamochi & Ibaraki (1992), Computing edge-connectivity in multigraphs and capacitated graphs, SIAM
    Journal on Discrete Mathematics 5 (for maximum-adjacency orders).
    """
    arguments.instance("target", target, Target, "e.g. tz.Target(log_prob, tz.binary(20))", TargetError)
    for name, value in (("num_points", num_points), ("max_evaluations", max_evaluations)):
        arguments.count(name, value)
    seed = arguments.seed_number(seed)
    strengths = coupling_strengths(
        target, theta=theta, num_points=num_points, max_evaluations=max_evaluations, seed=seed
    )
    d = target.space.num_dims + target.space.num_reals
    return np.arange(d, dtype=np.int32) if strengths is None else adjacency_order(strengths)
