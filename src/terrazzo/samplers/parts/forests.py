"""Induced forests of a graph: sets of sites that hold no cycle, together all sites (Hamze & de Freitas 2004).

Given the sites outside, the sites of such a set form trees, whose joint law is drawn exactly from leaves to roots and
back. This runs on the host, before anything is compiled.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Forest(NamedTuple):
    """One block of sites, rooted; directed edge e < m goes as listed, e + m the other way.

    Attributes:
        nodes: Its sites by depth, the roots first, shape (level, width); d where there is none.
        parents: The site above each of them; d where there is none.
        links: The directed edge from each to its parent; 0 where there is none.
        inner, outer, outer_links: Edges that leave the block: the site inside, the site outside, the directed edge
            from the first to the second.
    """

    nodes: np.ndarray
    parents: np.ndarray
    links: np.ndarray
    inner: np.ndarray
    outer: np.ndarray
    outer_links: np.ndarray


def neighbours_of(edges: np.ndarray, num_sites: int) -> list[list[tuple[int, int]]]:
    """For each site its neighbours, each with the directed edge to it."""
    around: list[list[tuple[int, int]]] = [[] for _ in range(num_sites)]
    for e, (i, j) in enumerate(np.asarray(edges).tolist()):
        around[i].append((j, e))
        around[j].append((i, e + len(edges)))
    return around


def forest_cover(edges: np.ndarray, num_sites: int, max_blocks: int) -> list[np.ndarray] | None:
    """Sets of sites without cycles that cover all sites, each as large as it gets greedily; None if more are needed.

    >>> [block.tolist() for block in forest_cover(np.array([[0, 1], [1, 2], [2, 0]]), 3, 4)]
    [[0, 1], [0, 2]]
    """
    around = neighbours_of(edges, num_sites)
    blocks: list[np.ndarray] = []
    is_left = np.ones(num_sites, bool)
    while is_left.any():
        if len(blocks) == max_blocks:
            return None
        order = np.concatenate([np.flatnonzero(is_left), np.flatnonzero(~is_left)]).tolist()
        chosen = _acyclic(around, order)
        blocks.append(np.flatnonzero(chosen))
        is_left &= ~chosen
    return blocks


def _acyclic(around: Sequence[Sequence[tuple[int, int]]], order: Sequence[int]) -> np.ndarray:
    """Sites in this order, each unless it would close a cycle."""
    root = list(range(len(around)))

    def find(i: int) -> int:
        while root[i] != i:
            root[i] = root[root[i]]
            i = root[i]
        return i

    is_chosen = [False] * len(around)
    for i in order:
        roots = [find(j) for j, _ in around[i] if is_chosen[j]]
        if len(set(roots)) == len(roots):
            is_chosen[i] = True
            for r in roots:
                root[r] = i
    return np.asarray(is_chosen)


def rooted(edges: np.ndarray, num_sites: int, block: np.ndarray) -> Forest:
    """A block with its trees rooted at their centres, by levels."""
    around, inside = neighbours_of(edges, num_sites), np.zeros(num_sites, bool)
    inside[block] = True
    levels: list[list[tuple[int, int, int]]] = []
    is_done = np.zeros(num_sites, bool)
    for first in block.tolist():
        if is_done[first]:
            continue
        far = _by_depth(around, inside, first)[-1][-1][0]
        for depth, level in enumerate(_by_depth(around, inside, _centre(_by_depth(around, inside, far)))):
            if depth == len(levels):
                levels.append([])
            levels[depth] += level
            is_done[[i for i, _, _ in level]] = True
    width = max(map(len, levels))
    table = np.full((3, len(levels), width), num_sites, np.int32)
    table[2] = 0
    for depth, level in enumerate(levels):
        table[:, depth, : len(level)] = np.asarray(level).T
    leaving = [(i, j, e) for i in block.tolist() for j, e in around[i] if not inside[j]]
    inner, outer, links = np.asarray(leaving, np.int32).reshape(-1, 3).T
    return Forest(nodes=table[0], parents=table[1], links=table[2], inner=inner, outer=outer, outer_links=links)


def _by_depth(around: Sequence, inside: np.ndarray, start: int) -> list[list[tuple[int, int, int]]]:
    """The tree of a site inside the block: (site, parent, directed edge to it) by depth."""
    levels, level = [], [(start, len(around), 0)]
    size = sum(map(len, around)) // 2
    while level:
        levels.append(level)
        back = lambda e: e - size if e >= size else e + size
        level = [(j, i, back(e)) for i, above, _ in level for j, e in around[i] if inside[j] and j != above]
    return levels


def _centre(levels: list[list[tuple[int, int, int]]]) -> int:
    """The middle of the path from the deepest site to the root."""
    parents = {i: above for level in levels for i, above, _ in level}
    site = levels[-1][0][0]
    for _ in range((len(levels) - 1) // 2):
        site = parents[site]
    return site
