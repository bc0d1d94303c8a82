"""The checks that need more than the draws: what was found in other ways, against what the chains say.

Mode loss passes every usual check (docs/theory.md, trap 4). Here the final draws are held against everything that is
known from outside, by functions from a `Comparison` to checks, each with its number and its remedy:

- the tempered exploration: whether it was long enough to say anything, and the means of log pi and of every coordinate;
- chains of the same sampler that began at hunted configurations (`hunt`, `reach`) and must have come back;
- R-hat between chains that started from the transport and chains that started from tempered draws;
- the share of tempered draws heavier than any of the transport's own, and whether the final draws have the same share;
- log Z by the transport, by the bridge and by tempering;
- the other values of coordinates that never changed.

An exploration that is too short or whose ladders disagree may still accuse, but it cannot confirm: the grade is then
"unchecked" at best.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.auto.hunt import Mode, features, modes_apart
from terrazzo.auto.plan import Plan, compared, set_apart, thinned
from terrazzo.auto.policy import Policy
from terrazzo.diagnostics import LogZ, bridge_log_z
from terrazzo.diagnostics.autocorrelation import MIN_DRAWS
from terrazzo.targets.interactions import evaluate
from terrazzo.targets.target import Target
from terrazzo.transports import posterior_log_weights
from terrazzo.verdict.checks import NOT_TRUSTED, NOTE, POINT_MASS, UNCHECKED, Check
from terrazzo.verdict.coverage import (
    Moments,
    compare,
    disagreement,
    evidence_gap,
    is_beyond,
    moments_of,
    share_beyond,
    start_r_hat,
)

LOST = "a mode may be lost: train the transport longer or on more draws, or use parallel_tempering"
LONGER = "explore longer: allow more seconds, or tz.Exploration(max_rounds=...)"


class Comparison(NamedTuple):
    """What is compared.

    Attributes:
        key: A JAX key (for lifts).
        target: The target.
        plan: What warm-up left.
        theta: The final draws (thinned), (chain, draw, dim).
        log_prob: Their log pi.
        moments: Of both, by `features`.
        log_weights: Their weights by the transport, of a part of them; None without one.
        policy: The numbers that decide.
    """

    key: Array
    target: Target
    plan: Plan
    theta: np.ndarray
    log_prob: np.ndarray
    moments: Moments
    log_weights: np.ndarray | None
    policy: Policy

    @property
    def is_settled(self) -> bool:
        """Whether the exploration was long enough, and its ladders agree."""
        found, policy = self.plan.explored, self.policy
        is_long = found is not None and found.log_prob.shape[1] >= policy.explored_draws
        return is_long and found is not None and found.r_hat <= policy.explored_r_hat


def comparison(
    key: Array, target: Target, plan: Plan, theta: np.ndarray, log_prob: np.ndarray, policy: Policy
) -> Comparison:
    """The comparison of final draws, (chain, draw, dim), with what a plan carries."""
    weights = None
    theta, log_prob = compared(theta, log_prob, policy)
    if plan.weighed is not None and plan.transport is not None and theta.shape[1] >= MIN_DRAWS:
        part = thinned(theta, policy.most_weighed)
        weights = np.asarray(posterior_log_weights(jax.random.fold_in(key, 1), plan.transport, target, part), float)
    moments = moments_of(features(theta, log_prob))
    return Comparison(
        key=key, target=target, plan=plan, theta=theta, log_prob=log_prob, moments=moments, log_weights=weights,
        policy=policy,
    )  # fmt: skip


def all_checks(c: Comparison, *, is_stopped: Callable[[], bool] = lambda: False) -> tuple[Check, ...]:
    """All checks that apply; those left when `is_stopped` says so count as not made."""
    if c.theta.shape[1] < MIN_DRAWS:
        return ()
    found: list[Check] = []
    for n, check in enumerate(CHECKS):
        if is_stopped():
            advice = "the comparison was interrupted: let it finish"
            found.append(Check.at_least("comparisons made", float(n), float(len(CHECKS)), advice, grade=UNCHECKED))
            break
        found += check(c)
    return tuple(found)


def estimates(c: Comparison) -> dict[str, LogZ]:
    """log Z by each way there is: "importance", "bridge", "tempering"."""
    found: dict[str, LogZ] = {}
    weighed, explored = c.plan.weighed, c.plan.explored
    if weighed is not None:
        found["importance"] = weighed.evidence
        if c.log_weights is not None and c.log_weights.shape[1] >= MIN_DRAWS:
            found["bridge"] = bridge_log_z(weighed.own_log_weights, c.log_weights)
    if explored is not None and explored.evidence is not None:
        found["tempering"] = explored.evidence
    return {name: value for name, value in found.items() if np.isfinite(value.log_z)}


# ---- the checks


def exploration_check(c: Comparison) -> Iterator[Check]:
    """Whether the exploration was long enough and its ladders agree."""
    explored, least, most = c.plan.explored, float(c.policy.explored_draws), c.policy.explored_r_hat
    kept = 0.0 if explored is None else float(explored.log_prob.shape[1])
    yield Check.at_least("draws of the exploration", kept, least, LONGER, grade=UNCHECKED)
    if explored is not None:
        name = "R-hat of the exploration"
        yield Check.at_most(name, explored.r_hat, most, LONGER, grade=UNCHECKED)


def draws_check(c: Comparison) -> Iterator[Check]:
    """Means of log pi and of every coordinate, final against tempered draws."""
    explored = c.plan.explored
    if explored is None or explored.log_prob.shape[1] < MIN_DRAWS:
        return
    if np.ptp(c.theta, axis=(0, 1)).max() == 0:
        share, least = float((explored.theta == c.theta[0, 0]).all(axis=-1).mean()), c.policy.point_share
        advice = "all chains sit in one configuration, but tempering does not: explore longer"
        yield Check.at_least(POINT_MASS, share, least, advice, is_independent=True)
        return
    tempered = moments_of(features(*compared(explored.theta, explored.log_prob, c.policy)))
    out = compare(tempered, c.moments)
    grade, advice = NOT_TRUSTED, "the chains and the tempered exploration disagree: run longer, or explore longer"
    if c.plan.has_modes:
        grade, advice = UNCHECKED, "tempering missed a mode that was hunted and learned: it cannot confirm draws"
    name = "difference from tempered draws (s.e.)"
    yield Check.at_most(name, out.z, out.limit, advice, grade=grade, is_independent=True)


def others_check(c: Comparison) -> Iterator[Check]:
    """Whether chains from hunted starts came back into the law of the others."""
    others = c.plan.others
    count = 0.0 if others is None else float(len(others.theta))
    advice = "there was no time to start chains elsewhere: allow more seconds"
    yield Check.at_least("chains from hunted starts", count, 1.0, advice, grade=UNCHECKED)
    if others is None:
        return
    evidence = None if c.plan.explored is None else c.plan.explored.evidence
    modes = modes_apart(c.key, c.target, others, c.moments, evidence, c.policy)
    missed = [mode for mode in modes if not mode.is_negligible]
    worst = max(missed, key=lambda mode: mode.log_prob, default=None)
    advice = "" if worst is None else _advice(worst, is_learned=c.plan.transport is not None)
    name = "chains that stay where they were started"
    yield Check.at_most(name, float(len(missed)), 0.0, advice, is_independent=True)
    if len(modes) > len(missed):
        most = max(mode.most for mode in modes if mode.is_negligible)
        advice = "chains stay in modes whose share of Z is negligible"
        yield Check("share of modes left out", value=most, threshold=0.0, passed=False, advice=advice, grade=NOTE)


def _advice(mode: Mode, *, is_learned: bool) -> str:
    where = " ".join(np.array2string(mode.theta, threshold=12).split())[:100]
    share = "an unknown share" if np.isnan(mode.share) else f"a share of about {mode.share:.2g}"
    remedy = (
        "train the transport longer (training=)" if is_learned else "allow time to learn a transport (max_seconds=)"
    )
    return (
        f"chains started at {where} (log pi {mode.log_prob:.6g}) stay in a mode with {share} of Z that the others"
        f" do not reach: {remedy}, or start chains there too (init=)"
    )


def starts_check(c: Comparison) -> Iterator[Check]:
    """R-hat between chains from the transport and chains from tempered draws."""
    is_pushed, most = c.plan.is_from_transport, c.policy.good_r_hat
    if is_pushed.any() and not is_pushed.all():
        value = start_r_hat(features(c.theta, c.log_prob), is_pushed)
        yield Check(
            "R-hat between starts", value=value, threshold=most, passed=not value > most, advice=LOST,
            is_independent=True,
        )  # fmt: skip


def weights_check(c: Comparison) -> Iterator[Check]:
    """Draws that are heavier than any of the transport's own."""
    weighed, explored, policy = c.plan.weighed, c.plan.explored, c.policy
    if weighed is None or explored is None:
        return
    share, error = share_beyond(weighed.own_log_weights, weighed.tempered_log_weights)
    is_fine = share - policy.sure_errors * error <= policy.share_beyond
    advice = "the transport misses part of the mass, which only local moves reach: train it longer"
    yield Check(
        "tempered draws beyond the transport", value=share, threshold=policy.share_beyond, passed=is_fine,
        advice=advice, grade=NOTE,
    )  # fmt: skip
    if c.log_weights is not None and not c.plan.has_modes:
        # Only draws that training has not seen (those it has seen are lighter), and only whether they are beyond.
        both = (weighed.tempered_log_weights, c.log_weights)
        beyond = [is_beyond(weighed.own_log_weights, log_weights) for log_weights in both]
        # log pi beside it says how chains mix
        own = (set_apart(explored, explored.log_prob, policy), thinned(c.log_prob, policy.most_weighed))
        out = disagreement(*[np.stack(pair, axis=-1) for pair in zip(beyond, own, strict=True)], alpha=policy.alpha)
        name = "the same, tempered against final (s.e.)"
        yield Check.at_most(name, out.z, out.limit, LOST, is_independent=True)


def evidence_check(c: Comparison) -> Iterator[Check]:
    """log Z by the transport and by the bridge, against tempering."""
    found, policy = estimates(c), c.policy
    if "tempering" not in found or c.plan.has_modes:
        return
    for name in [name for name in ("importance", "bridge") if name in found]:
        gap = evidence_gap(found[name], found["tempering"])
        if np.isnan(gap):
            continue
        is_close = abs(found[name].log_z - found["tempering"].log_z) < policy.small_gap
        has_error = name == "bridge" or found[name].pareto_k <= policy.pareto_k
        passed = gap <= policy.evidence_gap or is_close
        grade = NOT_TRUSTED if c.plan.uses_transport and has_error else NOTE
        label = f"log Z, {name} against tempering (s.e.)"
        yield Check(
            label, value=gap, threshold=policy.evidence_gap, passed=passed, advice=LOST, grade=grade,
            is_independent=True,
        )  # fmt: skip


def constants_check(c: Comparison) -> Iterator[Check]:
    """How often coordinates that never changed should have changed, by their conditionals at the draws."""
    is_constant, policy = np.ptp(c.theta, axis=(0, 1)) == 0, c.policy
    if not is_constant.any() or is_constant.all():
        return
    num = policy.looked_at
    rows = thinned(c.theta, num).reshape(-1, c.theta.shape[-1]).astype(np.int32)[:num]
    here = evaluate(c.target, rows)
    sizes, expected = c.target.space.sizes, 0.0
    for i in np.flatnonzero(is_constant)[:num]:
        others = [(rows[:, i] + k) % sizes[i] for k in range(1, min(int(sizes[i]), policy.looked_values + 1))]
        changed = np.repeat(rows, len(others), axis=0)
        changed[:, i] = np.stack(others, axis=1).reshape(-1)
        with np.errstate(over="ignore"):
            odds = np.exp(evaluate(c.target, changed).reshape(len(rows), -1) - here[:, None]).sum(axis=1)
        expected = max(expected, float(c.log_prob.size * np.mean(odds / (1.0 + odds))))
    advice = "a coordinate never changed, although its conditional says that it should: check the sampler's options"
    yield Check.at_most("changes due of constants", expected, policy.changes_due, advice)


CHECKS: tuple[Callable[[Comparison], Iterator[Check]], ...] = (
    exploration_check, draws_check, others_check, starts_check, weights_check, evidence_check, constants_check,
)  # fmt: skip
