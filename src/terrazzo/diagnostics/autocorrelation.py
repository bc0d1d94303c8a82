"""Effective sample sizes from autocorrelations: spectra averaged over the chains, and one inverse transform.

Reference: Geyer (1992), Practical Markov chain Monte Carlo, Statistical Science 7: the initial monotone sequence.
"""

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

FFT_CHUNK = 2**19  # numbers transformed at a time: what a cache holds
MIN_DRAWS = 4  # a chain: each half of it needs two to vary


def halves(draws: np.ndarray) -> np.ndarray:
    """Both halves of each chain as chains; of an odd number of draws the middle one is left out."""
    half = draws.shape[1] // 2
    return np.concatenate([draws[:, :half], draws[:, draws.shape[1] - half :]])


def split_ess(series: np.ndarray) -> float:
    """Effective sample size of (half-)chains, (chain, draw), by Geyer's initial monotone sequence."""
    num_chains, num_draws = series.shape
    length = next_fast_len(2 * num_draws, real=True)
    power = np.zeros(length // 2 + 1)
    means = np.empty(num_chains)
    step = max(1, FFT_CHUNK // length)
    for start in range(0, num_chains, step):
        x = series[start : start + step].astype(float)
        means[start : start + step] = x.mean(axis=1)
        power += _power(x - means[start : start + step, None], length)
    return float(_ess_of_spectra(power[None], means[None], num_draws, length)[0])


def split_ess_of_means(draws: np.ndarray) -> np.ndarray:
    """The same of several coordinates, (chain, draw, d); NaN for constants and below four draws."""
    num_draws, num_dims = draws.shape[1:]
    out, half = np.full(num_dims, np.nan), num_draws // 2
    if num_draws < MIN_DRAWS:
        return out
    length = next_fast_len(2 * half, real=True)
    step = max(1, FFT_CHUNK // (length * 2 * len(draws)))
    for start in range(0, num_dims, step):
        x = np.ascontiguousarray(np.moveaxis(halves(draws[..., start : start + step]), 2, 0), float)
        is_moving = np.ptp(x, axis=(1, 2)) > 0  # False for NaN
        x, means = x[is_moving], x[is_moving].mean(axis=2)
        power = _power(x - means[..., None], length)
        out[start : start + step][is_moving] = _ess_of_spectra(power, means, half, length)
    return out


def _power(x: np.ndarray, length: int) -> np.ndarray:
    """The power spectrum of each series along the last axis, summed over the axis before it."""
    spectrum = rfft(x, n=length, axis=-1)
    return np.einsum("...cf,...cf->...f", spectrum.real, spectrum.real) + np.einsum(
        "...cf,...cf->...f", spectrum.imag, spectrum.imag
    )


def _ess_of_spectra(power: np.ndarray, means: np.ndarray, num_draws: int, length: int) -> np.ndarray:
    """Effective sample sizes of coordinates, from spectra (d, frequency) of padded series and chain means (d, chain).

    With rho_t = 1 - (W - acov_t) / var_plus and the pair sums P_k = rho_2k + rho_2k+1, the sum runs over the pairs
    before the first that is not positive, each replaced by the smallest so far; the even term of that pair is kept
    if it is positive. N / tau with tau = -1 + 2 sum_k min(P_0..P_k) + rho_2m, at least 1 / log10 N.
    """
    num_chains, rows = means.shape[1], np.arange(len(means))
    acov = irfft(power, n=length, axis=1)[:, :num_draws] / (num_draws * num_chains)
    within = acov[:, :1] * num_draws / (num_draws - 1)
    var_plus = acov[:, 0] + (means.var(axis=1, ddof=1) if num_chains > 1 else 0.0)
    rho = 1 - (within - acov) / var_plus[:, None]
    rho[:, 0] = 1
    last_pair = max(0, -(-(num_draws - 2) // 2) - 1)
    pairs = rho[:, 0 : 2 * last_pair + 1 : 2] + rho[:, 1 : 2 * last_pair + 2 : 2]
    is_end = pairs <= 0
    ends = np.where(is_end.any(axis=1), is_end.argmax(axis=1), last_pair)
    is_before = np.arange(pairs.shape[1]) < ends[:, None]
    tau = -1 + 2 * np.where(is_before, np.minimum.accumulate(pairs, axis=1), 0.0).sum(axis=1)
    last = rho[rows, 2 * ends]
    tau = tau + np.where((last > 0) | (pairs[rows, ends] >= 0), last, 0.0)
    size = num_chains * num_draws
    return np.where(var_plus > 0, size / np.maximum(tau, 1 / np.log10(size)), np.nan)
