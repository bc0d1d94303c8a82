"""From the draws of a run to its `Result`: what is compared, what is checked, and what is written down."""

import platform
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.auto import (
    Budget,
    Census,
    Plan,
    Policy,
    all_checks,
    comparison,
    estimates,
    log_sum_of_seen,
    settle_evidence,
    worst_agreement,
)
from terrazzo.auto.plan import thinned
from terrazzo.diagnostics import LogZ
from terrazzo.diagnostics.autocorrelation import MIN_DRAWS
from terrazzo.engine.kept import Kept
from terrazzo.engine.loop import Chains
from terrazzo.inference.mixed import Explored, divergence_check, exploration_checks
from terrazzo.inference.mixed_choice import described
from terrazzo.inference.mixed_hunt import LOST
from terrazzo.inference.mixed_weighing import bridge, evidence_checks, weighted_check
from terrazzo.results.draws import Replicas
from terrazzo.results.result import Result
from terrazzo.runtime.devices import chosen_devices
from terrazzo.runtime.interruption import Interruption
from terrazzo.runtime.progress import Progress
from terrazzo.samplers.parts.base import Drawn
from terrazzo.samplers.parts.ladder_evidence import ladder_evidence, stepping_stones
from terrazzo.samplers.parts.ladders import default_ladder
from terrazzo.samplers.parts.pair_references import product_reference
from terrazzo.storage.checkpoints import Checkpoint
from terrazzo.storage.memory import Memory
from terrazzo.storage.setups import Setup
from terrazzo.targets.pair_models import PairReference
from terrazzo.targets.precision import MAX_ROUNDING, rounding
from terrazzo.targets.target import Target
from terrazzo.training import Fitted
from terrazzo.transports import AbstractTransport, sample_transport
from terrazzo.verdict.checks import ENUMERATED, EXACT, NOT_TRUSTED, NOTE, STORED, UNCHECKED, Check, Verdict

ALL_SUMMED = "the sum over all configurations"
LOOKED_BYTES, LEAST_LOOKED = 2**26, 16  # of draws on disk that checks look at: bytes, and draws a chain at least
LONGEST_SHOWN = 1000  # numbers of a tuned parameter, or of a field of `Info`, that a result writes down


class Ready(NamedTuple):
    """What warm-up hands over to the drawing of samples.

    Attributes:
        chains: The frozen kernel and its chains.
        states: Where they are.
        thin: Steps (rounds, with a plan) a kept draw.
        header: What was written down of warm-up.
        plan: The plan of the default sampler, or None.
        evidence: log Z by the transport of a sampler that was named, or None.
        history: Training curves.
        transport: The transport, whether it is moved through or not.
        weighed: What its weights are of: the target, or its density of the reals alone.
        setup: What repeats the run, or None.
        explored: Tempered draws of a mixed target, or None.
    """

    chains: Chains
    states: Any
    thin: int
    header: dict[str, Any]
    plan: Plan | None = None
    evidence: LogZ | None = None
    history: dict[str, np.ndarray] = {}  # noqa: RUF012 (never written to)
    transport: AbstractTransport | None = None
    weighed: Target | None = None
    setup: Setup | None = None
    explored: Explored | None = None


class Reporter(NamedTuple):
    """What all results of one run share.

    Attributes:
        settings: What the user asked for, as it is written down.
        target: The target.
        key: A JAX key of what is estimated afterwards.
        budget: What the run may spend.
        progress: Its phases.
        interruption: Whether it must stop.
        store: Where it is kept: a checkpoint, or memory.
    """

    settings: Any
    target: Target
    key: jax.Array
    budget: Budget
    progress: Progress
    interruption: Interruption
    store: Checkpoint | Memory

    @property
    def policy(self) -> Policy:
        """The numbers that decide."""
        return self.budget.policy

    def enumerated(self, census: Census) -> Result:
        """Independent draws from the table of all configurations."""
        s, space = self.settings, self.target.space
        numbers = census.draw(s.seed, s.chains, s.draws)
        theta = np.stack(np.unravel_index(numbers, space.sizes), axis=-1).astype(space.dtype)
        log_prob, number = census.log_prob[numbers], float(space.num_states)
        checks = (
            Check.at_least(ENUMERATED, number, number, "", is_independent=True),
            precision_check(self.target, theta, log_prob),
        )
        evidence = LogZ(census.log_z, 0.0, float(numbers.size), float("nan"))
        reason = f"all {space.num_states} configurations were evaluated"
        return self._exact(theta, log_prob, evidence, reason, checks)

    def eliminated(self, drawn: Drawn) -> Result:
        """Independent draws by elimination."""
        width = f"{drawn.checks[0].value:.0f}"
        reason = f"all sites were summed out exactly, one after the other (treewidth {width})"
        theta = drawn.theta.astype(self.target.space.dtype)
        return self._exact(theta, drawn.log_prob, drawn.evidence, reason, drawn.checks)

    def _exact(
        self, theta: np.ndarray, log_prob: np.ndarray, evidence: LogZ | None, reason: str, checks: tuple[Check, ...]
    ) -> Result:
        """Independent draws, with log Z exact."""
        own = {"chosen": "exact", "warm-up": {"choice": {"chosen": "exact", "reason": reason, "trial": []}}}
        return Result(
            space=self.target.space,
            theta=theta,
            sample_stats={
                "log_prob": log_prob,
                "acceptance_rate": np.ones(log_prob.shape),
                "num_evaluations": np.zeros(log_prob.shape, np.int32),
            },
            evidence=evidence,
            evidence_estimates={} if evidence is None else {"exact": evidence},
            log_z_verdict=Verdict(EXACT, ALL_SUMMED),
            provenance=self._provenance(1, {}, own, {}, {}),
            model=self.settings.model,
            extra_checks=checks,
        )

    def result(self, ready: Ready, kept: Kept, *, is_complete: bool) -> Result:
        """The result of drawn samples: compared with what was found in other ways, and checked."""
        s, space, target = self.settings, self.target.space, self.target
        width = space.num_dims if s.keep is None else 0
        empty = {
            "theta": np.zeros((s.chains, 0, width), space.dtype), "log_prob": np.zeros((s.chains, 0)),
            **({"reals": np.zeros((s.chains, 0, space.num_real_values))} if space.num_reals else {}),
        }  # fmt: skip
        arrays = kept.arrays() if kept.done else empty
        stored, replicas = arrays.pop("theta"), arrays.pop("replica_log_probs", None)
        look = partial(_looked_at, stored)
        theta, log_prob = look(stored), look(arrays["log_prob"])
        found: dict[str, LogZ] = {} if ready.evidence is None else {"importance": ready.evidence}
        checks: tuple[Check, ...] = ()
        is_settled = False
        if ready.plan is not None:
            self.progress.phase("comparing with the exploration")
            compared = comparison(self.key, target, ready.plan, theta, log_prob, self.policy)
            found |= estimates(compared)
            checks = all_checks(compared, is_stopped=self.interruption.is_requested)
            is_settled = compared.is_settled
        ladders = None if replicas is None else _ladders(ready.chains, replicas)
        tempered = None
        if ladders is not None:
            tempered = self._tempered(_ladders(ready.chains, look(replicas)), _base(ready.chains))
        if tempered is not None:
            found["tempering"] = tempered
            shown = theta if not space.num_reals else look(arrays["reals"])
            is_settled = worst_agreement(shown, log_prob, self.policy)[0] <= self.policy.good_r_hat
        if kept.done and not space.num_reals:
            looked = theta if s.keep is None else np.asarray(ready.states.position)[:, None]
            checks = (*checks, precision_check(target, looked, log_prob))
        elif kept.done:
            others, more = self._mixed(ready, theta, look(arrays["reals"]))
            found, checks = found | others, (*checks, *more)
        if "diverging" in arrays:
            checks = (*checks, divergence_check(kept.info(), self.policy))
        if self.store.error is not None:
            checks = (*checks, Check.at_least(STORED, 0.0, 1.0, f"save the result: {self.store.error}", grade=NOTE))
        is_counted = kept.done and s.keep is None and not space.num_reals  # densities have no largest share of log Z
        least = log_sum_of_seen(theta, log_prob, self.policy) if is_counted else -np.inf
        evidence, log_z_verdict = settle_evidence(found, least=least, is_settled=is_settled, policy=self.policy)
        return Result(
            space=space,
            theta=stored,
            reals=arrays.pop("reals", None),
            latent=arrays.pop("latent", None),
            sample_stats=arrays,
            evidence=evidence,
            evidence_estimates=found,
            log_z_verdict=log_z_verdict,
            transport=ready.transport,
            provenance=self._described(ready, kept),
            history=ready.history or None,
            is_complete=is_complete,
            model=self.settings.model,
            extra_checks=checks,
            plan=ready.setup,
            replicas=ladders,
        )

    def _mixed(self, ready: Ready, theta: np.ndarray, reals: np.ndarray) -> tuple[dict[str, LogZ], list[Check]]:
        """What a run with real variables is compared with: estimates of log Z by name, and checks."""
        found: dict[str, LogZ] = {}
        checks: list[Check] = []
        if ready.explored is not None:
            if not ready.explored.is_incomplete:
                found["exploration"] = ready.explored.evidence
            checks += exploration_checks(self.target, ready.explored, theta, reals, self.policy)
        if ready.transport is not None:
            made, more = self._weighed(ready, theta, reals, found)
            found, checks = found | made, [*checks, *more]
        lacks_a_mode = any(check.name == LOST and check.value > check.threshold for check in checks)
        return {} if lacks_a_mode else found, checks

    def _weighed(
        self, ready: Ready, theta: np.ndarray, reals: np.ndarray, found: Mapping[str, LogZ]
    ) -> tuple[dict[str, LogZ], tuple[Check, ...]]:
        """log Z by a bridge from the transport to the draws of a mixed run, and what its weights say of them."""
        self.progress.phase("weighing the draws")
        transport, weighed, space = ready.transport, ready.weighed, self.target.space
        assert transport is not None
        assert weighed is not None
        own_key, lift_key = jax.random.split(self.key)
        drawn = sample_transport(own_key, transport, weighed, self.policy.own_draws)
        weights = np.asarray(drawn.log_weights, float)
        made = bridge(lift_key, space, weighed, transport, weights, theta, reals, self.policy)
        bridged = {} if made is None else {"bridge": made}
        is_other = ready.explored is not None and bool(ready.explored.is_chosen)
        checks = weighted_check(space, drawn, theta, reals, self.policy, is_other=is_other)
        return bridged, (
            *checks, *evidence_checks({**found, **bridged}, self.policy, uses_transport=not is_other)
        )  # fmt: skip

    def _tempered(self, ladders: Replicas, base: PairReference | None) -> LogZ | None:
        """log Z of the run's own ladders; None if there are too few draws."""
        if ladders.log_prob.shape[1] < MIN_DRAWS:
            return None
        if self.target.space.num_reals:  # log-weights against a normalised reference
            found: LogZ | None = stepping_stones(ladders.log_prob, ladders.inverse_temperatures, 0.0)
        else:
            found = ladder_evidence(self.key, self.target, ladders.log_prob, ladders.inverse_temperatures, base)
        return found if found is not None and np.isfinite(found.log_z) else None

    def _described(self, ready: Ready, kept: Kept) -> dict[str, Any]:
        options, plan = ready.chains.problem.options, ready.plan
        own = {} if plan is None else {"chosen": plan.sampler, "warm-up": plan.description}
        if self.target.space.num_reals and self.settings.sampler == "auto":
            rows = ready.header["plan"].get("trial", [])
            own = described(ready.chains.spec.name, rows, is_explored=ready.explored is not None)
        tuned = {k: v for k, v in by_name(ready.chains.parameters).items() if k.split(".")[0] not in options}
        found = {"tuned": _lists(tuned), "info": _lists(kept.info())}
        return self._provenance(ready.thin, ready.header, own, options, found)

    def _provenance(
        self, thin: int, header: dict[str, Any], own: dict[str, Any], options: dict[str, Any], found: dict[str, Any]
    ) -> dict[str, Any]:
        s = self.settings
        names = {} if s.keep is None else {"keep": [name for name, _ in s.keep.shapes]}
        return {
            "sampler": s.sampler, **own, "options": {k: repr(v)[:200] for k, v in options.items()}, "tuned": {},
            **found, **names, "seed": s.seed, "chains": s.chains, "draws": s.draws, "warmup": s.warmup, "thin": thin,
            "training": header.get("training"), "versions": _versions(),
            "seconds": {**header.get("seconds", {}), **self.progress.seconds},
            "max_seconds": self.budget.seconds, "max_evaluations": self.budget.evaluations,
            "device": f"{len(chosen_devices())} x {chosen_devices()[0].device_kind}",
            "checkpoint_error": None if self.store.error is None else str(self.store.error),
        }  # fmt: skip


def _looked_at(theta: Any, array: Any) -> np.ndarray:
    """An array of draws; of what lies on disk, as many evenly spaced ones as checks can hold in memory."""
    if isinstance(theta, np.ndarray):
        return array
    return thinned(array, max(LEAST_LOOKED * theta.shape[0], LOOKED_BYTES // max(1, theta.shape[2] * theta.itemsize)))


def _ladders(chains: Chains, log_prob: Any) -> Replicas:
    """What all temperatures saw, with the ladder that they ran on."""
    given = {**chains.parameters, **chains.problem.options}
    legs = [given[name] for name in ("inverse_temperatures", "second_leg") if given.get(name) is not None]
    legs = [np.asarray(legs[0]), *(np.asarray(leg)[::-1] for leg in legs[1:])] if legs else []
    return Replicas(np.concatenate(legs) if legs else default_ladder(log_prob.shape[-1]), log_prob)


def _base(chains: Chains) -> PairReference | None:
    """What the ladders of discrete variables started from."""
    given = {**chains.parameters, **chains.problem.options}
    product, reference = given.get("product"), given.get("reference")
    if isinstance(reference, PairReference):
        return reference
    return None if product is None else product_reference(product)


def precision_check(target: Target, theta: np.ndarray, log_prob: np.ndarray) -> Check:
    """Whether differences of log pi between neighbouring draws were resolved."""
    error, grade = rounding(target, theta.reshape(-1, theta.shape[-1])), NOT_TRUSTED
    if np.isnan(error):  # nothing to compare with: what rounding alone can do
        finite = np.abs(log_prob[np.isfinite(log_prob)])
        error, grade = float(jnp.finfo(jnp.result_type(float)).eps * finite.max(initial=0.0)), UNCHECKED
    advice = "log pi is too large for its differences to be resolved: precision='float64', or subtract a constant"
    return Check.at_most("rounding of log pi (nats)", error, MAX_ROUNDING, advice, grade=grade)


def by_name(parameters: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of tuned parameters, each of which may have parts: "scale", "curvature.root"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(parameters)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def describe_fit(fitted: Fitted) -> dict[str, Any]:
    """What a result keeps of training."""
    last = lambda name: float(fitted.history[name][-1]) if len(fitted.history[name]) else None
    return {
        "num_steps": fitted.num_steps, "reason": fitted.reason, "seconds": fitted.seconds,
        "held_out": last("held_out"), "is_ess": last("is_ess"),
    }  # fmt: skip


def _lists(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    return {name: value.tolist() for name, value in arrays.items() if value.size <= LONGEST_SHOWN}


def _versions() -> dict[str, str]:
    from terrazzo import __version__

    return {"terrazzo": __version__, "jax": jax.__version__, "python": platform.python_version()}
