"""Hints of a target, held against its log-probability before anything uses them.

A hint says the same as log pi, more cheaply: conditionals of a site, a one-hot form, colours of sites that do not
interact. A wrong one gives draws of another law without a sign of it, so each is compared with log pi at several
possible configurations. Numbers may differ by what rounding explains, and no more.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import TargetError
from terrazzo.errors.user_code import described
from terrazzo.targets.starts import Evaluator

NUM_POINTS = 4
MOST_SITES, MOST_VALUES = 24, 32  # that are compared at one configuration
MANY_SITES = 1000  # beyond it colours are tried at two configurations: each takes more than d evaluations
MOST_NUMBERS = 2**22  # logits of one batch
MOST_PAIRS, SOME_PAIRS = 2000, 512  # up to the first all pairs of a colour are tried, beyond it some
SECONDS_ON_HOST = 1.0  # for one hint of a black box
ROUNDING = 200.0  # units in the last place that log pi may be wrong by
LOOSE, TIGHT = 1e-3, 1e-6  # of a difference, in single and in double precision


class Precision(NamedTuple):
    """What rounding explains: an absolute error of log pi, and a share of differences.

    Attributes:
        absolute: In nats.
        relative: Of a difference, or nats where it is below one.
    """

    absolute: float
    relative: float

    def explains(self, ours: np.ndarray, exact: np.ndarray) -> np.ndarray:
        """Whether two numbers may be the same; -inf is the same as itself only."""
        with np.errstate(invalid="ignore"):
            near = np.abs(ours - exact) <= self.absolute + self.relative * np.maximum(1.0, np.abs(exact))
        return near | (np.isneginf(ours) & np.isneginf(exact))


def precision_of(values: np.ndarray) -> Precision:
    """The precision that log pi was computed in, read off its values.

    Numbers that single precision can hold are taken to come from there, whatever their type is now.
    """
    finite = np.asarray(values, float)[np.isfinite(values)]
    is_single = jnp.result_type(float) == jnp.float32 or bool((finite.astype(np.float32) == finite).all())
    eps = float(np.finfo(np.float32 if is_single else np.float64).eps)
    largest = float(np.abs(finite).max(initial=0.0))
    return Precision(ROUNDING * eps * (1.0 + largest), LOOSE if is_single else TIGHT)


def affordable(evaluate: Evaluator, most: int) -> int:
    """How many evaluations a check may spend: all it wants of a compiled function, a second's worth of a black box."""
    if not evaluate.is_on_host:
        return most
    each = evaluate.seconds / max(evaluate.num_evaluations, 1)
    return int(np.clip(SECONDS_ON_HOST / max(each, 1e-9), 16, most))


# ---- conditionals of a site


def check_site_logits(
    site_logits: Callable, evaluate: Evaluator, sizes: np.ndarray, points: np.ndarray, rng: np.random.Generator
) -> None:
    """Raises unless differences of `site_logits(theta, i)` are those of log pi.

    Args:
        site_logits: The hint.
        evaluate: log pi.
        sizes: The number of values of each coordinate.
        points: Configurations to compare at.
        rng: Chooses sites and values.
    """
    d, max_size = len(sizes), int(sizes.max())
    num_values = min(max_size, MOST_VALUES)
    most = min(len(points) * min(d, MOST_SITES), max(1, MOST_NUMBERS // max_size))
    num_rows = int(np.clip(affordable(evaluate, most * num_values) // num_values, 1, most))
    sites = np.concatenate([rng.permutation(d) for _ in range(-(-num_rows // d))])[:num_rows].astype(np.int32)
    theta = points[np.arange(num_rows) % len(points)]
    logits = _called("site_logits", site_logits, jnp.asarray(theta), jnp.asarray(sites))
    if logits.shape != (num_rows, max_size):
        raise TargetError(
            "site_logits", f"returned shape {logits.shape[1:]}", f"one number for each of {max_size} values"
        )
    values = np.tile(np.arange(num_values), (num_rows, 1))
    if num_values < max_size:
        values = rng.integers(0, sizes[sites][:, None], (num_rows, num_values))
        values[:, 0] = theta[np.arange(num_rows), sites]
    values = np.minimum(values, sizes[sites][:, None] - 1)
    near = np.repeat(theta, num_values, axis=0)
    near[np.arange(len(near)), np.repeat(sites, num_values)] = values.ravel()
    exact = evaluate(near).reshape(num_rows, num_values)
    ours = np.take_along_axis(logits, values, axis=1)
    _compare("site_logits", ours, exact, sites, values)


def _compare(name: str, ours: np.ndarray, exact: np.ndarray, sites: np.ndarray, values: np.ndarray) -> None:
    """Differences from the most probable value of each row, by the hint and by log pi."""
    precision = precision_of(exact)
    top = exact.argmax(axis=1)[:, None]
    best, base = np.take_along_axis(exact, top, axis=1), np.take_along_axis(ours, top, axis=1)
    with np.errstate(invalid="ignore"):
        by_hint, by_log_prob = ours - base, exact - best
    is_wrong = np.isfinite(best) & ~precision.explains(by_hint, by_log_prob)
    if is_wrong.any():
        with np.errstate(invalid="ignore"):
            gap = np.where(is_wrong, np.nan_to_num(np.abs(by_hint - by_log_prob), nan=np.inf), -1.0)
        row, column = np.unravel_index(np.argmax(gap), gap.shape)
        old, new = int(values[row, top[row, 0]]), int(values[row, column])
        raise TargetError(
            name,
            f"differ from log_prob at site {int(sites[row])}: from value {old} to {new} they change by"
            f" {by_hint[row, column]:.6g}, log_prob by {by_log_prob[row, column]:.6g}",
            f"correct {name}, or leave it out: log_prob alone is enough",
        )


# ---- the one-hot form


def check_one_hot(one_hot: Callable, evaluate: Evaluator, sizes: np.ndarray, points: np.ndarray) -> None:
    """Raises unless the one-hot form at exact one-hot rows is log pi."""
    rows = jax.nn.one_hot(jnp.asarray(points), int(sizes.max()), dtype=jnp.result_type(float))
    ours, exact = _called("one_hot_log_prob", one_hot, rows), evaluate(points)
    if ours.shape != exact.shape:
        raise TargetError("one_hot_log_prob", f"returned shape {ours.shape[1:]}, not a number", "return one scalar")
    is_wrong = np.isfinite(exact) & ~precision_of(exact).explains(ours, exact)
    if is_wrong.any():
        worst = int(is_wrong.argmax())
        raise TargetError(
            "one_hot_log_prob",
            f"differs from log_prob where site 0 is {int(points[worst, 0])}: {ours[worst]:.6g} for {exact[worst]:.6g}",
            "make both the same function, constants included",
        )


def _called(name: str, fn: Callable, *batches: Any) -> np.ndarray:
    """A function of the user's on each row, as floats; what it raises becomes a `TargetError`."""
    try:
        with jax.default_matmul_precision("highest"):
            return np.asarray(jax.jit(jax.vmap(fn))(*batches), float)
    except TargetError:
        raise
    except Exception as error:
        raise TargetError(name, f"raised {described(error)}", "call it by hand on one configuration") from None


# ---- colours


class Interaction(NamedTuple):
    """Two sites of one colour that interact.

    Attributes:
        sites: The two, or those of the whole colour if no single pair was found.
        colour: Their colour.
        joint: By how much log pi changes if all of them change.
        expected: The sum of what each change alone does.
    """

    sites: tuple[int, ...]
    colour: int
    joint: float
    expected: float

    def __str__(self) -> str:
        two = len(self.sites) == 2
        who = f"sites {self.sites[0]} and {self.sites[1]}" if two else f"some of {len(self.sites)} sites"
        return (
            f"{who} share colour {self.colour} but interact: changed together log_prob changes by {self.joint:.6g},"
            f" one by one by {self.expected:.6g}"
        )


def find_interaction(
    evaluate: Evaluator, sizes: np.ndarray, colours: np.ndarray, points: np.ndarray, rng: np.random.Generator
) -> Interaction | None:
    """A pair of sites of one colour whose mixed second difference of log pi is not 0, if one is found.

    Tried are all pairs of a colour where they are few, else neighbours within a colour and random ones, and, of a
    compiled function, all sites of a colour at once.
    """
    d = len(sizes)
    budget = affordable(evaluate, len(points) * (1 + d + MOST_PAIRS + SOME_PAIRS)) // len(points)
    pairs = _pairs(colours, rng, int(np.clip((budget - 1) // 3, 2, MOST_PAIRS)))
    for theta in points[: NUM_POINTS if d <= MANY_SITES else 2]:
        other = ((theta + rng.integers(1, sizes)) % sizes).astype(np.int32)
        classes = [] if evaluate.is_on_host else [np.flatnonzero(colours == c) for c in np.unique(colours)]
        found = _first_interaction(evaluate, theta, other, pairs, [c for c in classes if len(c) > 2])
        if found is not None and len(found) > 2:  # a colour as a whole: look for the pair
            inside = np.array([(i, j) for n, i in enumerate(found[:200]) for j in found[n + 1 : 200]])
            found = _first_interaction(evaluate, theta, other, inside, []) or found
        if found is not None:
            sites = np.asarray(found)
            base, joint, *singles = evaluate(_moved(theta, other, [sites[:0], sites, *sites[:, None]]))
            with np.errstate(invalid="ignore"):
                expected = float(np.sum(np.asarray(singles) - base))
            return Interaction(tuple(int(i) for i in sites), int(colours[sites[0]]), float(joint - base), expected)
    return None


def _moved(theta: np.ndarray, other: np.ndarray, groups: list[np.ndarray]) -> np.ndarray:
    """One row a group: the configuration with the group's sites changed."""
    rows = np.tile(theta, (len(groups), 1))
    for row, sites in zip(rows, groups, strict=True):
        row[sites] = other[sites]
    return rows


def _first_interaction(
    evaluate: Evaluator, theta: np.ndarray, other: np.ndarray, pairs: np.ndarray, classes: list[np.ndarray]
) -> tuple[int, ...] | None:
    groups = [*pairs, *classes]
    if not groups:
        return None
    sites = np.unique(np.concatenate(groups)).astype(int)
    values = evaluate(_moved(theta, other, [sites[:0], *sites[:, None], *groups]))
    base, singles, joint = values[0], values[1 : 1 + len(sites)], values[1 + len(sites) :]
    if not np.isfinite(base):
        return None
    precision = precision_of(values)
    change = np.full(len(theta), 0.0)
    change[sites] = singles - base
    expected = np.array([base + change[group].sum() for group in groups])
    scale = np.sqrt([len(group) for group in groups])
    with np.errstate(invalid="ignore"):
        is_near = np.abs(joint - expected) <= 4.0 * scale * precision.absolute
    is_wrong = ~(is_near | (np.isneginf(joint) & np.isneginf(expected)))
    return tuple(int(i) for i in groups[int(is_wrong.argmax())]) if is_wrong.any() else None


def _pairs(colours: np.ndarray, rng: np.random.Generator, most: int) -> np.ndarray:
    """Pairs of sites of one colour: all if they are few, else neighbours and random ones."""
    classes = [np.flatnonzero(colours == c) for c in np.unique(colours)]
    classes = [c for c in classes if len(c) > 1]
    if not classes:
        return np.zeros((0, 2), int)
    if sum(len(c) * (len(c) - 1) // 2 for c in classes) <= most:
        return np.concatenate([c[np.stack(np.triu_indices(len(c), 1), axis=1)] for c in classes])
    half = max(1, min(SOME_PAIRS, most // 2))
    near = np.concatenate([np.stack([c[:-1], c[1:]], axis=1) for c in classes])
    near = near[rng.permutation(len(near))[:half]]
    weights = np.array([len(c) * (len(c) - 1) for c in classes], float)
    picked = rng.choice(len(classes), half, p=weights / weights.sum())
    far = np.array([rng.choice(classes[k], 2, replace=False) for k in picked])
    return np.concatenate([near, far])
