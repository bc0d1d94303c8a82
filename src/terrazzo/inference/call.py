"""`sample`: one call from a log-probability to exact, diagnosed draws.

Everything the user gives is checked here, before anything long starts; `run` then goes through the phases.
"""

import contextlib
import os
import warnings
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.auto import Budget, log_sum_of_seen, settle_evidence
from terrazzo.auto.options import Auto
from terrazzo.engine.kept import STORED_BYTES, bytes_a_draw
from terrazzo.errors import ConfigurationError, OptionError, SpaceError, TransportError, arguments
from terrazzo.errors.arguments import key_of_seed
from terrazzo.inference.continuation import Continuation
from terrazzo.inference.keeping import Keep, checked_keep
from terrazzo.inference.mixed import mixed_request, mixed_starts
from terrazzo.inference.reporting import ALL_SUMMED
from terrazzo.inference.requests import Request, as_request, check_sampler, choose_transport, fitted_to, try_factory
from terrazzo.inference.run import Run
from terrazzo.inference.settings import Settings
from terrazzo.inference.sharing import READY, check_size
from terrazzo.results.result import Result
from terrazzo.runtime import devices
from terrazzo.runtime.compilation import enable_compilation_cache, jit, loose_operations_on_host
from terrazzo.runtime.interruption import Interruption
from terrazzo.runtime.processes import Team, join_team, telling_errors
from terrazzo.runtime.progress import Progress
from terrazzo.samplers import REGISTRY
from terrazzo.spaces import Configuration
from terrazzo.storage.checkpoints import Checkpoint
from terrazzo.storage.memory import Memory
from terrazzo.storage.setups import Setup
from terrazzo.targets.identity import options_shown, shown, target_identity
from terrazzo.targets.precision import MAX_ROUNDING, PrecisionLoss, doubled, rounding
from terrazzo.targets.probing import non_finite_error, probe_points
from terrazzo.targets.target import Target, as_target
from terrazzo.targets.tracing import in_this_precision
from terrazzo.transports import AbstractTransport
from terrazzo.verdict.checks import EXACT, SUMMED, Verdict

TRAINED = "a trained one: tz.fit(...).transport, or result.transport"
WARMUP, PLANNED_WARMUP = 500, 100
SOFT_STARTS = 16  # whose median log pi is what impossible configurations count as, before their penalty
PRECISIONS = ("auto", "float32", "float64")
NO_LIMIT = "leave it out for no limit"
CHUNK_SIZE: int | None = None  # kept draws a compiled call; None adapts it to about a second
PEAK = 1.5  # memory of a run, in the size of its draws


def sample(
    log_prob: Any,
    space: Any = None,
    *,
    seed: int,
    chains: int = 8,
    draws: int = 1000,
    warmup: int | None = None,
    thin: int | None = None,
    sampler: Any = Auto(),  # noqa: B008 (it is frozen)
    init: Any = None,
    max_seconds: Any = None,
    max_evaluations: Any = None,
    precision: str | None = "auto",
    checkpoint: Any = None,
    plan: Any = None,
    progress: Any = "auto",
) -> Result:
    """Draws from an unnormalised log-probability over integers, categories, and real variables beside them.

    Small spaces are enumerated, and functions whose terms tie few sites together are summed site by site: draws are
    then independent and exact. Elsewhere it explores by parallel tempering, learns an autoregressive transport
    from what it finds, tries which moves are worth their time, freezes the best, starts chains elsewhere, and draws;
    the result says what was chosen and why (`result.choice`), and its verdict compares the draws with everything that
    was found in other ways (`result.diagnose()`).

    Args:
        log_prob: Takes one configuration and returns a scalar; or a `tz.blackbox`; or a `tz.Target`.
        space: A `tz.Space`, or a single variable such as `tz.binary(20)` (left out for a `tz.Target`).
        seed: The same seed gives the same draws, for any number of devices, and after a resume. (The default sampler's
            choice rests on timings: `plan` repeats it.)
        chains: Independent chains, distributed over all visible devices.
        draws: Kept draws per chain.
        warmup: Steps per chain in which the sampler is tuned or burnt in; none of them is kept.
        thin: Steps per kept draw. By default 1, or, for the default sampler, what its trial says makes draws nearly
            independent, as far as `max_seconds` allows.
        sampler: `tz.Auto()`, with options such as `tz.Auto(transport=False)`; or an entry of `tz.samplers`, with
            options such as `tz.samplers.gibbs(num_updates=4)`; or its name; or a kernel of your own: anything with
            `init(position, rng_key)` and `step(rng_key, state) -> (state, info)`.
        init: Where chains, and the exploration, start: configurations in the user's values, with a leading chain axis.
        max_seconds: A bound on the wall time of everything together, compilation included as far as it can be foreseen:
            warm-up takes about 40 % of it, and learns a transport only from 90 seconds on.
        max_evaluations: Evaluations of the target for everything together.
        precision: "float32", "float64", or "auto": float64 where float32 cannot tell neighbouring configurations
            apart to 0.01 nats (a large |log pi|), and for black boxes.
        checkpoint: A folder: the run is stored there as it goes, and continued from there if it was interrupted.
        plan: What an earlier run decided (`result.plan`): the same seed then gives the same draws, bit for bit,
            whatever the timings on this machine are.
        progress: "auto", "rich", "plain" or "off" (or True, False).

    Returns:
        A `Result`. Ctrl-C while sampling returns what was drawn, marked incomplete.

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> result = tz.sample(lambda t: jnp.sum(t * 0.5), tz.binary(3), seed=0, sampler="gibbs", draws=200, progress="off")
    >>> result["theta"].shape
    (8, 200, 3)
    """
    request = as_request(sampler)
    is_warmup_given = warmup is not None
    warmup = (PLANNED_WARMUP if request.is_planned else WARMUP) if warmup is None else warmup
    arguments.count("chains", chains)
    arguments.count("draws", draws)
    arguments.count("warmup", warmup, low=0)
    arguments.optional_count("thin", thin)
    max_seconds = None if max_seconds is None else arguments.number("max_seconds", max_seconds, remedy=NO_LIMIT)
    if max_evaluations is not None:
        max_evaluations = arguments.number("max_evaluations", max_evaluations, remedy=NO_LIMIT)
    if checkpoint is not None and (not isinstance(checkpoint, str | os.PathLike) or not str(checkpoint)):
        raise OptionError("checkpoint", f"must be a folder, got {arguments.shown(checkpoint)}", "e.g. checkpoint='run'")
    precision = arguments.choice("precision", "auto" if precision is None else precision, PRECISIONS)
    if plan is not None and request.exploration is None and request.spec is not None:
        raise OptionError("plan", f"is for runs that explore, not {request.name!r}", "the same seed repeats it")
    budget = Budget(seconds=max_seconds, evaluations=max_evaluations)
    interruption = Interruption()
    enable_compilation_cache()
    team = join_team()
    team.part(chains)
    reporter = Progress(progress if team.is_first else "off", on_update=interruption.check)
    if request.is_planned and not request.is_exploration_given and budget.is_short:
        request = replace(request, exploration=None)
    call = _Call(
        request=request, seed=arguments.seed_number(seed), chains=chains, draws=draws, warmup=warmup, thin=thin,
        is_warmup_given=is_warmup_given, init=init, checkpoint=checkpoint, plan=plan, progress=reporter, budget=budget,
        interruption=interruption, team=team, model=None,
    )  # fmt: skip
    in_precision = jax.enable_x64(precision == "float64") if precision != "auto" else contextlib.nullcontext()
    with in_precision, interruption, reporter, loose_operations_on_host(devices.chosen_devices()[0]):
        reporter.phase("probing")
        if budget.is_short:
            reporter.update(0, note="compiling takes some seconds, which max_seconds cannot bound")
        target = as_target(log_prob, space)
        call = replace(call, model=target.model)
        result = _in_precision(call, target.without_model(), precision)
        return result if target.model is None else result.changed(model=target.model)


@dataclass(frozen=True)
class _Call:
    """What the user gave, checked as far as it can be without the target, and what a run is shown and stopped by."""

    request: Request
    seed: int
    chains: int
    draws: int
    warmup: int
    thin: int | None
    is_warmup_given: bool
    init: Any
    checkpoint: Any
    plan: Any
    progress: Progress
    budget: Budget
    interruption: Interruption
    team: Team
    model: Any


def _in_precision(call: _Call, target: Target, precision: str) -> Result:
    """Runs in float32 where that resolves log pi, else in float64."""
    if target.is_blackbox:
        target.log_prob_fn.is_stopped = call.interruption.is_requested
    is_single = jnp.result_type(float) == jnp.float32
    if target.space.num_reals and is_single and precision == "auto":
        with jax.enable_x64(True):  # trajectories add up errors of many gradients
            return _run(call, in_this_precision(target), may_restart=False)
    if not is_single or precision == "float32":
        return _run(call, in_this_precision(target), may_restart=False)
    if not target.is_blackbox and rounding(target, probe_points(target.space)) <= MAX_ROUNDING:
        try:
            return _run(call, target, may_restart=True)
        except PrecisionLoss:
            message = "float32 cannot resolve differences of log pi: the run starts again in float64"
            warnings.warn(message, RuntimeWarning, stacklevel=3)
    with jax.enable_x64(True):
        return _run(call, doubled(target), may_restart=False)


def _run(call: _Call, target: Target, *, may_restart: bool) -> Result:
    """Checks what needs the target, and runs."""
    request, spec, options = call.request, call.request.spec, call.request.options
    if target.can_be_soft:
        theta = jnp.asarray(target.possible_starts(jax.random.key(0), SOFT_STARTS))
        target = target.softened(float(np.median(np.asarray(_log_probs(target, theta)))))
    call.team.next_round()
    keep = checked_keep(request.keep, target)
    call.progress.update(0, size=_checked_size(call, target, keep))
    if target.space.num_reals:
        request = mixed_request(request, target)
        call = replace(call, request=request, warmup=call.warmup if call.is_warmup_given else WARMUP)
        spec, options = request.spec, request.options
    if spec is not None:
        check_sampler(spec, target)
    if spec is not None and spec.program is not None:
        return run_program(call, target)
    transport = choose_transport(request, target, call.budget.seconds)
    if spec is not None:
        if spec.prepare is not None:
            options = spec.prepare(target, **options)
        try_factory(spec, target, transport, options)
    starts = None if call.init is None else _checked_starts(call.init, target, call.chains)
    identity = {
        **target_identity(target), "chains": call.chains, "sampler": request.name,
        "precision": str(jnp.result_type(float)),
    }  # fmt: skip
    plan = None if call.plan is None else _checked_plan(call.plan, identity)
    settings = Settings(
        sampler=request.name, seed=call.seed, chains=call.chains, draws=call.draws, warmup=call.warmup, thin=call.thin,
        chunk_size=CHUNK_SIZE, keep_latent=request.keep_latent, keep=keep, training=request.training,
        exploration=request.exploration,
        is_transport_asked=request.transport is not None or isinstance(request.training, dict),
        may_enumerate=_may_enumerate(request) and not target.space.num_reals, may_restart=may_restart,
        identity=identity, model=call.model,
    )  # fmt: skip
    mesh = devices.make_mesh(call.chains)
    tools = (call.progress, call.budget, call.interruption)

    def run_with(store: Any, settings: Settings, tools: tuple) -> Result:
        progress, budget, interruption = tools
        run = Run(settings, spec, target, mesh, progress, store, budget, interruption, call.team)
        with loose_operations_on_host(mesh.devices.flat[0]):
            return run.execute(transport, options, starts, plan)

    if call.checkpoint is not None:
        fingerprint, rank = _fingerprint(call, target, starts), call.team.rank
        with telling_errors(call.team, READY):
            store = Checkpoint(call.checkpoint, fingerprint, space=target.space, rank=rank)
        with store:
            return run_with(store, settings, tools)
    memory = Memory()
    result = run_with(memory, settings, tools)
    if call.team.size > 1:
        return result
    if memory.setup is None and memory.leaves is not None:  # a transport that cannot be stored: nothing to go on from
        return result
    is_double = bool(jax.config.read("jax_enable_x64"))
    return result.changed(continuation=Continuation(run_with, settings, memory, is_double))


def _may_enumerate(request: Request) -> bool:
    """Whether a census answers the call: nothing was said about how to sample."""
    return (
        request.spec is None and not request.is_exploration_given and request.training is None and not request.transport
    )


def run_program(call: _Call, target: Target) -> Result:
    """Runs a method that is not a Markov chain: its draws, weights and log Z as a `Result`."""
    request, spec = call.request, call.request.spec
    assert spec is not None
    assert spec.program is not None
    if call.init is not None or call.plan is not None or call.checkpoint is not None:
        given = next(name for name in ("init", "plan", "checkpoint") if getattr(call, name) is not None)
        raise OptionError(given, f"has no meaning for {spec.name!r}", "leave it out")
    options = dict(request.options)
    if "transport" in spec.own_options:
        trained = arguments.instance("transport", options.get("transport"), AbstractTransport, TRAINED, TransportError)
        options["transport"] = fitted_to(target, trained)
    call.progress.phase(spec.name)
    drawn = spec.program(key_of_seed(call.seed), target, call.chains, call.draws, **options)
    stats = {"log_prob": drawn.log_prob}
    if drawn.log_weights is not None:
        stats["log_weight"] = drawn.log_weights
    estimates = {} if drawn.evidence is None else {spec.name: drawn.evidence}
    least = log_sum_of_seen(drawn.theta, drawn.log_prob)
    evidence, log_z_verdict = settle_evidence(estimates, least=least, is_settled=False)
    if any(check.name in SUMMED for check in drawn.checks):
        evidence, log_z_verdict = drawn.evidence, Verdict(EXACT, ALL_SUMMED)
    return Result(
        space=target.space, theta=drawn.theta.astype(target.space.dtype), sample_stats=stats, evidence=evidence,
        evidence_estimates=estimates, log_z_verdict=log_z_verdict,
        provenance={
            "sampler": spec.name, "options": {k: repr(v)[:200] for k, v in request.options.items()}, "seed": call.seed,
            "chains": call.chains, "draws": call.draws, "seconds": call.progress.seconds, **drawn.notes,
        },
        extra_checks=drawn.checks,
    )  # fmt: skip


# ---- checks of what the user gave


def _checked_plan(plan: Any, identity: dict[str, Any]) -> Setup:
    """The plan of an earlier run, if it was made for the same target and as many chains."""
    arguments.instance("plan", plan, Setup, "pass the plan of an earlier result: plan=result.plan")
    made_for = plan.header.get("identity", {})
    for name, value in identity.items():
        if made_for.get(name) != value:
            shown = "another one" if "target" in name else f"{made_for.get(name)}, not {value}"
            raise ConfigurationError("plan", f"was made for {name} = {shown}", "leave it out: a new plan is made")
    return plan


def _checked_size(call: _Call, target: Target, keep: Keep | None) -> str:
    """How large the draws and their figures are, in words; a run that does not fit at its peak is refused.

    With a checkpoint the draws need not fit: beyond `STORED_BYTES` they stay on disk.
    """
    space, chains, draws = target.space, call.chains, call.draws
    each = bytes_a_draw(space, keep_latent=call.request.keep_latent) if keep is None else keep.num_bytes
    size = float(chains * draws * each)
    states = chains * space.num_dims * 16  # the chains themselves
    held = size if call.checkpoint is None else min(size, STORED_BYTES)
    arguments.memory(
        f"{chains} chains x {draws} draws of {space.num_dims} coordinates", PEAK * held + states,
        "ask for fewer chains or draws, or give checkpoint='folder': draws stay on disk there",
    )  # fmt: skip
    check_size(call.team, size, call.checkpoint, call.budget.evaluations)
    return arguments.format_bytes(size)


def _fingerprint(call: _Call, target: Target, starts: np.ndarray | Configuration | None) -> dict[str, Any]:
    """What must be the same for a run to continue another; not how many draws, how long, or in what chunks."""
    request = call.request
    plain = {name: getattr(call, name) for name in ("seed", "chains", "warmup", "thin")}
    given = {name: getattr(request, name) for name in ("options", "transport", "training", "exploration")}
    named = [options_shown(name, value) for name, value in given.items()]
    own = {} if request.spec is None or request.spec.name in REGISTRY else {"kernel": shown(request.spec.factory)}
    return {
        **target_identity(target), "space": shown(target.space), "sampler": request.name, **plain, **own,
        "keep_latent": request.keep_latent, "keep": shown(request.keep), "init": shown(starts),
        **{name: value for entries in named for name, value in entries.items()},
        "precision": str(jnp.result_type(float)),
    }  # fmt: skip


@jit
def _log_probs(target: Target, theta: Array) -> Array:
    return jax.vmap(target.log_prob)(theta)


def encoded_starts(init: Any, target: Target) -> np.ndarray:
    """Starts in the user's values as flat integers; errors name `init`."""
    try:
        return target.space.encode(init)
    except SpaceError as error:
        raise SpaceError(f"init: {error.field}", error.problem, error.remedy) from None


def _checked_starts(init: Any, target: Target, chains: int) -> np.ndarray | Configuration:
    if target.space.num_reals:
        return mixed_starts(init, target, chains)
    theta = encoded_starts(init, target)
    if theta.ndim == 1:
        theta = np.tile(theta, (chains, 1))
    if theta.shape[0] != chains or theta.ndim != 2:
        raise OptionError("init", f"has leading shape {theta.shape[:-1]} for {chains} chains", "one start per chain")
    log_prob = np.asarray(_log_probs(target, jnp.asarray(theta)))
    for row, value in zip(theta, log_prob, strict=True):
        if np.isnan(value) or value == np.inf:
            raise non_finite_error(target, row)
        if value == -np.inf:
            raise OptionError("init", "holds a configuration with log_prob = -inf", "start where pi is positive")
    return theta
