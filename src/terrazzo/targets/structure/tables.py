"""Terms as tables: the value of every term at all assignments of its own sites, added up by sets of sites.

Colours make this cheap: in one configuration all sites of a colour have one value, and every term sees one assignment
of its sites, whose colours differ. A few configurations then show all terms all their assignments. What depends on
single sites is seen at the K configurations that are constant, and so are products of such.
"""

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from terrazzo.targets.structure.allowance import Allowance
from terrazzo.targets.structure.graph import FactorGraph
from terrazzo.targets.structure.terms import Block, Terms

MAX_ENTRIES = 2**26  # of all tables together, and of the values of terms seen while filling them: half a gigabyte each
BATCH = 2**22  # values of terms evaluated at a time
MAX_SUBSETS = 512  # sets of colours that are searched for larger ones that contain them


class Factors(NamedTuple):
    """Tables on sets of sites of equal sizes.

    Attributes:
        sites: Increasing sites, shape (factor, arity); distinct rows.
        tables: Their log-factors, shape (factor, K_1, ..., K_arity), float64.
    """

    sites: np.ndarray
    tables: np.ndarray


def factor_tables(
    terms: Terms, sizes: np.ndarray, allowance: Allowance | None = None
) -> tuple[list[Factors], float] | None:
    """All terms as tables, grouped by the sizes of their sites, and a constant: log pi is the sum of all of them.

    Args:
        terms: The terms.
        sizes: The number of values of each site.
        allowance: Time; `OutOfTimeError` is raised where it ends.

    Returns:
        None if the tables are too large, or not numbers.
    """
    allowance = Allowance() if allowance is None else allowance
    allowance.check()
    sizes = np.asarray(sizes, np.int64)
    with np.errstate(over="ignore"):
        entries = np.exp2(terms.scopes.astype(float) @ np.log2(sizes))
    if entries.sum() > MAX_ENTRIES:
        return None
    simple = [_is_simple(terms, block) for block in terms.blocks]
    is_simple = np.concatenate([np.zeros(0, bool), *simple])
    collected: dict[tuple[int, ...], list[tuple[np.ndarray, np.ndarray]]] = {}
    with np.errstate(invalid="ignore"):
        seen = _local_tables(terms, sizes, simple)
        rest = _coloured_tables(terms, sizes, ~is_simple, allowance) if not is_simple.all() else []
        if rest is None:
            return None
        for sites, tables in itertools.chain(seen, rest):
            allowance.check()
            if len(sites):
                collected.setdefault(tuple(sizes[sites[0]].tolist()), []).append((sites, tables))
        factors = [_merged(*map(np.concatenate, zip(*parts, strict=True))) for parts in collected.values()]
    if any(np.isnan(f.tables).any() for f in factors):
        return None
    constant = terms.constant + sum(float(f.tables.sum()) for f in factors if not f.sites.shape[1])
    return [f for f in factors if f.sites.shape[1]], constant


def _is_simple(terms: Terms, block: Block) -> np.ndarray:
    """Which terms of a block depend on one site, or are products of two factors that do."""
    pool, of = terms.dependence.pool, terms.dependence.of
    is_local = pool.sizes(of(block.slot)[block.places]) <= 1
    return is_local if block.other is None else is_local & (pool.sizes(of(block.other[0])[block.other[1]]) <= 1)


def _constant_configurations(sizes: np.ndarray) -> np.ndarray:
    return np.minimum(np.arange(sizes.max())[:, None], sizes - 1).astype(np.int32)


def _local_tables(terms: Terms, sizes: np.ndarray, simple: list[np.ndarray]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tables of the simple terms, from the configurations in which all sites are equal."""
    slots = terms.slots
    if not any(s.any() for s in simple):
        return
    at = jnp.asarray(_constant_configurations(sizes))
    arrays = jax.jit(jax.vmap(lambda theta: terms.dependence.program.evaluate(theta, slots)))(at)
    values = {s: np.asarray(a).reshape(len(at), -1) for s, a in zip(slots, arrays, strict=True)}
    site_of = lambda slot, places: _only_site(terms, slot, places)
    for block, kept in zip(terms.blocks, simple, strict=True):
        x, i = values[block.slot][:, block.places[kept]], site_of(block.slot, block.places[kept])
        if block.forbidden is not None:
            yield from _by_size(i[:, None], np.where(x == block.forbidden, -np.inf, 0.0).T, sizes)
            continue
        x = x.astype(float) * block.weights[kept]
        if block.other is None:
            yield from _by_size(i[:, None], x.T, sizes)
            continue
        y, j = values[block.other[0]][:, block.other[1][kept]], site_of(block.other[0], block.other[1][kept])
        is_one = (i == j) | (i < 0) | (j < 0)
        yield from _by_size(np.maximum(i, j)[is_one, None], (x * y)[:, is_one].T, sizes)
        x, y, i, j = x[:, ~is_one].T, y[:, ~is_one].T.astype(float), i[~is_one], j[~is_one]
        first, second = np.where((i < j)[:, None], x, y), np.where((i < j)[:, None], y, x)
        pairs = np.stack([np.minimum(i, j), np.maximum(i, j)], axis=1)
        yield from _by_size(pairs, first[:, :, None] * second[:, None, :], sizes)


def _only_site(terms: Terms, slot: int, places: np.ndarray) -> np.ndarray:
    """The site that each of some elements depends on; -1 for none."""
    pool = terms.dependence.pool
    sets = terms.dependence.of(slot)[places]
    return np.where(pool.sizes(sets) == 1, pool.members[pool.starts[sets].clip(0, len(pool.members) - 1)], -1)


def _by_size(sites: np.ndarray, tables: np.ndarray, sizes: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Tables padded to the largest size, cut to the sizes of their sites."""
    is_none = sites[:, 0] < 0
    if is_none.any():
        yield np.zeros((int(is_none.sum()), 0), int), tables[is_none].reshape(int(is_none.sum()), -1)[:, 0]
    sites, tables = sites[~is_none], tables[~is_none]
    shapes, back = np.unique(sizes[sites], axis=0, return_inverse=True)
    for number, shape in enumerate(shapes):
        is_kept = back.ravel() == number
        yield sites[is_kept], tables[is_kept][(slice(None), *[slice(0, k) for k in shape])]


def _coloured_tables(
    terms: Terms, sizes: np.ndarray, wanted: np.ndarray, allowance: Allowance
) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Tables of the other terms, from configurations in which all sites of a colour are equal."""
    part = terms.only(wanted)
    found = coloured_layout(part, sizes, allowance)
    if found is None:
        return None
    configurations, groups = found
    values = _evaluated(part, configurations, allowance)
    return [(sites, np.moveaxis(values[rows][..., numbers], -1, 0)) for sites, rows, numbers in groups]


def coloured_layout(
    part: Terms, sizes: np.ndarray, allowance: Allowance
) -> tuple[np.ndarray, list[tuple[np.ndarray, np.ndarray, np.ndarray]]] | None:
    """Configurations that show all terms all their assignments, and where to find these among the values there.

    Returns:
        None if there are too many; else the configurations, and groups of terms of one shape: their sites, the row of
        each assignment, and the numbers of the terms.
    """
    scopes = sp.csr_matrix(part.scopes)
    graph = FactorGraph(scopes, sizes, allowance)
    if graph.is_dense:
        return None
    colours = graph.colours
    largest = np.zeros(graph.num_colours, np.int64)
    np.maximum.at(largest, colours, sizes)
    sites_of = [tuple(scopes.indices[a:b]) for a, b in zip(scopes.indptr, scopes.indptr[1:], strict=False)]
    sets = [tuple(sorted(colours[list(sites)].tolist())) for sites in sites_of]
    chosen = _covering(set(sets))
    distinct = sorted(set(chosen.values()))
    num_each = [int(np.prod(largest[list(c)])) for c in distinct]
    if sum(num_each) * part.num_terms > MAX_ENTRIES or sum(num_each) * len(sizes) > MAX_ENTRIES:
        return None
    first = dict(zip(distinct, np.cumsum([0] + num_each).tolist(), strict=False))
    groups: dict[tuple, list[int]] = {}
    for t, (sites, c) in enumerate(zip(sites_of, sets, strict=True)):
        groups.setdefault(
            (chosen[c], tuple(colours[list(sites)].tolist()), tuple(sizes[list(sites)].tolist())), []
        ).append(t)
    out = []
    for (c, own, shape), numbers in groups.items():
        strides = dict(zip(c, np.cumprod([1, *largest[list(c)][:0:-1]])[::-1].tolist(), strict=True))
        rows = first[c] + sum(np.arange(k).reshape(_axis(a, len(own))) * strides[own[a]] for a, k in enumerate(shape))
        own_sites = np.asarray([sites_of[t] for t in numbers], int).reshape(len(numbers), -1)
        out.append((own_sites, np.broadcast_to(rows, shape), np.asarray(numbers)))
    return _configurations(distinct, largest, colours, sizes), out


def _axis(a: int, num_axes: int) -> list[int]:
    return [-1 if b == a else 1 for b in range(num_axes)]


def _covering(sets: set[tuple[int, ...]]) -> dict[tuple[int, ...], tuple[int, ...]]:
    """For each set of colours one that contains it, from few."""
    if len(sets) > MAX_SUBSETS:
        return {s: s for s in sets}
    largest: list[tuple[int, ...]] = []
    out = {}
    for s in sorted(sets, key=lambda s: (-len(s), s)):
        over = next((other for other in largest if set(s) <= set(other)), None)
        largest += [s] if over is None else []
        out[s] = over or s
    return out


def _configurations(
    distinct: list[tuple[int, ...]], largest: np.ndarray, colours: np.ndarray, sizes: np.ndarray
) -> np.ndarray:
    """For each set of colours all values of these, the other colours being 0."""
    rows = []
    for c in distinct:
        values = np.stack(np.unravel_index(np.arange(int(np.prod(largest[list(c)]))), largest[list(c)]), axis=1)
        by_colour = np.zeros((len(values), len(largest)), np.int32)
        by_colour[:, list(c)] = values
        rows.append(np.minimum(by_colour[:, colours], sizes - 1).astype(np.int32))
    return np.concatenate(rows)


def _evaluated(terms: Terms, configurations: np.ndarray, allowance: Allowance) -> np.ndarray:
    """All terms at many configurations, in batches of one compiled size."""
    batch = max(1, min(len(configurations), BATCH // max(1, terms.num_terms)))
    compiled = jax.jit(jax.vmap(terms.values))
    out = []
    for start in range(0, len(configurations), batch):
        allowance.check()
        part = configurations[start : start + batch]
        filled = np.concatenate([part, np.repeat(part[:1], batch - len(part), axis=0)])
        out.append(np.asarray(compiled(jnp.asarray(filled)))[: len(part)].astype(float))
    return np.concatenate(out)


def _merged(sites: np.ndarray, tables: np.ndarray) -> Factors:
    """Tables on the same sites added up."""
    if not sites.shape[1]:
        return Factors(sites[:1], tables.sum(axis=0, keepdims=True))
    order = np.lexsort(sites.T[::-1])
    sites, tables = sites[order], tables[order]
    first = np.flatnonzero(np.concatenate([[True], (sites[1:] != sites[:-1]).any(axis=1)]))
    return Factors(sites[first], np.add.reduceat(tables, first, axis=0))
