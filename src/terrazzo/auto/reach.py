"""Reach: configurations that moves of single sites are cut off from.

Where parts of the space are impossible, two configurations of like probability may differ in a few sites such that
every single change on the way is impossible: tied bits, deterministic tables, fixed sums, all-different labels. From
each of some draws, random changes of two, three and four sites and exchanges of two values are tried; one is *cut off*
if it is possible, not much less probable than the draw, and every single change on the way is blocked.
"""

from typing import NamedTuple

import numpy as np

from terrazzo.auto.policy import Policy
from terrazzo.targets.interactions import evaluate
from terrazzo.targets.target import Target


class CutOff(NamedTuple):
    """What single sites do not reach.

    Attributes:
        theta: Configurations that are cut off from a draw, (found, dim), the most probable first.
        num_sites: The fewest sites that had to change together; 0 if nothing was found.
    """

    theta: np.ndarray
    num_sites: int


def cut_off(
    rng: np.random.Generator, target: Target, draws: np.ndarray, policy: Policy, *, is_strict: bool = False
) -> CutOff:
    """Looks for configurations that are cut off from some of the draws, (draw, dim).

    Args:
        rng: Where changes come from.
        target: The target.
        draws: Configurations, (draw, dim).
        policy: How much is tried, and what counts as blocked.
        is_strict: Whether a step on the way must be impossible to block it. Far from where the draws of pi are, steps
            that fall far are common and block nothing.
    """
    space = target.space
    rows = draws[rng.integers(0, len(draws), policy.reach_draws)].astype(np.int32)
    at, to, sites = _changes(rng, rows, space.sizes, policy)
    values = evaluate(target, to)
    here = evaluate(target, rows)[at]
    is_comparable = np.isfinite(values) & np.isfinite(here) & (values >= here - policy.comparable)
    at, to, sites, values, here = (x[is_comparable] for x in (at, to, sites, values, here))
    if not len(to):
        return CutOff(np.zeros((0, space.num_dims), np.int32), 0)
    way, owner = [], []
    for n in range(len(to)):  # the first steps towards it
        for i in sites[n][sites[n] >= 0]:
            step = rows[at[n]].copy()
            step[i] = to[n, i]
            way.append(step)
            owner.append(n)
    best = np.full(len(to), -np.inf)
    np.maximum.at(best, np.array(owner), evaluate(target, np.stack(way)))
    is_cut = best == -np.inf if is_strict else best < np.minimum(here, values) - policy.blocked
    if not is_cut.any():
        return CutOff(np.zeros((0, space.num_dims), np.int32), 0)
    counts = (sites[is_cut] >= 0).sum(axis=1)
    order = np.argsort(-values[is_cut], kind="stable")
    _, first = np.unique(to[is_cut][order], axis=0, return_index=True)
    return CutOff(to[is_cut][order][np.sort(first)], int(counts.min()))


def _changes(
    rng: np.random.Generator, rows: np.ndarray, sizes: np.ndarray, policy: Policy
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Random changes: the row each starts from, where it leads, and the sites that differ, filled up with -1."""
    d, most = rows.shape[1], max(count for count, _ in policy.reach_tried)
    at, to, sites = [], [], []
    kinds = [(count, tried) for count, tried in policy.reach_tried if count <= d]
    for r, row in enumerate(rows):
        for count, tried in kinds:
            chosen = _distinct(rng, tried, count, d)
            new = np.repeat(row[None], tried, axis=0)
            shift = rng.integers(1, sizes[chosen])
            np.put_along_axis(new, chosen, (row[chosen] + shift) % sizes[chosen], axis=1)
            at.append(np.full(tried, r))
            to.append(new)
            sites.append(np.pad(chosen, ((0, 0), (0, most - count)), constant_values=-1))
        if d > 1:
            pairs = _distinct(rng, policy.reach_swaps, 2, d)
            a, b = row[pairs].T
            fits = (a != b) & (b < sizes[pairs[:, 0]]) & (a < sizes[pairs[:, 1]])
            pairs = pairs[fits]
            new = np.repeat(row[None], len(pairs), axis=0)
            np.put_along_axis(new, pairs, np.stack([b, a], axis=1)[fits], axis=1)
            at.append(np.full(len(pairs), r))
            to.append(new)
            sites.append(np.pad(pairs, ((0, 0), (0, most - 2)), constant_values=-1))
    return np.concatenate(at), np.concatenate(to).astype(np.int32), np.concatenate(sites)


def _distinct(rng: np.random.Generator, num_rows: int, count: int, d: int) -> np.ndarray:
    """Rows of `count` different sites out of d, uniform over such sets, by Floyd's algorithm: no work grows with d."""
    chosen = np.full((num_rows, count), -1)
    for n, last in enumerate(range(d - count, d)):
        drawn = rng.integers(0, last + 1, num_rows)
        is_taken = (chosen == drawn[:, None]).any(axis=1)
        chosen[:, n] = np.where(is_taken, last, drawn)
    return chosen
