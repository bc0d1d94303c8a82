"""One run: its fixed settings and its phases in order, from warm-up to the `Result`.

Where all configurations can be evaluated: count them (`warmup.census`), and draw independently.
Without a plan: fit a transport if the sampler needs one -> warm up (tune over pooled chains, then freeze) -> draw.
With a plan (`warmup.Planner`): explore -> try -> learn -> try -> burn in -> start chains elsewhere -> draw, and the
draws are held against what was found in other ways. Between chunks of about a second: progress, Ctrl-C, checkpoints,
the budget, and the check that no chain has met NaN or +inf.
"""

import platform
import time
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from terrazzo import devices, running
from terrazzo.arguments import key_of_seed
from terrazzo.checkpoints import Checkpoint, restore_states, state_leaves
from terrazzo.checks import ENUMERATED, EXACT, NOT_TRUSTED, NOTE, STORED, UNCHECKED, Check, Verdict
from terrazzo.diagnostics import LogZ, importance_summary
from terrazzo.diagnostics.streaming import RunningRhat
from terrazzo.interruption import Interruption
from terrazzo.precision import MAX_ROUNDING, PrecisionLoss, rounding
from terrazzo.progress import Progress
from terrazzo.results import Result
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.base import SamplerSpec
from terrazzo.samplers.tempered_runs import ladder_evidence
from terrazzo.setups import Setup
from terrazzo.targets import Target, non_finite_error
from terrazzo.training import Fitted, fit, reverse_kl
from terrazzo.transports import AbstractTransport, deserialise, sample_transport, serialise
from terrazzo.warmup import (
    Agreement,
    Budget,
    Census,
    OtherStarts,
    Plan,
    Planner,
    cut_off,
    hunt,
    least_ess,
    log_sum_of_seen,
    modes_apart,
    pick_starts,
    placed,
    plan_arrays,
    plan_header,
    restored_plan,
    settle_evidence,
    take_census,
    worst_agreement,
)

EVIDENCE_DRAWS = 8192
FEWEST_RECORDS, MOST_RECORDS, RECORDS_SHARE = 24, 256, 0.1  # of chains started elsewhere, kept; as many come before
OTHERS_SHARE = 0.15  # of the seconds left, for them
WATCHED_SHARE = 0.1  # of the draws: burn-in in which a choice is held to its promise
FAR_BELOW = 4.0  # times less than was promised
AGREED_R_HAT = 1.02  # of ladders whose log Z is sound
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
        may_enumerate: Whether evaluating all configurations, where that is possible, answers the call.
        identity: What a plan of this run is for: the target, the chains.
        may_restart: Whether a run that float32 cannot resolve may start again in float64.
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
    may_enumerate: bool
    may_restart: bool
    identity: dict[str, Any]


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
    setup: Setup | None


class _Kept:
    """Kept draws, (chain, draw, ...), written in place as they come: no second copy is made of them."""

    def __init__(self, num_draws: int):
        self.num_draws, self.done = num_draws, 0
        self.arrays: dict[str, np.ndarray] = {}
        self.last: dict[str, np.ndarray] = {}

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Takes a chunk in, (draw, chain, ...); what is beyond the draws asked for is left out."""
        count = min(len(rows["log_prob"]), self.num_draws - self.done)
        for name, values in rows.items():
            if name not in self.arrays:
                self.arrays[name] = np.empty((values.shape[1], self.num_draws, *values.shape[2:]), values.dtype)
            self.arrays[name][:, self.done : self.done + count] = np.moveaxis(values[:count], 0, 1)
        self.done += count
        self.last = dict(rows)

    def all(self) -> dict[str, np.ndarray]:
        """Everything kept so far."""
        return {name: array[:, : self.done] for name, array in self.arrays.items()}


class Run:
    """One run. `execute` goes through its phases."""

    def __init__(
        self, settings: Settings, spec: SamplerSpec | None, target: Target, mesh: Mesh, progress: Progress,
        store: Checkpoint | None, budget: Budget, interruption: Interruption,
    ):  # fmt: skip
        self.settings, self.target, self.mesh, self.progress = settings, target, mesh, progress
        self.store, self.budget, self.interruption = store, budget, interruption
        self._spec, self.step_seconds = spec, float("inf")
        keys = jax.random.split(key_of_seed(settings.seed), 8)
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
        self, transport: AbstractTransport | None, options: dict[str, Any], starts: np.ndarray | None,
        plan: Setup | None = None,
    ) -> Result:  # fmt: skip
        """All phases; Ctrl-C while drawing returns what was drawn."""
        is_planned = self.settings.exploration is not None or self.settings.sampler == "auto"
        setup = None if self.store is None else self.store.load_setup()
        if setup is None and plan is not None:
            setup = plan
            if self.store is not None:
                self.store.save_setup(plan)
        if setup is None and self.settings.may_enumerate:
            census = take_census(self.target, budget=self.budget, progress=self.progress)
            if census is not None:
                return self._enumerated(census)
        if setup is not None:
            transport = None if setup.transport is None else deserialise(*setup.transport, self.target.space)
        prepare = self._planned if is_planned else self._tuned
        ready = prepare(transport, options, starts, setup)
        kept, error = self._draw(ready)
        result = self._result(ready, kept, is_complete=error is None)
        if error is not None and not isinstance(error, KeyboardInterrupt):
            if kept.done:
                error.partial_result = result  # type: ignore[attr-defined]
                error.add_note(f"  ({result.num_draws} draws per chain were kept: see error.partial_result)")
            raise error.with_traceback(None) from None
        return result

    def _enumerated(self, census: Census) -> Result:
        """Independent draws from the table of all configurations."""
        s, space = self.settings, self.target.space
        numbers = census.draw(s.seed, s.chains, s.draws)
        theta = np.stack(np.unravel_index(numbers, space.sizes), axis=-1).astype(space.dtype)
        self._check_precision(theta)
        stats = {
            "log_prob": census.log_prob[numbers],
            "acceptance_rate": np.ones(numbers.shape),
            "num_evaluations": np.zeros(numbers.shape, np.int32),
        }
        number = float(space.num_states)
        choice = {"chosen": "exact", "reason": f"all {space.num_states} configurations were evaluated", "trial": []}
        evidence = LogZ(census.log_z, 0.0, float(numbers.size), float("nan"))
        return Result(
            space=space,
            theta=theta,
            sample_stats=stats,
            evidence=evidence,
            evidence_estimates={"exact": evidence},
            log_z_verdict=Verdict(EXACT, "the sum over all configurations"),
            provenance=self._described({}, {}, 1, {"chosen": "exact", "warm-up": {"choice": choice}}, {}),
            extra_checks=(
                Check(ENUMERATED, number, number, True, "", is_independent=True),
                self._precision_check(theta, stats["log_prob"]),
            ),
        )

    # ---- with a plan

    def _planned(self, transport: Any, options: dict, starts: np.ndarray | None, setup: Setup | None) -> _Ready:
        """Explore, learn, try; burn in; start chains elsewhere."""
        s = self.settings
        fixed = None if s.sampler == "auto" else (s.sampler, options)
        if setup is not None:
            transport = placed(self.mesh, transport)
            plan = restored_plan(self.target, transport, setup.header["plan"], setup.plan, setup.history, fixed)
            self._spec = REGISTRY[plan.sampler]
            problem = self._problem(plan)
            header, thin = setup.header, int(setup.header["thin"])
            states = self._restored_states(problem, {}, setup)
        else:
            planner = Planner(
                self.plan_key, self.target, transport, num_chains=s.chains, num_draws=s.draws, thin=s.thin,
                mesh=self.mesh, length=self.length, training=s.training, exploration=s.exploration, fixed=fixed,
                may_give_up=not s.is_transport_asked, starts=starts, budget=self.budget, progress=self.progress,
            )  # fmt: skip
            plan = planner.make()
            if plan.explored is not None:
                self._check_precision(plan.explored.theta)
            plan, states = self._settled(planner, plan, starts)
            problem, thin = self._problem(plan), self._thin(plan)
            header = {
                "plan": plan_header(plan), "seconds": self.progress.seconds, "thin": thin, "identity": s.identity,
            }  # fmt: skip
            setup = Setup(header, {}, plan.history, _stored(plan.transport), state_leaves(states), plan_arrays(plan))
            if self.store is not None:
                self.store.save_setup(setup)
        return _Ready(problem, {}, states, thin, plan, None, plan.history, header, plan.transport, setup)

    def _problem(self, plan: Plan) -> running.Problem:
        return running.Problem(self.target, plan.transport if plan.uses_transport else None, plan.options)

    def _settled(self, planner: Planner, plan: Plan, starts: np.ndarray | None) -> tuple[Plan, Any]:
        """Burns in and starts chains elsewhere; chooses again where a promise is not kept or a mode was missed."""
        plan, states = self._burnt_in(planner, plan, starts)
        plan = plan._replace(others=self._other_starts(plan, states))
        modes = self._new_modes(plan)
        if not len(modes) or planner.transport is None or plan.has_modes or self.budget.is_spent("training"):
            return plan, states
        assert plan.others is not None
        plan = planner.make_again(plan.others.theta[modes], plan.others.log_prob[modes])
        plan, states = self._burnt_in(planner, plan, starts)
        return plan._replace(others=self._other_starts(plan, states)), states

    def _new_modes(self, plan: Plan) -> np.ndarray:
        """Which of the chains that began elsewhere stayed in a mode of some weight that tempering did not find."""
        if plan.others is None or plan.explored is None or plan.explored.log_prob.shape[1] < 4:
            return np.zeros(0, int)
        explored = plan.explored
        found = modes_apart(
            self.evidence_key, self.target, plan.others, explored.theta, explored.log_prob, explored.evidence
        )
        return np.array([mode.chain for mode in found if not mode.is_negligible], int)

    def _burnt_in(self, planner: Planner, plan: Plan, starts: np.ndarray | None) -> tuple[Plan, Any]:
        """The states after burn-in; if the sampler falls far below what its trial promised, the next best follows."""
        while True:
            self._spec = REGISTRY[plan.sampler]
            self.step_seconds = plan.step_seconds
            problem = self._problem(plan)
            theta = devices.deal(self.mesh, jnp.asarray(plan.starts if starts is None else starts, jnp.int32))
            states = running.start(self.mesh, self.spec, problem, {}, self.init_key, theta)
            states, speed = self._burn_in(problem, states, plan)
            is_kept = plan.promise is None or speed is None or speed * FAR_BELOW >= plan.promise
            other = None if is_kept or self.budget.is_half_gone else planner.next_best(plan)
            if other is None or (other.promise is not None and speed is not None and other.promise <= speed):
                return plan, states
            plan = other

    def _burn_in(self, problem: running.Problem, states: Any, plan: Plan) -> tuple[Any, float | None]:
        """Rounds that are not kept, by the same compiled loop that draws; the effective draws a second of the last."""
        rounds, s = plan.rounds, self.settings
        total = -(-s.warmup // rounds)
        watched = int(WATCHED_SHARE * s.draws) if total and plan.promise is not None else 0
        thin = max(1, self._thin(plan) // rounds)
        self.progress.phase("burn-in", total + watched * thin, "steps")
        states, _, _ = self._unkept(problem, states, 0, total, 1)
        if not watched or self.budget.is_half_gone:
            return states, None
        states, rows, seconds = self._unkept(problem, states, total, watched, thin)
        if rows is None or rows["log_prob"].shape[1] < FEWEST_RECORDS or seconds <= 0:
            return states, None
        return states, least_ess(rows["theta"], rows["log_prob"]) / seconds

    def _unkept(
        self, problem: running.Problem, states: Any, first: int, total: int, thin: int
    ) -> tuple[Any, dict[str, np.ndarray] | None, float]:
        """Draws that are not kept, in chunks, until half of the time is gone; rows are (chain, draw, ...)."""
        rows: list[dict[str, np.ndarray]] = []
        done, chunk, seconds = 0, 1, 0.0
        while done < total and not (done > 1 and self.budget.is_half_gone):  # the first step compiles
            count = min(chunk, self.length, total - done)
            tick = time.perf_counter()
            states, out = running.draw(
                self.mesh, self.spec, problem, self.length, False, {}, self.warm_key, _int(first + done), _int(count),
                _int(thin), states,
            )  # fmt: skip
            self._check_states(states)
            rows.append({name: np.asarray(x[:count]) for name, x in out.items()})
            elapsed = time.perf_counter() - tick
            if first or done:
                self.step_seconds = min(self.step_seconds, elapsed / (count * thin))
                seconds += elapsed
            chunk = running.next_chunk(count, elapsed, is_first=done == 0)
            done += count
            self.progress.update(first + done * thin, acceptance=_mean_rate(rows[-1]))
        joined = None
        if rows:
            joined = {name: np.moveaxis(np.concatenate([r[name] for r in rows]), 0, 1) for name in rows[0]}
        return states, joined, seconds

    def _other_starts(self, plan: Plan, states: Any) -> OtherStarts | None:
        """Chains of the sampler from hunted configurations, by the loop that draws; None if there is no time."""
        if self.budget.is_short or (plan.explored is None and self.budget.is_half_gone):
            return None
        s, target = self.settings, self.target
        self.progress.phase("looking elsewhere", None, "records")
        known = np.asarray(states.position)[:, None] if plan.explored is None else plan.explored.theta
        optima = hunt(jax.random.fold_in(self.plan_key, 7), target, known, seconds=self.budget.seconds)
        self.interruption.check()
        rng = np.random.default_rng(s.seed % 2**63)
        cut = cut_off(rng, target, np.asarray(states.position))
        starts = pick_starts(optima, cut.theta, s.chains)
        if not len(starts):
            return None
        problem = self._problem(plan)
        theta = devices.deal(self.mesh, jnp.asarray(starts, jnp.int32))
        others = running.start(self.mesh, self.spec, problem, {}, jax.random.fold_in(self.init_key, 1), theta)
        count = int(np.clip(RECORDS_SHARE * s.draws, FEWEST_RECORDS, MOST_RECORDS))
        thin = max(1, self._thin(plan) // plan.rounds)
        if self.budget.seconds is not None and np.isfinite(self.step_seconds):
            affordable = OTHERS_SHARE * (self.budget.total_seconds_left or 0.0) / (2 * count * self.step_seconds)
            thin = max(1, min(thin, int(affordable)))
        rows: list[dict[str, np.ndarray]] = []
        done, chunk, key = 0, 1, jax.random.fold_in(self.warm_key, 1)
        while done < 2 * count and not self.budget.is_over:
            size = min(chunk, self.length, 2 * count - done)
            tick = time.perf_counter()
            others, out = running.draw(
                self.mesh, self.spec, problem, self.length, False, {}, key, _int(done), _int(size), _int(thin), others
            )
            self._check_states(others)
            rows.append({name: np.asarray(out[name][:size]) for name in ("theta", "log_prob")})
            chunk = running.next_chunk(size, time.perf_counter() - tick, is_first=done == 0)
            done += size
            self.progress.update(done)
        half = done // 2
        if half < FEWEST_RECORDS // 2:
            return None
        joined = {name: np.moveaxis(np.concatenate([r[name] for r in rows]), 0, 1) for name in ("theta", "log_prob")}
        return OtherStarts(starts, joined["theta"][:, half:], joined["log_prob"][:, half:])

    def _thin(self, plan: Plan | None = None) -> int:
        """The user's; or what makes draws nearly independent, by the trial, within the seconds left; or 1."""
        s = self.settings
        if s.thin is not None:
            return s.thin
        if plan is None or plan.thin is None:
            return 1
        if self.budget.seconds is None or not np.isfinite(self.step_seconds):
            return plan.thin
        left = max(self.budget.seconds - self.budget.elapsed, 0.0)
        return min(plan.thin, plan.rounds * max(1, int(0.8 * left / (self.step_seconds * s.draws))))

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
                problem, parameters, states, thin, None, evidence, setup.history, setup.header, problem.transport, None
            )
        states, parameters = self._warm_up(problem, starts)
        self._check_precision(np.asarray(states.position)[:, None])
        history, thin = {} if fitted is None else fitted.history, self._thin()
        training = None if fitted is None else _describe_fit(fitted)
        header = {"training": training, "seconds": self.progress.seconds, "thin": thin}
        if self.store is not None:
            stored = None if transport is None else serialise(transport)
            self.store.save_setup(Setup(header, _by_name(parameters), history, stored, state_leaves(states), {}))
        return _Ready(problem, parameters, states, thin, None, evidence, history, header, problem.transport, None)

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

    def _draw(self, ready: _Ready) -> tuple[_Kept, BaseException | None]:
        """All kept draws; an error or Ctrl-C ends them early and is handed back."""
        s, states = self.settings, ready.states
        kept, monitor = _Kept(s.draws), RunningRhat()
        if self.store is not None:
            stored, leaves = self.store.load_draws()
            if leaves is not None:
                states = restore_states(states, leaves)
            for rows in stored:
                kept.add(rows)
                monitor.update(np.moveaxis(rows["theta"], 0, 1))
        states = devices.deal(self.mesh, states)
        self.progress.phase("sampling", s.draws, "draws")
        chunk, is_first = 1, True
        thin = ready.thin if ready.plan is None else ready.thin // ready.plan.rounds
        try:
            while kept.done < s.draws and not (kept.done and self.budget.is_over):
                count = min(s.chunk_size or chunk, self.length, s.draws - kept.done, self._affordable(kept))
                tick = time.perf_counter()
                states, out = running.draw(
                    self.mesh, self.spec, ready.problem, self.length, s.keep_latent, ready.parameters, self.draw_key,
                    _int(kept.done), _int(count), _int(thin), states,
                )  # fmt: skip
                self._check_states(states)
                host = {name: np.asarray(x[:count]) for name, x in out.items()}
                chunk = running.next_chunk(count, time.perf_counter() - tick, is_first=is_first)
                is_first = False
                if self.store is not None:
                    self.store.save_draws(host, state_leaves(states))
                kept.add(host)
                self.budget.spend_evaluations("sampling", int(host["num_evaluations"].sum(dtype=np.int64)))
                monitor.update(np.moveaxis(host["theta"], 0, 1))
                self.progress.update(kept.done, acceptance=_mean_rate(host), worst_r_hat=monitor.worst())
        except (Exception, KeyboardInterrupt) as error:
            return kept, error
        if kept.done < s.draws:
            warnings.warn(
                f"{kept.done} of {s.draws} draws a chain were made before the time or the evaluations were used up",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
        return kept, None

    def _affordable(self, kept: _Kept) -> int:
        """Kept draws that the evaluations left still pay for, judged by the last chunk; at least one."""
        if self.budget.evaluations is None or not kept.done:
            return self.settings.draws
        each = float(kept.last["num_evaluations"].sum(dtype=np.int64)) / len(kept.last["num_evaluations"])
        return max(1, int(self.budget.total_left // max(each, 1.0)))

    def _check_precision(self, theta: np.ndarray) -> None:
        """Starts again in float64, if that is allowed, where float32 cannot resolve log pi at these draws."""
        if self.settings.may_restart and rounding(self.target, _flat(theta)) > MAX_ROUNDING:
            raise PrecisionLoss

    def _precision_check(self, theta: np.ndarray, log_prob: np.ndarray) -> Check:
        """Whether differences of log pi between neighbouring draws were resolved."""
        error, grade = rounding(self.target, _flat(theta)), NOT_TRUSTED
        if np.isnan(error):  # nothing to compare with: what rounding alone can do
            finite = np.abs(log_prob[np.isfinite(log_prob)])
            error, grade = float(jnp.finfo(jnp.result_type(float)).eps * finite.max(initial=0.0)), UNCHECKED
        advice = "log pi is too large for its differences to be resolved: precision='float64', or subtract a constant"
        return Check("rounding of log pi (nats)", error, MAX_ROUNDING, error <= MAX_ROUNDING, advice, grade)

    def _check_states(self, states: Any) -> None:
        log_prob = np.asarray(states.log_prob)
        bad = np.isnan(log_prob) | (log_prob == np.inf)
        if bad.any():
            raise non_finite_error(self.target, np.asarray(states.position)[bad.argmax()])

    # ---- the result

    def _result(self, ready: _Ready, kept: _Kept, *, is_complete: bool) -> Result:
        s, space = self.settings, self.target.space
        if kept.done:
            joined = kept.all()
        else:
            empty = {"theta": np.zeros((s.chains, 0, space.num_dims), space.dtype)}
            joined = empty | {"log_prob": np.zeros((s.chains, 0))}
        estimates: dict[str, LogZ] = {} if ready.evidence is None else {"importance": ready.evidence}
        checks: tuple[Check, ...] = ()
        is_settled = False
        replicas = joined.pop("replica_log_probs", None)
        if ready.plan is not None:
            self.progress.phase("comparing with the exploration")
            agreement = Agreement(self.evidence_key, self.target, ready.plan, joined["theta"], joined["log_prob"])
            estimates |= agreement.estimates()
            checks = agreement.checks(is_stopped=self.interruption.is_requested)
            is_settled = agreement.is_settled
        if replicas is not None and replicas.shape[1] >= 4:
            ladder = ready.problem.options.get("inverse_temperatures")
            ladder = np.asarray(ready.parameters.get("inverse_temperatures") if ladder is None else ladder)
            found = ladder_evidence(self.evidence_key, self.target, replicas, ladder)
            if found is not None and np.isfinite(found.log_z):
                estimates["tempering"] = found
                is_settled = worst_agreement(joined["theta"], joined["log_prob"])[0] <= AGREED_R_HAT
        if kept.done:
            checks = (*checks, self._precision_check(joined["theta"], joined["log_prob"]))
        if self.store is not None and self.store.error is not None:
            checks = (*checks, Check(STORED, 0.0, 1.0, False, f"save the result: {self.store.error}", NOTE))
        least = log_sum_of_seen(joined["theta"], joined["log_prob"]) if kept.done else -np.inf
        evidence, log_z_verdict = settle_evidence(estimates, least=least, is_settled=is_settled)
        return Result(
            space=space,
            theta=joined.pop("theta"),
            latent=joined.pop("latent", None),
            sample_stats=joined,
            evidence=evidence,
            evidence_estimates=estimates,
            log_z_verdict=log_z_verdict,
            transport=ready.transport,
            provenance=self._provenance(ready),
            history=ready.history or None,
            is_complete=is_complete,
            extra_checks=checks,
            plan=ready.setup,
        )

    def _provenance(self, ready: _Ready) -> dict[str, Any]:
        options, plan = ready.problem.options, ready.plan
        own = {} if plan is None else {"chosen": plan.sampler, "warm-up": plan.description}
        tuned = {
            k: v.tolist() for k, v in _by_name(ready.parameters).items()
            if v.size <= 1000 and k.split(".")[0] not in options
        }  # fmt: skip
        return self._described(options, tuned, ready.thin, own, ready.header)

    def _described(
        self, options: dict[str, Any], tuned: dict[str, Any], thin: int, own: dict[str, Any], header: dict[str, Any]
    ) -> dict[str, Any]:
        s = self.settings
        return {
            "sampler": s.sampler, **own, "options": {k: repr(v)[:200] for k, v in options.items()}, "tuned": tuned,
            "seed": s.seed, "chains": s.chains, "draws": s.draws, "warmup": s.warmup, "thin": thin,
            "training": header.get("training"), "versions": _versions(),
            "seconds": {**header.get("seconds", {}), **self.progress.seconds},
            "max_seconds": self.budget.seconds, "max_evaluations": self.budget.evaluations,
            "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
            "checkpoint_error": None if self.store is None or self.store.error is None else str(self.store.error),
        }  # fmt: skip


# ---- small parts


def _int(value: int) -> jax.Array:
    return jnp.asarray(value, jnp.int32)


def _flat(theta: np.ndarray) -> np.ndarray:
    return theta.reshape(-1, theta.shape[-1])


def _mean_rate(rows: Mapping[str, np.ndarray]) -> float:
    return float(rows["acceptance_rate"].mean())


def _stored(transport: AbstractTransport | None) -> tuple[bytes, dict[str, Any]] | None:
    return None if transport is None else serialise(transport)


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
