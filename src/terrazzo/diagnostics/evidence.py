"""Importance weights: log Z with its standard error, the effective sample size, the Pareto tail index.

With z ~ p and w = p~(z) / p(z), E[w] = Z (docs/theory.md, section 1).
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from terrazzo.errors import OptionError

MIN_WEIGHTS_FOR_TAIL = 25
MIN_TAIL = 5  # distinct excesses over the threshold; the fit needs a quartile of them


class LogZ(NamedTuple):
    """An estimate of log Z from importance weights.

    Attributes:
        log_z: log of the mean weight.
        standard_error: Delta-method standard error of `log_z`, sd(w) / (mean(w) sqrt(n)).
        ess: (sum w)^2 / sum w^2, between 1 and n.
        pareto_k: Tail index of the weights: above 0.7 the standard error cannot be trusted; NaN with too few weights,
            -inf if the largest weights are all equal.
    """

    log_z: float
    standard_error: float
    ess: float
    pareto_k: float


def pareto_k(log_weights: np.ndarray) -> float:
    """The shape k-hat of a generalised Pareto distribution fitted to the largest weights.

    Reference: Vehtari, Simpson, Gelman, Yao, Gabry (2024), Pareto smoothed importance sampling, JMLR 25.
    """
    finite = log_weights[np.isfinite(log_weights)]
    if log_weights.size < MIN_WEIGHTS_FOR_TAIL or finite.size < MIN_WEIGHTS_FOR_TAIL:
        return float("nan")
    num_tail = int(min(log_weights.size / 5, 3 * np.sqrt(log_weights.size)))
    ordered = np.sort(finite)
    tail = ordered[-num_tail:]
    if tail[-1] - tail[0] <= 1e-12 * max(1.0, abs(tail[-1])):
        return float("-inf")
    threshold = ordered[-num_tail - 1] if finite.size > num_tail else -np.inf
    excess = np.exp(tail - tail[-1]) - np.exp(threshold - tail[-1])
    excess = excess[excess > 0]
    return _pareto_shape(excess) if excess.size >= MIN_TAIL else float("nan")


def _pareto_shape(excess: np.ndarray) -> float:
    """The shape k of the density (1 + k y / sigma)^(-1 - 1/k) / sigma from ordered y.

    With b = -k / sigma,

        k(b) = mean log(1 - b y),   log L(b) = n (log(-b / k(b)) - k(b) - 1),

    b is its mean under L and Zhang's and Stephens's prior on a grid, and k is drawn to 1/2 as by ten more observations.

    Reference: Zhang, Stephens (2009), A new and efficient estimation method for the generalized Pareto distribution.
    """
    num = excess.size
    num_points = 30 + int(np.sqrt(num))
    places = (np.arange(num_points) + 0.5) / num_points
    quartile = excess[max(int(num / 4 + 0.5) - 1, 0)]
    b = 1 / excess[-1] + (1 - 1 / np.sqrt(places)) / (3 * quartile)
    shape = np.log1p(-b[:, None] * excess).mean(axis=1)
    with np.errstate(all="ignore"):
        log_likelihood = num * (np.log(-b / shape) - shape - 1)
    log_likelihood = np.where(np.isnan(log_likelihood), -np.inf, log_likelihood)
    mean = b @ np.exp(log_likelihood - logsumexp(log_likelihood))
    return float((num * np.log1p(-mean * excess).mean() + 10 * 0.5) / (num + 10))


def importance_summary(log_weights: Any) -> LogZ:
    """Log Z and its quality from independent log-weights.

    log Z = log mean w,  se(log Z) = sqrt(1/ESS - 1/n) (which is sd(w) / (sqrt(n) mean(w))),
    ESS = (sum w)^2 / sum w^2.

    Args:
        log_weights: Any shape; -inf is a weight of zero.

    >>> importance_summary(np.full(100, 2.0)).log_z
    2.0
    """
    flat = np.asarray(log_weights, float).ravel()
    if flat.size == 0 or np.isnan(flat).any() or (flat == np.inf).any():
        raise OptionError("log_weights", "must be numbers below +inf, at least one", "drop NaN weights at their source")
    size = flat.size
    total = logsumexp(flat)
    if total == -np.inf:
        return LogZ(float("-inf"), float("nan"), 0.0, float("nan"))
    effective = float(np.exp(2 * total - logsumexp(2 * flat)))
    error = float(np.sqrt(max(size / effective - 1, 0.0) / (size - 1))) if size > 1 else float("nan")
    return LogZ(float(total - np.log(size)), error, effective, pareto_k(flat))


def total_variation(p: Any, q: Any) -> float:
    """Total-variation distance (1/2) sum |p - q| of two tables of probabilities; counts are normalised.

    >>> total_variation([1, 1], [1, 3])
    0.25
    """
    p, q = np.asarray(p, float), np.asarray(q, float)
    if p.shape != q.shape or not (p.sum() > 0 and q.sum() > 0) or (p < 0).any() or (q < 0).any():
        raise OptionError("p, q", f"must be two non-negative tables of one shape, got {p.shape}, {q.shape}", "match")
    return float(np.abs(p / p.sum() - q / q.sum()).sum() / 2)
