"""The checks that need more than the draws: what was found in other ways, against what the chains say.

Mode loss passes every usual check (DESIGN section 3, trap 4). Here the final draws are held against everything that is
known from outside, each a `Check` with its number and its remedy:

- the tempered exploration: whether it was long enough to say anything, and the means of log pi and of every coordinate;
- chains of the same sampler that began at hunted configurations (`hunt`, `reach`) and must have come back;
- R-hat between chains that started from the transport and chains that started from tempered draws;
- the share of tempered draws heavier than any of the transport's own, and whether the final draws have the same share;
- log Z by the transport, by the bridge and by tempering;
- the other values of coordinates that never changed.

An exploration that is too short or whose ladders disagree may still accuse, but it cannot acquit: the grade is then
"unchecked" at best.
"""

from collections.abc import Callable, Iterator

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.checks import NOT_TRUSTED, NOTE, POINT_MASS, TRUSTED, UNCHECKED, Check, Verdict
from terrazzo.diagnostics import LogZ, bridge_log_z
from terrazzo.diagnostics.coverage import MARGIN, disagreement, evidence_gap, is_beyond, share_beyond, start_r_hat
from terrazzo.interactions import evaluate
from terrazzo.targets import Target
from terrazzo.transports import posterior_log_weights
from terrazzo.warmup.hunt import Mode, features, modes_apart
from terrazzo.warmup.pipeline import MAX_WEIGHED, Plan, set_apart, thinned

# Numbers, and draws of all chains: beyond that draws are thinned, which leaves the tempered ones the fewer by far
MAX_COMPARED, MAX_DRAWS = 2**24, 2**18
MAX_START_R_HAT = 1.02
MAX_EXPLORED_R_HAT = 1.1
FEWEST_DRAWS = 64.0  # of each ladder, kept: fewer look independent by chance (nine did)
MAX_SHARE_BEYOND = 0.02
ALPHA = 1e-4  # chance of a false alarm of each comparison with the tempered draws
MIN_POINT_SHARE = 0.98
MAX_EVIDENCE_GAP = 5.0  # standard errors; few ladders make heavy tails
SMALL_GAP = 0.02  # nats that no one minds, whatever the standard errors claim
MAX_PARETO_K = 0.7
LOST = "a mode may be lost: train the transport longer or on more draws, or use parallel_tempering"
NUM_LOOKED, MAX_EXPECTED = 64, 10.0  # draws at which constants are looked at; times that a change was due
LONGER = "explore longer: allow more seconds, or exploration={'max_rounds': ...}"


class Agreement:
    """Compares a run with its warm-up.

    Args:
        key: A JAX key (for lifts).
        target: The target.
        plan: What warm-up left.
        theta: The final draws, (chain, draw, dim).
        log_prob: Their log pi.
    """

    def __init__(self, key: Array, target: Target, plan: Plan, theta: np.ndarray, log_prob: np.ndarray):
        most = min(MAX_COMPARED // theta.shape[-1], MAX_DRAWS)
        self.key, self.target, self.plan = key, target, plan
        self.theta, self.log_prob = thinned(theta, most), thinned(log_prob, most)
        self.final_log_weights = None
        if plan.weighed is not None and plan.transport is not None and theta.shape[1] >= 4:
            part = thinned(self.theta, MAX_WEIGHED)
            weights = posterior_log_weights(jax.random.fold_in(key, 1), plan.transport, target, part)
            self.final_log_weights = np.asarray(weights, float)

    @property
    def _parts(self) -> tuple[Callable[[], Iterator[Check]], ...]:
        return (
            self._exploration, self._draws, self._others, self._starts, self._weights, self._evidence, self._constants,
        )  # fmt: skip

    def checks(self, *, is_stopped: Callable[[], bool] = lambda: False) -> tuple[Check, ...]:
        """All checks that apply; those left when `is_stopped` says so count as not made."""
        if self.theta.shape[1] < 4:
            return ()
        found: list[Check] = []
        for n, part in enumerate(self._parts):
            if is_stopped():
                advice = "the comparison was interrupted: let it finish"
                found.append(Check("comparisons made", float(n), float(len(self._parts)), False, advice, UNCHECKED))
                break
            found += part()
        return tuple(found)

    def estimates(self) -> dict[str, LogZ]:
        """log Z by each way there is: "importance", "bridge", "tempering"."""
        found: dict[str, LogZ] = {}
        if self.plan.weighed is not None:
            found["importance"] = self.plan.weighed.evidence
            if self.final_log_weights is not None and self.final_log_weights.shape[1] >= 4:
                found["bridge"] = bridge_log_z(self.plan.weighed.own_log_weights, self.final_log_weights)
        if self.plan.explored is not None and self.plan.explored.evidence is not None:
            found["tempering"] = self.plan.explored.evidence
        return {name: value for name, value in found.items() if np.isfinite(value.log_z)}

    @property
    def is_settled(self) -> bool:
        """Whether the exploration was long enough, and its ladders agree."""
        found = self.plan.explored
        return found is not None and found.log_prob.shape[1] >= FEWEST_DRAWS and found.r_hat <= MAX_EXPLORED_R_HAT

    # ---- the checks

    def _exploration(self) -> Iterator[Check]:
        explored = self.plan.explored
        kept = 0.0 if explored is None else float(explored.log_prob.shape[1])
        yield Check("draws of the exploration", kept, FEWEST_DRAWS, kept >= FEWEST_DRAWS, LONGER, UNCHECKED)
        if explored is not None:
            is_fine = explored.r_hat <= MAX_EXPLORED_R_HAT
            name = "R-hat of the exploration"
            yield Check(name, explored.r_hat, MAX_EXPLORED_R_HAT, is_fine, LONGER, UNCHECKED)

    def _draws(self) -> Iterator[Check]:
        explored = self.plan.explored
        if explored is None or explored.log_prob.shape[1] < 4:
            return
        if np.ptp(self.theta, axis=(0, 1)).max() == 0:
            share = float((explored.theta == self.theta[0, 0]).all(axis=-1).mean())
            advice = "all chains sit in one configuration, but tempering does not: explore longer"
            yield Check(POINT_MASS, share, MIN_POINT_SHARE, share >= MIN_POINT_SHARE, advice, is_independent=True)
            return
        out = disagreement(features(explored.theta, explored.log_prob), features(self.theta, self.log_prob))
        advice = "the chains and the tempered exploration disagree: run longer, or explore longer"
        grade = NOT_TRUSTED
        if self.plan.has_modes:
            grade, advice = (
                UNCHECKED,
                "tempering missed a mode that was hunted and learned: it cannot confirm draws",
            )
        name = "difference from tempered draws (s.e.)"
        yield Check(name, out.z, out.limit, out.z <= out.limit, advice, grade, is_independent=True)

    def _others(self) -> Iterator[Check]:
        others = self.plan.others
        count = 0.0 if others is None else float(len(others.theta))
        advice = "there was no time to start chains elsewhere: allow more seconds"
        yield Check("chains from hunted starts", count, 1.0, count >= 1, advice, UNCHECKED)
        if others is None:
            return
        modes = self.modes()
        missed = [mode for mode in modes if not mode.is_negligible]
        worst = max(missed, key=lambda mode: mode.log_prob, default=None)
        advice = "" if worst is None else self._advice(worst)
        yield Check(
            "chains that stay where they were started", float(len(missed)), 0.0, not missed, advice, is_independent=True
        )
        if len(modes) > len(missed):
            most = max(mode.most for mode in modes if mode.is_negligible)
            advice = "chains stay in modes whose share of Z is negligible"
            yield Check("share of modes left out", most, 0.0, False, advice, NOTE)

    def modes(self) -> list[Mode]:
        """Modes in which chains from hunted starts stayed, away from the final draws."""
        if self.plan.others is None:
            return []
        evidence = None if self.plan.explored is None else self.plan.explored.evidence
        return modes_apart(self.key, self.target, self.plan.others, self.theta, self.log_prob, evidence)

    def _advice(self, mode: Mode) -> str:
        where = " ".join(np.array2string(mode.theta, threshold=12).split())[:100]
        share = "an unknown share" if np.isnan(mode.share) else f"a share of about {mode.share:.2g}"
        remedy = "train the transport longer" if self.plan.uses_transport else "allow time to learn a transport"
        return (
            f"chains started at {where} (log pi {mode.log_prob:.6g}) stay in a mode with {share} of Z that the others"
            f" do not reach: {remedy} (training=, max_seconds=)"
        )

    def _starts(self) -> Iterator[Check]:
        is_pushed = self.plan.is_from_transport
        if is_pushed.any() and not is_pushed.all():
            value = start_r_hat(features(self.theta, self.log_prob), is_pushed)
            is_fine = not value > MAX_START_R_HAT
            yield Check("R-hat between starts", value, MAX_START_R_HAT, is_fine, LOST, is_independent=True)

    def _weights(self) -> Iterator[Check]:
        weighed, explored = self.plan.weighed, self.plan.explored
        if weighed is None or explored is None:
            return
        share, error = share_beyond(weighed.own_log_weights, weighed.tempered_log_weights)
        is_fine = share - 3 * error <= MAX_SHARE_BEYOND
        advice = "the transport misses part of the mass, which only local moves reach: train it longer"
        yield Check("tempered draws beyond the transport", share, MAX_SHARE_BEYOND, is_fine, advice, NOTE)
        if self.final_log_weights is not None and not self.plan.has_modes:
            # Only draws that training has not seen (those it has seen are lighter), and only whether they are beyond.
            both = (weighed.tempered_log_weights, self.final_log_weights)
            beyond = [is_beyond(weighed.own_log_weights, log_weights) for log_weights in both]
            own = (set_apart(explored, explored.log_prob), thinned(self.log_prob, MAX_WEIGHED))  # says how chains mix
            out = disagreement(*[np.stack(pair, axis=-1) for pair in zip(beyond, own, strict=True)], alpha=ALPHA)
            name = "the same, tempered against final (s.e.)"
            yield Check(name, out.z, out.limit, out.z <= out.limit, LOST, is_independent=True)

    def _evidence(self) -> Iterator[Check]:
        estimates = self.estimates()
        if "tempering" not in estimates or self.plan.has_modes:
            return
        for name in ("importance", "bridge"):
            if name not in estimates:
                continue
            gap = evidence_gap(estimates[name], estimates["tempering"])
            if np.isnan(gap):
                continue
            is_close = abs(estimates[name].log_z - estimates["tempering"].log_z) < SMALL_GAP
            has_error = name == "bridge" or estimates[name].pareto_k <= MAX_PARETO_K
            label = f"log Z, {name} against tempering (s.e.)"
            passed = gap <= MAX_EVIDENCE_GAP or is_close
            grade = NOT_TRUSTED if self.plan.uses_transport and has_error else NOTE
            yield Check(label, gap, MAX_EVIDENCE_GAP, passed, LOST, grade, is_independent=True)

    def _constants(self) -> Iterator[Check]:
        """How often coordinates that never changed should have changed, by their conditionals at the draws."""
        is_constant = np.ptp(self.theta, axis=(0, 1)) == 0
        if not is_constant.any() or is_constant.all():
            return
        rows = thinned(self.theta, NUM_LOOKED).reshape(-1, self.theta.shape[-1]).astype(np.int32)[:NUM_LOOKED]
        here = evaluate(self.target, rows)
        sizes, expected = self.target.space.sizes, 0.0
        for i in np.flatnonzero(is_constant)[:NUM_LOOKED]:
            others = [(rows[:, i] + k) % sizes[i] for k in range(1, min(int(sizes[i]), 9))]
            changed = np.repeat(rows, len(others), axis=0)
            changed[:, i] = np.stack(others, axis=1).reshape(-1)
            with np.errstate(over="ignore"):
                odds = np.exp(evaluate(self.target, changed).reshape(len(rows), -1) - here[:, None]).sum(axis=1)
            expected = max(expected, float(self.log_prob.size * np.mean(odds / (1.0 + odds))))
        advice = "a coordinate never changed, although its conditional says that it should: check the sampler's options"
        yield Check("changes due of constants", expected, MAX_EXPECTED, expected <= MAX_EXPECTED, advice)


# ---- log Z


def log_sum_of_seen(theta: np.ndarray, log_prob: np.ndarray) -> float:
    """The log-sum of pi over the best configurations that were drawn, each once: log Z is at least that."""
    flat, values = theta.reshape(-1, theta.shape[-1]), log_prob.reshape(-1).astype(float)
    best = np.argsort(-values, kind="stable")[:MAX_WEIGHED]
    _, first = np.unique(flat[best], axis=0, return_index=True)
    values = values[best][first]
    if not len(values) or not np.isfinite(values.max()):
        return -np.inf
    return float(values.max() + np.log(np.exp(values - values.max()).sum()))


def settle_evidence(
    estimates: dict[str, LogZ], *, least: float, is_settled: bool
) -> tuple[LogZ | None, Verdict | None]:
    """The headline estimate of log Z and what it rests on; NaN where the estimates contradict each other.

    Args:
        estimates: log Z by the way it was made.
        least: What log Z is at least, by the configurations that were drawn.
        is_settled: Whether tempering was long enough, and its ladders agree.

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
        if 0 < value.standard_error < np.inf and not value.pareto_k > MAX_PARETO_K
    }  # fmt: skip
    for name, value in known.items():
        if value.log_z + MAX_EVIDENCE_GAP * value.standard_error < least - MARGIN:
            return _unknown(f"{_text(name, value)} is below what was drawn ({least:.5g})")
    names = list(known)
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            gap = evidence_gap(known[first], known[second])
            is_close = abs(known[first].log_z - known[second].log_z) < SMALL_GAP
            if gap > MAX_EVIDENCE_GAP and not is_close:
                pair = f"{_text(first, known[first])} and {_text(second, known[second])}"
                return _unknown(f"{pair} contradict each other")
    sound = {name: value for name, value in known.items() if is_settled or name != "tempering"}
    if not sound:
        return _unknown("no estimate is sound: weights with a heavy tail, or ladders that disagree")
    name = min(sound, key=lambda n: sound[n].standard_error)
    others = [other for other in sound if other != name]
    reason = f"by {name}" + (f", in agreement with {', '.join(others)}" if others else " alone")
    is_twofold = "tempering" in sound and len(sound) > 1  # importance and bridge share a transport
    return sound[name], Verdict(TRUSTED if is_twofold else UNCHECKED, reason)


def _unknown(reason: str) -> tuple[LogZ, Verdict]:
    return LogZ(float("nan"), float("nan"), 0.0, float("nan")), Verdict(NOT_TRUSTED, reason)


def _text(name: str, value: LogZ) -> str:
    return f"{name} {value.log_z:.5g} +- {value.standard_error:.2g}"
