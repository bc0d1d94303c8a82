"""Bridge sampling: a ratio of normalisers from draws of both sides.

With w = pi / q, r = Z, and any bridge h,  Z = E_q[w h] / E_pi[h].  The bridge of least variance is

    h = 1 / (s_1 r + s_2 w),    s_1 : s_2 = n_1 : n_2,

so that with D = log Z, l = log w and o = log(n_2 / n_1) the estimate is the root D of

    n_1 mean_q sigmoid(l - D + o) = n_2 mean_pi sigmoid(D - l - o).

This is Bennett's acceptance ratio. Where n_2 correlated draws are worth fewer independent ones, n_2 is that number.

References: Bennett (1976), Efficient estimation of free energy differences from Monte Carlo data, J. Comp. Physics 22;
Meng & Wong (1996), Simulating ratios of normalizing constants via a simple identity, Statistica Sinica 6.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit

from terrazzo.diagnostics.autocorrelation import MIN_DRAWS
from terrazzo.diagnostics.chains import ess
from terrazzo.diagnostics.evidence import LogZ
from terrazzo.errors import OptionError

ACCURACY = 1e-12


def bennett(forward: np.ndarray, backward: np.ndarray, *, num_backward: float | None = None) -> float:
    """The log-ratio of two normalisers from log-ratios under the first (`forward`) and under the second (`backward`).

    Args:
        forward: l = log of the second density over the first, at draws of the first; -inf where the second is zero.
        backward: The same at draws of the second; +inf where the first is zero.
        num_backward: What the draws of the second are worth, if they are correlated; by default their number.

    Returns:
        The root; -inf or +inf if one side never meets the other, NaN if neither does.

    >>> round(bennett(np.full(4, 2.0), np.full(3, 2.0)), 9)
    2.0
    """
    forward, backward = np.asarray(forward, float).ravel(), np.asarray(backward, float).ravel()
    if np.isnan(forward).any() or np.isnan(backward).any():
        return float("nan")
    weight = 1.0 if num_backward is None else num_backward / len(backward)
    is_met = (bool(np.isfinite(forward).any()), bool(np.isfinite(backward).any()))
    if is_met != (True, True):
        return {(False, True): float("-inf"), (True, False): float("inf")}.get(is_met, float("nan"))
    offset = np.log(weight * len(backward) / len(forward))  # draws may differ in number

    def gap_and_slope(d: float) -> tuple[float, float]:
        first, second = expit(forward - d + offset), weight * expit(d - backward - offset)
        slope = first @ (1.0 - first) + second @ (1.0 - second / weight)
        return float(first.sum() - second.sum()), -float(slope)

    # What is left of the gap far below and far above all log-ratios: only infinite ones count on the other side.
    below = np.count_nonzero(forward > -np.inf) - weight * np.count_nonzero(backward == -np.inf)
    above = weight * np.count_nonzero(backward < np.inf) - np.count_nonzero(forward == np.inf)
    if below <= 0 or above <= 0:  # draws that are impossible under their own law
        return float("nan")
    finite = [x[np.isfinite(x)] for x in (forward, backward)]
    margin = 1.0 + abs(offset) + np.log((len(forward) + weight * len(backward)) / min(below, above))
    low, high = min(x.min() for x in finite) - margin, max(x.max() for x in finite) + margin
    return _root(gap_and_slope, float(low), float(high), float(np.mean([x.mean() for x in finite])))


def _root(function: Callable[[float], tuple[float, float]], low: float, high: float, guess: float) -> float:
    """The root of a falling function (value, slope) by Newton's steps, and by halving where they would leave."""
    while True:
        value, slope = function(guess)
        low, high = (guess, high) if value > 0 else (low, guess)
        step = guess - value / slope if slope < 0 else np.inf
        new = step if low <= step <= high else 0.5 * (low + high)
        if abs(new - guess) <= ACCURACY * max(1.0, abs(guess)):
            return float(new)
        guess = new


def newton_steps(forward: np.ndarray, backward: np.ndarray, root: float) -> np.ndarray:
    """What each chain alone would add to the root that `bennett` found for all of them, to first order.

    With f_c(D) = sum sigmoid(l - D) - sum sigmoid(D - l) over the draws of a chain, that is f_c / -mean_c f_c'.

    Args:
        forward: Log-ratios at draws of the first, (chain, draw).
        backward: The same at draws of the second.
        root: The pooled root; NaN where it is not finite.

    >>> newton_steps(np.array([[1.0, 1.0], [3.0, 3.0]]), np.array([[1.0, 1.0], [3.0, 3.0]]), 2.0).round(2).tolist()
    [-1.18, 1.18]
    """
    if not np.isfinite(root):
        return np.full(len(forward), np.nan)
    first, second = expit(forward - root), expit(root - backward)
    slope = (first * (1 - first)).sum(axis=1) + (second * (1 - second)).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return (first.sum(axis=1) - second.sum(axis=1)) / slope.mean()


def bridge_log_z(own_log_weights: Any, posterior_log_weights: Any, *, num_effective: float | None = None) -> LogZ:
    """Log Z by the optimal bridge between a transport q and the target pi.

        Z = E_q[w h(w)] / E_pi[h(w)],    h(w) = 1 / (s_1 Z + s_2 w),    w = pi / q

    The functions of w that are averaged are bounded, so that a few enormous weights, which ruin importance sampling, do
    no harm here: the draws of pi say how much mass lies there. The relative mean squared error is

        var_q(f_1) / (n_1 mean(f_1)^2) + var_pi(f_2) / (n_eff mean(f_2)^2),    f_1 = w h,  f_2 = h,

    where n_eff is the effective number of the posterior draws for the mean of f_2. If those draws miss a mode that q
    reaches, or the other way round, the error does not show it: compare with other estimates.

    Args:
        own_log_weights: log w at independent draws of the transport, any shape; -inf is a weight of zero
            (`sample_transport(...).log_weights`).
        posterior_log_weights: log w at draws of chains on pi, shape (chain, draw), at least four draws each
            (`transports.posterior_log_weights`); +inf where the transport has no mass.
        num_effective: What the posterior draws are worth; by default their effective number, found from the chains.

    Returns:
        log Z; its standard error is the root of the formula above; `ess` is n_eff; `pareto_k` is NaN (there is no tail
        to judge). log Z is infinite or NaN, and the standard error NaN, if the two sides do not meet at all.

    >>> rng = np.random.default_rng(0)
    >>> own, posterior = rng.normal(0.0, 1.0, 1000), rng.normal(1.0, 1.0, (4, 250))  # log Z = 1/2
    >>> out = bridge_log_z(own, posterior)
    >>> bool(abs(out.log_z - 0.5) < 4 * out.standard_error < 0.4)
    True

    References: Meng & Wong (1996), Statistica Sinica 6; Fruehwirth-Schnatter (2004), Estimating marginal likelihoods
    for mixture and Markov switching models using bridge sampling techniques, Econometrics Journal 7.
    """
    own = np.asarray(own_log_weights, float).ravel()
    posterior = np.asarray(posterior_log_weights, float)
    if own.size < 2 or np.isnan(own).any() or (own == np.inf).any():
        raise OptionError("own_log_weights", "must be two or more numbers below +inf", "drop NaN at their source")
    if posterior.ndim != 2 or posterior.shape[0] < 1 or posterior.shape[1] < MIN_DRAWS:
        raise OptionError(
            "posterior_log_weights", f"has shape {posterior.shape}", f"(chain, draw), at least {MIN_DRAWS} draws each"
        )
    if np.isnan(posterior).any() or (posterior == -np.inf).any():
        raise OptionError(
            "posterior_log_weights", "must be numbers above -inf: pi is positive at draws of pi", "check the draws"
        )
    if num_effective is not None and not num_effective > 0:
        raise OptionError("num_effective", f"must be positive, got {num_effective!r}", "leave it out to have it found")

    def terms(log_z: float, size: float) -> tuple[np.ndarray, np.ndarray]:
        offset = np.log(size / own.size)
        return expit(own - log_z + offset), expit(log_z - posterior - offset)

    size = float(posterior.size) if num_effective is None else float(num_effective)
    log_z = bennett(own, posterior, num_backward=size)
    if np.isfinite(log_z) and num_effective is None:  # the draws' worth depends on the root: find it, then once more
        size = _effective(terms(log_z, size)[1])
        log_z = bennett(own, posterior, num_backward=size)
        size = _effective(terms(log_z, size)[1])
    if not np.isfinite(log_z):
        return LogZ(log_z, float("nan"), 0.0, float("nan"))
    f_own, f_posterior = terms(log_z, size)
    error = _relative_variance(f_own) / own.size + _relative_variance(f_posterior) / size
    return LogZ(log_z, float(np.sqrt(error)), size, float("nan"))


def _effective(values: np.ndarray) -> float:
    """The effective number of correlated draws for the mean of `values`, at most their number."""
    found = float(ess(values, method="mean"))
    return float(values.size) if np.isnan(found) else min(found, float(values.size))


def _relative_variance(values: np.ndarray) -> float:
    return float(values.var(ddof=1) / values.mean() ** 2)
