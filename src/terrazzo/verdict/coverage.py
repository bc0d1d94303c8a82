"""Coverage: do the final draws agree with what was found without the transport? Arrays in, numbers out.

A transport that misses a mode passes every usual check: its chains agree with each other, and its weights look fine
(docs/theory.md, trap 4). What reveals it comes from outside: chains started elsewhere, draws of a tempered sampler,
and a second estimate of log Z.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy import stats

from terrazzo.diagnostics.chains import ess, mcse, rhat
from terrazzo.diagnostics.evidence import LogZ

MARGIN = 0.05  # nats: log weights of one configuration differ by rounding
BLOCKS = 4  # parts of a chain that stands alone, each of which may be left out: a rare value is visited in one of them
ROUNDING = 1e-6  # of a mean: log pi of one configuration differs by rounding between two compiled functions


class Disagreement(NamedTuple):
    """The largest difference of two sets of draws, over many features.

    Attributes:
        z: The largest |difference of means| / standard error.
        limit: What it stays below with probability 1 - alpha if both are right: a Student quantile, corrected for
            the number of features.
        feature: Which feature it is.
    """

    z: float
    limit: float
    feature: int


def start_r_hat(series: Any, is_first: Any) -> float:
    """The worst R-hat between two groups of chains, each group taken as one long chain.

    Args:
        series: Draws, (chain, draw, feature).
        is_first: Which chains started in the first way, (chain,).

    >>> rng = np.random.default_rng(0)
    >>> start_r_hat(rng.normal(size=(4, 500, 2)), np.array([True, True, False, False])) < 1.01
    True
    """
    x, first = np.asarray(series, float), np.asarray(is_first, bool)
    size = min(first.sum(), (~first).sum())
    if size == 0:
        return float("nan")
    groups = [x[which][:size].reshape(size * x.shape[1], x.shape[2]) for which in (first, ~first)]
    both = np.stack(groups)
    moving = np.ptp(both, axis=(0, 1)) > 0
    return float(np.nanmax(rhat(both[..., moving]))) if moving.any() else 1.0


def disagreement(first: Any, second: Any, *, alpha: float = 1e-3) -> Disagreement:
    """Compares the means of many features in two independent sets of chains.

        z_f = |mean_1 - mean_2| / sqrt(v_f (1/n_1 + 1/n_2)),

    where n are effective sample sizes over all chains (a set whose own chains disagree claims little) and v_f is the
    variance about the common mean, as in a score test: a rare value that one set has seen a few times and the other
    never is then no alarm. Nor is a difference that one chain makes alone (a rare value that it stayed at): the least
    difference counts that is left when any one chain is taken away. z is compared with a Student quantile whose
    degrees of freedom are the smaller n less one.

    Args:
        first: Draws, (chain, draw, feature).
        second: Other draws of the same features; numbers of chains and draws may differ.
        alpha: The chance of a false alarm, over all features together.

    >>> rng = np.random.default_rng(0)
    >>> out = disagreement(rng.normal(size=(4, 500, 3)), rng.normal(size=(8, 200, 3)))
    >>> out.z < out.limit
    True
    """
    return compare(moments_of(first), moments_of(second), alpha=alpha)


class Moments(NamedTuple):
    """What a comparison needs of a set of draws, by feature.

    Attributes:
        means: The mean of each chain, or of each part of a single one, (chain, feature).
        squares: The mean square.
        sizes: The effective sample size of the mean.
    """

    means: np.ndarray
    squares: np.ndarray
    sizes: np.ndarray


def moments_of(draws: Any) -> Moments:
    """The moments of draws, (chain, draw, feature): to compare one set with many others.

    A chain that stands alone is cut into parts, which then count as chains: a difference that one visit to a rare value
    makes is no alarm.
    """
    x = np.asarray(draws, float)
    parts = list(x) if len(x) > 1 else np.array_split(x[0], min(BLOCKS, x.shape[1]))
    means = np.stack([part.mean(axis=0) for part in parts])
    return Moments(means, (x**2).mean(axis=(0, 1)), _effective_sizes(x))


def compare(first: Moments, second: Moments, *, alpha: float = 1e-3) -> Disagreement:
    """As `disagreement`, from moments."""
    sizes, squares = np.stack([first.sizes, second.sizes]), np.stack([first.squares, second.squares])
    means = np.stack([first.means.mean(axis=0), second.means.mean(axis=0)])
    shares = sizes / sizes.sum(axis=0)
    variance = np.maximum((shares * squares).sum(axis=0) - (shares * means).sum(axis=0) ** 2, 0.0)
    gap = np.minimum(_least_gap(first.means, means[1]), _least_gap(second.means, means[0]))
    gap = np.where(gap <= ROUNDING * np.abs(means).max(axis=0), 0.0, gap)
    with np.errstate(divide="ignore", invalid="ignore"):
        z = np.where(gap == 0, 0.0, gap / np.sqrt(variance * (1 / sizes).sum(axis=0)))
    freedom, level = np.maximum(sizes.min(axis=0) - 1.0, 1.0), alpha / 2 / len(gap)
    top = int(np.argmax(z))
    # No limit is below the normal one, so few of many features can be the worst: quantiles of 4,096 take longer than z.
    some = np.flatnonzero(z * stats.t.isf(level, freedom[top]) >= z[top] * stats.norm.isf(level))
    limits = stats.t.isf(level, freedom[some])
    worst = int(np.argmax(z[some] / limits))
    return Disagreement(float(z[some][worst]), float(limits[worst]), int(some[worst]))


def _least_gap(chains: np.ndarray, other: np.ndarray) -> np.ndarray:
    """The least |mean - other| of each feature, over all chains and over all but one, from the chains' means."""
    mean, num = chains.mean(axis=0), len(chains)
    without = (num * mean - chains) / (num - 1) if num > 1 else mean[None]
    return np.minimum(np.abs(mean - other), np.abs(without - other).min(axis=0))


def _effective_sizes(draws: np.ndarray) -> np.ndarray:
    """The ESS of each feature's mean; one that never moved is taken to mix like the slower ones that did."""
    moving = np.ptp(draws, axis=(0, 1)) > 0
    out = np.full(draws.shape[-1], np.nan)
    if moving.any():
        out[moving] = ess(draws[..., moving], method="mean")
    known = out[np.isfinite(out)]
    typical = float(np.quantile(known, 0.25)) if len(known) else float(draws.shape[0] * draws.shape[1])
    return np.maximum(np.where(np.isfinite(out), out, typical), 1.0)


def is_beyond(own_log_weights: Any, other_log_weights: Any) -> np.ndarray:
    """Which of the given draws are heavier than every one of the transport's own, by more than rounding."""
    return np.asarray(other_log_weights, float) > np.max(np.asarray(own_log_weights, float)) + MARGIN


def share_beyond(own_log_weights: Any, other_log_weights: Any) -> tuple[float, float]:
    """The share of given draws whose weight exceeds every weight of the transport's own draws, and its error.

    If the transport covers pi, that share is the small mass it has not yet sampled; a lost mode has enormous weights.

    Args:
        own_log_weights: log w at the transport's own draws.
        other_log_weights: log w at draws of pi found without it, (chain, draw).
    """
    beyond = is_beyond(own_log_weights, other_log_weights).astype(float)
    return float(beyond.mean()), float(mcse(beyond)) if np.ptp(beyond) > 0 else 0.0


def evidence_gap(first: LogZ, second: LogZ) -> float:
    """|log Z_1 - log Z_2| in combined standard errors; NaN if either has none.

    >>> round(evidence_gap(LogZ(1.0, 0.3, 1.0, 0.0), LogZ(2.0, 0.4, 1.0, 0.0)), 6)
    2.0
    """
    error = float(np.hypot(first.standard_error, second.standard_error))
    if not np.isfinite(error) or error == 0:
        return float("nan")
    return abs(first.log_z - second.log_z) / error
