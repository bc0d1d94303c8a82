"""A pair model cut into parts that can be summed out: it is halved along weak couplings until every part is narrow.

Each cut follows the Fiedler vector, the second eigenvector of the graph's Laplacian, at its median: neighbours that
are tied strongly have nearly the same entry.

Reference: Fiedler (1975), A property of eigenvectors of nonnegative symmetric matrices.
"""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh

from terrazzo.targets.structure.elimination import eliminate
from terrazzo.targets.structure.graph import FactorGraph
from terrazzo.targets.structure.tables import Factors

LOG_ENTRIES = 12.0  # log2 of the entries of the largest table: 64 x 64 spins then lose 9 % of their couplings, and are
# summed out in 0.4 s
MOST_SITES = 2**14  # a lattice of as many takes 7 s to halve, one of 4,096 takes 1.5 (two busy cores)
MOST_WIDE = 2**9  # sites of a part whose order of elimination is looked for: above, lattices are too wide
SHIFT = 1e-2  # of the Laplacian, in mean weights: below its smallest eigenvalue, so that a factorisation exists
TILT = 1e-2  # weights rise by this from the first site to the last: symmetric graphs have one second eigenvector then


def parts(num_sites: int, edges: np.ndarray, weights: np.ndarray, num_values: int) -> np.ndarray | None:
    """The number of each site's part; None where there are too many sites.

    Args:
        num_sites: The number of sites.
        edges: Pairs of sites, (edge, 2).
        weights: How strongly each pair is tied.
        num_values: Values of a site.

    >>> square = np.arange(36).reshape(6, 6)
    >>> across, down = (square[:, :-1], square[:, 1:]), (square[:-1], square[1:])
    >>> pairs = np.concatenate([np.stack(ends, axis=-1).reshape(-1, 2) for ends in (across, down)])
    >>> numbers = parts(36, pairs, np.ones(60), 16)
    >>> np.bincount(numbers).tolist()
    [9, 9, 9, 9]
    """
    if num_sites > MOST_SITES:
        return None
    rows, columns = np.asarray(edges).T
    tilted = np.abs(weights) * (1.0 + TILT * (rows + columns) / (2.0 * num_sites))
    graph = sp.csr_matrix((tilted, (rows, columns)), (num_sites, num_sites))
    numbers = np.zeros(num_sites, int)
    for number, sites in enumerate(_narrow(graph + graph.T, num_values)):
        numbers[sites] = number
    return numbers


def _narrow(graph: sp.csr_matrix, num_values: int) -> Iterator[np.ndarray]:
    todo = [np.arange(graph.shape[0])]
    while todo:
        sites = todo.pop()
        part = graph[sites][:, sites]
        count, labels = connected_components(part, directed=False)
        if count > 1:
            todo += [sites[labels == k] for k in range(count)]
        elif len(sites) <= MOST_WIDE and _log_entries(part, num_values) <= LOG_ENTRIES:
            yield sites
        else:
            order = np.argsort(_fiedler(part), kind="stable")
            todo += [sites[np.sort(half)] for half in np.array_split(order, 2)]


def _log_entries(part: sp.csr_matrix, num_values: int) -> float:
    order = pair_graph(part.shape[0], np.stack(sp.triu(part, format="coo").nonzero(), axis=1), num_values).order
    return float(order.log_sizes.max()) if order.sites else np.inf


def _fiedler(part: sp.csr_matrix) -> np.ndarray:
    if part.shape[0] == 2:  # too small for the solver
        return np.array([0.0, 1.0])
    laplacian = sp.csc_matrix(sp.diags(np.asarray(part.sum(axis=1)).ravel()) - part)
    first = np.random.default_rng(0).normal(size=part.shape[0])
    values, vectors = eigsh(laplacian, k=2, sigma=-SHIFT * part.data.mean(), v0=first)
    return vectors[:, values.argmax()]


def pair_graph(num_sites: int, edges: np.ndarray, num_values: int) -> FactorGraph:
    """The factor graph of a pair model; the order in which edges are listed does not matter."""
    edges = np.unique(np.sort(edges, axis=1), axis=0)
    places = np.repeat(np.arange(len(edges)), 2)
    scopes = sp.csr_matrix((np.ones(2 * len(edges), bool), (places, np.ravel(edges))), (len(edges), num_sites))
    return FactorGraph(scopes, np.full(num_sites, num_values))


def log_sum(fields: np.ndarray, edges: np.ndarray, couplings: np.ndarray) -> float:
    """log Z of a pair model whose parts are narrow.

    >>> float(np.exp(log_sum(np.zeros((2, 2)), np.array([[0, 1]]), np.log([4.0]))).round(6))  # two of 1, two of 4
    10.0
    """
    num_sites, num_values = fields.shape
    single = Factors(np.arange(num_sites)[:, None], np.asarray(fields, float))
    tables = np.asarray(couplings, float)[:, None, None] * np.eye(num_values)
    pairs = Factors(np.sort(edges, axis=1), tables)
    return eliminate([single, pairs], 0.0, pair_graph(num_sites, edges, num_values)).log_z
