"""Pair models: fields on sites and tables on edges, and their Potts form.

log pi(theta) = c + sum_i h_i(theta_i) + sum_(i,j) f_ij(theta_i, theta_j)
"""

from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from terrazzo.targets.structure.tables import Factors

TOLERANCE = 64.0  # units in the last place of the largest entry: what rounding makes of sums of a few terms


class PairTables(NamedTuple):
    """A model in which every term has at most two sites.

    Attributes:
        unary: h, shape (d, K); -inf at values that a site does not have.
        edges: Pairs i < j of sites, shape (m, 2).
        tables: f, shape (m, K, K), with theta_i first; 0 at values that a site does not have.
        constant: c.
    """

    unary: np.ndarray
    edges: np.ndarray
    tables: np.ndarray
    constant: float


class PottsForm(NamedTuple):
    """log pi = constant + sum_i fields_i(theta_i) + sum_e couplings_e [theta_i = theta_j]."""

    fields: np.ndarray
    edges: np.ndarray
    couplings: np.ndarray
    constant: float


def pair_tables(factors: Sequence[Factors], sizes: np.ndarray, constant: float = 0.0) -> PairTables | None:
    """The tables of a pair model; None if a factor has three sites or more."""
    if any(f.sites.shape[1] > 2 for f in factors):
        return None
    size = int(np.max(sizes))
    unary = np.where(np.arange(size) < np.asarray(sizes)[:, None], 0.0, -np.inf)
    edges, tables = [np.zeros((0, 2), np.int32)], [np.zeros((0, size, size))]
    for f in factors:
        if f.sites.shape[1] == 1:
            unary[f.sites[:, 0], : f.tables.shape[1]] += f.tables
        else:
            full = np.zeros((len(f.sites), size, size))
            full[:, : f.tables.shape[1], : f.tables.shape[2]] = f.tables
            edges.append(f.sites.astype(np.int32))
            tables.append(full)
    return PairTables(unary, np.concatenate(edges), np.concatenate(tables), constant)


def potts_form(pairs: PairTables) -> PottsForm | None:
    """The Potts form of a pair model; None if it has none: other tables, -inf, or sites of different sizes.

    Every table of two values has it: f(x, y) = u(x) + v(y) + J [x = y] with 2 J = f00 + f11 - f01 - f10.

    >>> model = PairTables(np.zeros((2, 2)), np.array([[0, 1]]), np.array([[[0.0, 0.0], [0.0, 3.0]]]), 0.0)
    >>> form = potts_form(model)
    >>> form.couplings.tolist(), form.fields.tolist()
    ([1.5], [[-0.75, 0.75], [-0.75, 0.75]])
    """
    f = pairs.tables
    if not (np.isfinite(f).all() and np.isfinite(pairs.unary).all()):
        return None
    size = f.shape[1]
    rows, columns, mean = f.mean(axis=2), f.mean(axis=1), f.mean(axis=(1, 2))
    contrast = f - rows[:, :, None] - columns[:, None, :] + mean[:, None, None]
    equal = np.eye(size) - 1.0 / size
    couplings = (contrast * equal).sum(axis=(1, 2)) / (equal**2).sum()
    rounding = TOLERANCE * float(jnp.finfo(jnp.result_type(float)).eps) * np.abs(f).max(initial=0.0)
    if np.abs(contrast - couplings[:, None, None] * equal).max(initial=0.0) > rounding:
        return None
    fields = pairs.unary.copy()
    np.add.at(fields, pairs.edges[:, 0], rows - mean[:, None])
    np.add.at(fields, pairs.edges[:, 1], columns - mean[:, None])
    is_kept = np.abs(couplings) > rounding
    constant = pairs.constant + float((mean - couplings / size).sum())
    return PottsForm(fields, pairs.edges[is_kept], couplings[is_kept], constant)
