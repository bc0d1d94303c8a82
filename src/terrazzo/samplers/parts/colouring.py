"""Colourings of the interaction graph: which sites may be redrawn at the same time.

Two sites interact if the mixed second difference log pi(i, j changed) - log pi(i) - log pi(j) + log pi is not zero
somewhere. Sites of one colour must not interact; then, given the rest, they are independent.
The graph is found from the Hessian (differentiable targets) or from finite differences at random configurations, and
every colouring is *verified* on fresh configurations before use: all sites of a colour are changed at once, and the
change of log pi must be the sum of the single changes. This runs on the host, before anything is compiled.
"""

from collections import deque
from collections.abc import Sequence
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.errors import UnsupportedError
from terrazzo.errors.arguments import shown
from terrazzo.targets.hints import NUM_POINTS, find_interaction
from terrazzo.targets.interactions import evaluate, hessian_of, mixed_differences, random_pair, tolerance
from terrazzo.targets.probing import log_prob_evaluator
from terrazzo.targets.reading import MOST_KEPT, structure_of
from terrazzo.targets.reading import is_traced as is_traced
from terrazzo.targets.structure import AbstractSiteLogits, Structure
from terrazzo.targets.target import Target

MAX_PAIR_EVALUATIONS = 2_000_000
NUM_PROBED = 3  # configurations at which interactions are looked for, and four times as many if some escaped
NUM_VERIFIED = 8  # configurations at which colours are verified; each costs d + 1 evaluations and one a colour
NUM_COMPARED = 4  # configurations at which conditionals that were read are compared with log pi

Read = tuple[tuple[int, ...], list[AbstractSiteLogits]]
_compared: deque[tuple[Structure, Read | None]] = deque(maxlen=MOST_KEPT)


def differs(joint: Any, expected: Any, tolerance: float) -> Any:
    """Whether two log-probabilities differ; both impossible counts as the same."""
    both_impossible = (joint == -np.inf) & (expected == -np.inf)
    with np.errstate(invalid="ignore"):
        return ~both_impossible & ~(np.abs(joint - expected) <= tolerance)


def _graph_by_differences(target: Target, num_points: int, rng: np.random.Generator) -> np.ndarray:
    d = target.space.num_dims
    num_pairs = d * (d - 1) // 2
    if num_pairs * num_points > MAX_PAIR_EVALUATIONS:
        raise UnsupportedError(
            "colours",
            f"cannot be found: {num_pairs} pairs of sites are too many to test",
            "give Target(..., colours=...)",
        )
    graph = np.zeros((d, d), bool)
    for _ in range(num_points):
        couplings, noise = mixed_differences(target, *random_pair(target, rng))
        graph |= np.abs(couplings) > noise
    return graph


def _graph_by_hessian(target: Target, num_points: int, rng: np.random.Generator) -> np.ndarray:
    d = target.space.num_dims
    graph = np.zeros((d, d), bool)
    hessian = hessian_of(target)
    for _ in range(num_points):
        couplings = hessian(random_pair(target, rng)[0])
        graph |= np.abs(couplings) > tolerance(couplings)
    return graph | graph.T


def greedy_colours(graph: np.ndarray) -> tuple[int, ...]:
    """A proper colouring of a graph (Welsh & Powell 1967): largest degree first, the smallest free colour.

    >>> greedy_colours(np.array([[0, 1, 0], [1, 0, 1], [0, 1, 0]], bool))
    (1, 0, 1)
    """
    colours = np.full(len(graph), -1)
    for i in np.argsort(-graph.sum(axis=1), kind="stable"):
        used = set(colours[graph[i]].tolist())
        colours[i] = next(c for c in range(len(graph)) if c not in used)
    return tuple(int(c) for c in colours)


def verify_colours(target: Target, colours: Any) -> bool:
    """Whether sites of one colour change log pi independently of each other, at random configurations."""
    colours = np.asarray(colours)
    rng = np.random.default_rng([0, 1])
    d = target.space.num_dims
    names = np.unique(colours)
    for _ in range(NUM_VERIFIED):
        theta, other = random_pair(target, rng)
        points = np.tile(theta, (1 + d + len(names), 1))
        points[1 + np.arange(d), np.arange(d)] = other
        for c, name in enumerate(names):
            points[1 + d + c, colours == name] = other[colours == name]
        values = evaluate(target, points)
        base, singles, joint = values[0], values[1 : 1 + d], values[1 + d :]
        with np.errstate(invalid="ignore"):  # from an impossible configuration nothing can be told: not verified
            expected = np.array([base + (singles[colours == name] - base).sum() for name in names])
        if differs(joint, expected, np.sqrt(d) * tolerance(values)).any():
            return False
    return True


def find_colours(target: Target) -> tuple[int, ...]:
    """A verified colouring of the target's interaction graph: its own if it has one, else found by probing.

    >>> import terrazzo as tz
    >>> chain = tz.Target(lambda t: 0.5 * (t[1:] * t[:-1]).sum(), tz.binary(5))
    >>> find_colours(chain)
    (1, 0, 1, 0, 1)
    """
    if target.colours is not None:
        return checked_colours(target, target.colours)
    rng = np.random.default_rng([0, 0])
    if target.has_gradient:
        try:
            graph = _graph_by_hessian(target, NUM_PROBED, rng)
        except Exception:  # a gradient does not promise a second one (custom derivatives)
            graph = None
        if graph is not None and verify_colours(target, colours := greedy_colours(graph)):
            return colours
    # rare interactions may escape a few points: try again with more of them before giving up
    for factor in (1, 4):
        colours = greedy_colours(_graph_by_differences(target, factor * NUM_PROBED, rng))
        if verify_colours(target, colours):
            return colours
    return tuple(range(target.space.num_dims))


class Colours:
    """Colours as one static value: a tuple of a million integers would be a million leaves of a pytree, every call.

    >>> one, same = Colours((0, 1, 0)), Colours([0, 1, 0])
    >>> one == same, np.asarray(one).tolist()
    (True, [0, 1, 0])
    """

    def __init__(self, colours: Any):
        self._array = np.asarray(colours, np.int32)
        self._hash = hash(self._array.tobytes())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self._array if dtype is None else self._array.astype(dtype)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Colours) and np.array_equal(self._array, other._array))

    def __repr__(self) -> str:
        return f"Colours({len(self._array)} sites)"


def read_conditionals(target: Target) -> Read | None:
    """Colours, and the conditionals of each colour's sites, from the terms of a plain function.

    Returns:
        None where the target has hints of its own or cannot be read, where all sites are tied together, and where the
        conditionals are not the differences of log pi at random configurations.

    >>> import terrazzo as tz
    >>> colours, conditionals = read_conditionals(tz.Target(lambda t: 0.5 * (t[1:] * t[:-1]).sum(), tz.binary(5)))
    >>> colours, len(conditionals)
    ((1, 0, 1, 0, 1), 2)
    """
    has_hints = target.has_cheap_neighbours or target.colours is not None or target.soft_level is not None
    structure = None if has_hints else structure_of(target)
    if structure is None or structure.is_whole or structure.graph.num_colours > target.space.num_dims // 2:
        return None
    for known, found in tuple(_compared):  # another thread may add to it
        if known is structure:
            return found
    conditionals = structure.colour_logits()
    is_right = _are_differences(target, conditionals)
    made = (tuple(structure.graph.colours.tolist()), conditionals) if is_right else None
    _compared.append((structure, made))
    return made


@eqx.filter_jit
def _all_logits(conditionals: list[AbstractSiteLogits], theta: Array) -> list[Array]:
    return [one.logits(theta) for one in conditionals]


def _are_differences(target: Target, conditionals: Sequence[AbstractSiteLogits]) -> bool:
    """Whether conditionals agree with log pi at random configurations, for one site of each colour."""
    target = eqx.tree_at(lambda t: t.inverse_temperature, target, None, is_leaf=lambda x: x is None)
    rng = np.random.default_rng(3)
    for _ in range(NUM_COMPARED):
        theta, other = random_pair(target, rng)
        places = [int(rng.integers(len(one.sites))) for one in conditionals]
        sites = np.array([int(one.sites[k]) for one, k in zip(conditionals, places, strict=True)])
        points = np.tile(theta, (1 + len(sites), 1))
        points[1 + np.arange(len(sites)), sites] = other[sites]
        values = evaluate(target, points)
        logits = _all_logits(list(conditionals), jnp.asarray(theta, jnp.int32))
        rows = [np.asarray(one, float)[k] for one, k in zip(logits, places, strict=True)]
        for row, site, value in zip(rows, sites, values[1:], strict=True):
            expected = row[other[site]] - row[theta[site]] + values[0] if np.isfinite(values[0]) else value
            if differs(value, expected, tolerance(values)).any():
                return False
    return True


def checked_colours(target: Target, colours: Any) -> tuple[int, ...]:
    """The colours as a tuple; raises `UnsupportedError` if sites of one colour interact."""
    array = np.asarray(colours)
    if array.shape != (target.space.num_dims,) or array.dtype.kind not in "iu":
        raise UnsupportedError(
            "colours", f"must be {target.space.num_dims} integers, got {shown(colours)}", "one for each coordinate"
        )
    colours = tuple(int(c) for c in array)
    rng = np.random.default_rng(2)
    points = np.stack([random_pair(target, rng)[0] for _ in range(NUM_POINTS)]).astype(np.int32)
    found = find_interaction(log_prob_evaluator(target), target.space.sizes, np.asarray(colours), points, rng)
    if found is not None or not verify_colours(target, colours):
        raise UnsupportedError(
            "colours",
            "sites of one colour interact" if found is None else str(found),
            "leave colours out to have them found, or use sampler='gibbs'",
        )
    return colours
