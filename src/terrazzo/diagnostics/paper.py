"""The effective sample size the paper reports, kept for its tables; `ess` is the one to judge chains by."""

from typing import Any, NamedTuple

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from terrazzo.diagnostics.autocorrelation import MIN_DRAWS
from terrazzo.diagnostics.chains import MANY_NUMBERS, _checked, _coordinates, _in_parallel
from terrazzo.errors import OptionError

PAPER_DRAWS = 10_000
CONSTANT = 1.0


class PaperESS(NamedTuple):
    """The paper's figure: mean over coordinates, then mean and standard error over groups of chains.

    Attributes:
        mean: Effective draws per chain per 10^4 kept draws.
        standard_error: Over the groups; NaN with one group.
        per_group: One figure a group.
        num_constant: Coordinates constant in every group (each counts 1.0).
    """

    mean: float
    standard_error: float
    per_group: np.ndarray
    num_constant: int


def _variogram_ess(x: np.ndarray) -> float:
    """Effective draws per chain of one coordinate by the variogram of Bayesian Data Analysis, 3rd edition, 11.5.

    V_t = mean (x_i - x_{i-t})^2 over all chains, var_plus = (n-1)/n W + B/n, rho_t = 1 - V_t / (2 var_plus);
    tau = 1 + 2 sum_{t<=T} rho_t, T the first odd lag with rho_{T+1} + rho_{T+2} < 0. No split, no ranks.
    """
    num_chains, num_draws = x.shape
    if x.min() == x.max():
        return CONSTANT
    x = x.astype(float)
    means = x.mean(axis=1)
    within = x.var(axis=1, ddof=1).mean()
    between = means.var(ddof=1) if num_chains > 1 else 0.0
    var_plus = within * (num_draws - 1) / num_draws + between
    centred = x - x.mean()
    length = next_fast_len(2 * num_draws, real=True)
    product = np.zeros(length // 2 + 1)
    for row in centred:
        spectrum = rfft(row, n=length)
        product += spectrum.real**2 + spectrum.imag**2
    cross = irfft(product, n=length)[:num_draws]
    forward = np.cumsum((centred**2).sum(axis=0))
    total = forward[-1]
    lags = np.arange(1, num_draws)
    heads, tails = forward[num_draws - 1 - lags], total - forward[lags - 1]
    variogram = (heads + tails - 2 * cross[1:]) / (num_chains * (num_draws - lags))
    rho = 1 - variogram / (2 * var_plus)  # rho[t - 1] is lag t
    pairs = rho[1:-1:2] + rho[2::2]  # lags (2, 3), (4, 5), ...
    ends = np.flatnonzero(pairs < 0)
    last = 2 * int(ends[0]) + 1 if len(ends) else len(rho)
    tau = 1 + 2 * rho[:last].sum()
    # White or antithetic chains can bring tau to 0 or below by noise: BDA3 has no rule, so the same floor as `ess`.
    return num_draws / max(tau, 1 / np.log10(x.size))


def paper_ess(draws: Any, num_groups: int = 8) -> PaperESS:
    """The paper's effective sample size: per chain, per 10^4 kept draws, mean over coordinates.

    The chains are taken in `num_groups` groups (the paper: 128 chains, 8 groups of 16); a constant coordinate
    counts 1.0. About ArviZ's bulk ESS divided by the number of chains.

    Args:
        draws: Shape (chain, draw, *shape).
        num_groups: How many groups the chains form; a divisor of their number.

    >>> x = np.random.default_rng(0).integers(0, 2, (32, 1000))
    >>> bool(9000 < paper_ess(x).mean < 11500)
    True

    Reference: Gelman et al. (2013), Bayesian Data Analysis, 3rd edition, section 11.5; Jaini et al. (2021).
    """
    array = _checked(draws)
    num_chains, num_draws = array.shape[:2]
    if num_groups < 1 or num_chains % num_groups or num_draws < MIN_DRAWS:
        raise OptionError(
            "num_groups", f"{num_groups} groups do not divide {num_chains} chains of {num_draws} draws", "use a divisor"
        )
    flat = array.reshape(num_chains, num_draws, -1)
    size = num_chains // num_groups

    def of_groups(x: np.ndarray) -> tuple[list[float], bool]:
        return [_variogram_ess(x[g * size : (g + 1) * size]) for g in range(num_groups)], bool(x.min() == x.max())

    found = _in_parallel(of_groups, _coordinates(flat), flat.size >= MANY_NUMBERS)
    table = np.array([sizes for sizes, _ in found])
    num_constant = sum(is_constant for _, is_constant in found)
    scaled = np.where(table == CONSTANT, CONSTANT, table * PAPER_DRAWS / num_draws)
    per_group = scaled.mean(axis=0)
    error = per_group.std(ddof=1) / np.sqrt(num_groups) if num_groups > 1 else np.nan
    return PaperESS(float(per_group.mean()), float(error), per_group, num_constant)
