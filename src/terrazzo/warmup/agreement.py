"""The checks that need more than the draws: what was found without the transport, against what the chains say.

Mode loss passes every usual check (DESIGN section 3, trap 4). Here the final draws are held against the tempered
exploration in four ways, each a `Check` with its number and its remedy:

- R-hat between chains that started from the transport and chains that started from tempered draws;
- the means of log pi and of every coordinate, final against tempered;
- the share of tempered draws heavier than any of the transport's own, which is information, and whether the final
  draws have the same share, which is decisive;
- log Z by the transport, by the bridge and by tempering.
"""

from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.checks import POINT_MASS, Check
from terrazzo.diagnostics import LogZ, bridge_log_z
from terrazzo.diagnostics.coverage import MARGIN, disagreement, evidence_gap, is_beyond, share_beyond, start_r_hat
from terrazzo.targets import Target
from terrazzo.transports import posterior_log_weights
from terrazzo.warmup.pipeline import MAX_WEIGHED, Plan, set_apart, thinned

# Numbers, and draws of all chains: beyond that draws are thinned, which leaves the tempered ones the fewer by far
MAX_COMPARED, MAX_DRAWS = 2**24, 2**18
MAX_START_R_HAT = 1.02
MAX_EXPLORED_R_HAT = 1.1
MAX_SHARE_BEYOND = 0.02
ALPHA = 1e-4  # chance of a false alarm of each comparison with the tempered draws
MIN_POINT_SHARE = 0.98
MAX_EVIDENCE_GAP = 5.0  # standard errors; few ladders make heavy tails
SMALL_GAP = 0.02  # nats that no one minds, whatever the standard errors claim
MAX_PARETO_K = 0.7
LOST = "a mode may be lost: train the transport longer or on more draws, or use parallel_tempering"


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
        self.plan, self.theta, self.log_prob = plan, thinned(theta, most), thinned(log_prob, most)
        self.largest = float(log_prob.max(initial=-np.inf))
        self.final_log_weights = None
        if plan.weighed is not None and plan.transport is not None and theta.shape[1] >= 4:
            part = thinned(self.theta, MAX_WEIGHED)
            weights = posterior_log_weights(jax.random.fold_in(key, 1), plan.transport, target, part)
            self.final_log_weights = np.asarray(weights, float)

    def checks(self) -> tuple[Check, ...]:
        """All checks that apply."""
        if self.theta.shape[1] < 4:
            return ()
        return (*self._starts(), *self._draws(), *self._weights(), *self._evidence())

    def estimates(self) -> dict[str, LogZ]:
        """log Z by each way there is: "importance", "bridge", "tempering".

        Z is at least pi of any configuration: tempering whose estimate is below that by more than its error allows has
        had too few rounds, and gives none.
        """
        found: dict[str, LogZ] = {}
        if self.plan.weighed is not None:
            found["importance"] = self.plan.weighed.evidence
            if self.final_log_weights is not None and self.final_log_weights.shape[1] >= 4:
                found["bridge"] = bridge_log_z(self.plan.weighed.own_log_weights, self.final_log_weights)
        tempered = self.plan.explored.evidence
        if tempered is not None and is_possible(tempered, self.largest):
            found["tempering"] = tempered
        return {name: value for name, value in found.items() if np.isfinite(value.log_z)}

    # ---- the four

    def _features(self, theta: np.ndarray, log_prob: np.ndarray) -> np.ndarray:
        return np.concatenate([theta.astype(float), log_prob[..., None].astype(float)], axis=-1)

    def _starts(self) -> Any:
        is_pushed = self.plan.is_from_transport
        if is_pushed.any() and not is_pushed.all():
            value = start_r_hat(self._features(self.theta, self.log_prob), is_pushed)
            yield Check("R-hat between starts", value, MAX_START_R_HAT, not value > MAX_START_R_HAT, LOST)

    def _draws(self) -> Any:
        explored = self.plan.explored
        if np.ptp(self.theta, axis=(0, 1)).max() == 0:
            share = float((explored.theta == self.theta[0, 0]).all(axis=-1).mean())
            advice = "all chains sit in one configuration, but tempering does not: explore longer"
            yield Check(POINT_MASS, share, MIN_POINT_SHARE, share >= MIN_POINT_SHARE, advice)
            return
        out = disagreement(self._features(explored.theta, explored.log_prob), self._features(self.theta, self.log_prob))
        advice = "the chains and the tempered exploration disagree: run longer, or explore longer"
        is_settled = explored.r_hat <= MAX_EXPLORED_R_HAT  # ladders that still disagree cannot accuse anyone
        yield Check("difference from tempered draws (s.e.)", out.z, out.limit, out.z <= out.limit, advice, is_settled)

    def _weights(self) -> Any:
        weighed = self.plan.weighed
        if weighed is None:
            return
        share, error = share_beyond(weighed.own_log_weights, weighed.tempered_log_weights)
        is_fine = share - 3 * error <= MAX_SHARE_BEYOND
        advice = "the transport misses part of the mass, which only local moves reach: train it longer"
        yield Check("tempered draws beyond the transport", share, MAX_SHARE_BEYOND, is_fine, advice, False)
        if self.final_log_weights is not None:
            # Only draws that training has not seen (those it has seen are lighter), and only whether they are beyond.
            explored = self.plan.explored
            both = (weighed.tempered_log_weights, self.final_log_weights)
            beyond = [is_beyond(weighed.own_log_weights, log_weights) for log_weights in both]
            own = (set_apart(explored, explored.log_prob), thinned(self.log_prob, MAX_WEIGHED))  # says how chains mix
            out = disagreement(*[np.stack(pair, axis=-1) for pair in zip(beyond, own, strict=True)], alpha=ALPHA)
            is_settled = explored.r_hat <= MAX_EXPLORED_R_HAT
            name = "the same, tempered against final (s.e.)"
            yield Check(name, out.z, out.limit, out.z <= out.limit, LOST, is_settled)

    def _evidence(self) -> Any:
        estimates = self.estimates()
        if "tempering" not in estimates:
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
            yield Check(label, gap, MAX_EVIDENCE_GAP, passed, LOST, self.plan.uses_transport and has_error)


def is_possible(estimate: LogZ, largest: float) -> bool:
    """Whether log Z may be as large as the largest log pi that was seen."""
    error = estimate.standard_error if np.isfinite(estimate.standard_error) else np.inf
    return bool(estimate.log_z + MAX_EVIDENCE_GAP * error >= largest - MARGIN)


def best_estimate(estimates: dict[str, LogZ]) -> LogZ | None:
    """The estimate with the smallest standard error; importance sampling only while its weights look healthy."""
    usable = {
        name: value for name, value in estimates.items()
        if np.isfinite(value.standard_error) and not (name == "importance" and value.pareto_k > MAX_PARETO_K)
    }  # fmt: skip
    pool = usable or estimates
    return min(pool.values(), key=lambda v: np.inf if np.isnan(v.standard_error) else v.standard_error, default=None)
