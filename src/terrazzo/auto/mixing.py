"""How well chains of a short trial mix: what they are worth if they have met, and how soon they will if not."""

import numpy as np

from terrazzo.auto.policy import Policy
from terrazzo.diagnostics import ess, rhat


def least_ess(theta: np.ndarray, log_prob: np.ndarray, policy: Policy, *, is_centred: bool = False) -> float:
    """The least ESS of log pi and of the watched coordinates that moved, but for the worst few of them.

    Chains that all sit in one configuration agree as well as chains can: every draw counts.

    Args:
        theta: Draws, (chain, draw, dim).
        log_prob: Their log pi, (chain, draw).
        policy: Which share of the coordinates is left out.
        is_centred: Whether each chain's own mean is taken off first: how fast chains move where they are.
    """
    codes, values = _watched(theta, log_prob, policy)
    if not codes.shape[-1]:
        return float(log_prob.size)
    if is_centred:
        codes, values = (x - x.mean(axis=1, keepdims=True) for x in (codes, values))
        codes, values = (x[..., np.ptp(x, axis=(0, 1)) > 0] for x in (codes, values))
    found, own = np.asarray(ess(codes)), np.asarray(ess(values))
    if not found.size and not own.size:
        return 0.0
    least = np.nanquantile(np.concatenate([found, own]), policy.low_quantile, method="lower")
    return float(min([least, *own]))


def cautious_ess(theta: np.ndarray, log_prob: np.ndarray, policy: Policy) -> float:
    """Twice the least ESS of the worse half of the chains: an estimate that noise does not flatter.

    From few records the ESS itself is uncertain, and of many candidates the luckiest would be taken.
    """
    half = len(theta) // 2
    if half < 2:
        return least_ess(theta, log_prob, policy)
    halves = [least_ess(theta[part], log_prob[part], policy) for part in (slice(None, half), slice(half, 2 * half))]
    return min(len(theta) / half * min(halves), least_ess(theta, log_prob, policy))


def relaxation(theta: np.ndarray, log_prob: np.ndarray, policy: Policy) -> float:
    """Records in which what tells chains apart decays by 1/e; infinite if it does not decay.

    With m_a the mean of a chain in the a-th quarter of its (standardised) records, C(k) = E[m_a' B m_(a+k)] falls as
    exp(-k t), or stays where it is if chains are trapped. B is the covariance of the means of the other half of the
    chains, which gives weight to the directions in which chains differ most, or the identity: the slower one counts.

    Args:
        theta: Draws, (chain, draw, dim).
        log_prob: Their log pi, (chain, draw).
        policy: What counts as stuck.
    """
    series = np.concatenate(_watched(theta, log_prob, policy), axis=-1)
    series = (series - series.mean(axis=(0, 1))) / series.std(axis=(0, 1))
    size = series.shape[1] // 4
    means = np.stack([series[:, a * size : (a + 1) * size].mean(axis=1) for a in range(4)])
    # Seen from the means of the other half, (quarter, chain, other chain): m' B m is a product of two of these.
    halves = (slice(None, None, 2), slice(1, None, 2))
    weighted = [means[:, a] @ means[:, b].mean(axis=0).T for a, b in (halves, halves[::-1])]
    left = max(_share_left([means]), _share_left(weighted))
    return np.inf if left > policy.stuck_share else 2 * size / -np.log(max(left, policy.least_left))


def _share_left(views: list[np.ndarray]) -> float:
    """C(3) / C(1) of quarters, the first axis of each view; 0 if neighbouring quarters have nothing in common."""
    near = sum(np.mean(view[:-1] * view[1:]) for view in views if view.size)
    far = sum(np.mean(view[0] * view[3]) for view in views if view.size)
    return float(far / near) if near > 0 else 0.0


def worst_agreement(theta: np.ndarray, log_prob: np.ndarray, policy: Policy) -> tuple[float, float]:
    """The worst R-hat and the least ESS of log pi and of the watched coordinates that moved."""
    parts = [x for x in _watched(theta, log_prob, policy) if x.shape[-1]]
    if not parts:
        return 1.0, float(log_prob.size)
    r_hat, least = (np.concatenate([f(x) for x in parts]) for f in (rhat, ess))
    return float(np.nanmax(r_hat)), float(np.nanmin(least))


def _watched(theta: np.ndarray, log_prob: np.ndarray, policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    """Some of the coordinates, evenly spaced (all of them if they are few), and log pi, each (chain, draw, feature).

    Those that never changed are left out. Coordinates stay integers, whose ranks are found by counting.
    """
    some = np.linspace(0, theta.shape[-1] - 1, min(theta.shape[-1], policy.most_watched)).astype(int)
    codes, values = theta[..., some], log_prob[..., None].astype(float)
    codes, values = (x[..., np.ptp(x, axis=(0, 1)) > 0] for x in (codes, values))
    return codes, values
