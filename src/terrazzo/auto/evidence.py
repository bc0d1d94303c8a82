"""The headline estimate of log Z, from all the estimates there are."""

import numpy as np

from terrazzo.auto.policy import CPU, Policy
from terrazzo.diagnostics import LogZ
from terrazzo.verdict.checks import NOT_TRUSTED, TRUSTED, UNCHECKED, Verdict
from terrazzo.verdict.coverage import MARGIN, evidence_gap

LADDERS = {"tempering", "exploration"}  # estimates by tempered ladders


def log_sum_of_seen(theta: np.ndarray, log_prob: np.ndarray, policy: Policy = CPU) -> float:
    """The log-sum of pi over the best configurations that were drawn, each once: log Z is at least that."""
    flat, values = theta.reshape(-1, theta.shape[-1]), log_prob.reshape(-1).astype(float)
    best = np.argsort(-values, kind="stable")[: policy.most_weighed]
    _, first = np.unique(flat[best], axis=0, return_index=True)
    values = values[best][first]
    if not len(values) or not np.isfinite(values.max()):
        return -np.inf
    return float(values.max() + np.log(np.exp(values - values.max()).sum()))


def settle_evidence(
    estimates: dict[str, LogZ], *, least: float, is_settled: bool, policy: Policy = CPU
) -> tuple[LogZ | None, Verdict | None]:
    """The headline estimate of log Z and what it rests on; NaN where the estimates contradict each other.

    Args:
        estimates: log Z by the way it was made.
        least: What log Z is at least, by the configurations that were drawn.
        is_settled: Whether tempering was long enough, and its ladders agree.
        policy: What counts as sound.

    Returns:
        The estimate with the smallest standard error among those that are sound, and a verdict on it: "trusted" if one
        from tempering and one through a transport agree, "unchecked" if it stands alone. An estimate is sound if it
        has a standard error, is possible, and its own diagnostics are fine.

    >>> made = {"bridge": LogZ(4.2, 0.01, 900.0, np.nan), "tempering": LogZ(20.2, 0.1, np.nan, np.nan)}
    >>> settle_evidence(made, least=1.0, is_settled=True)[1].reason
    'bridge 4.2 +- 0.01 and tempering 20.2 +- 0.1 contradict each other'
    """
    if not estimates:
        return None, None
    known = {
        name: value for name, value in estimates.items()
        if 0 < value.standard_error < np.inf and not value.pareto_k > policy.pareto_k
    }  # fmt: skip
    for name, value in known.items():
        if value.log_z + policy.evidence_gap * value.standard_error < least - MARGIN:
            return _unknown(f"{_text(name, value)} is below what was drawn ({least:.5g})")
    names = list(known)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            gap = evidence_gap(known[first], known[second])
            is_close = abs(known[first].log_z - known[second].log_z) < policy.small_gap
            if gap > policy.evidence_gap and not is_close:
                pair = f"{_text(first, known[first])} and {_text(second, known[second])}"
                return _unknown(f"{pair} contradict each other")
    sound = {name: value for name, value in known.items() if is_settled or name != "tempering"}
    if not sound:
        return _unknown("no estimate is sound: weights with a heavy tail, or ladders that disagree")
    name = min(sound, key=lambda n: sound[n].standard_error)
    others = [other for other in sound if other != name]
    reason = f"by {name}" + (f", in agreement with {', '.join(others)}" if others else " alone")
    is_twofold = len(sound) > 1 and bool(LADDERS & set(sound))  # importance and bridge share a transport
    return sound[name], Verdict(TRUSTED if is_twofold else UNCHECKED, reason)


def _unknown(reason: str) -> tuple[LogZ, Verdict]:
    return LogZ(float("nan"), float("nan"), 0.0, float("nan")), Verdict(NOT_TRUSTED, reason)


def _text(name: str, value: LogZ) -> str:
    return f"{name} {value.log_z:.5g} +- {value.standard_error:.2g}"
