"""Groups of draws, by one rule that can be said in a sentence.

Draws are split at a valley: along one of the five directions in which they differ most (principal components), where
their smoothed density falls below half of the lower of the two peaks beside it. Each half is split further in the
same way. A group must hold 2 % of the draws, and two groups whose means differ in one binary or unordered coordinate
alone are one: any local move crosses there. Directions of many coordinates blur what is no gap, so what is
split here are modes in the sense that matters to a sampler; smaller ones than 2 % are not looked for.
"""

from typing import NamedTuple

import numpy as np

from terrazzo.report.view import View

MOST_DRAWS, MOST_MODES, DIRECTIONS, ITERATIONS = 1200, 8, 5, 12
LEAST_SHARE, VALLEY = 0.02, 0.5
GRID = 256
WIDEST, MOST_AXES = 30, 20_000  # categories of an unordered coordinate, and of all of a variable, that get an axis each
LEAST_DIFFERENT = 1.5  # coordinates (effective number) in which the means of two groups must differ


class Mode(NamedTuple):
    """A group of draws.

    Attributes:
        share: Its share of the probability.
        best: The draw of the largest log pi in it (the nearest to its mean, without log pi), inner integers.
        log_prob: Log pi of that draw; NaN where it is not known.
        mean: The mean of its draws, inner integers.
        best_reals: The real values of that best draw.
    """

    share: float
    best: np.ndarray
    log_prob: float
    mean: np.ndarray
    best_reals: np.ndarray


def find_modes(view: View) -> list[Mode]:
    """The groups of a result's draws, the largest first; one if there is no valley, none without draws."""
    if not view.has_draws:
        return []
    rows = np.unique(np.linspace(0, len(view.codes) - 1, MOST_DRAWS).round().astype(int))
    if view.result.log_weights is not None:  # draws in proportion to their weights: groups then count draws
        places = (np.arange(MOST_DRAWS) + 0.5) / MOST_DRAWS
        rows = np.minimum(np.searchsorted(np.cumsum(view.weights), places), len(view.codes) - 1)
    if view.result.log_prob is not None:  # the best draw of all is one of those that are looked at
        rows = np.append(rows, int(np.argmax(view.result.log_prob)))
    codes = view.codes[rows]
    log_prob = None if view.result.log_prob is None else np.asarray(view.result.log_prob, float).ravel()[rows]
    points, owners = _embedded(view, codes, view.reals[rows])
    groups: list[np.ndarray] = []
    waiting = [np.arange(len(rows))]
    while waiting:
        group = waiting.pop()
        halves = None if len(groups) + len(waiting) + 2 > MOST_MODES else _split(view, points, owners, group)
        if halves is None:
            groups.append(group)
        else:
            waiting += halves
    modes = []
    for group in groups:
        best = group[_best(codes[group], None if log_prob is None else log_prob[group])]
        value = float("nan") if log_prob is None else float(log_prob[best])
        modes.append(
            Mode(
                share=len(group) / len(rows), best=codes[best].astype(int), log_prob=value,
                mean=codes[group].astype(float).mean(0), best_reals=view.reals[rows[best]],
            )
        )  # fmt: skip
    return sorted(modes, key=lambda mode: -mode.share)


def _embedded(view: View, codes: np.ndarray, reals: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draws as points, and the coordinate of each axis: ordered ones over their range, else an axis a category.

    Reals come after all others, over the range of nearly all draws.
    """
    parts: list[np.ndarray] = [np.zeros((len(codes), 1), np.float32)]
    owners = [np.zeros(1, int)]
    for block in view.blocks:
        own = codes[:, block.start : block.stop]
        size, places = block.variable.size, np.arange(block.start, block.stop)
        if block.variable.is_ordered:
            parts.append(own.astype(np.float32) / max(size - 1, 1))
            owners.append(places)
        elif size <= WIDEST and own.shape[1] * size <= MOST_AXES:
            hot = own[..., None] == np.arange(size)
            parts.append(hot.reshape(len(own), -1).astype(np.float32) / np.float32(np.sqrt(2.0)))
            owners.append(np.repeat(places, size))
    low, high = np.quantile(reals, [0.005, 0.995], axis=0)
    scaled = (reals - low) / np.where(high > low, high - low, np.inf)
    parts.append(np.clip(scaled, -1.0, 2.0).astype(np.float32))
    owners.append(view.result.space.num_dims + np.arange(reals.shape[1]))
    return np.concatenate(parts, axis=1), np.concatenate(owners)


def _split(view: View, points: np.ndarray, owners: np.ndarray, group: np.ndarray) -> list[np.ndarray] | None:
    """The two sides of the deepest valley of a group, or None."""
    least = max(int(np.ceil(LEAST_SHARE * len(points))), 8)
    if len(group) < 2 * least:
        return None
    centred = points[group] - points[group].mean(axis=0)
    best: tuple[float, np.ndarray] | None = None
    for along in _principal(centred):
        found = valley(along)
        if found is None:
            continue
        depth, cut = found
        is_left = along < cut
        if min(is_left.sum(), (~is_left).sum()) < least or (best is not None and depth >= best[0]):
            continue
        if _is_apart(view, points[group[is_left]], points[group[~is_left]], owners):
            best = (depth, is_left)
    return None if best is None else [group[best[1]], group[~best[1]]]


def _principal(centred: np.ndarray) -> np.ndarray:
    """The draws along the directions of largest spread, one a row: by subspace iteration, enough to see a valley."""
    number = min(DIRECTIONS, *centred.shape)
    basis = np.random.default_rng(0).normal(size=(centred.shape[1], number + 3)).astype(np.float32)
    for _ in range(ITERATIONS):
        basis = np.linalg.qr(centred.T @ (centred @ basis))[0]
    left, values, _ = np.linalg.svd(centred @ basis, full_matrices=False)
    along = (left * values).T[:number]
    return along[values[:number] > 1e-3 * max(float(values[0]), 1e-6)]


def valley(along: np.ndarray) -> tuple[float, float] | None:
    """The deepest valley of numbers: its depth as a share of the lower peak beside it, and where it is.

    >>> rng = np.random.default_rng(0)
    >>> one = rng.normal(size=1000)
    >>> valley(one), valley(np.concatenate([one, 9 + one]))[0] < 0.1
    (None, True)
    """
    spread = along.std()
    low, high = np.quantile(along, [0.25, 0.75])
    width = 0.9 * min(spread, (high - low) / 1.34 if high > low else spread) * len(along) ** -0.2
    if width <= 0:
        return None
    places = np.linspace(along.min() - 2 * width, along.max() + 2 * width, GRID)
    counts, edges = np.histogram(along, bins=4 * GRID)
    centres = (edges[:-1] + edges[1:]) / 2
    density = np.exp(-0.5 * ((places[:, None] - centres) / width) ** 2) @ counts
    lower_peak = np.minimum(np.maximum.accumulate(density), np.maximum.accumulate(density[::-1])[::-1])
    depth = np.divide(density, lower_peak, out=np.ones_like(density), where=lower_peak > 0)
    at = int(depth.argmin())
    return (float(depth[at]), float(places[at])) if depth[at] < VALLEY else None


def _best(codes: np.ndarray, log_prob: np.ndarray | None) -> int:
    if log_prob is not None:
        return int(log_prob.argmax())
    points = codes.astype(float)
    return int(((points - points.mean(axis=0)) ** 2).sum(axis=1).argmin())


def _is_apart(view: View, left: np.ndarray, right: np.ndarray, owners: np.ndarray) -> bool:
    """Whether a single change of one coordinate does not lead from one group to the other.

    The effective number of coordinates that differ is (sum_i w_i)^2 / sum_i w_i^2, with w_i the squared difference of
    the means of coordinate i, less what chance alone makes of it.
    """
    noise = left.var(axis=0) / len(left) + right.var(axis=0) / len(right)
    squares = (left.mean(axis=0) - right.mean(axis=0)) ** 2 - noise
    space = view.result.space
    different = np.bincount(owners, squares.astype(float), minlength=view.num_coordinates)
    if different.sum() ** 2 >= LEAST_DIFFERENT * (different**2).sum():
        return True
    widest = int(different.argmax())
    return widest >= space.num_dims or bool(space.is_ordered[widest] and space.sizes[widest] > 2)
