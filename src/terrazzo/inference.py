"""`sample`: one call from a log-probability to exact, diagnosed draws.

probe -> fit a transport -> warm up (tune over pooled chains, then freeze) -> run chains in chunks of about a second ->
`Result`. Between chunks: progress, Ctrl-C, checkpoints, and the check that no chain has met NaN or +inf.
"""

import contextlib
import platform
import time
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from terrazzo import devices, running, samplers
from terrazzo.checkpoints import Checkpoint, Setup, restore_states, state_leaves
from terrazzo.compilation import enable_compilation_cache
from terrazzo.diagnostics import LogZ, importance_summary
from terrazzo.diagnostics.streaming import RunningRhat
from terrazzo.errors import OptionError, TransportError
from terrazzo.progress import Progress
from terrazzo.results import Result
from terrazzo.samplers.base import SamplerSpec
from terrazzo.samplers.tempered_runs import ladder_evidence
from terrazzo.targets import Target, as_target, non_finite_error
from terrazzo.training import Fitted, fit, reverse_kl
from terrazzo.transports import REGISTRY as TRANSPORTS
from terrazzo.transports import AbstractTransport, deserialise, sample_transport, serialise

CHUNK_SECONDS = 1.0
EVIDENCE_DRAWS = 8192
TRAINING = {"num_steps": 3000, "batch_size": 128, "start_beta": 0.1, "anneal_steps": 600, "patience": 3}


def sample(
    log_prob: Any,
    space: Any = None,
    *,
    seed: int,
    chains: int = 8,
    draws: int = 1000,
    warmup: int = 500,
    thin: int = 1,
    sampler: str = "latent_elliptical_slice",
    sampler_options: Mapping[str, Any] | None = None,
    transport: Any = "flow",
    transport_options: Mapping[str, Any] | None = None,
    training: Mapping[str, Any] | bool | None = None,
    init: Any = None,
    vectorized: bool = False,
    precision: str | None = None,
    keep_latent: bool = False,
    chunk_size: int | None = None,
    checkpoint: Any = None,
    progress: Any = "auto",
) -> Result:
    """Draws from an unnormalised log-probability over integers.

    Args:
        log_prob: Takes one configuration and returns a scalar; or a `tz.blackbox`; or a `tz.Target`.
        space: A `tz.Space`, or a single variable such as `tz.binary(20)` (left out for a `tz.Target`).
        seed: The same seed gives the same draws, for any chunk size and number of devices, and after a resume.
        chains: Independent chains, dealt out over all visible devices.
        draws: Kept draws per chain.
        warmup: Steps per chain in which the sampler is tuned; none of them is kept.
        thin: Steps per kept draw.
        sampler: A name of `terrazzo.samplers.REGISTRY`.
        sampler_options: Keyword arguments of that sampler; an option given here is not tuned.
        transport: "flow", "product", or a transport (for samplers that need one).
        transport_options: Keyword arguments of the transport's builder.
        training: Options of `tz.fit` that differ from the defaults, or False to use the transport as it is.
        init: Where chains start: configurations in the user's values, with a leading chain axis. By default half of
            the chains start from the transport and half uniformly; all uniformly if there is no transport.
        vectorized: Whether `log_prob` takes a batch with a leading axis.
        precision: "float64" to compute everything in double precision.
        keep_latent: Whether to keep the latent draws too.
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
    counts = {"chains": (chains, 1), "draws": (draws, 1), "warmup": (warmup, 0), "thin": (thin, 1)}
    if chunk_size is not None:
        counts["chunk_size"] = (chunk_size, 1)
    for name, (value, low) in counts.items():
        if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < low:
            raise OptionError(
                name, f"must be an integer of at least {low}, got {value!r}", "leave it out for a default"
            )
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**63:
        raise OptionError("seed", f"must be a non-negative integer, got {seed!r}", "e.g. seed=0")
    if precision not in (None, "float32", "float64"):
        raise OptionError("precision", f"must be 'float32' or 'float64', got {precision!r}", "leave it out")
    spec = samplers.get(sampler)
    options = _checked_mapping("sampler_options", sampler_options)
    _check_training(training)
    reporter = Progress(progress)
    enable_compilation_cache()
    in_precision = contextlib.nullcontext() if precision is None else jax.enable_x64(precision == "float64")
    with in_precision, reporter:
        reporter.phase("probing")
        target = as_target(log_prob, space, vectorized=vectorized)
        if spec.check is not None:
            spec.check(target)
        chosen = _choose_transport(spec, transport, transport_options, target)
        if keep_latent and chosen is None:
            raise OptionError("keep_latent", f"the sampler {sampler!r} has no latent space", "leave it out")
        if spec.prepare is not None:
            options = spec.prepare(target, **options)
        _try_factory(spec, target, chosen, options)
        starts = None if init is None else _checked_starts(init, target, chains)
        mesh = devices.make_mesh(chains)
        fingerprint = {
            "seed": int(seed), "chains": chains, "warmup": warmup, "thin": thin, "sampler": sampler,
            "options": repr(sorted((k, repr(v)) for k, v in options.items())),
            "transport": repr(transport) if isinstance(transport, str) else type(transport).__name__,
            "training": repr(training), "space": repr(target.space), "x64": jnp.result_type(float) == jnp.float64,
            "keep_latent": keep_latent,
        }  # fmt: skip
        store = None if checkpoint is None else Checkpoint(checkpoint, fingerprint)
        run = _Run(spec, target, mesh, reporter, store, int(seed), chains, draws, warmup, thin, chunk_size, keep_latent)
        return run.execute(chosen, options, training, starts, sampler)


class _Run:
    """One run: its fixed settings, and the phases in order."""

    def __init__(
        self, spec: SamplerSpec, target: Target, mesh: Mesh, progress: Progress, store: Checkpoint | None,
        seed: int, chains: int, draws: int, warmup: int, thin: int, chunk_size: int | None, keep_latent: bool,
    ):  # fmt: skip
        self.spec, self.target, self.mesh, self.progress, self.store = spec, target, mesh, progress, store
        self.seed, self.chains, self.draws, self.warmup, self.thin = seed, chains, draws, warmup, thin
        self.chunk_size, self.keep_latent = chunk_size, keep_latent
        keys = jax.random.split(jax.random.key(seed), 8)
        self.train_key, self.build_key, self.start_key, self.init_key = keys[:4]
        self.warm_key, self.draw_key, self.evidence_key = keys[4:7]

    def execute(self, transport: Any, options: dict, training: Any, starts: Any, sampler: str) -> Result:
        setup = None if self.store is None else self.store.load_setup()
        if setup is not None and setup.transport is not None:
            transport = deserialise(*setup.transport, self.target.space)
        fitted, evidence = None, None
        if transport is not None:
            if setup is None:
                transport, fitted = self._train(transport, training)
            evidence = self._evidence(transport)
        problem = running.Problem(self.target, self._placed(transport), options)
        if setup is None:
            states, parameters = self._warm_up(problem, starts)
            history = {} if fitted is None else fitted.history
            header = {"training": None if fitted is None else _describe_fit(fitted), "seconds": self.progress.seconds}
            if self.store is not None:
                stored = None if transport is None else serialise(transport)
                host = {k: np.asarray(v) for k, v in parameters.items()}
                self.store.save_setup(Setup(header, host, history, stored, state_leaves(states)))
        else:
            parameters = {k: jnp.asarray(v) for k, v in setup.parameters.items()}
            like = jax.eval_shape(
                lambda t: running.start(self.mesh, self.spec, problem, parameters, self.init_key, t),
                jnp.zeros((self.chains, self.target.space.num_dims), jnp.int32),
            )
            states = restore_states(like, setup.states)
            history, header = setup.history, setup.header
        rows, states, error = self._draw(problem, parameters, states)
        is_complete = error is None
        result = self._result(problem, parameters, rows, evidence, history, header, is_complete, sampler)
        if error is not None and not isinstance(error, KeyboardInterrupt):
            if rows:
                error.partial_result = result  # type: ignore[attr-defined]
                error.add_note(f"  ({result.num_draws} draws per chain were kept: see error.partial_result)")
            raise error.with_traceback(None) from None
        return result

    # ---- phases

    def _train(self, transport: AbstractTransport, training: Any) -> tuple[AbstractTransport, Fitted | None]:
        if training is False:
            return transport, None
        asked = dict(training) if isinstance(training, Mapping) else {}
        settings = {"objective": reverse_kl("score_function"), **TRAINING, **asked}
        if "anneal_steps" not in asked:
            settings["anneal_steps"] = min(settings["anneal_steps"], settings["num_steps"] // 3)
        self.progress.phase("training", settings["num_steps"], "steps")
        fitted = fit(self.train_key, transport, self.target, progress=self.progress, **settings)
        return fitted.transport, fitted

    def _placed(self, transport: AbstractTransport | None) -> AbstractTransport | None:
        """The transport on every device of the chains' mesh: training may have left it on one."""
        arrays, static = eqx.partition(transport, eqx.is_array)
        return eqx.combine(devices.replicate(self.mesh, arrays), static)

    def _evidence(self, transport: AbstractTransport) -> LogZ:
        self.progress.phase("weighing the transport")
        weights = sample_transport(self.evidence_key, transport, self.target, EVIDENCE_DRAWS).log_weights
        return importance_summary(np.asarray(weights))

    def _starts(self, transport: AbstractTransport | None) -> np.ndarray:
        uniform = np.array(self.target.possible_starts(self.start_key, self.chains))
        if transport is None:
            return uniform
        pushed = sample_transport(self.start_key, transport, self.target, 16 * self.chains)
        possible = np.flatnonzero(np.isfinite(np.asarray(pushed.log_prob)))
        half = min((self.chains + 1) // 2, len(possible))
        uniform[:half] = np.asarray(pushed.theta)[possible[:half]]
        return uniform

    def _warm_up(self, problem: running.Problem, starts: np.ndarray | None) -> tuple[Any, dict[str, Any]]:
        self.progress.phase("warm-up", self.warmup, "steps")
        theta = self._starts(problem.transport) if starts is None else starts
        spec = self.spec
        tuning = None if spec.tuning is None else spec.tuning(self.target, **problem.options)
        tuning_state = None if tuning is None else devices.replicate(self.mesh, tuning.init())
        parameters = {} if tuning is None else tuning.parameters(tuning_state)
        theta = devices.deal(self.mesh, jnp.asarray(theta, jnp.int32))
        states = running.start(self.mesh, spec, problem, parameters, self.init_key, theta)
        done, chunk = 0, 1
        while done < self.warmup:
            count = min(chunk, self.warmup - done)
            tick = time.perf_counter()
            states, tuning_state, rate = running.warm_up(
                self.mesh, spec, problem, self.warm_key, _int(done), _int(count), states, tuning_state
            )
            acceptance = float(rate)
            chunk = _next_chunk(count, time.perf_counter() - tick, is_first=done == 0)
            done += count
            self._check_states(states)
            self.progress.update(done, acceptance=acceptance)
        return states, {} if tuning is None else tuning.final(tuning_state)

    def _draw(
        self, problem: running.Problem, parameters: dict, states: Any
    ) -> tuple[list[dict], Any, BaseException | None]:
        """All kept draws, as chunks; an error or Ctrl-C ends them early and is handed back."""
        rows: list[dict[str, np.ndarray]] = []
        if self.store is not None:
            rows, leaves = self.store.load_draws()
            if leaves is not None:
                states = restore_states(states, leaves)
        states = devices.deal(self.mesh, states)
        done = sum(r["log_prob"].shape[0] for r in rows)
        self.progress.phase("sampling", self.draws, "draws")
        monitor = RunningRhat()
        for row in rows:
            monitor.update(np.moveaxis(row["theta"], 0, 1))
        space = self.target.space
        length = running.buffer_length(self.chains, space.num_dims, space.dtype.itemsize, self.draws, self.keep_latent)
        chunk, is_first = 1, True
        try:
            while done < self.draws:
                count = min(self.chunk_size or chunk, length, self.draws - done)
                tick = time.perf_counter()
                states, out = running.draw(
                    self.mesh, self.spec, problem, length, self.keep_latent, parameters, self.draw_key,
                    _int(done), _int(count), _int(self.thin), states,
                )  # fmt: skip
                self._check_states(states)
                host = {name: np.asarray(x[:count]) for name, x in out.items()}
                chunk = _next_chunk(count, time.perf_counter() - tick, is_first=is_first)
                is_first = False
                if self.store is not None:
                    self.store.save_draws(host, state_leaves(states))
                rows.append(host)
                done += count
                monitor.update(np.moveaxis(host["theta"], 0, 1))
                self.progress.update(
                    done, acceptance=float(host["acceptance_rate"].mean()), worst_r_hat=monitor.worst()
                )
        except (Exception, KeyboardInterrupt) as error:
            return rows, states, error
        return rows, states, None

    def _check_states(self, states: Any) -> None:
        log_prob = np.asarray(states.log_prob)
        bad = np.isnan(log_prob) | (log_prob == np.inf)
        if bad.any():
            raise non_finite_error(self.target, np.asarray(states.position)[bad.argmax()])

    def _result(
        self, problem: running.Problem, parameters: dict, rows: list[dict], evidence: LogZ | None,
        history: dict, header: dict, is_complete: bool, sampler: str,
    ) -> Result:  # fmt: skip
        space = self.target.space
        if rows:
            joined = {k: np.moveaxis(np.concatenate([r[k] for r in rows])[: self.draws], 0, 1) for k in rows[0]}
        else:
            empty = {"theta": np.zeros((self.chains, 0, space.num_dims), space.dtype)}
            joined = empty | {"log_prob": np.zeros((self.chains, 0))}
        replicas = joined.pop("replica_log_probs", None)
        if replicas is not None and replicas.shape[1]:
            ladder = problem.options.get("inverse_temperatures")
            ladder = np.asarray(parameters.get("inverse_temperatures") if ladder is None else ladder)
            evidence = ladder_evidence(self.evidence_key, self.target, replicas, ladder)
        seconds = {**header.get("seconds", {}), **self.progress.seconds}
        provenance = {
            "sampler": sampler, "options": {k: repr(v)[:200] for k, v in problem.options.items()},
            "tuned": {k: np.asarray(v).tolist() for k, v in parameters.items() if np.size(v) <= 1000},
            "seed": self.seed, "chains": self.chains, "draws": self.draws, "warmup": self.warmup, "thin": self.thin,
            "training": header.get("training"), "seconds": seconds, "versions": _versions(),
            "device": f"{len(jax.devices())} x {jax.devices()[0].device_kind}",
            "checkpoint_error": None if self.store is None or self.store.error is None else str(self.store.error),
        }  # fmt: skip
        return Result(
            space=space,
            theta=joined.pop("theta"),
            latent=joined.pop("latent", None),
            sample_stats=joined,
            evidence=evidence,
            transport=problem.transport,
            provenance=provenance,
            history=history or None,
            is_complete=is_complete,
        )


# ---- small parts


def _int(value: int) -> jax.Array:
    return jnp.asarray(value, jnp.int32)


def _next_chunk(count: int, seconds: float, *, is_first: bool) -> int:
    """How many draws take about a second; grows gently, and not from the first chunk, which compiled."""
    if is_first:
        return max(1, count)
    return int(np.clip(count * CHUNK_SECONDS / max(seconds, 1e-4), 1, 8 * count))


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


def _checked_mapping(name: str, value: Any) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(k, str) for k in value):
        raise OptionError(name, f"must be a dict of options, got {value!r}"[:120], "e.g. {'scale': 0.3}")
    return dict(value)


def _check_training(training: Any) -> None:
    if training is None or isinstance(training, bool):
        return
    known = {*TRAINING, "objective", "learning_rate", "clip_norm", "check_every"}
    for name in _checked_mapping("training", training):
        if name not in known:
            raise OptionError(f"training[{name!r}]", "is not an option of tz.fit", f"one of {', '.join(sorted(known))}")


def _choose_transport(spec: SamplerSpec, transport: Any, options: Any, target: Target) -> AbstractTransport | None:
    options = _checked_mapping("transport_options", options)
    if isinstance(transport, str):
        if transport not in TRANSPORTS:
            raise OptionError("transport", f"{transport!r} is unknown", f"one of {', '.join(TRANSPORTS)}")
        if "transport" not in spec.needs:
            return None
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
    return transport if "transport" in spec.needs else None


def _try_factory(spec: SamplerSpec, target: Target, transport: Any, options: dict[str, Any]) -> None:
    """Calls the factory once on the host, so that a wrong option is an error now and not inside compiled code."""
    try:
        running.build(spec, running.Problem(target, transport, options), {})
    except TypeError as error:
        text = str(error).split("() ")[-1]
        raise OptionError("sampler_options", f"{text} (sampler {spec.name!r})", "see the sampler's arguments") from None


def _checked_starts(init: Any, target: Target, chains: int) -> np.ndarray:
    theta = target.space.encode(init)
    if theta.ndim == 1:
        theta = np.tile(theta, (chains, 1))
    if theta.shape[0] != chains or theta.ndim != 2:
        raise OptionError("init", f"has leading shape {theta.shape[:-1]} for {chains} chains", "one start per chain")
    log_prob = np.asarray(eqx.filter_jit(jax.vmap(target.log_prob))(jnp.asarray(theta)))
    for row, value in zip(theta, log_prob, strict=True):
        if np.isnan(value) or value == np.inf:
            raise non_finite_error(target, row)
        if value == -np.inf:
            raise OptionError("init", "holds a configuration with log_prob = -inf", "start where pi is positive")
    return theta
