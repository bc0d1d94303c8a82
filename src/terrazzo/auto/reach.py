"""Reach: configurations that moves of single sites are cut off from.

Where parts of the space are impossible, two configurations of like probability may differ in a few sites such that
every single change on the way is impossible: tied bits, deterministic tables, fixed sums, all-different labels. From
each of some draws, random changes of two, three and four sites and exchanges of two values are tried; one is *cut off*
if it is possible, not much less probable than the draw, and every single change on the way is blocked.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.auto.policy import Policy
from terrazzo.runtime.compilation import jit
from terrazzo.samplers.parts.reading import read_running, with_conditionals
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


class Changes(NamedTuple):
    """Changes of a few sites: what they lead to is built where it is evaluated.

    Attributes:
        at: The row that each starts from.
        sites: The sites that change, (change, site), filled up with -1.
        values: Their new values.
    """

    at: np.ndarray
    sites: np.ndarray
    values: np.ndarray

    def only(self, which: Any) -> "Changes":
        """Some of them."""
        return Changes(self.at[which], self.sites[which], self.values[which])

    def applied(self, rows: np.ndarray) -> np.ndarray:
        """Where they lead."""
        new, (number, place) = rows[self.at], np.nonzero(self.sites >= 0)
        new[number, self.sites[number, place]] = self.values[number, place]
        return new


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
    if space.num_dims < 2:  # a single site reaches all of its values
        return CutOff(np.zeros((0, space.num_dims), np.int32), 0)
    rows = draws[rng.integers(0, len(draws), policy.reach_draws)].astype(np.int32)
    changes = _changes(rng, rows, space.sizes, policy)
    values = _log_probs_after(target, rows, changes, policy)
    here = evaluate(target, rows)[changes.at]
    is_comparable = np.isfinite(values) & np.isfinite(here) & (values >= here - policy.comparable)
    changes, values, here = changes.only(is_comparable), values[is_comparable], here[is_comparable]
    if not len(values):
        return CutOff(np.zeros((0, space.num_dims), np.int32), 0)
    best = _best_first_step(target, rows, changes, here, policy)
    is_cut = best == -np.inf if is_strict else best < np.minimum(here, values) - policy.blocked
    if not is_cut.any():
        return CutOff(np.zeros((0, space.num_dims), np.int32), 0)
    cut = changes.only(is_cut)
    order = np.argsort(-values[is_cut], kind="stable")
    to = cut.applied(rows)[order]
    _, first = np.unique(to, axis=0, return_index=True)
    return CutOff(to[np.sort(first)], int((cut.sites >= 0).sum(axis=1).min()))


def _log_probs_after(target: Target, rows: np.ndarray, changes: Changes, policy: Policy) -> np.ndarray:
    """log pi after each change, in batches of one compiled size."""
    size, out = int(np.clip(policy.reach_batch // rows.shape[1], 1, len(changes.at))), []
    for first in range(0, len(changes.at), size):
        numbers = np.arange(first, first + size) % len(changes.at)  # the last batch is filled up
        part = (jnp.asarray(x, jnp.int32) for x in changes.only(numbers))
        out.append(np.asarray(_after(target, jnp.asarray(rows), *part), float))
    return np.concatenate(out)[: len(changes.at)]


@jit
def _after(target: Target, rows: Array, at: Array, sites: Array, values: Array) -> Array:
    def one(at: Array, sites: Array, values: Array) -> Array:
        outside = jnp.where(sites < 0, rows.shape[1], sites)
        return target.log_prob(rows[at].at[outside].set(values, mode="drop"))

    return jax.vmap(one)(at, sites, values)


def _best_first_step(
    target: Target, rows: np.ndarray, changes: Changes, here: np.ndarray, policy: Policy
) -> np.ndarray:
    """The largest log pi of the single changes that lead from a row towards each configuration.

    By conditionals where they are known: on a lattice of 4,096 sites 16 evaluations take the place of 30,000.
    """
    best = np.full(changes.sites.shape, -np.inf)
    number, place = np.nonzero(changes.sites >= 0)
    single = Changes(changes.at[number], changes.sites[number, place][:, None], changes.values[number, place][:, None])
    known = with_conditionals(target, read_running(target))
    if known.has_cheap_neighbours:
        logits, site = np.asarray(_all_logits(known, jnp.asarray(rows)), float), single.sites[:, 0]
        with np.errstate(invalid="ignore"):
            gain = logits[single.at, site, single.values[:, 0]] - logits[single.at, site, rows[single.at, site]]
        best[number, place] = here[number] + np.where(np.isnan(gain), -np.inf, gain)
    else:
        best[number, place] = _log_probs_after(target, rows, single, policy)
    return best.max(axis=1)


@jit
def _all_logits(target: Target, theta: Array) -> Array:
    return jax.vmap(target.all_site_logits)(theta)


def _changes(rng: np.random.Generator, rows: np.ndarray, sizes: np.ndarray, policy: Policy) -> Changes:
    """Random changes of each row: of some sites to other values, and exchanges of two values."""
    d, most = rows.shape[1], max(count for count, _ in policy.reach_tried)
    found: list[Changes] = []

    def add(r: int, sites: np.ndarray, values: np.ndarray) -> None:
        padding = ((0, 0), (0, most - sites.shape[1]))
        found.append(
            Changes(np.full(len(sites), r), np.pad(sites, padding, constant_values=-1), np.pad(values, padding))
        )

    for r, row in enumerate(rows):
        for count, tried in policy.reach_tried:
            if count <= d:
                chosen = _distinct(rng, tried, count, d)
                add(r, chosen, (row[chosen] + rng.integers(1, sizes[chosen])) % sizes[chosen])
        if d > 1:
            pairs = _distinct(rng, policy.reach_swaps, 2, d)
            a, b = row[pairs].T
            fits = (a != b) & (b < sizes[pairs[:, 0]]) & (a < sizes[pairs[:, 1]])
            add(r, pairs[fits], np.stack([b, a], axis=1)[fits])
    return Changes(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _distinct(rng: np.random.Generator, num_rows: int, count: int, d: int) -> np.ndarray:
    """Rows of `count` different sites out of d, uniform over such sets, by Floyd's algorithm: no work grows with d."""
    chosen = np.full((num_rows, count), -1)
    for n, last in enumerate(range(d - count, d)):
        drawn = rng.integers(0, last + 1, num_rows)
        is_taken = (chosen == drawn[:, None]).any(axis=1)
        chosen[:, n] = np.where(is_taken, last, drawn)
    return chosen
