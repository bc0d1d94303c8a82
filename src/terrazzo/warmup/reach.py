"""Reach: configurations that moves of single sites are cut off from.

Where parts of the space are impossible, two configurations of like probability may differ in a few sites such that
every single change on the way is impossible: tied bits, deterministic tables, fixed sums, all-different labels. From
each of some draws, random changes of two, three and four sites and exchanges of two values are tried; one is *cut off*
if it is possible, not much less probable than the draw, and every single change on the way is blocked.
"""

from typing import NamedTuple

import numpy as np

from terrazzo.interactions import evaluate
from terrazzo.targets import Target

NUM_DRAWS = 16  # draws that are looked around from
TRIED = {2: 384, 3: 256, 4: 128}  # changes of so many sites, of each draw
NUM_SWAPS = 128
COMPARABLE = np.log(100.0)  # nats below the draw
BLOCKED = 12.0  # nats: a step that is taken once in 160,000 tries
MAX_BLOCK = 256  # values of a block that are redrawn jointly


class CutOff(NamedTuple):
    """What single sites do not reach.

    Attributes:
        theta: Configurations that are cut off from a draw, (found, dim), the most probable first.
        num_sites: The fewest sites that had to change together; 0 if nothing was found.
    """

    theta: np.ndarray
    num_sites: int


def cut_off(rng: np.random.Generator, target: Target, draws: np.ndarray, *, blocked: float = BLOCKED) -> CutOff:
    """Looks for configurations that are cut off from some of the draws, (draw, dim).

    Args:
        rng: Where changes come from.
        target: The target.
        draws: Configurations, (draw, dim).
        blocked: Nats by which a step on the way must fall; infinite if it must be impossible. Far from where the draws
            of pi are, steps that fall far are common and block nothing.
    """
    space = target.space
    rows = draws[rng.integers(0, len(draws), NUM_DRAWS)].astype(np.int32)
    at, to, sites = _changes(rng, rows, space.sizes)
    values = evaluate(target, to)
    here = evaluate(target, rows)[at]
    is_comparable = np.isfinite(values) & np.isfinite(here) & (values >= here - COMPARABLE)
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
    is_cut = best < np.minimum(here, values) - blocked if np.isfinite(blocked) else best == -np.inf
    if not is_cut.any():
        return CutOff(np.zeros((0, space.num_dims), np.int32), 0)
    counts = (sites[is_cut] >= 0).sum(axis=1)
    order = np.argsort(-values[is_cut], kind="stable")
    _, first = np.unique(to[is_cut][order], axis=0, return_index=True)
    return CutOff(to[is_cut][order][np.sort(first)], int(counts.min()))


def _changes(rng: np.random.Generator, rows: np.ndarray, sizes: np.ndarray) -> tuple[np.ndarray, ...]:
    """Random changes: the row each starts from, where it leads, and the sites that differ, filled up with -1."""
    d = rows.shape[1]
    most = max(TRIED)
    at, to, sites = [], [], []
    for count, tried in TRIED.items():
        if count > d:
            continue
        for r in range(len(rows)):
            chosen = np.argsort(rng.random((tried, d)), axis=1)[:, :count]
            new = np.repeat(rows[r : r + 1], tried, axis=0)
            shift = rng.integers(1, sizes[chosen])
            np.put_along_axis(new, chosen, (rows[r][chosen] + shift) % sizes[chosen], axis=1)
            at.append(np.full(tried, r))
            to.append(new)
            sites.append(np.pad(chosen, ((0, 0), (0, most - count)), constant_values=-1))
    if d > 1:
        for r in range(len(rows)):
            i, j = np.argsort(rng.random((NUM_SWAPS, d)), axis=1)[:, :2].T
            a, b = rows[r][i], rows[r][j]
            fits = (a != b) & (b < sizes[i]) & (a < sizes[j])
            i, j, a, b = i[fits], j[fits], a[fits], b[fits]
            new = np.repeat(rows[r : r + 1], len(i), axis=0)
            new[np.arange(len(i)), i], new[np.arange(len(i)), j] = b, a
            at.append(np.full(len(i), r))
            to.append(new)
            sites.append(np.pad(np.stack([i, j], axis=1), ((0, 0), (0, most - 2)), constant_values=-1))
    return np.concatenate(at), np.concatenate(to).astype(np.int32), np.concatenate(sites)
