"""The factor graph: which sites share a term, and what follows: components, colours, an order of elimination."""

import heapq
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from scipy.sparse.csgraph import connected_components, reverse_cuthill_mckee

from terrazzo.targets.structure.allowance import Allowance, OutOfTimeError

MAX_PAIRS = 2**24  # of sites that share a term, listed one by one; beyond it every site gets a colour of its own
MAX_CAREFUL = 2**20  # edges up to which the most constrained site is coloured first (about a second); else in order
MAX_LOG_SIZE = 26.0  # log2 of the entries of the largest table: 512 MiB
MAX_WORK = 2**23  # members of neighbourhoods compared in the search for an order: one or two seconds


@dataclass(frozen=True)
class FactorGraph:
    """Sites, and the sets of sites that terms look at.

    Attributes:
        scopes: Distinct sets of at least one site, by sites.
        sizes: The number of values of each site.
        allowance: Time for colours and for an order of elimination; without it each site has a colour of its own.

    >>> graph = FactorGraph(sp.csr_matrix(np.array([[1, 1, 0, 0], [0, 1, 1, 0]])), np.full(4, 2))
    >>> graph.num_components, graph.num_colours, graph.colours.tolist(), graph.treewidth
    (2, 2, [1, 0, 1, 0], 1)
    """

    scopes: sp.csr_matrix
    sizes: np.ndarray
    allowance: Allowance = field(default_factory=Allowance, compare=False)

    @property
    def num_sites(self) -> int:
        return len(self.sizes)

    @cached_property
    def arity(self) -> int:
        """The most sites of a term."""
        return int(np.diff(self.scopes.indptr).max(initial=0))

    @cached_property
    def is_dense(self) -> bool:
        """Whether there are too many pairs of neighbours to list them."""
        return float((np.diff(self.scopes.indptr).astype(float) ** 2).sum()) > MAX_PAIRS

    @cached_property
    def components(self) -> np.ndarray:
        """The number of each site's component: sites of different components are independent."""
        both = sp.bmat([[None, self.scopes.T], [self.scopes, None]], format="csr")
        if not self.scopes.shape[0]:
            return np.arange(self.num_sites)
        labels = connected_components(both, directed=False)[1][: self.num_sites]
        return np.unique(labels, return_inverse=True)[1]

    @property
    def num_components(self) -> int:
        return int(self.components.max(initial=-1)) + 1

    @cached_property
    def neighbours(self) -> sp.csr_matrix:
        """Sites by sites that share a term with them; empty if the graph is dense."""
        if self.is_dense:
            return sp.csr_matrix((self.num_sites, self.num_sites), dtype=np.int32)
        ones = sp.csr_matrix(self.scopes, dtype=np.int32)
        graph = (ones.T @ ones).tocoo()
        is_edge = graph.row != graph.col
        entries = (np.ones(is_edge.sum(), np.int32), (graph.row[is_edge], graph.col[is_edge]))
        return sp.csr_matrix(entries, (self.num_sites, self.num_sites))

    @cached_property
    def colours(self) -> np.ndarray:
        """A number for each site such that neighbours have different ones; two colours if two are enough."""
        if self.is_dense:
            return np.arange(self.num_sites)
        try:
            with self.allowance.stage():
                return colouring(self.neighbours, self.allowance)
        except OutOfTimeError:
            return np.arange(self.num_sites)

    @property
    def num_colours(self) -> int:
        return int(self.colours.max(initial=-1)) + 1

    @cached_property
    def order(self) -> "Order":
        """The best order of elimination that was found."""
        with self.allowance.stage():
            return elimination_order(self)

    @property
    def treewidth(self) -> int:
        """An upper bound of the treewidth: the most neighbours of a site when its turn comes."""
        return self.order.width


def colouring(neighbours: sp.csr_matrix, allowance: Allowance | None = None) -> np.ndarray:
    """Greedy colours, the site with the most different colours around it first (Brelaz 1979): exact if two do."""
    num_sites = neighbours.shape[0]
    starts, others = neighbours.indptr.tolist(), neighbours.indices.tolist()
    degrees = np.diff(neighbours.indptr)
    colours = [-1] * num_sites
    used = [0] * num_sites  # as bits
    is_careful = neighbours.nnz <= 2 * MAX_CAREFUL
    first = np.argsort(-degrees, kind="stable").tolist()
    heap = [(0, rank, i) for rank, i in enumerate(first)]
    ranks = np.empty(num_sites, int)
    ranks[first] = np.arange(num_sites)
    ranks = ranks.tolist()
    count = 0
    while heap:
        count += 1
        if allowance is not None and count % 256 == 0:
            allowance.check()
        _, _, i = heapq.heappop(heap)
        if colours[i] >= 0:
            continue
        colour = (~used[i] & (used[i] + 1)).bit_length() - 1  # the lowest bit that is not set
        colours[i] = colour
        for j in others[starts[i] : starts[i + 1]]:
            if colours[j] < 0 and not used[j] >> colour & 1:
                used[j] |= 1 << colour
                if is_careful:
                    heapq.heappush(heap, (-used[j].bit_count(), ranks[j], j))
    return np.asarray(colours, int)


@dataclass(frozen=True)
class Order:
    """An order of elimination.

    Attributes:
        sites: The sites in this order; empty if none was found within the limits.
        around: For each of them, in the same order, its remaining neighbours at its turn.
        width: The most of these; d - 1 if no order was found.
        log_sizes: log2 of the number of entries of each table on a site and its remaining neighbours.
    """

    sites: tuple[int, ...]
    around: tuple[tuple[int, ...], ...]
    width: int
    log_sizes: np.ndarray

    @property
    def max_entries(self) -> float:
        """The largest table's number of entries."""
        return float(2.0 ** self.log_sizes.max(initial=0)) if self.sites else np.inf

    @property
    def total_entries(self) -> float:
        """All tables' number of entries."""
        return float((2.0**self.log_sizes).sum()) if self.sites else np.inf


def elimination_order(graph: FactorGraph) -> Order:
    """The cheaper of two orders: least fill-in first, and by bandwidth (strips and chains)."""
    none = Order((), (), graph.num_sites - 1, np.zeros(0))
    if graph.is_dense:
        return none
    logs = np.log2(np.maximum(graph.sizes, 1)).tolist()
    band = reverse_cuthill_mckee(graph.neighbours, symmetric_mode=True)
    found = []
    for given in (band.tolist(), None):
        try:
            found.append(_eliminated(graph, logs, given))
        except OutOfTimeError:
            break
    return min((order for order in found if order is not None), key=lambda order: order.total_entries, default=none)


def _eliminated(graph: FactorGraph, logs: list[float], given: list[int] | None) -> Order | None:
    """Eliminates the sites symbolically, in the given order or by least fill-in; None where a limit is passed."""
    matrix = graph.neighbours
    around = [set(matrix.indices[a:b].tolist()) for a, b in zip(matrix.indptr, matrix.indptr[1:], strict=False)]
    work = 0

    def fill(i: int) -> int:
        nonlocal work
        near = around[i]
        work += len(near) ** 2
        return len(near) * (len(near) - 1) - sum(len(around[j] & near) for j in near)

    is_done = [False] * graph.num_sites
    heap = [] if given is not None else [(fill(i), len(around[i]), i) for i in range(graph.num_sites)]
    heapq.heapify(heap)
    sites: list[int] = []
    cliques: list[tuple[int, ...]] = []
    log_sizes: list[float] = []
    turns = iter(given or ())
    while len(sites) < graph.num_sites:
        if len(sites) % 64 == 0:
            graph.allowance.check()
        if given is not None:
            i = next(turns)
        else:
            old, _, i = heapq.heappop(heap)
            if is_done[i]:
                continue
            now = fill(i)
            if now > old:
                heapq.heappush(heap, (now, len(around[i]), i))
                continue
        near = around[i]
        log_size = logs[i] + sum(logs[j] for j in near)
        if log_size > MAX_LOG_SIZE or work > MAX_WORK:
            return None
        is_done[i] = True
        sites.append(i)
        cliques.append(tuple(sorted(near)))
        log_sizes.append(log_size)
        for j in near:
            around[j] |= near
            around[j] -= {i, j}
        if given is None:
            for j in near:
                heapq.heappush(heap, (fill(j), len(around[j]), j))
    return Order(tuple(sites), tuple(cliques), max(map(len, cliques), default=0), np.asarray(log_sizes))
