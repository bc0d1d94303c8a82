"""One run: its fixed settings and its phases in order, from warm-up to the `Result`.

Without a plan: fit a transport if the sampler needs one -> warm up (tune over pooled chains, then freeze) -> draw.
With a plan (`warmup.make_plan`): explore -> try -> learn -> try -> burn in -> draw, and the draws are held against what
the exploration found. Between chunks of about a second: progress, Ctrl-C, checkpoints, the budget, and the check that
no chain has met NaN or +inf.
"""

import platform
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from terrazzo import devices, running
from terrazzo.checkpoints import Checkpoint, Setup, restore_states, state_leaves
from terrazzo.checks import Check
from terrazzo.diagnostics import LogZ, importance_summary
from terrazzo.diagnostics.streaming import RunningRhat
from terrazzo.progress import Progress
from terrazzo.results import Result
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.base import SamplerSpec
from terrazzo.samplers.tempered_runs import ladder_evidence
from terrazzo.targets import Target, non_finite_error
from terrazzo.training import Fitted, fit, reverse_kl
from terrazzo.transports import AbstractTransport, deserialise, sample_transport, serialise
from terrazzo.warmup import (
    Agreement,
    Budget,
    Plan,
    best_estimate,
    make_plan,
    placed,
    plan_arrays,
    plan_header,
    restored_plan,
)

EVIDENCE_DRAWS = 8192
WRITTEN = "checkpoint written"
TRAINING = {"num_steps": 3000, "batch_size": 128, "start_beta": 0.1, "anneal_steps": 600, "patience": 3}


class Settings(NamedTuple):
    """What the user asked for, checked.

    Attributes:
        sampler: The sampler's name, or "auto".
        seed: The seed.
        chains: Independent chains.
        draws: Kept draws a chain.
        warmup: Tuning (or burn-in) steps a chain.
        thin: Steps a kept draw; None fills `max_seconds`, or is 1.
        chunk_size: Kept draws a compiled call, or None.
        keep_latent: Whether latent draws are kept.
        training: Options of training, or False.
        exploration: Options of the exploration, or None for none.
        is_transport_asked: Whether the user named a transport or how to train it: then it is not given up.
    """

    sampler: str
    seed: int
    chains: int
    draws: int
    warmup: int
    thin: int | None
    chunk_size: int | None
    keep_latent: bool
    training: Any
    exploration: dict[str, Any] | None
    is_transport_asked: bool


class _Ready(NamedTuple):
    """What warm-up hands over to the drawing of samples."""

    problem: running.Problem
    parameters: dict[str, Any]
    states: Any
    thin: int
    plan: Plan | None
    evidence: LogZ | None
    history: dict[str, np.ndarray]
    header: dict[str, Any]
    transport: AbstractTransport | None


class Run:
    """One run. `execute` goes through its phases."""

    def __init__(
        self, settings: Settings, spec: SamplerSpec | None, target: Target, mesh: Mesh, progress: Progress,
        store: Checkpoint | None, budget: Budget,
    ):  # fmt: skip
        self.settings, self.target, self.mesh, self.progress = settings, target, mesh, progress
        self.store, self.budget = store, budget
        self._spec, self.step_seconds = spec, float("inf")
        keys = jax.random.split(jax.random.key(settings.seed), 8)
        self.train_key, self.build_key, self.start_key, self.init_key = keys[:4]
        self.warm_key, self.draw_key, self.evidence_key, self.plan_key = keys[4:]
        space = target.space
        self.length = running.buffer_length(
            settings.chains, space.num_dims, space.dtype.itemsize, settings.draws, settings.keep_latent
        )

    @property
    def spec(self) -> SamplerSpec:
        """The sampler: the user's, or the plan's once there is one."""
        assert self._spec is not None
        return self._spec

    def execute(
        self, transport: AbstractTransport | None, options: dict[str, Any], starts: np.ndarray | None
    ) -> Result:
        """All phases; Ctrl-C while drawing returns what was drawn."""
        is_planned = self.settings.exploration is not None
        setup = None if self.store is None else self.store.load_setup()
        if setup is not None:
            transport = None if setup.transport is None else deserialise(*setup.transport, self.target.space)
        prepare = self._planned if is_planned else self._tuned
        ready = prepare(transport, options, starts, setup)
        rows, error = self._draw(ready)
        result = self._result(ready, rows, is_complete=error is None)
        if error is not None and not isinstance(error, KeyboardInterrupt):
            if rows:
                error.partial_result = result  # type: ignore[attr-defined]
                error.add_note(f"  ({result.num_draws} draws per chain were kept: see error.partial_result)")
            raise error.with_traceback(None) from None
        return result

    # ---- with a plan

    def _planned(self, transport: Any, options: dict, starts: np.ndarray | None, setup: Setup | None) -> _Ready:
        """Explore, learn, try; then burn in."""
        s = self.settings
        fixed = None if s.sampler == "auto" else (s.sampler, options)
        if setup is not None:
            transport = placed(self.mesh, transport)
            plan = restored_plan(self.target, transport, setup.header["plan"], setup.plan, setup.history, fixed)
        else:
            plan = make_plan(
                self.plan_key, self.target, transport, num_chains=s.chains, num_draws=s.draws, thin=s.thin,
                mesh=self.mesh, length=self.length, training=s.training, exploration=s.exploration or {}, fixed=fixed,
                may_give_up=not s.is_transport_asked, budget=self.budget, progress=self.progress,
            )  # fmt: skip
        self._spec = REGISTRY[plan.sampler]
        self.step_seconds = plan.step_seconds
        problem = running.Problem(self.target, plan.transport if plan.uses_transport else None, plan.options)
        parameters: dict[str, Any] = {}
        if setup is None:
            states = self._burn_in(problem, plan.starts if starts is None else starts, plan.rounds)
            thin = self._thin(plan)
            header = {"plan": plan_header(plan), "seconds": self.progress.seconds, "thin": thin}
            if self.store is not None:
                stored = None if plan.transport is None else serialise(plan.transport)
                self.store.save_setup(Setup(header, {}, plan.history, stored, state_leaves(states), plan_arrays(plan)))
        else:
            header, thin = setup.header, int(setup.header["thin"])
            states = self._restored_states(problem, parameters, setup)
        return _Ready(problem, parameters, states, thin, plan, None, plan.history, header, plan.transport)

    def _burn_in(self, problem: running.Problem, starts: np.ndarray, rounds: int) -> Any:
        """Rounds of the chosen sampler that are not kept, by the same compiled loop that draws."""
        theta = devices.deal(self.mesh, jnp.asarray(starts, jnp.int32))
        states = running.start(self.mesh, self.spec, problem, {}, self.init_key, theta)
        total = -(-self.settings.warmup // rounds)
        self.progress.phase("burn-in", total * rounds, "steps")
        done, chunk = 0, 1
        while done < total and not (done > 1 and self.budget.is_half_gone):  # the first step compiles
            count = min(chunk, self.length, total - done)
            tick = time.perf_counter()
            states, out = running.draw(
                self.mesh, self.spec, problem, self.length, False, {}, self.warm_key, _int(done), _int(count), _int(1),
                states,
            )  # fmt: skip
            self._check_states(states)
            acceptance = float(np.asarray(out["acceptance_rate"][:count]).mean())
            self.step_seconds = min(self.step_seconds, (time.perf_counter() - tick) / count)
            chunk = running.next_chunk(count, time.perf_counter() - tick, is_first=done == 0)
            done += count
            self.progress.update(done * rounds, acceptance=acceptance)
        return states

    def _thin(self, plan: Plan | None = None) -> int:
        """The user's, or what fills the seconds asked for (by the fastest stretch of warm-up), or the plan's, or 1."""
        s = self.settings
        if s.thin is not None:
            return s.thin
        if self.budget.seconds is None or not np.isfinite(self.step_seconds):
            return 1 if plan is None or plan.thin is None else plan.thin
        left = max(self.budget.seconds - self.budget.elapsed, 0.0)
        return (1 if plan is None else plan.rounds) * max(1, int(0.95 * left / (self.step_seconds * s.draws)))

    # ---- without a plan

    def _tuned(self, transport: Any, options: dict, starts: np.ndarray | None, setup: Setup | None) -> _Ready:
        """Fit the transport if there is one, then tune the sampler."""
        fitted, evidence = None, None
        if transport is not None:
            if setup is None:
                transport, fitted = self._train(transport)
            evidence = self._weigh(transport)
        problem = running.Problem(self.target, placed(self.mesh, transport), options)
        if setup is not None:
            parameters = self._restored_parameters(problem, setup.parameters)
            states = self._restored_states(problem, parameters, setup)
            thin = int(setup.header["thin"])
            return _Ready(
                problem, parameters, states, thin, None, evidence, setup.history, setup.header, problem.transport
            )
        states, parameters = self._warm_up(problem, starts)
        history, thin = {} if fitted is None else fitted.history, self._thin()
        training = None if fitted is None else _describe_fit(fitted)
        header = {"training": training, "seconds": self.progress.seconds, "thin": thin}
        if self.store is not None:
            stored = None if transport is None else serialise(transport)
            self.store.save_setup(Setup(header, _by_name(parameters), history, stored, state_leaves(states), {}))
        return _Ready(problem, parameters, states, thin, None, evidence, history, header, problem.transport)

    def _train(self, transport: AbstractTransport) -> tuple[AbstractTransport, Fitted | None]:
        training = self.settings.training
        if training is False:
            return transport, None
        asked = dict(training) if isinstance(training, Mapping) else {}
        settings = {"objective": reverse_kl("score_function"), **TRAINING, **asked}
        if "anneal_steps" not in asked:
            settings["anneal_steps"] = min(settings["anneal_steps"], settings["num_steps"] // 3)
        self.progress.phase("training", settings["num_steps"], "steps")
        fitted = fit(
            self.train_key, transport, self.target, progress=self.progress,
            should_stop=lambda checks, step: "budget" if self.budget.is_spent("training") else None, **settings,
        )  # fmt: skip
        return fitted.transport, fitted

    def _weigh(self, transport: AbstractTransport) -> LogZ:
        self.progress.phase("weighing the transport")
        weights = sample_transport(self.evidence_key, transport, self.target, EVIDENCE_DRAWS).log_weights
        return importance_summary(np.asarray(weights))

    def _starts(self, transport: AbstractTransport | None) -> np.ndarray:
        chains = self.settings.chains
        uniform = np.array(self.target.possible_starts(self.start_key, chains))
        if transport is None:
            return uniform
        pushed = sample_transport(self.start_key, transport, self.target, 16 * chains)
        possible = np.flatnonzero(np.isfinite(np.asarray(pushed.log_prob)))
        half = min((chains + 1) // 2, len(possible))
        uniform[:half] = np.asarray(pushed.theta)[possible[:half]]
        return uniform

    def _warm_up(self, problem: running.Problem, starts: np.ndarray | None) -> tuple[Any, dict[str, Any]]:
        total = self.settings.warmup
        self.progress.phase("warm-up", total, "steps")
        theta = self._starts(problem.transport) if starts is None else starts
        spec = self.spec
        tuning = None if spec.tuning is None else spec.tuning(self.target, **problem.options)
        tuning_state = None if tuning is None else devices.replicate(self.mesh, tuning.init())
        parameters = {} if tuning is None else tuning.parameters(tuning_state)
        theta = devices.deal(self.mesh, jnp.asarray(theta, jnp.int32))
        states = running.start(self.mesh, spec, problem, parameters, self.init_key, theta)
        done, chunk = 0, 1
        while done < total:
            count = min(chunk, total - done)
            tick = time.perf_counter()
            states, tuning_state, rate = running.warm_up(
                self.mesh, spec, problem, self.warm_key, _int(done), _int(count), states, tuning_state
            )
            acceptance = float(rate)
            self.step_seconds = min(self.step_seconds, (time.perf_counter() - tick) / count)
            chunk = running.next_chunk(count, time.perf_counter() - tick, is_first=done == 0)
            done += count
            self._check_states(states)
            self.progress.update(done, acceptance=acceptance)
        return states, {} if tuning is None else tuning.final(tuning_state)

    # ---- drawing

    def _restored_parameters(self, problem: running.Problem, stored: Mapping[str, np.ndarray]) -> dict[str, Any]:
        """Tuned parameters as `_by_name` stored them, in the structure that the sampler's tuning gives them."""
        if self.spec.tuning is None:
            return {}
        tuning = self.spec.tuning(self.target, **problem.options)
        like = tuning.final(tuning.init())
        leaves = [jnp.asarray(stored[name]) for name in _by_name(like)]
        return jax.tree.unflatten(jax.tree.structure(like), leaves)

    def _restored_states(self, problem: running.Problem, parameters: dict, setup: Setup) -> Any:
        like = jax.eval_shape(
            lambda t: running.start(self.mesh, self.spec, problem, parameters, self.init_key, t),
            jnp.zeros((self.settings.chains, self.target.space.num_dims), jnp.int32),
        )
        return restore_states(like, setup.states)

    def _draw(self, ready: _Ready) -> tuple[list[dict], BaseException | None]:
        """All kept draws, as chunks; an error or Ctrl-C ends them early and is handed back."""
        s, states = self.settings, ready.states
        rows: list[dict[str, np.ndarray]] = []
        if self.store is not None:
            rows, leaves = self.store.load_draws()
            if leaves is not None:
                states = restore_states(states, leaves)
        states = devices.deal(self.mesh, states)
        done = sum(r["log_prob"].shape[0] for r in rows)
        self.progress.phase("sampling", s.draws, "draws")
        monitor = RunningRhat()
        for row in rows:
            monitor.update(np.moveaxis(row["theta"], 0, 1))
        chunk, is_first = 1, True
        thin = ready.thin if ready.plan is None else ready.thin // ready.plan.rounds
        try:
            while done < s.draws and not (rows and self.budget.is_over):
                count = min(s.chunk_size or chunk, self.length, s.draws - done, self._affordable(rows))
                tick = time.perf_counter()
                states, out = running.draw(
                    self.mesh, self.spec, ready.problem, self.length, s.keep_latent, ready.parameters, self.draw_key,
                    _int(done), _int(count), _int(thin), states,
                )  # fmt: skip
                self._check_states(states)
                host = {name: np.asarray(x[:count]) for name, x in out.items()}
                chunk = running.next_chunk(count, time.perf_counter() - tick, is_first=is_first)
                is_first = False
                if self.store is not None:
                    self.store.save_draws(host, state_leaves(states))
                rows.append(host)
                done += count
                self.budget.spend_evaluations("sampling", int(host["num_evaluations"].sum(dtype=np.int64)))
                monitor.update(np.moveaxis(host["theta"], 0, 1))
                self.progress.update(
                    done, acceptance=float(host["acceptance_rate"].mean()), worst_r_hat=monitor.worst()
                )
        except (Exception, KeyboardInterrupt) as error:
            return rows, error
        return rows, None

    def _affordable(self, rows: list[dict]) -> int:
        """Kept draws that the evaluations left still pay for, judged by the last chunk; at least one."""
        if self.budget.evaluations is None or not rows:
            return self.settings.draws
        each = float(rows[-1]["num_evaluations"].sum(dtype=np.int64)) / len(rows[-1]["num_evaluations"])
        return max(1, int(self.budget.total_left // max(each, 1.0)))

    def _check_states(self, states: Any) -> None:
        log_prob = np.asarray(states.log_prob)
        bad = np.isnan(log_prob) | (log_prob == np.inf)
        if bad.any():
            raise non_finite_error(self.target, np.asarray(states.position)[bad.argmax()])

    # ---- the result

    def _result(self, ready: _Ready, rows: list[dict], *, is_complete: bool) -> Result:
        s, space = self.settings, self.target.space
        if rows:
            joined = {k: np.moveaxis(np.concatenate([r[k] for r in rows])[: s.draws], 0, 1) for k in rows[0]}
        else:
            empty = {"theta": np.zeros((s.chains, 0, space.num_dims), space.dtype)}
            joined = empty | {"log_prob": np.zeros((s.chains, 0))}
        evidence = ready.evidence
        estimates: dict[str, LogZ] = {}
        checks: tuple[Check, ...] = ()
        if evidence is not None:
            estimates["importance"] = evidence
        replicas = joined.pop("replica_log_probs", None)
        if replicas is not None and replicas.shape[1]:
            ladder = ready.problem.options.get("inverse_temperatures")
            ladder = np.asarray(ready.parameters.get("inverse_temperatures") if ladder is None else ladder)
            evidence = ladder_evidence(self.evidence_key, self.target, replicas, ladder)
            if evidence is not None:
                estimates["tempering"] = evidence
        if ready.plan is not None:
            self.progress.phase("comparing with the exploration")
            agreement = Agreement(self.evidence_key, self.target, ready.plan, joined["theta"], joined["log_prob"])
            estimates = agreement.estimates() | estimates
            evidence, checks = best_estimate(estimates), agreement.checks()
        if self.store is not None and self.store.error is not None:
            checks = (*checks, Check(WRITTEN, 0.0, 1.0, False, f"save the result: {self.store.error}", False))
        return Result(
            space=space,
            theta=joined.pop("theta"),
            latent=joined.pop("latent", None),
            sample_stats=joined,
            evidence=evidence,
            evidence_estimates=estimates,
            transport=ready.transport,
            provenance=self._provenance(ready),
            history=ready.history or None,
            is_complete=is_complete,
            extra_checks=checks,
        )

    def _provenance(self, ready: _Ready) -> dict[str, Any]:
        s, plan = self.settings, ready.plan
        options = ready.problem.options
        own = {} if plan is None else {"chosen": plan.sampler, "warm-up": plan.description}
        return {
            "sampler": s.sampler, **own, "options": {k: repr(v)[:200] for k, v in options.items()},
            "tuned": {k: v.tolist() for k, v in _by_name(ready.parameters).items()
                      if v.size <= 1000 and k.split(".")[0] not in options},
            "seed": s.seed, "chains": s.chains, "draws": s.draws, "warmup": s.warmup, "thin": ready.thin,
            "training": ready.header.get("training"), "versions": _versions(),
            "seconds": {**ready.header.get("seconds", {}), **self.progress.seconds},
            "max_seconds": self.budget.seconds, "max_evaluations": self.budget.evaluations,
            "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
            "checkpoint_error": None if self.store is None or self.store.error is None else str(self.store.error),
        }  # fmt: skip


# ---- small parts


def _int(value: int) -> jax.Array:
    return jnp.asarray(value, jnp.int32)


def _by_name(parameters: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """The arrays of tuned parameters, each of which may have parts: "scale", "curvature.root"."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(parameters)
    return {jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf) for path, leaf in leaves}


def _versions() -> dict[str, str]:
    from terrazzo import __version__

    return {"terrazzo": __version__, "jax": jax.__version__, "python": platform.python_version()}


def _describe_fit(fitted: Fitted) -> dict[str, Any]:
    held_out = fitted.history["held_out"]
    return {
        "num_steps": fitted.num_steps,
        "reason": fitted.reason,
        "seconds": fitted.seconds,
        "held_out": float(held_out[-1]) if len(held_out) else None,
        "is_ess": float(fitted.history["is_ess"][-1]) if len(fitted.history["is_ess"]) else None,
    }
