"""Effective sample size, R-hat and Monte-Carlo standard error of chains of small integers.

The estimators are the rank-normalised split versions of Vehtari et al. (2021), the ones ArviZ reports, computed in a
way that suits integers: ranks by counting, R-hat from one histogram a half-chain, autocovariances from power spectra
averaged over the chains before a single inverse transform. Coordinates are handled one by one (many numbers: a few side
by side), so memory stays at the draws themselves plus a few tens of megabytes.
"""

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any

import numpy as np
from scipy.special import ndtri

from terrazzo.diagnostics.autocorrelation import FFT_CHUNK, MIN_DRAWS, halves, split_ess, split_ess_of_means
from terrazzo.diagnostics.statistics import ChainStatistics as ChainStatistics
from terrazzo.diagnostics.statistics import weighted_statistics
from terrazzo.errors import OptionError

BLOCK_BYTES = 64  # coordinates are gathered a cache line at a time
MANY_NUMBERS = 2**20  # draws from which coordinates are handled side by side
MOST_THREADS = 8  # each holds some tens of megabytes
METHODS = ("bulk", "tail", "mean")


class _Series:
    """One coordinate: sorted values, and the code of each draw's value among them."""

    def __init__(self, x: np.ndarray):
        self.num_chains, self.num_draws = x.shape
        self.is_valid = self.num_draws >= MIN_DRAWS and not (x.dtype.kind == "f" and np.isnan(x).any())
        low, high = x.min(), x.max()
        self.is_constant = bool(low == high)
        if x.dtype.kind in "iub" and int(high) - int(low) < max(1024, x.size):
            codes = x.astype(np.intp) - int(low)
            self.values = np.arange(int(low), int(high) + 1, dtype=float)
        else:
            values, codes = np.unique(x, return_inverse=True)
            self.values, codes = values.astype(float), codes.reshape(x.shape)
        self.codes = codes
        self.counts = np.bincount(codes.ravel(), minlength=len(self.values))
        half = self.num_draws // 2
        self.split = np.concatenate([codes[:, :half], codes[:, self.num_draws - half :]])
        is_even = self.num_draws % 2 == 0
        self.split_counts = self.counts if is_even else np.bincount(self.split.ravel(), minlength=len(self.values))

    @property
    def num_values(self) -> int:
        return int(np.count_nonzero(self.counts))

    def mean(self) -> float:
        return float(self.counts @ self.values / self.codes.size)

    def sd(self) -> float:
        if self.codes.size < 2:
            return float("nan")
        return float(np.sqrt(self.counts @ (self.values - self.mean()) ** 2 / (self.codes.size - 1)))

    def quantile_code(self, prob: float) -> int:
        """The last code that is not above the `prob` quantile (linear interpolation, as NumPy's default)."""
        place = prob * (self.codes.size - 1)
        cumulative = np.cumsum(self.counts)
        low, high = np.searchsorted(cumulative, [int(place), min(int(place) + 1, self.codes.size - 1)], side="right")
        quantile = self.values[low] + (place - int(place)) * (self.values[high] - self.values[low])
        return int(np.searchsorted(self.values, quantile, side="right")) - 1

    def median(self) -> float:
        """The median of the split draws."""
        size = self.split.size
        cumulative = np.cumsum(self.split_counts)
        middle = np.searchsorted(cumulative, [(size - 1) // 2, size // 2], side="right")
        return float(self.values[middle].mean())


def _normal_scores(counts: np.ndarray) -> np.ndarray:
    """Normal scores of average ranks, Phi^-1((rank - 3/8) / (N + 1/4)), one for each sorted value."""
    cumulative = np.cumsum(counts)
    rank = cumulative - (counts - 1) / 2
    return ndtri((rank - 0.375) / (cumulative[-1] + 0.25))


def _r_hat_of_indicators(draws: np.ndarray) -> np.ndarray:
    """Split R-hat of coordinates with the same two values, (chain, draw, d); NaN for constants and below four draws."""
    half, out = draws.shape[1] // 2, np.full(draws.shape[2], np.nan)
    if draws.shape[1] < MIN_DRAWS:
        return out
    means = (halves(draws) != draws.min()).mean(axis=1)
    within, between = (means * (1.0 - means)).mean(axis=0) * half / (half - 1), half * means.var(axis=0, ddof=1)
    return np.sqrt((between / within + half - 1) / half)


def _all_of_indicators(draws: np.ndarray) -> np.ndarray:
    """What `_all` says of coordinates with the same two values, (chain, draw, d), as (d, statistic).

    Every statistic is an affine function of one indicator. The tail is that indicator too, unless fewer than one draw
    in twenty is low.
    """
    low, size = float(draws.min()), draws.shape[0] * draws.shape[1]
    num_low = size - np.count_nonzero(draws != draws.min(), axis=(0, 1))
    is_constant = (num_low == 0) | (num_low == size)
    mean, bulk = 1.0 - num_low / size, split_ess_of_means(draws)
    sd = np.sqrt(mean * (1.0 - mean) * size / (size - 1)) if size > 1 else np.full(len(mean), np.nan)
    is_in_tail = [int(prob * (size - 1)) < num_low for prob in (0.05, 0.95)]
    whole = float(2 * (draws.shape[1] // 2) * draws.shape[0])
    tail = np.where(is_in_tail[0], np.where(is_in_tail[1], bulk, np.minimum(bulk, whole)), whole)
    tail = np.where(np.isnan(bulk), np.nan, tail)
    error = np.where(bulk > 0, sd / np.sqrt(bulk), np.nan)
    return np.stack([low + mean, sd, error, bulk, tail, _r_hat_of_indicators(draws), is_constant], axis=-1)


def _ess_bulk(series: _Series) -> float:
    if not series.is_valid or series.is_constant:
        return float("nan")
    return split_ess(_normal_scores(series.split_counts)[series.split])


def _ess_mean(series: _Series) -> float:
    if not series.is_valid or series.is_constant:
        return float("nan")
    return split_ess(series.values[series.split])


def _ess_tail(series: _Series, known: float | None = None) -> float:
    """The smaller of the effective sample sizes at the 5 % and 95 % quantile; a quantile that all draws reach counts N.

    With two values there is one indicator only, whose effective sample size may be `known` from the bulk.
    """
    if not series.is_valid or series.is_constant:
        return float("nan")
    out, done = [], {}
    for code in (series.quantile_code(0.05), series.quantile_code(0.95)):
        is_below = series.split <= code
        is_whole = bool(is_below.all() or not is_below.any())
        if is_whole:
            out.append(float(2 * (series.num_draws // 2) * series.num_chains))
        elif known is not None:
            out.append(known)
        else:
            if code not in done:
                done[code] = split_ess(is_below)
            out.append(done[code])
    return min(out)


def _ratio(means: np.ndarray, variances: np.ndarray, num_draws: int) -> float:
    between, within = num_draws * means.var(ddof=1), variances.mean()
    if within <= 0:
        return float("inf") if between > 0 else float("nan")
    return float(np.sqrt((between / within + num_draws - 1) / num_draws))


def _moments(series: _Series) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Means and variances over each half-chain of any function of the value, given at each sorted value."""
    num_chains, num_draws = series.split.shape
    num_codes = len(series.values)
    is_stuck = series.split.min(axis=1) == series.split.max(axis=1)
    if num_chains * num_codes <= max(series.split.size, 1024):
        flat = series.split + np.arange(num_chains)[:, None] * num_codes
        histogram = np.bincount(flat.ravel(), minlength=num_chains * num_codes).reshape(num_chains, num_codes)

        def moments(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            means = histogram @ scores / num_draws
            squares = np.einsum("cv,cv->c", histogram, (scores - means[:, None]) ** 2)
            return means, np.where(is_stuck, 0.0, squares / (num_draws - 1))
    else:

        def moments(scores: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            x = scores[series.split]
            return x.mean(axis=1), np.where(is_stuck, 0.0, x.var(axis=1, ddof=1))

    return moments


def _r_hat(series: _Series) -> float:
    if not series.is_valid or series.is_constant:
        return float("nan")
    moments = _moments(series)
    bulk = _ratio(*moments(_normal_scores(series.split_counts)), series.split.shape[1])
    present = np.flatnonzero(series.split_counts)
    folded, inverse = np.unique(np.abs(series.values[present] - series.median()), return_inverse=True)
    scores = np.zeros(len(series.values))
    scores[present] = _normal_scores(np.bincount(inverse, series.split_counts[present], len(folded)))[inverse]
    tail = _ratio(*moments(scores), series.split.shape[1]) if len(folded) > 1 else float("nan")
    return float(np.fmax(bulk, tail))


def _all(series: _Series) -> tuple[float, float, float, float, float, float, bool]:
    bulk = _ess_bulk(series)
    if series.num_values == 2:  # every statistic is an affine function of one indicator
        mean, tail = bulk, _ess_tail(series, bulk)
    else:
        mean, tail = _ess_mean(series), _ess_tail(series)
    sd = series.sd()
    error = float(sd / np.sqrt(mean)) if mean > 0 else float("nan")
    return series.mean(), sd, error, bulk, tail, _r_hat(series), series.is_constant


def _mcse(series: _Series) -> float:
    size = _ess_mean(series)
    return float(series.sd() / np.sqrt(size)) if size > 0 else float("nan")


def _coordinates(draws: np.ndarray) -> Iterator[np.ndarray]:
    """The coordinates of (chain, draw, d), each as a contiguous (chain, draw); read a cache line at a time."""
    step = max(1, BLOCK_BYTES // draws.itemsize)
    for start in range(0, draws.shape[2], step):
        yield from np.ascontiguousarray(np.moveaxis(draws[:, :, start : start + step], 2, 0))


def _checked(draws: Any) -> np.ndarray:
    array = np.asarray(draws)
    if array.ndim < 2 or 0 in array.shape[:2] or array.dtype.kind not in "iufb":
        raise OptionError(
            "draws", f"must be numbers of shape (chain, draw, ...), got {array.dtype} {array.shape}", "add the axes"
        )
    return array


def _are_indicators(draws: np.ndarray) -> bool:
    """Whether all coordinates have the same two values, of which ranks and folds are affine functions."""
    return draws.dtype.kind in "iub" and draws.size > 0 and int(draws.max()) - int(draws.min()) <= 1


def _in_parallel(function: Callable[[np.ndarray], Any], parts: Iterator[np.ndarray], is_large: bool) -> list[Any]:
    """The function of each part, by threads where it pays: transforms let go of the interpreter's lock."""

    def quietly(part: np.ndarray) -> Any:
        with np.errstate(invalid="ignore", divide="ignore"):
            return function(part)

    if not is_large:
        return [quietly(part) for part in parts]
    num_threads = min(MOST_THREADS, os.cpu_count() or 1)
    found: list[Any] = []
    with ThreadPoolExecutor(num_threads) as pool:
        while some := list(islice(parts, num_threads)):  # no more than these are held at a time
            found.extend(pool.map(quietly, some))
    return found


def _over_coordinates(draws: Any, statistic: Callable[[_Series], Any]) -> np.ndarray:
    """Applies a statistic of one coordinate to all; shape (*shape, ...)."""
    array = _checked(draws)
    coordinates = _coordinates(array.reshape(*array.shape[:2], -1))
    rows = _in_parallel(lambda x: statistic(_Series(x)), coordinates, array.size >= MANY_NUMBERS)
    return np.asarray(rows, float).reshape(array.shape[2:] + np.shape(rows)[1:])


def _over_blocks(array: np.ndarray, statistic: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Applies a statistic of several coordinates, (chain, draw, d) -> (d, ...), to all; shape (*shape, ...)."""
    flat = array.reshape(*array.shape[:2], -1)
    width = max(BLOCK_BYTES // array.itemsize, FFT_CHUNK // (array.shape[0] * array.shape[1]), 1)
    blocks = (flat[..., start : start + width] for start in range(0, flat.shape[2], width))
    rows = _in_parallel(statistic, blocks, array.size >= MANY_NUMBERS)
    whole = np.concatenate(rows) if rows else np.zeros((0,))
    return whole.reshape(array.shape[2:] + whole.shape[1:])


def ess(draws: Any, *, method: str = "bulk") -> Any:
    """Effective sample size of each coordinate, over all chains together.

    Args:
        draws: Shape (chain, draw, *shape).
        method: "bulk" (rank-normalised), "tail" (the worse of the 5 % and 95 % quantiles) or "mean".

    Returns:
        An array of shape `shape`; NaN for constant coordinates and below four draws.

    >>> x = np.random.default_rng(0).integers(0, 4, (4, 1000))
    >>> bool(3000 < ess(x) < 5000)
    True

    Reference: Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021), Bayesian Analysis 16(2).
    """
    if method not in METHODS:
        raise OptionError("method", f"unknown: {method!r}", f"choose one of {', '.join(METHODS)}")
    array = _checked(draws)
    if method == "mean" or (method == "bulk" and _are_indicators(array)):
        return _over_blocks(array, split_ess_of_means)[()]
    return _over_coordinates(array, {"bulk": _ess_bulk, "tail": _ess_tail}[method])[()]


def rhat(draws: Any) -> Any:
    """Rank-normalised split R-hat of each coordinate, the larger of bulk and folded.

    Args:
        draws: Shape (chain, draw, *shape); a single chain is compared with itself, half against half.

    Returns:
        An array of shape `shape`; NaN for constants, infinite if chains are each constant but differ.

    >>> bool(np.isinf(rhat(np.array([[0, 0, 0, 0], [1, 1, 1, 1]]))))
    True

    Reference: Vehtari, Gelman, Simpson, Carpenter, Buerkner (2021), Bayesian Analysis 16(2).
    """
    array = _checked(draws)
    if _are_indicators(array):
        return _over_blocks(array, _r_hat_of_indicators)[()]
    return _over_coordinates(array, _r_hat)[()]


def mcse(draws: Any) -> Any:
    """Monte-Carlo standard error of the mean of each coordinate, sd / sqrt(ESS of the mean).

    Args:
        draws: Shape (chain, draw, *shape).

    >>> x = np.random.default_rng(0).integers(0, 2, (4, 2500))
    >>> bool(0.004 < mcse(x) < 0.006)
    True
    """
    return _over_coordinates(draws, _mcse)[()]


def describe(draws: Any, weights: Any = None) -> ChainStatistics:
    """All statistics of each coordinate in one pass over the draws.

    Args:
        draws: Shape (chain, draw, *shape).
        weights: Importance weights of independent draws, (chain, draw), up to a factor. Means are weighted then, the
            effective sample size is (sum w)^2 / sum w^2, and R-hat compares the weighted means of the chains.

    >>> describe(np.zeros((2, 10, 3), int)).is_constant.tolist()
    [True, True, True]
    """
    if weights is not None:
        return weighted_statistics(np.asarray(draws, float), np.asarray(weights, float))
    array = _checked(draws)
    table = _over_blocks(array, _all_of_indicators) if _are_indicators(array) else _over_coordinates(array, _all)
    mean, sd, error, bulk, tail, r_hat, is_constant = np.moveaxis(table, -1, 0)
    return ChainStatistics(
        mean=mean, sd=sd, mcse=error, ess_bulk=bulk, ess_tail=tail, r_hat=r_hat, is_constant=is_constant.astype(bool)
    )
