"""`sample`: one call from a log-probability to exact, diagnosed draws.

Everything the user gives is checked here, before anything long starts; `execution` then goes through the phases.
"""

import contextlib
import os
import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo import arguments, devices, running, samplers
from terrazzo.checkpoints import Checkpoint
from terrazzo.compilation import enable_compilation_cache, jit
from terrazzo.errors import ConfigurationError, OptionError, SpaceError, TransportError
from terrazzo.execution import TRAINING, Run, Settings
from terrazzo.identity import options_shown, shown, target_identity
from terrazzo.interruption import Interruption
from terrazzo.precision import MAX_ROUNDING, PrecisionLoss, doubled, rounding
from terrazzo.progress import Progress
from terrazzo.results import Result
from terrazzo.samplers.base import SamplerSpec
from terrazzo.setups import Setup
from terrazzo.targets import Target, as_target, non_finite_error, probe_points
from terrazzo.transports import REGISTRY as TRANSPORTS
from terrazzo.transports import AbstractTransport, coupling_order
from terrazzo.warmup import SAFE_FLAG, Budget, may_hang

PLANNED = ("auto", "hybrid")  # samplers whose warm-up explores by tempering
WARMUP, PLANNED_WARMUP = 500, 100
LARGEST_LEARNED = {"cpu": 128, "accelerator": 256}  # coordinates up to which a transport is learned by default
LEAST_SECONDS = 90.0  # of a whole run, below which there is no time to compile and train a transport
EXPLORATION = ("num_ladders", "max_rounds")
SOFT_STARTS = 16  # whose median log pi is what impossible configurations count as, before their penalty
PRECISIONS = ("auto", "float32", "float64")
NO_LIMIT = "leave it out for no limit"
PEAK = 1.5  # memory of a run, in the size of its draws
BYTES_OF_FIGURES = 24  # of a draw: its log-probability, acceptance and evaluations


def sample(
    log_prob: Any,
    space: Any = None,
    *,
    seed: int,
    chains: int = 8,
    draws: int = 1000,
    warmup: int | None = None,
    thin: int | None = None,
    sampler: str = "auto",
    sampler_options: Mapping[str, Any] | None = None,
    transport: Any = None,
    transport_options: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | bool | None = None,
    exploration: Mapping[str, Any] | bool | None = None,
    init: Any = None,
    max_seconds: Any = None,
    max_evaluations: Any = None,
    vectorized: bool = False,
    precision: str | None = "auto",
    keep_latent: bool = False,
    chunk_size: int | None = None,
    checkpoint: Any = None,
    plan: Any = None,
    progress: Any = "auto",
) -> Result:
    """Draws from an unnormalised log-probability over integers.

    Small spaces are enumerated, and draws are then exact. Elsewhere it explores by parallel tempering, learns an
    autoregressive transport from what it finds, tries which moves are worth their time, freezes the best, starts chains
    elsewhere, and draws; the result says what was chosen and why (`result.choice`), and its verdict compares the draws
    with everything that was found in other ways (`result.diagnose()`).

    Args:
        log_prob: Takes one configuration and returns a scalar; or a `tz.blackbox`; or a `tz.Target`.
        space: A `tz.Space`, or a single variable such as `tz.binary(20)` (left out for a `tz.Target`).
        seed: The same seed gives the same draws, for any chunk size and number of devices, and after a resume. (The
            default sampler's choice rests on timings: `plan` repeats it.)
        chains: Independent chains, dealt out over all visible devices.
        draws: Kept draws per chain.
        warmup: Steps per chain in which the sampler is tuned or burnt in; none of them is kept.
        thin: Steps per kept draw. By default 1, or, for the default sampler, what its trial says makes draws nearly
            independent, as far as `max_seconds` allows.
        sampler: "auto", or a name of `terrazzo.samplers.REGISTRY`.
        sampler_options: Keyword arguments of that sampler; an option given here is not tuned.
        transport: "autoregressive", "flow", "product", or a transport; False for none.
        transport_options: Keyword arguments of the transport's builder; `order="coupling"` lets the target's
            interactions order the coordinates of an autoregressive one.
        training: Options of `tz.fit` that differ from the defaults, or False to use the transport as it is.
        exploration: Whether to explore by tempering first, or its options (`num_ladders`, `max_rounds`). By default
            for the samplers "auto" and "hybrid". Chains then start half from the transport and half from what was
            found, and the verdict compares the two. Without it nothing independent is known, and the verdict is
            "unchecked" at best.
        init: Where chains, and the exploration, start: configurations in the user's values, with a leading chain axis.
        max_seconds: A bound on the wall time of everything together, compilation included as far as it can be foreseen:
            warm-up takes about 40 % of it, and learns a transport only from 90 seconds on.
        max_evaluations: Evaluations of the target for everything together.
        vectorized: Whether `log_prob` takes a batch with a leading axis.
        precision: "float32", "float64", or "auto": float64 where float32 cannot tell neighbouring configurations
            apart to 0.01 nats (a large |log pi|), and for black boxes.
        plan: What an earlier run decided (`result.plan`): the same seed then gives the same draws, bit for bit,
            whatever the timings on this machine are.
        keep_latent: Whether to keep the latent draws too (samplers that walk in the latent space).
        chunk_size: Kept draws per compiled call; by default about a second's worth.
        checkpoint: A folder: the run is stored there as it goes, and continued from there if it was interrupted.
        progress: "auto", "rich", "plain" or "off" (or True, False).

    Returns:
        A `Result`. Ctrl-C while sampling returns what was drawn, marked incomplete.

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> result = tz.sample(lambda t: jnp.sum(t * 0.5), tz.binary(3), seed=0, sampler="gibbs", draws=200, progress="off")
    >>> result.draws["theta"].shape
    (8, 200, 3)
    """
    spec = None if isinstance(sampler, str) and sampler == "auto" else samplers.get(sampler)
    is_planned = sampler in PLANNED
    warmup = (PLANNED_WARMUP if is_planned else WARMUP) if warmup is None else warmup
    _check_counts(chains=(chains, 1), draws=(draws, 1), warmup=(warmup, 0), thin=(thin, 1), chunk_size=(chunk_size, 1))
    keep_latent, vectorized = arguments.flag("keep_latent", keep_latent), arguments.flag("vectorized", vectorized)
    max_seconds = None if max_seconds is None else arguments.number("max_seconds", max_seconds, remedy=NO_LIMIT)
    if max_evaluations is not None:
        max_evaluations = arguments.number("max_evaluations", max_evaluations, remedy=NO_LIMIT)
    if checkpoint is not None and (not isinstance(checkpoint, str | os.PathLike) or not str(checkpoint)):
        raise OptionError("checkpoint", f"must be a folder, got {arguments.shown(checkpoint)}", "e.g. checkpoint='run'")
    seed = arguments.seed_number(seed)
    precision = "auto" if precision is None else precision
    if not isinstance(precision, str) or precision not in PRECISIONS:
        shown = arguments.shown(precision)
        raise OptionError("precision", f"must be one of {', '.join(PRECISIONS)}, got {shown}", "leave it out")
    options = _checked_mapping("sampler_options", sampler_options)
    if spec is None and options:
        raise OptionError("sampler_options", "need a sampler to belong to", "e.g. sampler='hybrid'")
    _check_training(training)
    explores = _checked_exploration(exploration, is_planned)
    if explores is not None and isinstance(training, Mapping) and "objective" in training:
        raise OptionError("training['objective']", "is set by the exploration's draws", "or say exploration=False")
    if keep_latent and not sampler.startswith("latent"):
        raise OptionError("keep_latent", f"the sampler {sampler!r} has no latent state", "leave it out")
    if plan is not None and spec is not None and explores is None:
        raise OptionError("plan", f"belongs to runs that explore, and {sampler!r} does not", "the same seed repeats it")
    budget = Budget(seconds=max_seconds, evaluations=max_evaluations)
    interruption = Interruption()
    reporter = Progress(progress, on_update=interruption.check)
    enable_compilation_cache()
    given = _Given(
        sampler=sampler, spec=spec, options=options, transport=transport, transport_options=transport_options,
        init=init, training=training, plan=plan,
        checkpoint=checkpoint, explores=None if is_planned and exploration is None and budget.is_short else explores,
        settings={
            "seed": int(seed), "chains": chains, "draws": draws, "warmup": warmup, "thin": thin,
            "chunk_size": chunk_size, "keep_latent": keep_latent,
            "is_transport_asked": transport is not None or isinstance(training, Mapping),
            "may_enumerate": spec is None and exploration is None and training is None and not transport,
        },
    )  # fmt: skip
    in_precision = jax.enable_x64(precision == "float64") if precision != "auto" else contextlib.nullcontext()
    with in_precision, interruption, reporter:
        reporter.phase("probing")
        if budget.is_short:
            reporter.update(0, note="compiling takes some seconds, which max_seconds cannot bound")
        target = as_target(log_prob, space, vectorized=vectorized)
        if target.is_blackbox:
            target.log_prob_fn.is_stopped = interruption.is_requested
        tools = (reporter, budget, interruption)
        is_single = jnp.result_type(float) == jnp.float32
        if not is_single or precision == "float32":
            return _run(given, target, *tools, may_restart=False)
        if not target.is_blackbox and rounding(target, probe_points(target.space)) <= MAX_ROUNDING:
            try:
                return _run(given, target, *tools, may_restart=True)
            except PrecisionLoss:
                message = "float32 cannot resolve differences of log pi: the run starts again in float64"
                warnings.warn(message, RuntimeWarning, stacklevel=2)
        with jax.enable_x64(True):
            return _run(given, doubled(target), *tools, may_restart=False)


class _Given(NamedTuple):
    """What the user gave, checked as far as it can be without the target."""

    sampler: str
    spec: SamplerSpec | None
    options: dict[str, Any]
    transport: Any
    transport_options: Any
    init: Any
    training: Any
    explores: dict[str, Any] | None
    plan: Any
    checkpoint: Any
    settings: dict[str, Any]


def _run(
    given: _Given, target: Target, progress: Progress, budget: Budget, interruption: Interruption, *, may_restart: bool
) -> Result:
    """Checks what needs the target, and runs."""
    spec, options = given.spec, given.options
    if target.can_be_soft:
        theta = target.possible_starts(jax.random.key(0), SOFT_STARTS)
        target = target.softened(float(np.median(np.asarray(_log_probs(target, theta)))))
    size = _checked_size(target, given.settings["chains"], given.settings["draws"], given.settings["keep_latent"])
    progress.update(0, size=size)
    if spec is not None and spec.check is not None:
        spec.check(target)
    if spec is not None and "gradient" in spec.needs and may_hang(target):
        warnings.warn(
            f"sampler {spec.name!r} takes gradients of linear algebra, which can make XLA wait for ever on a CPU"
            f" with several cores\n  -> if the run stands still, start Python with XLA_FLAGS={SAFE_FLAG}",
            RuntimeWarning, stacklevel=3,
        )  # fmt: skip
    chosen = _choose_transport(spec, given.transport, given.transport_options, target, budget.seconds)
    if spec is not None:
        if spec.prepare is not None:
            options = spec.prepare(target, **options)
        _try_factory(spec, target, chosen, options)
    chains = given.settings["chains"]
    starts = None if given.init is None else _checked_starts(given.init, target, chains)
    identity = {
        **target_identity(target), "chains": chains, "sampler": given.sampler, "precision": str(jnp.result_type(float)),
    }  # fmt: skip
    plan = None if given.plan is None else _checked_plan(given.plan, identity)
    settings = Settings(
        sampler=given.sampler, training=given.training, exploration=given.explores, may_restart=may_restart,
        identity=identity, **given.settings,
    )  # fmt: skip
    fingerprint = _fingerprint(
        settings, target, starts, sampler_options=given.options, transport=given.transport,
        transport_options=given.transport_options,
    )  # fmt: skip
    with contextlib.nullcontext() if given.checkpoint is None else Checkpoint(given.checkpoint, fingerprint) as store:
        run = Run(settings, spec, target, devices.make_mesh(chains), progress, store, budget, interruption)
        return run.execute(chosen, options, starts, plan)


# ---- checks of what the user gave


def _check_counts(**counts: tuple[Any, int]) -> None:
    for name, (value, low) in counts.items():
        if value is None and name in ("thin", "chunk_size"):
            continue
        arguments.count(name, value, low=low)


def _checked_plan(plan: Any, identity: dict[str, Any]) -> Setup:
    """The plan of an earlier run, if it was made for the same target and as many chains."""
    arguments.instance("plan", plan, Setup, "pass the plan of an earlier result: plan=result.plan")
    made_for = plan.header.get("identity", {})
    for name, value in identity.items():
        if made_for.get(name) != value:
            shown = "another one" if "target" in name else f"{made_for.get(name)}, not {value}"
            raise ConfigurationError("plan", f"was made for {name} = {shown}", "leave it out: a new plan is made")
    return plan


def _checked_size(target: Target, chains: int, draws: int, keep_latent: bool) -> str:
    """How large the draws and their figures are, in words; a run that does not fit at its peak is refused."""
    space = target.space
    each = space.num_dims * (space.dtype.itemsize + (4 if keep_latent else 0)) + BYTES_OF_FIGURES
    states = chains * space.num_dims * 16  # the chains themselves
    arguments.memory(
        f"{chains} chains x {draws} draws of {space.num_dims} coordinates", PEAK * chains * draws * each + states,
        "ask for fewer chains or draws",
    )  # fmt: skip
    return arguments.format_bytes(float(chains * draws * each))


def _fingerprint(settings: Settings, target: Target, starts: np.ndarray | None, **given: Any) -> dict[str, Any]:
    """What must be the same for a run to continue another; not how many draws, how long, or in what chunks."""
    plain = {name: getattr(settings, name) for name in ("sampler", "seed", "chains", "warmup", "thin", "keep_latent")}
    options = given | {"training": settings.training, "exploration": settings.exploration}
    named = [options_shown(name, value) for name, value in options.items()]
    return {
        **target_identity(target), "space": shown(target.space), **plain, "init": shown(starts),
        **{name: value for entries in named for name, value in entries.items()},
        "precision": str(jnp.result_type(float)),
    }  # fmt: skip


def _checked_exploration(value: Any, is_planned: bool) -> dict[str, Any] | None:
    """Options of the exploration, or None for none."""
    if value is None or isinstance(value, bool):
        return {} if (is_planned if value is None else value) else None
    found = _checked_mapping("exploration", value)
    for name, count in found.items():
        if name not in EXPLORATION:
            raise OptionError(f"exploration[{name!r}]", "is not an option", f"one of {', '.join(EXPLORATION)}")
        arguments.count(f"exploration[{name!r}]", count, low=2 if name == "num_ladders" else 1)
    return found


def _checked_mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise OptionError(name, f"must be a dict of options, got {arguments.shown(value)}", "e.g. {'scale': 0.3}")
    return dict(value)


def _check_training(training: Any) -> None:
    if training is None or isinstance(training, bool):
        return
    known = {*TRAINING, "objective", "learning_rate", "clip_norm", "check_every", "num_groups"}
    for name in _checked_mapping("training", training):
        if name not in known:
            raise OptionError(f"training[{name!r}]", "is not an option of tz.fit", f"one of {', '.join(sorted(known))}")


def _default_transport(spec: SamplerSpec | None, target: Target, seconds: float | None) -> Any:
    """Autoregressive for the hybrid, unless too large to be learned here; the paper's flow for latent samplers."""
    if spec is not None and spec.name not in PLANNED:
        return "flow"
    limit = LARGEST_LEARNED["cpu" if jax.default_backend() == "cpu" else "accelerator"]
    is_learnable = target.space.num_dims <= limit and (seconds is None or seconds >= LEAST_SECONDS)
    return "autoregressive" if spec is not None or is_learnable else False


def _choose_transport(
    spec: SamplerSpec | None, transport: Any, options: Any, target: Target, seconds: float | None
) -> Any:
    options = _checked_mapping("transport_options", options)
    is_needed = spec is None or "transport" in spec.needs
    if transport is None and is_needed:
        transport = _default_transport(spec, target, seconds)
    if transport is None or transport is False:
        if spec is not None and is_needed:
            raise TransportError("transport", f"cannot be {transport!r} for {spec.name!r}", "e.g. 'autoregressive'")
        return None
    if isinstance(transport, str):
        if transport not in TRANSPORTS:
            raise OptionError("transport", f"{transport!r} is unknown", f"one of {', '.join(TRANSPORTS)}")
        if not is_needed:
            return None
        if isinstance(options.get("order"), str) and options["order"] == "coupling":
            options["order"] = coupling_order(target)
        try:
            return TRANSPORTS[transport].build(target.space, key=jax.random.key(0), **options)
        except TypeError as error:
            raise OptionError("transport_options", str(error).split("() ")[-1], "see the builder's arguments") from None
    if not isinstance(transport, AbstractTransport):
        raise TransportError(
            "transport", f"must be a name or a transport, got {arguments.shown(transport)}", "e.g. 'flow'"
        )
    if transport.space != target.space:
        raise TransportError("transport", "was built for another space", "build it for the target's space")
    return transport if is_needed else None


def _try_factory(spec: SamplerSpec, target: Target, transport: Any, options: dict[str, Any]) -> None:
    """Calls the factory once on the host, so that a wrong option is an error now and not inside compiled code."""
    try:
        running.build(spec, running.Problem(target, transport, options), {})
    except TypeError as error:
        text = str(error).split("() ")[-1]
        raise OptionError("sampler_options", f"{text} (sampler {spec.name!r})", "see the sampler's arguments") from None


@jit
def _log_probs(target: Target, theta: Array) -> Array:
    return jax.vmap(target.log_prob)(theta)


def encoded_starts(init: Any, target: Target) -> np.ndarray:
    """Starts in the user's values as flat integers; errors name `init`."""
    try:
        return target.space.encode(init)
    except SpaceError as error:
        raise SpaceError(f"init: {error.field}", error.problem, error.remedy) from None


def _checked_starts(init: Any, target: Target, chains: int) -> np.ndarray:
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
