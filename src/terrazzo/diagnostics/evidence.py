"""Importance weights: log Z with its standard error, the effective sample size, the Pareto tail index.

With z ~ p and w = p~(z) / p(z), E[w] = Z (DESIGN section 1).
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.special import logsumexp

from terrazzo.errors import OptionError

MIN_WEIGHTS_FOR_TAIL = 25


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
    num_tail = int(min(np.floor(log_weights.size / 5), np.floor(3 * np.sqrt(log_weights.size))))
    tail = np.sort(finite)[-num_tail:]
    if tail[-1] - tail[0] <= 1e-12 * max(1.0, abs(tail[-1])):
        return float("-inf")
    try:
        with np.errstate(all="ignore"):
            from arviz_stats.base import array_stats  # it brings xarray and pandas: not before it is needed

            return float(array_stats.psislw(-log_weights)[1])  # it expects log-likelihoods: minus the log-weights
    except (ImportError, ValueError, IndexError):
        return float("nan")


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
