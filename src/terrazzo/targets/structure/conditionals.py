"""Conditionals of many sites at once, up to a constant of each site.

Three ways, each exact, also where terms are -inf and from impossible configurations: only sums of a site's own terms
are formed, never differences with what they were.

    by weights  log-odds_i = h_i + sum_j W_ij theta_j, for two values and finite pair tables
    by tables   logits_i = h_i + sum_s T_s[theta around], for terms of few sites
    by terms    logits_i(k) = sum of the terms of site i with all sites of its colour shifted alike, for any terms
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.targets.structure.tables import Factors
from terrazzo.targets.structure.terms import Terms

MAX_PADDING = 2.0  # padded entries of tables a site, over those needed; beyond it they are added up by segments
MAX_WEIGHTS = 2**22  # padded weights that are always taken


class AbstractSiteLogits(eqx.Module):
    """`(theta) -> logits` for some sites, which are independent given the rest.

    Attributes:
        sites: The sites.
        is_value: Which of 0..K-1 are values of each.
    """

    sites: eqx.AbstractVar[Int[Array, " site"]]
    is_value: eqx.AbstractVar[Bool[Array, "site value"]]

    @abstractmethod
    def logits(self, theta: Int[Array, " dim"]) -> Float[Array, "site value"]:
        """log pi with each site at each value, up to a constant of the site; -inf at what is no value.

        The configuration may be of any type of integers: a small one is quick to send to other devices.
        """

    @property
    def has_slots(self) -> bool:
        """Whether the entries of one site are found at its place, so that its conditional alone costs little."""
        return False

    def site_logits(self, theta: Int[Array, " dim"], place: Int[Array, ""]) -> Float[Array, " value"]:
        """The row of `logits` of the site at one place of `sites`."""
        return self.logits(theta)[place]


class WeightedLogits(AbstractSiteLogits):
    """By weights.

    Attributes:
        field: h, shape (site,).
        weights: W, shape (slot, site), or (1, 1) if all are equal.
        near: j, shape (slot, site); where there is none, the weight is 0.
        is_even: Whether all weights are equal (and none is missing).
    """

    sites: Int[Array, " site"]
    is_value: Bool[Array, "site value"]
    field: Float[Array, " site"]
    weights: Float[Array, "rows columns"]
    near: Int[Array, "slot site"]
    is_even: bool = eqx.field(static=True)

    def logits(self, theta: Int[Array, " dim"]) -> Float[Array, "site value"]:
        num_slots = self.near.shape[0]
        if self.is_even:
            values = [theta[self.near[s]].astype(jnp.int32) for s in range(num_slots)]
            count = sum(values[1:], values[0])
            odds = self.field + self.weights[0, 0] * count.astype(self.field.dtype)
        else:
            parts = (self.weights[s] * theta[self.near[s]].astype(self.field.dtype) for s in range(num_slots))
            odds = sum(parts, self.field)
        return jnp.stack([jnp.zeros_like(odds), odds], axis=1)

    @property
    def has_slots(self) -> bool:
        return True

    def site_logits(self, theta: Int[Array, " dim"], place: Int[Array, ""]) -> Float[Array, " value"]:
        weights = self.weights[0] if self.is_even else self.weights[:, place]
        odds = self.field[place] + jnp.sum(weights * theta[self.near[:, place]].astype(self.field.dtype))
        return jnp.stack([jnp.zeros_like(odds), odds])


class TableLogits(AbstractSiteLogits):
    """By tables.

    Attributes:
        unary: h, shape (site, value).
        pool: Rows of all tables, a value of the site last; row 0 is zero.
        base: The first row of each table, shape (slot, site), or (entry,) where `owner` says whose they are.
        near: The other sites of each table, shape (other, slot, site) or (other, entry).
        strides: What a step of each other site means in rows, of the same shape.
        owner: The site (its place among `sites`) of each entry, or None.
    """

    sites: Int[Array, " site"]
    is_value: Bool[Array, "site value"]
    unary: Float[Array, "site value"]
    pool: Float[Array, "row value"]
    base: Int[Array, "*slots"]
    near: Int[Array, "other *slots"]
    strides: Int[Array, "other *slots"]
    owner: Int[Array, " entry"] | None

    def logits(self, theta: Int[Array, " dim"]) -> Float[Array, "site value"]:
        rows = self.base
        for a in range(self.near.shape[0]):
            rows = rows + self.strides[a] * theta[self.near[a]].astype(rows.dtype)
        if self.owner is None:
            return sum((self.pool[rows[s]] for s in range(rows.shape[0])), self.unary)
        return self.unary.at[self.owner].add(self.pool[rows], indices_are_sorted=True)

    @property
    def has_slots(self) -> bool:
        return self.owner is None

    def site_logits(self, theta: Int[Array, " dim"], place: Int[Array, ""]) -> Float[Array, " value"]:
        if self.owner is not None:
            return self.logits(theta)[place]
        near, strides = self.near[..., place], self.strides[..., place]
        rows = self.base[:, place] + jnp.sum(strides * theta[near], axis=0, dtype=jnp.int32)
        return self.unary[place] + jnp.sum(self.pool[rows], axis=0)


class TermLogits(AbstractSiteLogits):
    """By terms: one evaluation of all terms for each of the K shifts of the sites.

    Attributes:
        sizes: The number of values of each site.
        owner: For each term the place of its site among `sites`, or their number if it has none.
        data: What else the terms depend on, if the function has data that vary.
    """

    sites: Int[Array, " site"]
    is_value: Bool[Array, "site value"]
    sizes: Int[Array, " site"]
    owner: Int[Array, " term"]
    terms: Terms = eqx.field(static=True)
    data: Any = None

    def logits(self, theta: Int[Array, " dim"]) -> Float[Array, "site value"]:
        size, theta = self.is_value.shape[1], theta.astype(jnp.int32)
        values = (theta[self.sites] + jnp.arange(size, dtype=theta.dtype)[:, None]) % self.sizes  # (shift, site)

        def shifted(new: Array) -> Array:
            found = self.terms.values(theta.at[self.sites].set(new), self.data)
            return jnp.zeros(len(self.sites) + 1, found.dtype).at[self.owner].add(found)[:-1]

        found = jax.vmap(shifted)(values)
        places = jnp.broadcast_to(jnp.arange(len(self.sites)), values.shape)
        logits = jnp.full(self.is_value.shape, -jnp.inf, found.dtype).at[places, values].set(found)
        return jnp.where(self.is_value, logits, -jnp.inf)


class _Entries:
    """For each site the tables it is in, turned so that its own value comes last."""

    def __init__(self, factors: Sequence[Factors], sizes: np.ndarray):
        size = int(np.max(sizes))
        self.unary = np.where(np.arange(size) < np.asarray(sizes)[:, None], 0.0, -np.inf)
        width = max([f.sites.shape[1] for f in factors] + [2]) - 1
        pool, num_rows = [np.zeros((1, size))], 1
        parts: list[tuple[np.ndarray, ...]] = [(np.zeros(0, int), np.zeros(0, int), *(np.zeros((0, width), int),) * 2)]
        for f in factors:
            arity = f.sites.shape[1]
            if arity == 1:
                self.unary[f.sites[:, 0], : f.tables.shape[1]] += f.tables
                continue
            for axis in range(arity):
                turned = np.moveaxis(f.tables, 1 + axis, -1)
                shape = turned.shape[1:-1]
                flat = turned.reshape(len(turned), -1)
                distinct, which = np.unique(flat, axis=0, return_inverse=True)
                rows = np.zeros((len(distinct) * int(np.prod(shape)), size))
                rows[:, : turned.shape[-1]] = distinct.reshape(-1, turned.shape[-1])
                pool.append(rows)
                others, strides = np.zeros((2, len(turned), width), int)
                others[:, : arity - 1] = np.delete(f.sites, axis, axis=1)
                strides[:, : arity - 1] = np.cumprod([1, *shape[:0:-1]])[::-1]
                parts.append((f.sites[:, axis], num_rows + which.ravel() * int(np.prod(shape)), others, strides))
                num_rows += len(rows)
        self.pool = np.concatenate(pool)
        self.site, self.base, self.others, self.strides = (np.concatenate(p) for p in zip(*parts, strict=True))
        order = np.argsort(self.site, kind="stable")
        self.site, self.base = self.site[order], self.base[order]
        self.others, self.strides = self.others[order], self.strides[order]
        self.is_weighted = size == 2 and (np.asarray(sizes) == 2).all() and width == 1
        self.is_weighted = bool(self.is_weighted and np.isfinite(self.pool).all() and np.isfinite(self.unary).all())


def table_logits(
    factors: Sequence[Factors], sizes: np.ndarray, groups: Sequence[np.ndarray]
) -> list[AbstractSiteLogits]:
    """The conditionals of groups of sites from tables.

    Args:
        factors: The terms as tables.
        sizes: The number of values of each site.
        groups: Sites, such as those of each colour; all sites at once give what informed kernels need.
    """
    entries = _Entries(factors, sizes)
    most = np.bincount(entries.site, minlength=1).max(initial=0)
    is_weighted = entries.is_weighted and most * len(sizes) <= max(MAX_WEIGHTS, MAX_PADDING * len(entries.site))
    make = _weighted if is_weighted else _by_tables
    return [make(entries, np.asarray(sites), np.asarray(sizes)) for sites in groups]


def _slots(entries: _Entries, sites: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The entries of some sites, the place of each one's site, and which of its site's entries it is."""
    place = np.full(len(entries.unary), -1)
    place[sites] = np.arange(len(sites))
    kept = np.flatnonzero(place[entries.site] >= 0)
    kept = kept[np.argsort(place[entries.site[kept]], kind="stable")]
    owner = place[entries.site[kept]]
    counts = np.bincount(owner, minlength=len(sites))
    return kept, owner, np.arange(len(kept)) - np.repeat(np.cumsum(counts) - counts, counts)


def _weighted(entries: _Entries, sites: np.ndarray, sizes: np.ndarray) -> AbstractSiteLogits:
    kept, owner, slot = _slots(entries, sites)
    gain = entries.pool[:, 1] - entries.pool[:, 0]
    low, high = gain[entries.base[kept]], gain[entries.base[kept] + 1]
    field = entries.unary[sites, 1] - entries.unary[sites, 0] + np.bincount(owner, low, minlength=len(sites))
    num_slots = max(int(slot.max(initial=0)) + 1, 1)
    weights, near = np.zeros((num_slots, len(sites))), np.zeros((num_slots, len(sites)), np.int32)
    weights[slot, owner], near[slot, owner] = high - low, entries.others[kept, 0]
    dtype = jnp.result_type(float)
    is_even = bool(np.ptp(weights) <= 4 * float(jnp.finfo(dtype).eps) * np.abs(weights).max(initial=0.0))
    return WeightedLogits(
        sites=jnp.asarray(sites, jnp.int32),
        is_value=jnp.ones((len(sites), 2), bool),
        field=jnp.asarray(field, dtype),
        weights=jnp.asarray(weights[:1, :1] if is_even else weights, dtype),
        near=jnp.asarray(near),
        is_even=is_even,
    )


def _by_tables(entries: _Entries, sites: np.ndarray, sizes: np.ndarray) -> AbstractSiteLogits:
    kept, owner, slot = _slots(entries, sites)
    num_slots = int(slot.max(initial=-1)) + 1
    is_padded = num_slots * len(sites) <= MAX_PADDING * len(kept)
    base, near, strides = entries.base[kept], entries.others[kept].T, entries.strides[kept].T
    if is_padded:
        padded = np.zeros((1 + 2 * len(near), num_slots, len(sites)), int)
        padded[:, slot, owner] = np.concatenate([base[None], near, strides])
        base, near, strides = padded[0], padded[1 : 1 + len(near)], padded[1 + len(near) :]
    dtype = jnp.result_type(float)
    return TableLogits(
        sites=jnp.asarray(sites, jnp.int32),
        is_value=jnp.asarray(np.arange(entries.unary.shape[1]) < sizes[sites][:, None]),
        unary=jnp.asarray(entries.unary[sites], dtype),
        pool=jnp.asarray(entries.pool, dtype),
        base=jnp.asarray(base, jnp.int32),
        near=jnp.asarray(near, jnp.int32),
        strides=jnp.asarray(strides, jnp.int32),
        owner=None if is_padded else jnp.asarray(owner, jnp.int32),
    )


def term_logits(terms: Terms, sizes: np.ndarray, groups: Sequence[np.ndarray]) -> list[AbstractSiteLogits]:
    """The conditionals of groups of sites by evaluating terms; no two sites of a group may share a term."""
    scopes = terms.scopes
    out: list[AbstractSiteLogits] = []
    rows = np.repeat(np.arange(scopes.shape[0]), np.diff(scopes.indptr))
    for sites in groups:
        place = np.full(len(sizes), -1)
        place[sites] = np.arange(len(sites))
        is_own = place[scopes.indices] >= 0
        owner = np.full(terms.num_terms, len(sites))
        if len(np.unique(rows[is_own])) != is_own.sum():
            raise ValueError("two sites of one group share a term")
        owner[rows[is_own]] = place[scopes.indices[is_own]]
        is_value = np.arange(int(np.max(sizes))) < np.asarray(sizes)[sites][:, None]
        out.append(
            TermLogits(
                sites=jnp.asarray(sites, jnp.int32),
                is_value=jnp.asarray(is_value),
                sizes=jnp.asarray(np.asarray(sizes)[sites], jnp.int32),
                owner=jnp.asarray(owner, jnp.int32),
                terms=terms,
            )
        )
    return out
