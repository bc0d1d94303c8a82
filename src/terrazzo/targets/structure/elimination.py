"""Exact answers at small treewidth: log Z, marginals, independent draws and the maximum, by elimination.

Sites are summed out one after the other, on the log scale in float64; what is kept of each is its conditional given the
sites around it at its turn, so that the reverse order draws, one site after the other, from pi itself:

    pi(theta) = prod_i p(theta_i | theta_around(i)).

NumPy, not JAX: thousands of small tables of many shapes would take longer to compile than to add up.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.targets.structure.graph import FactorGraph, Order
from terrazzo.targets.structure.tables import Factors

MAX_LARGEST, MAX_TOTAL = 2.0**24, 2.0**27  # entries of the largest table (128 MB), and of all of them (a gigabyte)


@dataclass(frozen=True)
class Exact:
    """A distribution whose sites can be summed out.

    Attributes:
        log_z: The logarithm of the sum of exp(log pi) over all configurations.
        order: The order of elimination.
        sizes: The number of values of each site.
        cumulative: For each site of the order, P(theta_i <= k | around) for k < K_i - 1, flat in the sites around.
    """

    log_z: float
    order: Order
    sizes: np.ndarray
    cumulative: tuple[np.ndarray, ...]

    def sample(self, key: Array, num_draws: int) -> np.ndarray:
        """Independent draws from pi, int32, shape (num_draws, d)."""
        if not np.isfinite(self.log_z):
            raise ValueError("every configuration is impossible: there is nothing to draw")
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().tolist())
        theta = np.zeros((len(self.sizes), num_draws), np.intp)
        for site, around, below in self._last_first():
            rows = np.zeros(num_draws, np.intp)
            for j in around:
                rows = rows * self.sizes[j] + theta[j]
            limits = below[rows]
            uniform = rng.random(num_draws)
            theta[site] = uniform >= limits[:, 0] if limits.shape[1] == 1 else (uniform[:, None] >= limits).sum(axis=1)
        return np.ascontiguousarray(theta.T.astype(np.int32))

    def _last_first(self) -> Iterator[tuple[int, tuple[int, ...], np.ndarray]]:
        return zip(reversed(self.order.sites), reversed(self.order.around), reversed(self.cumulative), strict=True)


def _arranged(table: np.ndarray, sites: Sequence[int], axes: Sequence[int]) -> np.ndarray:
    """A table on some sites with its axes in the order of `axes`, of length 1 where it has none."""
    order = sorted(range(len(sites)), key=lambda k: axes.index(sites[k]))
    shape = iter([table.shape[k] for k in order])
    own = set(sites)
    return table.transpose(order).reshape([next(shape) if s in own else 1 for s in axes])


def can_eliminate(graph: FactorGraph) -> bool:
    """Whether the tables of an elimination fit; estimated before anything is computed."""
    return graph.order.max_entries <= MAX_LARGEST and graph.order.total_entries <= MAX_TOTAL


def _eliminate(
    factors: Sequence[Factors],
    graph: FactorGraph,
    summarise: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
) -> tuple[float, list[np.ndarray]]:
    """Removes one site after the other.

    Args:
        factors: The tables.
        graph: Their graph.
        summarise: What becomes of a table on (around, site): the message to the others, and what is kept.

    Returns:
        The sum of the last messages, and what was kept.
    """
    turn = np.empty(graph.num_sites, int)
    turn[list(graph.order.sites)] = np.arange(graph.num_sites)
    buckets: list[list[tuple[tuple[int, ...], np.ndarray]]] = [[] for _ in range(graph.num_sites)]
    for group in factors:
        first = turn[group.sites].argmin(axis=1)
        for sites, table, k in zip(group.sites.tolist(), group.tables, first.tolist(), strict=True):
            buckets[sites[k]].append((tuple(sites), table))
    sizes = graph.sizes.tolist()
    total, kept = 0.0, []
    for site, around in zip(graph.order.sites, graph.order.around, strict=True):
        axes = (*around, site)
        table = np.zeros([sizes[s] for s in axes])
        for sites, part in buckets[site]:
            table += _arranged(part, sites, axes)
        buckets[site] = []
        message, keep = summarise(table)
        kept.append(keep)
        if around:
            buckets[min(around, key=turn.__getitem__)].append((around, message))
        else:
            total += float(message)
    return total, kept


def _summed(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    top = table.max(axis=-1)
    shift = np.where(np.isneginf(top), 0.0, top)
    running = np.cumsum(np.exp(table - shift[..., None]), axis=-1)
    total = running[..., -1]
    with np.errstate(divide="ignore"):
        message = np.asarray(np.log(total) + shift)
    safe = np.where(total == 0, 1.0, total)  # impossible whatever the site is: never asked for
    below = running[..., :-1] / safe[..., None]
    return message, below.reshape(-1, below.shape[-1])


def _largest(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    best = table.argmax(axis=-1)
    return np.asarray(np.take_along_axis(table, best[..., None], axis=-1)[..., 0]), np.ravel(best).astype(np.int32)


def eliminate(factors: Sequence[Factors], constant: float, graph: FactorGraph) -> Exact:
    """Sums out all sites.

    Args:
        factors: The terms as tables, from `factor_tables`.
        constant: What is added to them.
        graph: Their graph; `can_eliminate` says whether this is feasible.

    >>> import scipy.sparse as sp
    >>> graph = FactorGraph(sp.csr_matrix(np.array([[1, 1]])), np.array([2, 2]))
    >>> exact = eliminate([Factors(np.array([[0, 1]]), np.log(np.array([[[1.0, 2.0], [3.0, 4.0]]])))], 0.0, graph)
    >>> round(np.exp(exact.log_z).item(), 9)
    10.0
    """
    total, kept = _eliminate(factors, graph, _summed)
    return Exact(total + constant, graph.order, graph.sizes, tuple(kept))


def maximum(factors: Sequence[Factors], constant: float, graph: FactorGraph) -> tuple[np.ndarray, float]:
    """A configuration of the largest log pi, and that log pi."""
    total, kept = _eliminate(factors, graph, _largest)
    theta = np.zeros(graph.num_sites, np.int32)
    for site, around, best in zip(
        reversed(graph.order.sites), reversed(graph.order.around), reversed(kept), strict=True
    ):
        row = 0
        for j in around:
            row = row * int(graph.sizes[j]) + int(theta[j])
        theta[site] = best[row]
    return theta, total + constant
