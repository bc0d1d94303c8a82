"""Sums over all configurations as a function of data: differentiable, compiled, and drawn from backwards.

    log sum_theta exp(f(theta, y)),    f = sum of terms that depend on few sites each, and on y.

`elimination` sums tables of numbers on the host. Here the tables depend on reals y that a gradient kernel moves, so the
sum is a JAX function of y. Sites are removed in rounds: those of a round share no term, and all of one shape are one
batched operation. A chain of n sites takes about log2(n) rounds, and independent sites take one, so that what is
compiled stays small. The same tables, read from the last round to the first, draw theta from its exact conditional:

    p(theta | y) = prod_i p(theta_i | theta_around(i), y).
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.targets.structure.allowance import Allowance
from terrazzo.targets.structure.graph import FactorGraph
from terrazzo.targets.structure.tables import coloured_layout
from terrazzo.targets.structure.terms import Terms

MAX_LOG_ENTRIES = 14.0  # log2 of the largest table of a site and its neighbours: 16,384 numbers a step of every chain
MAX_TOTAL_ENTRIES = 2.0**21  # of all tables: they are filled at every evaluation
MAX_EQUATIONS = 1500  # of the function itself: an unrolled loop of 200 steps has 4,000, and takes 40 seconds to compile
MAX_GROUPS = 160  # batched operations: each takes about 10 ms to compile, once more for its gradient


class Pull(NamedTuple):
    """Rows of an earlier array that are added to the tables of a group.

    Attributes:
        source: Which array: the tables of terms come first, then the messages of groups in order.
        rows: Which of its rows.
        owners: To which tables of the group.
        axes: Which axis of a table each axis of a row is.
    """

    source: int
    rows: np.ndarray
    owners: np.ndarray
    axes: tuple[int, ...]


class Group(NamedTuple):
    """Sites of one round whose tables have one shape.

    Attributes:
        sites: The sites, (site,).
        around: Their neighbours that are left, (site, neighbour).
        shape: The sizes of the neighbours, and of the site.
        pulls: What is added up.
    """

    sites: np.ndarray
    around: np.ndarray
    shape: tuple[int, ...]
    pulls: list[Pull]


@dataclass(frozen=True, eq=False)
class Summation:
    """A plan of a sum; compared by identity, so that compiled code can hold it as a constant.

    Attributes:
        terms: The terms.
        configurations: Where they are evaluated.
        layout: For each group of terms the rows of their assignments, and their numbers.
        constants: The numbers of the terms without sites.
        groups: In the order of elimination.
        num_sites: d.
        width: The most neighbours of a site at its turn.
    """

    terms: Terms
    configurations: np.ndarray
    layout: list[tuple[np.ndarray, np.ndarray]]
    constants: np.ndarray
    groups: list[Group]
    num_sites: int
    width: int

    @property
    def num_values(self) -> int:
        """Values of terms that one sum takes."""
        return len(self.configurations) * self.terms.num_terms

    @property
    def num_entries(self) -> int:
        """Entries of all tables that are summed."""
        return sum(len(group.sites) * math.prod(group.shape) for group in self.groups)

    def __call__(self, y: Float[Array, " data"]) -> Float[Array, ""]:
        """log sum_theta exp(f(theta, y))."""
        return self.forward(y)[0]

    def forward(self, y: Float[Array, " data"]) -> tuple[Float[Array, ""], list[Array]]:
        """The sum, and the tables that `backward` draws from."""
        values = jax.vmap(lambda theta: self.terms.values(theta, y))(jnp.asarray(self.configurations))
        sources = [jnp.moveaxis(_taken(_taken(values, numbers, 1), rows, 0), -1, 0) for rows, numbers in self.layout]
        total = values[0, self.constants].sum() + self.terms.constant
        tables = []
        for group in self.groups:
            table = jnp.zeros((len(group.sites), *group.shape), values.dtype)
            for pull in group.pulls:
                table = _added(table, sources[pull.source], pull)
            message = _log_sum(table)
            tables.append(table)
            sources.append(message)
            if message.ndim == 1:
                total = total + message.sum()
        return jnp.where(jnp.isnan(total), -jnp.inf, total), tables

    def backward(self, key: Array, tables: list[Array]) -> Int[Array, " dim"]:
        """A draw of theta given y; all of its noise is drawn at once, which compiles in a third of the time."""
        theta = jnp.zeros(self.num_sites, jnp.int32)
        ends = np.cumsum([len(group.sites) * group.shape[-1] for group in self.groups])
        noise = jax.random.gumbel(key, (int(ends[-1]) if len(ends) else 0,), jnp.result_type(float))
        for group, table, end in list(zip(self.groups, tables, ends, strict=True))[::-1]:
            number, size = len(group.sites), group.shape[-1]
            rows = jnp.zeros(number, jnp.int32)
            for a, k in enumerate(group.shape[:-1]):
                rows = rows * k + theta[group.around[:, a]]
            logits = table.reshape(number, -1, size)[jnp.arange(number), rows]
            own = noise[end - number * size : end].reshape(number, size)
            drawn = jnp.argmax(logits + own.astype(logits.dtype), axis=-1).astype(jnp.int32)
            theta = theta.at[group.sites].set(drawn, unique_indices=True)
        return theta


def _taken(array: Array, places: np.ndarray, axis: int) -> Array:
    """Some places of an axis; as a slice where they are one.

    The gradient of a gather is a scatter, which a CPU makes number by number: of a change point in 110 years it took
    nine tenths of the time.
    """
    first = int(places.flat[0]) if places.size else 0
    if places.ndim == 1 and len(places) and (places == first + np.arange(len(places))).all():
        return jax.lax.slice_in_dim(array, first, first + len(places), axis=axis)
    return jnp.take(array, places, axis=axis)


def _added(table: Array, source: Array, pull: Pull) -> Array:
    order = np.argsort(pull.owners, kind="stable")
    part = _taken(source, pull.rows[order], 0)
    part = part.transpose(0, *(1 + np.argsort(pull.axes)))
    shape = [1] * (table.ndim - 1)
    for a in pull.axes:
        shape[a] = table.shape[1 + a]
    part = part.reshape(len(pull.rows), *shape)
    counts = np.bincount(pull.owners, minlength=table.shape[0])
    if (counts == counts[0]).all():
        return table + (part if counts[0] == 1 else part.reshape(table.shape[0], counts[0], *shape).sum(axis=1))
    return table.at[pull.owners[order]].add(jnp.broadcast_to(part, (len(pull.rows), *table.shape[1:])))


def _log_sum(table: Array) -> Array:
    """The log-sum over the last axis; -inf where all is impossible, with a gradient of 0 there."""
    top = jax.lax.stop_gradient(table.max(axis=-1))
    shift = jnp.where(jnp.isfinite(top), top, 0.0)
    is_possible = top > -jnp.inf
    inner = jnp.where(is_possible[..., None], table - shift[..., None], 0.0)
    return jnp.where(is_possible, jnp.log(jnp.exp(inner).sum(axis=-1)) + shift, -jnp.inf)


# ---- the plan


def plan_summation(terms: Terms, graph: FactorGraph, allowance: Allowance) -> Summation | None:
    """Plans the sum; None if its tables are too large or it takes too many operations."""
    sizes = np.asarray(graph.sizes, np.int64)
    if len(terms.dependence.program.needed(terms.slots)) > MAX_EQUATIONS:
        return None
    rounds = _rounds(graph, sizes)
    if rounds is None:
        return None
    has_sites = terms.arities > 0
    numbers = np.flatnonzero(has_sites)
    found = coloured_layout(terms.only(has_sites), sizes, allowance) if has_sites.any() else None
    if has_sites.any() and found is None:
        return None
    configurations, parts = found if found is not None else (np.zeros((1, len(sizes)), np.int32), [])
    entries = sum(rows.size * len(own) for _, rows, own in parts) + len(configurations) * terms.num_terms
    if entries > MAX_TOTAL_ENTRIES:
        return None
    groups = _groups(rounds, sizes, [sites for sites, _, _ in parts])
    if len(groups) > MAX_GROUPS or sum(len(g.sites) * np.prod(g.shape) for g in groups) > MAX_TOTAL_ENTRIES:
        return None
    return Summation(
        terms=terms, configurations=configurations, layout=[(rows, numbers[own]) for _, rows, own in parts],
        constants=np.flatnonzero(~has_sites), groups=groups, num_sites=len(sizes),
        width=max((len(g.shape) - 1 for g in groups), default=0),
    )  # fmt: skip


def _rounds(graph: FactorGraph, sizes: np.ndarray) -> list[list[tuple[int, tuple[int, ...]]]] | None:
    """Sites in rounds, each with its neighbours at its turn; no two of a round are neighbours."""
    logs = np.log2(np.maximum(sizes, 1))
    near: list[set[int]] = [set() for _ in sizes]
    for start, end in zip(graph.scopes.indptr, graph.scopes.indptr[1:], strict=False):
        members = graph.scopes.indices[start:end].tolist()
        if logs[members].sum() > MAX_LOG_ENTRIES:
            return None
        for s in members:
            near[s].update(members)
    for s, others in enumerate(near):
        others.discard(s)
    cost = lambda s: float(logs[s] + sum(logs[list(near[s])]))
    left: set[int] = set(range(len(sizes)))
    out: list[list[tuple[int, tuple[int, ...]]]] = []
    while left:
        by_cost = sorted((cost(s), s) for s in left)
        allowed = max(by_cost[0][0], min(by_cost[0][0] + 2 * float(logs.max()), MAX_LOG_ENTRIES))
        if by_cost[0][0] > MAX_LOG_ENTRIES or len(out) > MAX_GROUPS:
            return None
        chosen: list[tuple[int, tuple[int, ...]]] = []
        blocked: set[int] = set()
        for price, s in by_cost:
            if price <= allowed and s not in blocked:
                chosen.append((s, tuple(sorted(near[s]))))
                blocked |= near[s]
        for s, around in chosen:
            for a in around:
                near[a].discard(s)
                near[a].update(b for b in around if b != a)
            left.discard(s)
        out.append(chosen)
    return out


def _groups(
    rounds: list[list[tuple[int, tuple[int, ...]]]], sizes: np.ndarray, term_sites: list[np.ndarray]
) -> list[Group]:
    """The sites of each round by shape, and what flows into each."""
    groups: list[Group] = []
    place: dict[int, tuple[int, int]] = {}  # of a site: its group, and where in it
    for chosen in rounds:
        by_shape: dict[tuple[int, ...], list[tuple[int, tuple[int, ...]]]] = {}
        for s, around in chosen:
            by_shape.setdefault((*sizes[list(around)].tolist(), int(sizes[s])), []).append((s, around))
        for shape, members in by_shape.items():
            for k, (s, _) in enumerate(members):
                place[s] = (len(groups), k)
            nearby = np.asarray([a for _, a in members], int).reshape(len(members), -1)
            groups.append(Group(np.asarray([s for s, _ in members]), nearby, shape, []))
    tables: list[Any] = [*term_sites, *(g.around for g in groups)]
    for source, sites in enumerate(tables):
        flows: dict[tuple[int, tuple[int, ...]], tuple[list[int], list[int]]] = {}
        for row, own in enumerate(sites.tolist()):
            if not own:
                continue
            first = min(own, key=lambda s: place[s])
            number, k = place[first]
            axes = (*groups[number].around[k].tolist(), first)
            rows, owners = flows.setdefault((number, tuple(axes.index(s) for s in own)), ([], []))
            rows.append(row)
            owners.append(k)
        for (number, axes), (rows, owners) in flows.items():
            groups[number].pulls.append(Pull(source, np.asarray(rows), np.asarray(owners), axes))
    return groups
