"""`sample`: one call from a log-probability to exact, diagnosed draws.

Everything the user gives is checked here, before anything long starts; `execution` then goes through the phases.
"""

import contextlib
import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo import devices, running, samplers
from terrazzo.checkpoints import Checkpoint
from terrazzo.compilation import enable_compilation_cache, jit
from terrazzo.errors import OptionError, TransportError
from terrazzo.execution import TRAINING, Run, Settings
from terrazzo.identity import options_shown, shown, target_identity
from terrazzo.progress import Progress
from terrazzo.results import Result
from terrazzo.samplers.base import SamplerSpec
from terrazzo.targets import Target, as_target, non_finite_error
from terrazzo.transports import REGISTRY as TRANSPORTS
from terrazzo.transports import AbstractTransport, coupling_order
from terrazzo.warmup import SAFE_FLAG, Budget, may_hang

PLANNED = ("auto", "hybrid")  # samplers whose warm-up explores by tempering
WARMUP, PLANNED_WARMUP = 500, 100
LARGEST_LEARNED = {"cpu": 128, "accelerator": 256}  # coordinates up to which a transport is learned by default
LEAST_SECONDS = 90.0  # of a whole run, below which there is no time to compile and train a transport
EXPLORATION = ("num_ladders", "max_rounds")


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
    precision: str | None = None,
    keep_latent: bool = False,
    chunk_size: int | None = None,
    checkpoint: Any = None,
    progress: Any = "auto",
) -> Result:
    """Draws from an unnormalised log-probability over integers.

    With no options it explores by parallel tempering, learns an autoregressive transport from what it finds, tries
    which moves are worth their time, freezes the best, and draws; the result says what was chosen and why
    (`result.choice`), and its verdict compares the draws with the exploration (`result.diagnose()`).

    Args:
        log_prob: Takes one configuration and returns a scalar; or a `tz.blackbox`; or a `tz.Target`.
        space: A `tz.Space`, or a single variable such as `tz.binary(20)` (left out for a `tz.Target`).
        seed: The same seed gives the same draws, for any chunk size and number of devices, and after a resume. (The
            default sampler's choice rests on timings, which are measured once and kept in the cache directory.)
        chains: Independent chains, dealt out over all visible devices.
        draws: Kept draws per chain.
        warmup: Steps per chain in which the sampler is tuned or burnt in; none of them is kept.
        thin: Steps per kept draw. By default what fills `max_seconds`; else 1, or, for the default sampler, what its
            trial says makes draws nearly independent.
        sampler: "auto", or a name of `terrazzo.samplers.REGISTRY`.
        sampler_options: Keyword arguments of that sampler; an option given here is not tuned.
        transport: "autoregressive", "flow", "product", or a transport; False for none.
        transport_options: Keyword arguments of the transport's builder; `order="coupling"` lets the target's
            interactions order the coordinates of an autoregressive one.
        training: Options of `tz.fit` that differ from the defaults, or False to use the transport as it is.
        exploration: Whether to explore by tempering first, or its options (`num_ladders`, `max_rounds`). By default
            for the samplers "auto" and "hybrid". Chains then start half from the transport and half from what was
            found, and the verdict compares the two.
        init: Where chains start: configurations in the user's values, with a leading chain axis.
        max_seconds: Wall time for everything together, compilation included: warm-up takes about 40 % of it, and learns
            a transport only from 90 seconds on.
        max_evaluations: Evaluations of the target for everything together.
        vectorized: Whether `log_prob` takes a batch with a leading axis.
        precision: "float64" to compute everything in double precision.
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
    spec = None if sampler == "auto" else samplers.get(sampler)
    is_planned = sampler in PLANNED
    warmup = (PLANNED_WARMUP if is_planned else WARMUP) if warmup is None else warmup
    _check_counts(chains=(chains, 1), draws=(draws, 1), warmup=(warmup, 0), thin=(thin, 1), chunk_size=(chunk_size, 1))
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise OptionError("seed", f"must be a non-negative integer, got {seed!r}", "e.g. seed=0")
    if precision not in (None, "float32", "float64"):
        raise OptionError("precision", f"must be 'float32' or 'float64', got {precision!r}", "leave it out")
    options = _checked_mapping("sampler_options", sampler_options)
    if spec is None and options:
        raise OptionError("sampler_options", "need a sampler to belong to", "e.g. sampler='hybrid'")
    _check_training(training)
    explores = _checked_exploration(exploration, is_planned)
    if explores is not None and isinstance(training, Mapping) and "objective" in training:
        raise OptionError("training['objective']", "is set by the exploration's draws", "or say exploration=False")
    if spec is None and explores is None:
        raise OptionError("exploration", "cannot be False for the default sampler", "name a sampler, e.g. 'gibbs'")
    if keep_latent and not sampler.startswith("latent"):
        raise OptionError("keep_latent", f"the sampler {sampler!r} has no latent state", "leave it out")
    budget = Budget(seconds=max_seconds, evaluations=max_evaluations)
    reporter = Progress(progress)
    enable_compilation_cache()
    in_precision = contextlib.nullcontext() if precision is None else jax.enable_x64(precision == "float64")
    with in_precision, reporter:
        reporter.phase("probing")
        target = as_target(log_prob, space, vectorized=vectorized)
        if spec is not None and spec.check is not None:
            spec.check(target)
        if spec is not None and "gradient" in spec.needs and may_hang(target):
            warnings.warn(
                f"sampler {spec.name!r} takes gradients of linear algebra, which can make XLA wait for ever on a CPU"
                f" with several cores\n  -> if the run stands still, start Python with XLA_FLAGS={SAFE_FLAG}",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
        chosen = _choose_transport(spec, transport, transport_options, target, budget.seconds)
        if spec is not None:
            if spec.prepare is not None:
                options = spec.prepare(target, **options)
            _try_factory(spec, target, chosen, options)
        starts = None if init is None else _checked_starts(init, target, chains)
        mesh = devices.make_mesh(chains)
        settings = Settings(
            sampler, int(seed), chains, draws, warmup, thin, chunk_size, keep_latent, training, explores,
            is_transport_asked=transport is not None or isinstance(training, Mapping),
        )  # fmt: skip
        if checkpoint is None:
            return Run(settings, spec, target, mesh, reporter, None, budget).execute(chosen, options, starts)
        fingerprint = _fingerprint(
            settings, target, starts, sampler_options=sampler_options, transport=transport,
            transport_options=transport_options,
        )  # fmt: skip
        with Checkpoint(checkpoint, fingerprint) as store:
            return Run(settings, spec, target, mesh, reporter, store, budget).execute(chosen, options, starts)


# ---- checks of what the user gave


def _check_counts(**counts: tuple[Any, int]) -> None:
    for name, (value, low) in counts.items():
        if value is None and name in ("thin", "chunk_size"):
            continue
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
            raise OptionError(
                name, f"must be an integer of at least {low}, got {value!r}", "leave it out for a default"
            )


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
        _check_counts(**{name: (count, 2 if name == "num_ladders" else 1)})
    return found


def _checked_mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise OptionError(name, f"must be a dict of options, got {value!r}"[:120], "e.g. {'scale': 0.3}")
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
            "transport", f"must be a name or a transport, got {type(transport).__name__}", "e.g. 'flow'"
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


def _checked_starts(init: Any, target: Target, chains: int) -> np.ndarray:
    theta = target.space.encode(init)
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
