"""Exact: independent draws from pi itself, and log Z, where all configurations can be summed.

Either one site after the other, where few of them are tied together at a time (`targets.structure.elimination`), or by
counting all configurations. Elimination is done in float64 on the host, and is used only where the terms that were
read add up to log pi at configurations of all kinds.
"""

from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.diagnostics import LogZ
from terrazzo.errors import StartError, UnsupportedError
from terrazzo.samplers.parts.base import Drawn
from terrazzo.spaces import MAX_ENUMERATED
from terrazzo.targets.interactions import evaluate, tolerance
from terrazzo.targets.precision import doubled
from terrazzo.targets.probing import non_finite_error
from terrazzo.targets.reading import MAX_SECONDS, is_traced, structure_of
from terrazzo.targets.structure import Structure
from terrazzo.targets.target import Target
from terrazzo.verdict.checks import ELIMINATED, ENUMERATED, Check

NUM_CHECKED = 32  # configurations of each kind (random, drawn, drawn with one site changed) where terms are compared
BATCH = 2**16  # configurations that are enumerated at a time
NO_DIFFERENCE = 1e-6  # nats


class Census(NamedTuple):
    """All of a space.

    Attributes:
        log_prob: log pi of every configuration, in the order of `Space.enumerate`.
        log_z: Their log-sum.
    """

    log_prob: np.ndarray
    log_z: float

    def draw(self, seed: int, num_chains: int, num_draws: int) -> np.ndarray:
        """Numbers of independent draws, (chain, draw): the first draws of a chain do not depend on how many follow."""
        cumulative = np.cumsum(np.exp(self.log_prob - self.log_prob.max()))
        levels = np.stack([np.random.default_rng([seed, c]).random(num_draws) for c in range(num_chains)])
        # The first place whose running sum exceeds the level: never one of probability zero.
        found = np.searchsorted(cumulative, levels * cumulative[-1], side="right")
        last = np.flatnonzero(np.isfinite(self.log_prob))[-1]
        return np.minimum(found, last)


def exact(key: Array, target: Target, chains: int, draws: int) -> Drawn:
    """Independent exact draws and the exact log Z, by elimination or by enumeration.

    Args:
        key: A JAX key.
        target: The target.
        chains: Chains of draws; all are independent.
        draws: Draws a chain.

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> chain = tz.Target(lambda t: 0.5 * jnp.sum(t[1:] == t[:-1]), tz.categorical(3, shape=100))
    >>> result = tz.sample(chain, seed=0, sampler="exact", draws=10, progress="off")
    >>> bool(abs(result.log_z - np.log(3) - 99 * np.log(2 + np.exp(0.5))) < 1e-9), result.verdict.grade
    (True, 'exact')
    """
    drawn = eliminated(key, target, chains, draws)
    if drawn is not None:
        return drawn
    space = target.space
    if space.num_states > MAX_ENUMERATED:
        raise UnsupportedError(
            "sampler",
            f"'exact' does not reach 2^{np.log2(space.sizes).sum():.0f} configurations, {_width(structure_of(target))}",
            "leave the sampler out; tz.explain(log_prob, space) says what ties the sites together",
        )
    census = _census(target)
    seed = int(np.asarray(jax.random.key_data(key)).ravel()[-1])
    numbers = census.draw(seed, chains, draws)
    theta = np.stack(np.unravel_index(numbers, space.sizes), axis=-1)
    count = float(space.num_states)
    return Drawn(
        theta=theta, log_prob=census.log_prob[numbers], log_weights=None,
        evidence=LogZ(census.log_z, 0.0, float(numbers.size), float("nan")),
        notes={}, checks=(Check.at_least(ENUMERATED, count, count, "", is_independent=True),),
    )  # fmt: skip


def _width(structure: Structure | None) -> str:
    if structure is None or structure.is_whole:
        return "and no terms were found in log_prob"
    is_known = len(structure.graph.order.sites) > 0
    return f"of treewidth {structure.graph.treewidth}" if is_known else "too many of which are tied together"


def _census(target: Target) -> Census:
    number, sizes = target.space.num_states, target.space.sizes
    values = np.empty(number)
    for first in range(0, number, BATCH):
        rows = np.stack(np.unravel_index(np.arange(first, min(first + BATCH, number)), sizes), axis=-1)
        found = values[first : first + BATCH] = evaluate(target, rows)
        if (found == np.inf).any() or np.isnan(found).any():
            raise non_finite_error(target, rows[((found == np.inf) | np.isnan(found)).argmax()])
    top = values.max()
    if top == -np.inf:
        raise StartError("log_prob", f"is -inf at all of the {number} configurations", "check the constraints")
    return Census(values, float(top + np.log(np.exp(values - top).sum())))


def _readable(target: Target, max_seconds: float) -> tuple[Target, Structure] | None:
    """The target in float64 and its structure, where elimination reaches."""
    if target.is_blackbox or target.inverse_temperature is not None or is_traced(target):
        return None
    with jax.enable_x64(True):
        wide = doubled(target)
        structure = structure_of(wide, max_seconds=max_seconds)
        return None if structure is None or structure.is_whole or not structure.is_exact else (wide, structure)


def eliminated(
    key: Array, target: Target, chains: int, draws: int, *, max_seconds: float = MAX_SECONDS
) -> Drawn | None:
    """Exact draws by elimination; None where the treewidth is too large, or the terms are not to be trusted.

    Raises:
        StartError: If no configuration is possible.
    """
    if (found := _readable(target, max_seconds)) is None:
        return None
    wide, structure = found
    with jax.enable_x64(True):
        answer = structure.exact()
        if answer.log_z == -np.inf:
            raise StartError("log_prob", "is -inf at all configurations", "check the constraints")
        if not np.isfinite(answer.log_z):
            return None
        theta = np.stack([answer.sample(k, draws) for k in jax.random.split(key, chains)])
        points = _points(theta.reshape(-1, theta.shape[-1]), target.space.sizes)
        terms, values = table_sums(structure, points), evaluate(wide, points)
        error = _difference(terms, values)
        if not error <= _allowed(values):
            return None
        log_prob = evaluate(wide, theta.reshape(-1, theta.shape[-1])).reshape(theta.shape[:2])
    if not _difference(terms, here := evaluate(target, points)) <= _allowed(here) or not np.isfinite(log_prob).all():
        return None
    width = float(structure.graph.treewidth)
    return Drawn(
        theta=theta, log_prob=log_prob, log_weights=None,
        evidence=LogZ(answer.log_z, 0.0, float(log_prob.size), float("nan")), notes={},
        checks=(
            Check.at_most(ELIMINATED, width, width, "", is_independent=True),
            Check("error of the terms (nats)", value=error, threshold=_allowed(values), passed=True, advice=""),
        ),
    )  # fmt: skip


def maximum(target: Target, *, max_seconds: float = MAX_SECONDS) -> tuple[np.ndarray, float] | None:
    """A configuration of the largest log pi, proven, and its log pi; None where elimination does not reach."""
    if (found := _readable(target, max_seconds)) is None:
        return None
    wide, structure = found
    with jax.enable_x64(True):
        theta, value = structure.maximum()
        points = _points(theta[None], target.space.sizes)
        terms, values = table_sums(structure, points), evaluate(wide, points)
    here = evaluate(target, points)
    is_right = _difference(terms, values) <= _allowed(values) and _difference(terms, here) <= _allowed(here)
    return (theta, value) if is_right and np.isfinite(value) else None


def _points(drawn: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Configurations where terms are compared with log pi: random ones, drawn ones, and neighbours of these."""
    rng = np.random.default_rng(0)
    uniform = rng.integers(0, sizes, (NUM_CHECKED, len(sizes)))
    some = drawn[rng.integers(0, len(drawn), NUM_CHECKED)]
    near, rows = some.copy(), np.arange(NUM_CHECKED)
    sites = rng.integers(0, len(sizes), NUM_CHECKED)
    near[rows, sites] = rng.integers(0, sizes[sites])
    return np.concatenate([uniform, some, near]).astype(np.int32)


def table_sums(structure: Structure, theta: np.ndarray) -> np.ndarray:
    """The sum of all terms and the constant at some configurations, from the tables."""
    assert structure.factors is not None
    factors, constant = structure.factors
    total = np.full(len(theta), constant)
    for group in factors:
        places = np.arange(len(group.sites))
        values = [theta[:, group.sites[:, a]] for a in range(group.sites.shape[1])]
        total += group.tables[(places, *values)].sum(axis=1)
    return total


def _allowed(values: np.ndarray) -> float:
    """The largest difference between terms and log pi: rounding, or what changes no probability by a millionth."""
    return max(NO_DIFFERENCE, tolerance(values))


def _difference(terms: np.ndarray, values: np.ndarray) -> float:
    """The largest difference; both impossible counts as none, one of them as infinite."""
    with np.errstate(invalid="ignore"):
        error = np.where((terms == -np.inf) & (values == -np.inf), 0.0, np.abs(terms - values))
    return float(np.nan_to_num(error, nan=np.inf).max(initial=0.0))
