"""The training loop: scanned, compiled once, sharded over devices, and able to stop by itself.

Adam (or any optax transformation) with gradient clipping on an objective whose inverse temperature rises from
`start_beta` to 1. Every `check_every` steps the objective is evaluated at beta = 1 on held-out latent points; the best
transport seen there is the one returned. When it has stopped improving, the learning rate is cut, and after two cuts
training ends.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from terrazzo.errors import OptionError, TargetError, TrainingError, TransportError, arguments
from terrazzo.runtime import devices
from terrazzo.runtime.compilation import jit
from terrazzo.runtime.pacing import in_chunks
from terrazzo.targets.target import Target
from terrazzo.training import settings
from terrazzo.training.objectives import ForwardKL, LossInfo, ReverseKL, importance_ess, reverse_kl
from terrazzo.transports.base import AbstractTransport

MAX_CHUNK = 500
HELD_OUT = 1024
LEARNING_RATE_CUTS = (1.0, 0.3, 0.1)
HISTORY = ("loss", "is_ess", "gradient_norm", "beta")  # by step
TOLERANCE = 0.02  # nats of the held-out objective that count as an improvement


class Fitted(NamedTuple):
    """A trained transport and how it came about.

    Attributes:
        transport: The best transport by the held-out objective.
        history: Arrays by step: loss, is_ess, gradient_norm, beta; by check: check_step, held_out.
        num_steps: Steps taken.
        reason: Why training ended: "all steps", "converged", "good enough", "non-finite loss at step N", or what
            `should_stop` said.
        seconds: Wall time, compilation included.
    """

    transport: Any
    history: dict[str, np.ndarray]
    num_steps: int
    reason: str
    seconds: float

    @property
    def best_check(self) -> list[tuple[int, float]]:
        """The check of the transport that is returned, as a list of (step, held-out value); empty if there was none."""
        steps, values = self.history["check_step"], self.history["held_out"]
        if not len(values) or not np.isfinite(values).any():
            return []
        best = int(np.nanargmin(values))
        return [(int(steps[best]), float(values[best]))]


class _Carry(NamedTuple):
    params: Any
    opt_state: Any
    bad_step: Array  # the first step with a non-finite loss or gradient, or -1


class _Schedule(NamedTuple):
    rate: Any  # what updates are multiplied by before they are added to the weights
    start_beta: Any
    anneal_steps: Any


_ADAM = optax.scale_by_adam()  # one object: another one would compile the loop again


def _gather(x: Array) -> Array:
    return jax.lax.all_gather(x, devices.AXIS, tiled=True)


@jit
def _train_chunk(
    mesh: Mesh,
    objective: Any,
    optimizer: optax.GradientTransformation,
    num_groups: int,
    group_size: int,
    clip_norm: float,
    static: Any,
    target: Target,
    key: Array,
    schedule: _Schedule,
    start: Array,
    count: Array,
    carry: _Carry,
) -> tuple[_Carry, dict[str, Array]]:
    """`count` training steps from step `start`; nothing here depends on how steps are cut into chunks."""
    dtype = jnp.result_type(float)
    target_arrays, target_static = eqx.partition(target, eqx.is_array)

    def local(groups, target_arrays, key, schedule, start, count, carry):
        target = eqx.combine(target_arrays, target_static)

        def loss_fn(params, group_key, beta):
            return objective(eqx.combine(params, static), target, group_key, group_size, beta)

        def body(i, state):
            carry, history = state
            step = start + i
            fraction = step.astype(dtype) / jnp.maximum(schedule.anneal_steps, 1).astype(dtype)
            beta = jnp.minimum(schedule.start_beta + (1.0 - schedule.start_beta) * fraction, 1.0)
            step_key = jax.random.fold_in(key, step)
            grad_fn = jax.grad(loss_fn, has_aux=True)
            grads, info = _mean_gradient(step_key, grad_fn, num_groups, groups, carry.params, beta)
            loss, norm = jnp.mean(info.value), optax.global_norm(grads)
            with jax.numpy_dtype_promotion("standard"):  # optax mixes its int32 step count with floats
                shrink = jnp.minimum(1.0, clip_norm / jnp.maximum(norm, clip_norm))
                clipped = jax.tree.map(lambda g: g * shrink, grads)
                updates, opt_state = optimizer.update(clipped, carry.opt_state, carry.params)
            params = jax.tree.map(lambda p, u: p + schedule.rate * u, carry.params, updates)
            is_bad = ~(jnp.isfinite(loss) & jnp.isfinite(norm)) & (carry.bad_step < 0)
            carry = _Carry(params, opt_state, jnp.where(is_bad, step, carry.bad_step))
            row = {"loss": loss, "is_ess": importance_ess(info.log_weights), "gradient_norm": norm, "beta": beta}
            return carry, {name: history[name].at[i].set(row[name].astype(dtype)) for name in history}

        history = {name: jnp.zeros(MAX_CHUNK, dtype) for name in HISTORY}
        return jax.lax.fori_loop(0, count, body, (carry, history))

    spec = PartitionSpec()
    run = jax.shard_map(
        local,
        mesh=mesh,
        in_specs=(PartitionSpec(devices.AXIS), spec, spec, spec, spec, spec, spec),
        out_specs=spec,
        check_vma=False,
    )
    return run(jnp.arange(num_groups, dtype=jnp.int32), target_arrays, key, schedule, start, count, carry)


def _mean_gradient(
    key: Array, grad_fn: Callable, num_groups: int, groups: Array, params: Any, beta: Array
) -> tuple[Any, LossInfo]:
    """The gradient over all groups of draws, of which this device has some; and what is known of all draws."""
    if num_groups == 1:  # nothing to distribute: spares a copy of every gradient
        return grad_fn(params, jax.random.fold_in(key, groups[0]), beta)
    keys = jax.vmap(lambda g: jax.random.fold_in(key, g))(groups)
    grads, info = jax.vmap(grad_fn, in_axes=(None, 0, None))(params, keys, beta)
    # Gathered first, then averaged in one fixed order: the same on any number of devices.
    grads = jax.tree.map(lambda g: jnp.mean(_gather(g), axis=0), grads)
    return grads, LossInfo(_gather(info.value), _gather(info.log_weights))


@jit
def _held_out(objective: Any, params: Any, static: Any, target: Target, key: Array) -> tuple[Array, Array]:
    _, info = objective(eqx.combine(params, static), target, key, HELD_OUT, jnp.ones(()))
    return info.value, importance_ess(info.log_weights)


class _HeldOut:
    """Held-out checks: the best weights so far, when to cut the learning rate, and when to end."""

    def __init__(self, params: Any, patience: int | None, enough_is_ess: float | None):
        self.checks: list[tuple[int, float]] = []
        self.value, self.params, self.cut, self.stale = np.inf, params, 0, 0
        self.patience, self.enough_is_ess = patience, enough_is_ess

    def add(self, step: int, value: Any, is_ess: Any, params: Any) -> str | None:
        """Takes down a check, and says why training ends if it does; None for the weights: too early to judge."""
        value = float(value)
        self.checks.append((step, value))
        if params is None:
            return None
        self.stale = 0 if step == 0 or value < self.value - TOLERANCE else self.stale + 1
        if value < self.value:
            self.value, self.params = value, params
        if step > 0 and self.enough_is_ess is not None and value == self.value and is_ess >= self.enough_is_ess:
            return "good enough"
        if self.patience is not None and self.stale >= self.patience:
            self.cut, self.stale = self.cut + 1, 0
        return "converged" if self.cut == len(LEARNING_RATE_CUTS) else None


class _Trainer:
    """One training: its compiled loop, its weights, and what it has seen so far."""

    def __init__(
        self, key: Array, transport: AbstractTransport, target: Target, *, objective: Any, checked: Any, rate: float,
        optimizer: optax.GradientTransformation, num_groups: int, batch_size: int, clip_norm: float, start_beta: float,
        anneal_steps: int, check_every: int, patience: int | None, enough_is_ess: float | None,
    ):  # fmt: skip
        self.target, self.objective, self.checked, self.optimizer = target, objective, checked, optimizer
        self.rate, self.clip_norm, self.start_beta = rate, clip_norm, start_beta
        self.anneal_steps, self.check_every = anneal_steps, check_every
        self.num_groups, self.group_size = num_groups, -(-batch_size // num_groups)
        self.mesh = devices.make_mesh(num_groups)
        params, self.static = eqx.partition(transport, eqx.is_inexact_array)
        first = _Carry(params, optimizer.init(params), jnp.asarray(-1, jnp.int32))
        self.carry = devices.replicate(self.mesh, first)
        self.train_key, self.check_key = jax.random.split(key)
        self.history: dict[str, list[np.ndarray]] = {name: [] for name in HISTORY}
        self.held_out = _HeldOut(params, patience, enough_is_ess)
        self.step = 0

    def train(self, num_steps: int, ask: Callable, progress: Any) -> str:
        """Steps until one of the reasons to stop holds."""
        to_check = lambda: self.check_every - self.step % self.check_every
        for chunk in in_chunks(self._advance, num_steps, longest=MAX_CHUNK, affordable=to_check):
            if chunk.out is not None:
                return f"non-finite loss at step {chunk.out}"
            if progress is not None:
                progress.update(self.step, **{name: float(self.history[name][-1][-1]) for name in ("loss", "is_ess")})
            told_to = ask(self.held_out.checks, self.step)
            if self.step % self.check_every == 0 or self.step == num_steps or told_to is not None:
                is_early = self.step < self.anneal_steps and told_to is None
                why = self.held_out.add(self.step, *self._check(), None if is_early else self.carry.params) or told_to
                if why is not None:
                    return why
        return "all steps"

    def check_first(self, ask: Callable) -> str | None:
        """A held-out check before the first step, and what is said to it."""
        self.held_out.add(0, *self._check(), self.carry.params)
        return ask(self.held_out.checks, 0)

    def _advance(self, first: int, count: int) -> int | None:
        """`count` steps; the number of the first bad one, whose weights are not taken."""
        schedule = _Schedule(
            jnp.asarray(self.rate * LEARNING_RATE_CUTS[self.held_out.cut], jnp.result_type(float)),
            jnp.asarray(self.start_beta, jnp.result_type(float)),
            jnp.asarray(self.anneal_steps, jnp.int32),
        )
        carry, rows = _train_chunk(
            self.mesh, self.objective, self.optimizer, self.num_groups, self.group_size, self.clip_norm, self.static,
            self.target, self.train_key, schedule, jnp.asarray(first, jnp.int32), jnp.asarray(count, jnp.int32),
            self.carry,
        )  # fmt: skip
        for name in self.history:
            self.history[name].append(np.asarray(rows[name])[:count])
        self.step += count
        bad_step = int(carry.bad_step)
        if bad_step >= 0:
            return bad_step
        self.carry = carry
        return None

    def _check(self) -> tuple[Array, Array]:
        return _held_out(self.checked, self.carry.params, self.static, self.target, self.check_key)

    def fitted(self, reason: str, began: float) -> Fitted:
        """The best transport by the checks; the last one if no check was finite."""
        best, checks = self.held_out.params, self.held_out.checks
        if not np.isfinite(self.held_out.value):
            if reason.startswith("non-finite") and not checks:
                raise TrainingError(
                    "fit", f"{reason}, before the first check", "lower learning_rate, or check log_prob for NaN"
                )
            best = self.carry.params
        none = np.zeros(0, jnp.result_type(float))
        arrays = {name: np.concatenate([none, *parts]) for name, parts in self.history.items()}
        arrays["check_step"] = np.array([step for step, _ in checks], np.int64)
        arrays["held_out"] = np.array([value for _, value in checks])
        return Fitted(eqx.combine(best, self.static), arrays, self.step, reason, time.perf_counter() - began)


def _check_objects(key: Any, transport: Any, target: Any, optimizer: Any, should_stop: Any, progress: Any) -> None:
    """Raises unless the objects that `fit` was given are what they should be."""
    arguments.random_key(key)
    arguments.instance(
        "transport", transport, AbstractTransport, "e.g. tz.transports.product_transport(space)", TransportError
    )
    arguments.instance("target", target, Target, "e.g. tz.Target(log_prob, tz.binary(20))", TargetError)
    if optimizer is not None and not isinstance(optimizer, optax.GradientTransformation):
        raise OptionError(
            "optimizer", f"must be one of optax, got {arguments.shown(optimizer)}", "e.g. optax.adam(1e-3)"
        )
    if should_stop is not None and not callable(should_stop):
        raise OptionError("should_stop", f"must be a function, got {arguments.shown(should_stop)}", "leave it out")
    if progress is not None and not hasattr(progress, "update"):
        raise OptionError("progress", f"must be a Progress, got {arguments.shown(progress)}", "leave it out")
    if transport.space != target.space:
        raise OptionError("transport", "was built for another space than the target's", "build it for this space")


def fit(
    key: Array,
    transport: AbstractTransport,
    target: Target,
    *,
    objective: ReverseKL | ForwardKL | None = None,
    num_steps: int = settings.NUM_STEPS,
    batch_size: int = settings.BATCH_SIZE,
    learning_rate: float = settings.LEARNING_RATE,
    optimizer: optax.GradientTransformation | None = None,
    clip_norm: float = settings.CLIP_NORM,
    start_beta: float = settings.START_BETA,
    anneal_steps: int | None = None,
    patience: int | None = settings.PATIENCE,
    check_every: int = settings.CHECK_EVERY,
    num_groups: int | None = None,
    enough_is_ess: float | None = None,
    check_objective: ReverseKL | ForwardKL | None = None,
    check_first: bool = False,
    should_stop: Callable[[Sequence[tuple[int, float]], int], str | None] | None = None,
    progress: Any = None,
) -> Fitted:
    """Trains a transport for a target.

    The paper trains with `num_steps=10_000, start_beta=1.0, patience=None`.

    Args:
        key: Random key.
        transport: Where to start from.
        target: What to fit.
        objective: By default `reverse_kl()`.
        num_steps: The most steps to take.
        batch_size: Latent draws per step; rounded up to a multiple of the number of groups.
        learning_rate: Of Adam; not used where an optimizer is given.
        optimizer: Any optax transformation, as `optax.adamw(1e-3)`. Keep the object: another one compiles again.
        clip_norm: Gradients are clipped to this global norm.
        start_beta: Inverse temperature at step 0.
        anneal_steps: Steps over which it rises linearly to 1; by default 600, or a third of the steps if that is less.
        patience: Checks without improvement before the learning rate is cut (0.3, then 0.1, then the end); None
            trains for `num_steps`.
        check_every: Steps between held-out checks.
        num_groups: Groups into which a batch is split and distributed over devices; by default one per accelerator.
            The same number of groups gives the same weights on any number of devices, up to rounding.
        enough_is_ess: Training ends when the held-out importance weights have this effective share (reverse KL).
        check_objective: What held-out checks evaluate, if not the objective: forward KL on draws kept apart, say.
        check_first: Whether there is a held-out check before the first step too, after which `should_stop` is asked.
        should_stop: Asked again and again, with the checks so far (step, held-out value) and the step; a reason, as
            "budget", ends training after one more check.
        progress: A `Progress` whose current phase is updated, or None.

    Returns:
        A `Fitted`. A non-finite loss ends training with the last good transport kept.

    >>> import jax, jax.numpy as jnp, terrazzo as tz
    >>> target = tz.Target(lambda theta: jnp.sum(theta * 1.0), tz.binary(2))
    >>> fitted = fit(jax.random.key(0), tz.transports.product_transport(target.space), target, num_steps=20)
    >>> fitted.num_steps
    20
    """
    _check_objects(key, transport, target, optimizer, should_stop, progress)
    num_steps, check_every = arguments.count("num_steps", num_steps), arguments.count("check_every", check_every)
    batch_size = arguments.count("batch_size", batch_size, low=2)
    num_groups = arguments.optional_count("num_groups", num_groups)
    patience = arguments.optional_count("patience", patience)
    learning_rate = arguments.number("learning_rate", learning_rate)
    clip_norm = arguments.number("clip_norm", clip_norm)
    start_beta = arguments.number("start_beta", start_beta, above=-1e-300, at_most=1.0, remedy="1 trains at the target")
    anneal_steps = arguments.optional_count("anneal_steps", anneal_steps, low=0)
    if anneal_steps is None:
        anneal_steps = settings.default_anneal_steps(num_steps, start_beta)
    if enough_is_ess is not None:
        enough_is_ess = arguments.number("enough_is_ess", enough_is_ess, at_most=1.0)
    for name, given in (("objective", objective), ("check_objective", check_objective)):
        if given is not None and not isinstance(given, ReverseKL | ForwardKL):
            raise OptionError(name, f"must be an objective, got {arguments.shown(given)}", "e.g. tz.reverse_kl()")
    check_first = arguments.flag("check_first", check_first)
    arguments.memory(f"batches of {batch_size}", 8.0 * batch_size * target.space.num_dims)
    began = time.perf_counter()
    objective = (reverse_kl() if objective is None else objective).resolve(transport, target)
    trainer = _Trainer(
        key, transport, target, objective=objective,
        checked=objective if check_objective is None else check_objective.resolve(transport, target),
        rate=-learning_rate if optimizer is None else 1.0, optimizer=_ADAM if optimizer is None else optimizer,
        num_groups=devices.default_groups() if num_groups is None else num_groups, batch_size=batch_size,
        clip_norm=clip_norm, start_beta=start_beta, anneal_steps=anneal_steps, check_every=check_every,
        patience=patience, enough_is_ess=enough_is_ess,
    )  # fmt: skip
    ask = (lambda checks, step: None) if should_stop is None else should_stop
    reason = trainer.check_first(ask) if check_first else None
    if reason is None:
        reason = trainer.train(num_steps, ask, progress)
    return trainer.fitted(reason, began)
