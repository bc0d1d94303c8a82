"""What is said of each coordinate of a table of draws, and the same of weighted draws."""

from typing import NamedTuple

import numpy as np


class ChainStatistics(NamedTuple):
    """What a table of draws says about each coordinate; every field has the shape of one draw.

    Attributes:
        mean: The mean over all chains and draws.
        sd: The standard deviation (n - 1).
        mcse: The Monte-Carlo standard error of the mean.
        ess_bulk: Rank-normalised split effective sample size; NaN for a constant.
        ess_tail: The smaller effective sample size of the 5 % and the 95 % quantile; NaN for a constant.
        r_hat: Rank-normalised split R-hat, the larger of bulk and folded; NaN for a constant.
        is_constant: Whether every draw of every chain has the same value.
    """

    mean: np.ndarray
    sd: np.ndarray
    mcse: np.ndarray
    ess_bulk: np.ndarray
    ess_tail: np.ndarray
    r_hat: np.ndarray
    is_constant: np.ndarray


def weighted_statistics(draws: np.ndarray, weights: np.ndarray) -> ChainStatistics:
    """The statistics of independent draws (chain, draw, *shape) with importance weights (chain, draw).

    >>> found = weighted_statistics(np.array([[0.0, 1.0], [0.0, 1.0]]), np.array([[1.0, 3.0], [1.0, 3.0]]))
    >>> float(found.mean)
    0.75
    """
    shaped = weights.reshape(*weights.shape, *(1,) * (draws.ndim - 2))
    per_chain = shaped / shaped.sum(axis=1, keepdims=True)
    w = shaped / shaped.sum()
    draws = np.where(w > 0, draws, 0.0)  # log pi of a draw without weight is -inf
    mean = (w * draws).sum(axis=(0, 1))
    variance = (w * (draws - mean) ** 2).sum(axis=(0, 1))
    effective = float(1 / (w**2).sum())
    error = np.sqrt((w**2 * (draws - mean) ** 2).sum(axis=(0, 1)))
    each = float((1 / (per_chain**2).sum(axis=1)).mean())  # effective draws a chain
    is_constant = np.asarray(draws.min(axis=(0, 1)) == draws.max(axis=(0, 1)))
    between = (per_chain * draws).sum(axis=1).var(axis=0, ddof=1) if len(draws) > 1 else np.full(mean.shape, np.nan)
    with np.errstate(divide="ignore", invalid="ignore"):
        r_hat = np.sqrt(max(each - 1, 0.0) / each + between / variance)
    ess = np.where(is_constant, np.nan, effective)
    return ChainStatistics(
        mean=mean, sd=np.sqrt(variance), mcse=error, ess_bulk=ess, ess_tail=ess,
        r_hat=np.where(is_constant, np.nan, r_hat), is_constant=is_constant,
    )  # fmt: skip
