"""One run: its fixed settings and its phases in order, from warm-up to the `Result`.

Where all configurations can be evaluated: count them (`auto.census`), and draw independently. Where the
function's terms tie few sites together: sum out one site after the other (`samplers.kernels.exact`).
Without a plan: fit a transport if the sampler needs one -> warm up (tune over pooled chains, then freeze) -> draw.
With a plan (`auto.planning`): explore -> try -> learn -> try -> burn in -> start chains elsewhere -> draw, and the
draws are held against what was found in other ways. Between chunks of about a second: progress, Ctrl-C, checkpoints,
the budget, and the check that no chain has met NaN or +inf.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from terrazzo.auto import (
    Budget,
    Context,
    Keys,
    Request,
    make_plan,
    may_hang,
    plan_arrays,
    plan_header,
    restored_plan,
    settle,
    take_census,
    thin_in_time,
)
from terrazzo.diagnostics import LogZ, importance_summary
from terrazzo.engine.kept import Kept
from terrazzo.engine.kernels import Problem
from terrazzo.engine.loop import Chains, buffer_length, placed, tune
from terrazzo.errors import ConfigurationError
from terrazzo.errors.arguments import key_of_seed
from terrazzo.inference import mixed_default, mixed_hunt, sharing
from terrazzo.inference.drawing import Drawing
from terrazzo.inference.mixed import Explored, ladders_ahead
from terrazzo.inference.mixed_choice import Tried
from terrazzo.inference.mixed_default import Chosen, restored_chains, weighed_target
from terrazzo.inference.mixed_learning import explore_ahead, learn
from terrazzo.inference.reporting import Ready, Reporter, by_name, describe_fit
from terrazzo.inference.restoring import restored_parameters, restored_states
from terrazzo.inference.settings import Settings
from terrazzo.results.folders import save_record
from terrazzo.results.result import Result
from terrazzo.runtime.background import compile_in_background
from terrazzo.runtime.interruption import Interruption
from terrazzo.runtime.processes import Team, telling_errors
from terrazzo.runtime.progress import Progress
from terrazzo.samplers.kernels.exact import eliminated
from terrazzo.samplers.parts.base import Drawn, SamplerSpec
from terrazzo.storage.checkpoints import Checkpoint, state_leaves
from terrazzo.storage.memory import Memory
from terrazzo.storage.setups import Setup
from terrazzo.targets.precision import MAX_ROUNDING, PrecisionLoss, rounding
from terrazzo.targets.target import Target
from terrazzo.training import Fitted, fit
from terrazzo.training.settings import NUM_STEPS
from terrazzo.transports import AbstractTransport, deserialise, is_storable, sample_transport, serialise


class Run:
    """One run. `execute` goes through its phases."""

    def __init__(
        self, settings: Settings, spec: SamplerSpec | None, target: Target, mesh: Mesh, progress: Progress,
        store: Checkpoint | Memory, budget: Budget, interruption: Interruption, team: Team,
    ):  # fmt: skip
        s, space = settings, target.space
        self.settings, self.spec, self.target, self.mesh = settings, spec, target, mesh
        self.progress, self.store, self.budget, self.interruption = progress, store, budget, interruption
        self.team = team
        keys = jax.random.split(key_of_seed(settings.seed), 10)
        self.train_key, self.start_key, self.init_key, self.warm_key = keys[0], *keys[2:5]
        self.draw_key, self.evidence_key, self.plan_key, self.push_key, self.trial_key = keys[5:]
        width = 1 if s.keep else space.num_dims + 8 * space.num_real_values
        length = buffer_length(s.chains, width, space.dtype.itemsize, s.draws, s.keep_latent)
        self.context = Context(
            target=target, num_chains=s.chains, num_draws=s.draws, thin=s.thin, mesh=mesh, length=length,
            budget=budget, progress=progress,
        )  # fmt: skip
        self.drawing = Drawing(
            settings=settings, target=target, key=self.draw_key, store=store, budget=budget, progress=progress,
            team=team,
        )  # fmt: skip
        self.reporter = Reporter(
            settings=settings, target=target, key=self.evidence_key, budget=budget, progress=progress,
            interruption=interruption, store=store,
        )  # fmt: skip

    def execute(
        self, transport: AbstractTransport | None, options: dict[str, Any], starts: Any, plan: Setup | None = None
    ) -> Result:
        """All phases; Ctrl-C while drawing returns what was drawn."""
        team, check = self.team, self.interruption.check
        found: Ready | Result | Setup
        if team.is_first:
            with telling_errors(team, sharing.READY):
                found = self._ready(transport, options, starts, self.store.load_setup() or plan)
                self._tell(found)
        else:
            found = sharing.hear_ready(team, self.store, self.settings.chains, check)
            if isinstance(found, Setup):
                found = self._ready(transport, options, starts, found)
        if isinstance(found, Result):
            return found
        with telling_errors(team, sharing.DONE if team.is_first else sharing.DRAWN):
            kept, error = self.drawing.draw(found)
            is_fatal = team.size > 1 or isinstance(error, ConfigurationError)  # the others wait, or the disk is gone
            if error is not None and not isinstance(error, KeyboardInterrupt) and is_fatal:
                raise error
        with telling_errors(team, sharing.DONE):
            if team.size > 1:
                patient = sharing.patience(self.interruption.is_requested)
                kept = sharing.gather(team, self.store, kept, self.settings.chains, patient)
            elif kept.is_stored:
                kept.with_arrays(sharing.stored_parts(self.store, self.settings.chains, kept.done), kept.done)
            result = self._result(found, kept, error) if team.is_first else None
        if team.size == 1 and result is not None:
            return result
        return sharing.hand_out(team, self.store, result, sharing.patience(self.interruption.is_requested))

    def _tell(self, found: Ready | Result) -> None:
        """Tells the other processes what was found, if there are any."""
        if self.team.size == 1:
            return
        if isinstance(found, Result):
            sharing.tell_result(self.team, found)
        else:
            sharing.tell_ready(self.team, self.store, self.store.load_setup())

    def _ready(
        self, transport: AbstractTransport | None, options: dict[str, Any], starts: np.ndarray | None,
        setup: Setup | None,
    ) -> Ready | Result:  # fmt: skip
        """What is drawn from; or the result, where all can be summed."""
        is_planned = self.settings.exploration is not None or self.settings.sampler == "auto"
        is_planned = is_planned and not self.target.space.num_reals
        if setup is not None and self.team.is_first and self.store.load_setup() is None:  # the plan of an earlier run
            self.store.save_setup(setup)
        if setup is None and self.settings.may_enumerate:
            census = take_census(self.target, budget=self.budget, progress=self.progress)
            if census is not None:
                result = self.reporter.enumerated(census)
                self._check_precision(result.theta)
                return result
            drawn = self._eliminated()
            if drawn is not None:
                return self.reporter.eliminated(drawn)
        if setup is not None:
            transport = None if setup.transport is None else deserialise(*setup.transport, self.target.space)
        prepare = self._planned if is_planned else self._tuned
        ready = prepare(transport, options, starts, setup)
        if self.team.is_first:
            self.store.find_pieces(self.settings.chains)
        return ready

    def _result(self, ready: Ready, kept: Kept, error: BaseException | None) -> Result:
        """The result of what was drawn; an error that ended it early is raised with it."""
        result = self.reporter.result(ready, kept, is_complete=error is None)
        self.store.save_result(lambda path: save_record(result, path))
        if error is not None and not isinstance(error, KeyboardInterrupt):
            if kept.done:
                error.partial_result = result  # type: ignore[attr-defined]
                error.add_note(f"  ({result.num_draws} draws per chain were kept: see error.partial_result)")
            raise error.with_traceback(None) from None
        return result

    def _eliminated(self) -> Drawn | None:
        """Exact draws where the function's terms tie few sites together, and the budget reaches."""
        s, budget, policy = self.settings, self.budget, self.budget.policy
        if s.chains * s.draws + policy.reading_evaluations > budget.total_left:
            return None
        self.progress.phase("reading log_prob")
        limit = min(policy.reading_seconds, policy.census_share * (budget.seconds or np.inf))
        drawn = eliminated(self.draw_key, self.target, s.chains, s.draws, max_seconds=limit)
        budget.spend_evaluations("exploration", policy.reading_evaluations if drawn is None else s.chains * s.draws)
        return drawn

    # ---- with a plan

    def _planned(self, transport: Any, options: dict, starts: np.ndarray | None, setup: Setup | None) -> Ready:
        """Explore, learn, try; burn in; start chains elsewhere."""
        s = self.settings
        fixed = None if s.sampler == "auto" else (s.sampler, options)
        if setup is not None:
            transport = placed(self.mesh, transport)
            plan = restored_plan(self.target, transport, setup.header["plan"], setup.plan, setup.history, fixed)
            chains = plan.chains(self.target, self.mesh, self.context.length)
            states, header = restored_states(chains, s.chains, setup), setup.header
            thin = int(header["thin"])
        else:
            request = Request(
                key=self.plan_key, transport=transport, training=s.training, exploration=s.exploration, fixed=fixed,
                may_give_up=not s.is_transport_asked, starts=starts,
            )  # fmt: skip
            plan = make_plan(self.context, request)
            if plan.explored is not None:
                self._check_precision(plan.explored.theta)
            keys = Keys(init=self.init_key, step=self.warm_key, look=self.plan_key)
            check = self.interruption.check
            plan, states, step_seconds = settle(
                keys, self.context, request, plan, warmup=s.warmup, seed=s.seed, check=check
            )
            chains = plan.chains(self.target, self.mesh, self.context.length)
            thin = thin_in_time(self.context, plan, step_seconds)
            header = {
                "plan": plan_header(plan), "seconds": self.progress.seconds, "thin": thin, "identity": s.identity,
            }  # fmt: skip
            stored = None if plan.transport is None else serialise(plan.transport)
            setup = Setup(
                header=header,
                parameters={},
                history=plan.history,
                transport=stored,
                states=state_leaves(states),
                plan=plan_arrays(plan),
            )
            self.store.save_setup(setup)
        return Ready(
            chains=chains, states=states, thin=thin, header=header, plan=plan, history=plan.history,
            transport=plan.transport, setup=setup,
        )  # fmt: skip

    # ---- without a plan

    def _tuned(self, transport: Any, options: dict, starts: Any, setup: Setup | None) -> Ready:
        """Fit the transport if there is one, then tune the sampler; on mixed spaces the default chooses after that."""
        assert self.spec is not None
        s, space = self.settings, self.target.space
        is_default = space.num_reals and s.sampler == "auto"  # it learns a transport itself, where that may pay
        fitted, explored = None, None
        if transport is not None and setup is None and not is_default:
            if space.num_reals:
                transport, fitted, explored = self._learned(transport)
            else:
                ahead = iter(()) if may_hang(self.target) else self._compiled_ahead(transport, options)
                with compile_in_background(ahead):
                    transport, fitted = self._train(transport)
        transport = placed(self.mesh, transport)
        through = None if is_default else transport
        chains = Chains(
            mesh=self.mesh, spec=self.spec, problem=Problem(self.target, through, options, s.keep),
            length=self.context.length, keep_latent=s.keep_latent, is_one_program=bool(space.num_reals),
        )  # fmt: skip
        weighed = weighed_target(chains) if is_default and transport is not None else self.target
        if setup is not None:
            header, history = setup.header, setup.history
            if setup.plan:
                explored = Explored(**setup.plan)
            if explored is not None and is_default:
                chains = restored_chains(header["plan"]["sampler"], chains, explored, transport, weighed)
            chains = chains._replace(parameters=restored_parameters(chains, setup.parameters))
            states = restored_states(chains, s.chains, setup)
        else:
            explores = space.num_reals and s.exploration is not None and transport is None
            is_ahead = explores and not may_hang(self.target)
            with compile_in_background(self._ladders_ahead(chains) if is_ahead else iter(())):
                states, chains = self._warm_up(chains, starts)
            rows: tuple[Tried, ...] = ()
            thin = s.thin or 1
            if explores:
                found = self._chosen(chains, states)
                states, chains, explored, transport = found.states, found.chains, found.explored, found.transport
                fitted, rows, thin = found.fitted, found.rows, s.thin or found.thin
                weighed = found.weighed or weighed
            if not space.num_reals:
                self._check_precision(np.asarray(states.position)[:, None])
            history, trained = ({}, None) if fitted is None else (fitted.history, describe_fit(fitted))
            header = {"training": trained, "seconds": self.progress.seconds, "thin": thin}
            if space.num_reals:
                plan = {"sampler": chains.spec.name, "trial": [row.describe() for row in rows]}
                header |= {"identity": s.identity, "plan": plan}
            if self.store.is_lasting or transport is None or is_storable(transport):
                setup = Setup(
                    header=header,
                    parameters=by_name(chains.parameters),
                    history=history,
                    transport=None if transport is None else serialise(transport, space),
                    states=state_leaves(states),
                    plan={} if explored is None else explored._asdict(),
                )
                self.store.save_setup(setup)
        evidence = None if transport is None else self._weigh(transport, weighed)
        return Ready(
            chains=chains, states=states, thin=int(header["thin"]), header=header, evidence=evidence, history=history,
            transport=transport, weighed=weighed, explored=explored,
            setup=setup if is_default else None,
        )  # fmt: skip

    def _ladders_ahead(self, chains: Chains) -> Iterator[Any]:
        """Compiles what explores a mixed target."""
        yield from ladders_ahead(chains, self.settings.chains)
        if self.target.has_real_gradient:
            yield from mixed_hunt.compile_ahead(self.target, weighed_target(chains), self.context.policy)

    def _chosen(self, chains: Chains, states: Any) -> Chosen:
        """What the default draws with on a mixed space."""
        s, keys = self.settings, mixed_default.Keys(self.trial_key, self.plan_key, self.train_key)
        return mixed_default.chosen(
            keys, self.context, chains, states, num_steps=s.warmup + s.draws, training=s.training,
            should_stop=self._is_trained,
        )  # fmt: skip

    def _learned(self, transport: Any) -> tuple[Any, Fitted | None, Explored | None]:
        """Explores a mixed target by ladders, if that is asked for, and trains the transport on their draws."""
        s, explored = self.settings, None
        if s.exploration is not None:
            is_over = lambda: self.budget.is_half_gone
            explored = explore_ahead(self.plan_key, self.context, s.exploration, s.keep, is_over)
        if explored is None or s.training is False:
            return *self._train(transport), explored
        given = dict(s.training) if isinstance(s.training, Mapping) else {}
        fitted = learn(self.train_key, transport, self.context, explored, settings=given, should_stop=self._is_trained)
        return fitted.transport, fitted, explored

    def _is_trained(self, checks: Any, step: int) -> str | None:
        return "budget" if self.budget.is_spent("training") else None

    def _compiled_ahead(self, transport: AbstractTransport, options: dict) -> Iterator[None]:
        """Runs what follows the training once, for no draws, with the transport as it is now: it is compiled then."""
        s = self.settings
        if self.spec is None or s.training is False:
            return
        problem = Problem(self.target, placed(self.mesh, transport), options, s.keep)
        chains = Chains(
            mesh=self.mesh, spec=self.spec, problem=problem, length=self.context.length, keep_latent=s.keep_latent
        )
        tuning = None if self.spec.tuning is None else self.spec.tuning(self.target, **options)
        first = chains if tuning is None else chains._replace(parameters=tuning.parameters(tuning.init()))
        frozen = chains if tuning is None else chains._replace(parameters=tuning.final(tuning.init()))
        states = first.start(self.init_key, np.zeros((s.chains, self.target.space.num_dims), np.int32))
        yield
        frozen.draw(self.draw_key, states, 0, 0, 1)
        yield
        sample_transport(self.evidence_key, problem.transport, self.target, self.budget.policy.own_draws)
        yield
        sample_transport(self.push_key, problem.transport, self.target, self.budget.policy.pushed_a_chain * s.chains)

    def _train(self, transport: AbstractTransport) -> tuple[AbstractTransport, Fitted | None]:
        training = self.settings.training
        if training is False:
            return transport, None
        asked = dict(training) if isinstance(training, Mapping) else {}
        self.progress.phase("training", asked.get("num_steps", NUM_STEPS), "steps")
        fitted = fit(
            self.train_key, transport, self.target, progress=self.progress, should_stop=self._is_trained, **asked,
        )  # fmt: skip
        return fitted.transport, fitted

    def _weigh(self, transport: AbstractTransport, weighed: Target) -> LogZ:
        self.progress.phase("weighing the transport")
        weights = sample_transport(self.evidence_key, transport, weighed, self.budget.policy.own_draws).log_weights
        return importance_summary(np.asarray(weights))

    def _starts(self, transport: AbstractTransport | None) -> Any:
        """Anywhere; half of them draws of the transport, where there is one."""
        chains = self.settings.chains
        uniform = self.target.possible_starts(self.start_key, chains)
        if transport is None:
            return uniform if self.target.space.num_reals else np.array(uniform)
        pushed = sample_transport(self.push_key, transport, self.target, self.budget.policy.pushed_a_chain * chains)
        possible = np.flatnonzero(np.isfinite(np.asarray(pushed.log_prob)))
        half = min((chains + 1) // 2, len(possible))

        def replaced(first: Any, rows: Any) -> np.ndarray:
            return np.concatenate([np.asarray(rows)[possible[:half]], np.asarray(first)[half:]])

        return jax.tree.map(replaced, uniform, pushed.theta)

    def _warm_up(self, chains: Chains, starts: Any) -> tuple[Any, Chains]:
        """The states after warm-up, and the chains with what was tuned in it."""
        total, spec, problem = self.settings.warmup, chains.spec, chains.problem
        self.progress.phase("warm-up", total, "steps")
        theta = self._starts(problem.transport) if starts is None else starts
        tuning = None if spec.tuning is None else spec.tuning(self.target, **problem.options)
        parameters = {} if tuning is None else tuning.parameters(tuning.init())
        states = chains._replace(parameters=parameters).start(self.init_key, theta)
        found = {} if tuning is None else tuning.final(tuning.init())
        for chunk in tune(chains, tuning, self.warm_key, states, total):
            states, found, acceptance = chunk.out
            self.progress.update(chunk.first + chunk.size, acceptance=acceptance)
        return states, chains._replace(parameters=found)

    def _check_precision(self, theta: np.ndarray) -> None:
        """Starts again in float64, if that is allowed, where float32 cannot resolve log pi at these draws."""
        if self.settings.may_restart and rounding(self.target, theta.reshape(-1, theta.shape[-1])) > MAX_ROUNDING:
            raise PrecisionLoss
