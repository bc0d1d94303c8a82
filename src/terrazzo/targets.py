"""Targets: a log-probability on a space, probed before anything long starts.

A `Target` is log pi(theta), unnormalised, evaluated pointwise on flat integers (DESIGN section 1), with what is known
about it: whether it can be differentiated at real theta, its cheap conditionals, its interaction graph.
JAX hides mistakes (NaN, vector-valued functions, indices out of range all run), so every target is probed.
"""

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array, Float, Int

from terrazzo import arguments, hints
from terrazzo.compilation import jit
from terrazzo.errors import GradientError, TargetError
from terrazzo.running_conditionals import AbstractRunningConditionals, check_running
from terrazzo.spaces import Space, as_space
from terrazzo.starts import Evaluator, descend, find_starts, random_possible
from terrazzo.tracing import in_this_precision, traced
from terrazzo.user_code import described, place_of

NUM_PROBES = 6
MAX_REDRAWS = 100
SOFTNESS = 4.0  # nats for each violated constraint, at beta = 1
POSSIBLE_TRIES, POSSIBLE_SECONDS = 2**15, 0.5  # for configurations that hints are checked at


class BlackBox:
    """A plain Python or NumPy log-probability, evaluated on the host in batches. Build it with `blackbox`."""

    def __init__(self, fn: Callable, *, vectorized: bool = False, name: str | None = None):
        if not callable(fn):
            raise TargetError("blackbox", f"needs a function, got {type(fn).__name__}", "e.g. tz.blackbox(my_log_prob)")
        if name is not None and not isinstance(name, str):
            raise TargetError("blackbox.name", f"must be a string, got {name!r}"[:120], "e.g. name='model 3'")
        self.fn = fn
        self.name = name
        self.vectorized = vectorized
        self.last_error: BaseException | None = None  # a host callback cannot raise cleanly through XLA
        self.is_stopped: Callable[[], bool] = lambda: False  # asked before each evaluation

    def evaluate(self, space: Space, theta: np.ndarray) -> np.ndarray:
        """log pi of flat configurations with any leading axes; raises what the user's function raises."""
        rows = np.asarray(theta).reshape(-1, space.num_dims)
        if self.vectorized:
            values = np.asarray(self.fn(space.unflatten(rows)), float)
            if values.shape != (len(rows),):
                raise TargetError(
                    "log_prob", f"returned shape {values.shape} for {len(rows)} configurations", "one number each"
                )
        else:
            values = np.array([self._value(space, row) for row in rows])
        return values.reshape(np.shape(theta)[:-1])

    def _value(self, space: Space, row: np.ndarray) -> float:
        if self.is_stopped():
            raise KeyboardInterrupt
        return _as_python_float(self.fn(space.unflatten(row)))

    def evaluate_quietly(self, space: Space, theta: np.ndarray) -> np.ndarray:
        """As `evaluate`, but an exception is remembered and gives NaN: for use inside a host callback."""
        try:
            return self.evaluate(space, theta)
        except (Exception, KeyboardInterrupt) as error:
            self.last_error = error
            return np.full(np.shape(theta)[:-1], np.nan)


def _as_python_float(value: Any) -> float:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "fiu":
        raise TargetError(
            "log_prob", f"returned {array.dtype} of shape {array.shape}, not a number", "return one float"
        )
    return float(array)


def blackbox(fn: Callable, *, vectorized: bool = False, name: str | None = None) -> BlackBox:
    """Marks a log-probability that JAX cannot trace (plain Python, NumPy, a call to another program).

    It is evaluated on the host, a whole batch of configurations per call. Black-box targets have no gradient.

    Args:
        fn: Takes one configuration (NumPy) and returns a number.
        vectorized: Whether `fn` takes a batch (leading axis) and returns a vector.
        name: Which function it is. A checkpoint is continued only by a black box of the same name, and of the same
            values at a few configurations.

    >>> box = blackbox(lambda theta: -float(theta.sum()))
    >>> box.vectorized
    False
    """
    return BlackBox(fn, vectorized=vectorized, name=name)


def after(earlier: Float[Array, ""], theta: Int[Array, " dim"]) -> Int[Array, " dim"]:
    """The configuration, but not before a log-probability is known.

    XLA may run what does not depend on each other at the same time, and on a CPU two batches of linear algebra then
    wait for each other's threads for ever (jaxlib 0.10, a Cholesky factor in each). `log_prob` is never NaN, but the
    compiler does not know that.
    """
    return jnp.where(jnp.isnan(earlier), 0, theta)


class Target(eqx.Module):
    """An unnormalised log-probability on a `Space`.

    Args:
        log_prob: Takes one configuration (a plain array for a single unnamed variable, else a dict) and returns a
            scalar; or a `blackbox`. Functions that differ only in their data share their compiled code.
        space: A `Space` or a single variable.
        vectorized: Whether `log_prob` takes a batch with a leading axis and returns a vector.
        site_logits: Optional cheap conditionals: `site_logits(theta, i)` returns, for flat theta and a coordinate i,
            log pi with theta_i set to 0..K_max-1, up to a constant (entries beyond K_i are ignored).
        running_conditionals: Optional conditionals of all sites at once, kept up while sites change.
        one_hot_log_prob: Optional log-probability of a (d, K_max) array of (relaxed) one-hot rows, for
            gradient-informed moves of unordered variables.
        colours: Optional colouring of the interaction graph: int[d]; coordinates of one colour do not interact.
        penalty: Optional soft form of the constraints: takes what `log_prob` takes and returns how many constraints are
            violated, 0 exactly where `log_prob` is finite. It is used to find starts where chance finds none.
        probe: Whether to check the function, and every hint against it, now (recommended; takes a fraction of a
            second).

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> target = Target(lambda theta: jnp.sum(theta * 0.5), tz.binary(3))
    >>> float(target.log_prob(jnp.array([1, 0, 1])))
    1.0
    """

    space: Space = eqx.field(static=True)
    log_prob_fn: Any
    site_logits_fn: Any
    running: AbstractRunningConditionals | None
    one_hot_fn: Any
    colours: tuple[int, ...] | None = eqx.field(static=True)
    penalty_fn: Any
    vectorized: bool = eqx.field(static=True)
    has_gradient: bool = eqx.field(static=True)
    inverse_temperature: Any
    soft_level: Any

    def __init__(
        self,
        log_prob: Callable | BlackBox,
        space: Any,
        *,
        vectorized: bool = False,
        site_logits: Callable | None = None,
        running_conditionals: AbstractRunningConditionals | None = None,
        one_hot_log_prob: Callable | None = None,
        colours: Any = None,
        penalty: Callable | BlackBox | None = None,
        probe: bool = True,
    ):
        self.space = as_space(space)
        if not callable(log_prob) and not isinstance(log_prob, BlackBox):
            raise TargetError(
                "log_prob", f"must be a function of a configuration, got {type(log_prob).__name__}", "pass a function"
            )
        for name, fn in (("site_logits", site_logits), ("one_hot_log_prob", one_hot_log_prob)):
            if fn is not None and not callable(fn):
                raise TargetError(
                    name, f"must be a function, got {arguments.shown(fn)}", "leave it out if there is none"
                )
        if penalty is not None and not callable(penalty) and not isinstance(penalty, BlackBox):
            raise TargetError("penalty", f"must be a function, got {arguments.shown(penalty)}", "or leave it out")
        self.log_prob_fn = log_prob
        self.site_logits_fn = site_logits
        self.running = running_conditionals
        self.one_hot_fn = one_hot_log_prob
        self.colours = None if colours is None else _checked_colours(colours, self.space)
        if isinstance(log_prob, BlackBox) and penalty is not None and not isinstance(penalty, BlackBox):
            penalty = BlackBox(penalty, vectorized=log_prob.vectorized)
        self.penalty_fn = penalty
        self.vectorized = arguments.flag("vectorized", vectorized)
        self.has_gradient = False
        self.inverse_temperature = None
        self.soft_level = None
        probe = arguments.flag("probe", probe)
        if probe and not self.is_blackbox:
            _probe_shape(self)
        self._trace()
        if probe:
            _probe_values(self)
            self.has_gradient = _probe_gradient(self)
            _probe_penalty(self)
            _probe_hints(self)

    def _trace(self) -> None:
        """Replaces plain functions by what they compute and their data; `log_prob_fn` then takes one configuration."""
        dim, size = self.space.num_dims, self.space.max_size
        theta, one = jax.ShapeDtypeStruct((dim,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
        if not self.is_blackbox:
            single = _single(self.log_prob_fn) if self.vectorized else self.log_prob_fn
            found = traced(single, jax.eval_shape(self.space.unflatten, theta))
            example = jax.eval_shape(self.space.unflatten, theta)
            if found is not single:
                if self.penalty_fn is not None:
                    self.penalty_fn = _single(self.penalty_fn) if self.vectorized else self.penalty_fn
                self.log_prob_fn, self.vectorized = found, False
            if not self.vectorized:
                self.penalty_fn = traced(self.penalty_fn, example)
        self.site_logits_fn = traced(self.site_logits_fn, theta, one)
        self.one_hot_fn = traced(self.one_hot_fn, jax.ShapeDtypeStruct((dim, size), jnp.result_type(float)))

    @property
    def compilation_group(self) -> Any:
        """What compiled code depends on: the computation, and the shapes of its data."""
        parts = (self.log_prob_fn, self.site_logits_fn, self.running, self.one_hot_fn, self.penalty_fn)
        arrays, rest = eqx.partition(parts, eqx.is_array)
        shapes = tuple((x.shape, str(x.dtype)) for x in jax.tree.leaves(arrays))
        leaves, tree = jax.tree.flatten(rest)
        return self.space, self.colours, shapes, tuple(leaves), tree

    @property
    def is_blackbox(self) -> bool:
        return isinstance(self.log_prob_fn, BlackBox)

    @property
    def has_cheap_neighbours(self) -> bool:
        """Whether the conditionals of all sites cost less than evaluating all neighbours."""
        return self.site_logits_fn is not None or self.running is not None

    def log_prob(self, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        """log pi at one flat configuration.

        -inf means impossible. NaN and +inf both come out as +inf: a chain that meets one stays on it, where the
        end-of-chunk check of `inference` finds it and reports the configuration.
        """
        if self.is_blackbox:
            value = jax.pure_callback(
                lambda t: self.log_prob_fn.evaluate_quietly(self.space, np.asarray(t)).astype(jnp.result_type(float)),
                jax.ShapeDtypeStruct((), jnp.result_type(float)),
                theta,
                vmap_method="broadcast_all",
            )
        else:
            value = self._traced(theta)
        value = jnp.where(jnp.isnan(value), jnp.inf, value)
        if self.soft_level is not None and self.inverse_temperature is not None:
            value = jnp.where(self.inverse_temperature == 1, value, self._softened(theta, value))
        return self._tempered(value)

    def softened(self, level: float) -> "Target":
        """The target whose tempered forms below beta = 1 let chains pass through impossible configurations.

        There log pi counts as `level` less 4 nats for each violated constraint. At beta = 1 nothing changes.
        """
        value = jnp.asarray(level, jnp.result_type(float))
        return eqx.tree_at(lambda t: t.soft_level, self, value, is_leaf=lambda x: x is None)

    @property
    def can_be_soft(self) -> bool:
        """Whether there is a penalty that compiled code can use, and no hint that knows nothing of it."""
        has_hints = self.has_cheap_neighbours or self.colours is not None
        return self.penalty_fn is not None and not isinstance(self.penalty_fn, BlackBox) and not has_hints

    def soft_log_prob(self, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        """What replicas below beta = 1 temper: log pi, or its softened form."""
        value = self.log_prob(theta)
        return value if self.soft_level is None else self._softened(theta, value)

    def _softened(self, theta: Array, value: Array) -> Array:
        return jnp.where(value == -jnp.inf, self.soft_level - SOFTNESS * self.penalty(theta), value)

    def tempered(self, inverse_temperature: Any) -> "Target":
        """The target pi^beta, with beta = `inverse_temperature` (may be traced); impossible stays impossible at 0.

        Tempering is from the untempered target: `target.tempered(0.5).tempered(0.1)` has beta = 0.1.
        """
        beta = jnp.asarray(inverse_temperature, jnp.result_type(float))
        return eqx.tree_at(lambda t: t.inverse_temperature, self, beta, is_leaf=lambda x: x is None)

    def _tempered(self, value: Array) -> Array:
        if self.inverse_temperature is None:
            return value
        return jnp.where(jnp.isinf(value), value, self.inverse_temperature * value)

    def site_logits(self, theta: Int[Array, " dim"], i: Int[Array, ""]) -> Float[Array, " max_size"]:
        """log pi with theta_i set to 0..K_max-1, up to a constant; -inf beyond K_i.

        Uses the target's own `site_logits` where it has one, else evaluates all K_max candidates in one batch.
        """
        values = jnp.arange(self.space.max_size, dtype=theta.dtype)
        size = jnp.asarray(self.space.sizes)[i]
        if self.site_logits_fn is None:
            inside = jnp.minimum(values, size - 1)
            logits = jax.vmap(lambda k: self.log_prob(theta.at[i].set(k)))(inside)
        else:
            with jax.default_matmul_precision("highest"):
                logits = self._tempered(self.site_logits_fn(theta, i).astype(jnp.result_type(float)))
        return jnp.where(values < size, logits, -jnp.inf)

    def running_logits(self, tables: Any, theta: Int[Array, " dim"]) -> Float[Array, "dim max_size"]:
        """The conditionals of all sites from the tables of `running`, tempered; -inf beyond K_i."""
        assert self.running is not None
        with jax.default_matmul_precision("highest"):
            logits = self._tempered(self.running.logits(tables, theta).astype(jnp.result_type(float)))
        return jnp.where(np.arange(self.space.max_size) < self.space.sizes[:, None], logits, -jnp.inf)

    def all_site_logits(self, theta: Int[Array, " dim"]) -> Float[Array, "dim max_size"]:
        """`site_logits` of every site."""
        if self.running is not None:
            return self.running_logits(self.running.start(theta), theta)
        return jax.vmap(lambda i: self.site_logits(theta, i))(jnp.arange(self.space.num_dims, dtype=jnp.int32))

    def log_prob_relaxed(self, theta: Float[Array, " dim"]) -> Float[Array, ""]:
        """log pi at real theta, for gradients (straight-through training, gradient-informed proposals)."""
        if not self.has_gradient:
            raise GradientError(
                "log_prob",
                "cannot be differentiated at real theta",
                "write it with differentiable operations on theta, or choose a method that needs no gradient",
            )
        return self._tempered(self._traced(theta))

    def slope(self, theta: Int[Array, " dim"]) -> Float[Array, " dim"]:
        """The gradient of `log_prob_relaxed` at a configuration.

        Taken with respect to the user's own values, made real: the compiler then finds that `log_prob` at the same
        configuration does the same work, and does it once.
        """
        dtype = jnp.result_type(float)
        real = jax.tree.map(lambda v: v.astype(dtype), self.space.unflatten(theta))
        gradients = jax.grad(lambda values: self._tempered(self._called(values)))(real)
        parts = [gradients] if self.space.is_plain else [gradients[name] for name in self.space.names]
        return jnp.concatenate([part.reshape(-1) for part in parts])

    def _traced(self, theta: Array) -> Float[Array, ""]:
        return self._called(self.space.unflatten(theta))

    def _called(self, values: Any) -> Float[Array, ""]:
        with jax.default_matmul_precision("highest"):  # TF32 would be wrong by whole nats at log pi ~ 5000
            if self.vectorized:
                values = jax.tree.map(lambda v: v[None], values)
                out = self.log_prob_fn(values)[0]
            else:
                out = self.log_prob_fn(values)
        return jnp.asarray(out).astype(jnp.result_type(float))

    def penalty(self, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        """How many constraints a flat configuration violates; the target must have been given a `penalty`."""
        values = self.space.unflatten(theta)
        if self.vectorized:
            return self.penalty_fn(jax.tree.map(lambda v: v[None], values))[0].astype(jnp.result_type(float))
        return jnp.asarray(self.penalty_fn(values)).astype(jnp.result_type(float))

    def possible_starts(self, key: Array, num_chains: int) -> Int[Array, "chain dim"]:
        """Configurations of positive probability: uniform ones where these are common, else what a search finds.

        Impossible ones are redrawn, 100 times and then up to a million times within two seconds; a target with a
        `penalty` goes down that instead (see `starts`). Raises `StartError` where all of this finds none.
        """
        theta, log_prob = _draw_starts(self, key, num_chains, 1 if self.is_blackbox else MAX_REDRAWS)
        first, values = np.asarray(theta), np.asarray(log_prob)
        if (values == np.inf).any():
            raise non_finite_error(self, first[(values == np.inf).argmax()])
        if (values > -np.inf).all():
            return theta
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().astype(np.uint32).tolist())
        found = find_starts(
            log_prob_evaluator(self), self.space.sizes, rng, num_chains, given=first[values > -np.inf],
            penalty=None if self.penalty_fn is None else penalty_evaluator(self),
        )  # fmt: skip
        return jnp.asarray(found, jnp.int32)


@jit
def _draw_starts(target: Target, key: Array, num_chains: int, most: int) -> tuple[Array, Array]:
    def redraw(carry):
        count, theta, log_prob = carry
        fresh = target.space.random(jax.random.fold_in(key, count), (num_chains,))
        fresh_log_prob = jax.vmap(target.log_prob)(fresh)
        is_impossible = log_prob == -jnp.inf
        return (
            count + 1,
            jnp.where(is_impossible[:, None], fresh, theta),
            jnp.where(is_impossible, fresh_log_prob, log_prob),
        )

    start = (0, jnp.zeros((num_chains, target.space.num_dims), jnp.int32), jnp.full(num_chains, -jnp.inf))
    _, theta, log_prob = jax.lax.while_loop(lambda c: (c[0] < most) & jnp.any(c[2] == -jnp.inf), redraw, start)
    return theta, log_prob


# ---- evaluation in batches


def log_prob_evaluator(target: Target) -> Evaluator:
    """log pi of many flat configurations on the host; NaN and +inf raise."""
    bad = lambda theta: non_finite_error(target, theta)
    if target.is_blackbox:
        fn = lambda theta: target.log_prob_fn.evaluate_quietly(target.space, theta)
        return Evaluator(fn, is_on_host=True, on_bad=bad)
    return Evaluator(target.log_prob, is_on_host=False, on_bad=bad)


def penalty_evaluator(target: Target) -> Evaluator:
    """The penalty of many flat configurations on the host."""
    fn = target.penalty_fn

    def bad(theta: np.ndarray) -> TargetError:
        return TargetError(
            "penalty", f"is NaN or +inf at theta = {_describe(target.space, theta)}", "return how many are violated"
        )

    if not isinstance(fn, BlackBox):
        return Evaluator(target.penalty, is_on_host=False, on_bad=bad)
    return Evaluator(lambda theta: fn.evaluate(target.space, theta), is_on_host=True, on_bad=bad)


def _single(function: Callable) -> Callable:
    """A function of a batch, as one of a single configuration."""
    return lambda values: function(jax.tree.map(lambda v: v[None], values))[0]


# ---- probing


@jit
def _values(target: Target, points: Array) -> Any:
    return jax.vmap(target._traced)(points)


@jit
def _checked_values(target: Target, points: Array) -> Any:
    return jax.vmap(checkify.checkify(target._traced, errors=checkify.index_checks))(points)


@jit
def _values_and_slopes(target: Target, points: Array) -> Any:
    return jax.vmap(jax.value_and_grad(target._traced))(points)


def _describe(space: Space, theta: np.ndarray) -> str:
    values = space.unflatten(np.asarray(theta))
    text = np.array2string(values, threshold=12) if space.is_plain else str({k: v.tolist() for k, v in values.items()})
    return " ".join(text.split())[:160]


def non_finite_error(target: Target, theta: np.ndarray) -> TargetError:
    """The error for a NaN or +inf log-probability met at `theta` (or for a black box that raised there)."""
    theta = np.asarray(theta)
    if target.is_blackbox:
        if isinstance(target.log_prob_fn.last_error, KeyboardInterrupt):
            target.log_prob_fn.last_error = None
            raise KeyboardInterrupt
        if target.log_prob_fn.last_error is not None:
            return _raised_error(target.log_prob_fn.last_error, target.space, theta)
        value = float(target.log_prob_fn.evaluate_quietly(target.space, theta))
    else:
        value = float(target._traced(jnp.asarray(theta, jnp.int32)))
    return TargetError(
        "log_prob",
        f"returned {value} at theta = {_describe(target.space, theta)}",
        "return -inf for impossible configurations; NaN and +inf are errors",
    )


def _raised_error(
    error: BaseException, space: Space, theta: np.ndarray | None = None, name: str = "log_prob"
) -> TargetError:
    if isinstance(error, TargetError):
        return error
    where = "" if theta is None else f" at theta = {_describe(space, theta)}"
    if isinstance(
        error,
        jax.errors.ConcretizationTypeError
        | jax.errors.TracerArrayConversionError
        | jax.errors.TracerBoolConversionError
        | jax.errors.TracerIntegerConversionError,
    ):
        place = place_of(error)
        return TargetError(
            name,
            "cannot be traced by JAX: it uses NumPy, float() or a Python `if` on theta"
            + (f"\n  at {place}" if place else ""),
            f"write it with jax.numpy, or wrap it: tz.blackbox({name})",
        )
    return TargetError(name, f"raised {described(error)}{where}", "call it by hand on one configuration to debug it")


def probe_points(space: Space) -> np.ndarray:
    """Configurations at which a target is probed: both corners and some at random."""
    rng = np.random.default_rng(0)
    inner = rng.integers(0, space.sizes, (NUM_PROBES, space.num_dims))
    return np.concatenate([np.zeros((1, space.num_dims)), space.sizes[None] - 1, inner]).astype(np.int32)


def _probe_values(target: Target) -> None:
    points = probe_points(target.space)
    if target.is_blackbox:
        for theta in points:
            try:
                value = target.log_prob_fn.evaluate(target.space, theta)
            except Exception as error:
                raise _raised_error(error, target.space, theta) from None
            if np.isnan(value) or value == np.inf:
                raise non_finite_error(target, theta)
        return
    try:
        errors, values = _checked_values(target, jnp.asarray(points))
        message = errors.get()
    except Exception:  # checkify does not know every primitive; the plain evaluation below does
        message = None
        try:
            values = _values(target, jnp.asarray(points))
        except Exception as error:
            raise _raised_error(error, target.space) from None
    if message is not None:
        detail = " ".join(message.split("\n")[0].split())
        detail = detail.split("out-of-bounds indexing")[-1][:120]
        raise TargetError(
            "log_prob",
            f"indexes outside a table for values of this space ({detail.strip()})",
            "JAX would clip the index silently: check the table's length against the variable's size",
        )
    values = np.asarray(values)
    bad = np.isnan(values) | (values == np.inf)
    if bad.any():
        raise non_finite_error(target, points[bad.argmax()])


def _probe_shape(target: Target) -> None:
    space, dtype = target.space, jnp.int32
    example = space.unflatten(jnp.zeros(space.num_dims, dtype))
    if target.vectorized:
        example = jax.tree.map(lambda v: jnp.zeros((3, *v.shape), dtype), example)
    try:
        out = jax.eval_shape(target.log_prob_fn, example)
    except Exception as error:
        raise _raised_error(error, space) from None
    wanted = (3,) if target.vectorized else ()
    shape, kind = getattr(out, "shape", None), getattr(out, "dtype", None)
    if shape is None or kind is None:
        raise TargetError("log_prob", f"returned {type(out).__name__}, not a number", "return one scalar")
    if shape != wanted:
        what = "a batch of 3 configurations" if target.vectorized else "one configuration"
        raise TargetError(
            "log_prob",
            f"returned shape {shape} for {what}, expected {wanted}",
            "sum over the last axes" if len(shape) > len(wanted) else "return one number per configuration",
        )
    if kind == jnp.bool_ or not jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.complexfloating):
        raise TargetError("log_prob", f"returned dtype {kind}", "return a real number (a float)")


def _probe_gradient(target: Target) -> bool:
    """Whether log pi can be evaluated and differentiated at real theta, and the gradient says something."""
    if target.is_blackbox:
        return False
    points = jnp.asarray(probe_points(target.space))
    real = points.astype(jnp.result_type(float))
    try:
        values, gradients = _values_and_slopes(target, real)
        exact = _values(target, points)
    except Exception:
        return False
    values, gradients, exact = np.asarray(values), np.asarray(gradients), np.asarray(exact)
    possible = np.isfinite(exact)
    is_same = np.allclose(values[possible], exact[possible], rtol=1e-3, atol=1e-3)
    finite = np.isfinite(gradients).all(axis=1) & possible
    return bool(is_same and finite.any() and np.abs(gradients[finite]).max() > 0)


def _probe_penalty(target: Target) -> None:
    """Raises unless the penalty is 0 where log pi is finite, and positive where it is -inf, at the probe points."""
    if target.penalty_fn is None:
        return
    points = probe_points(target.space)
    try:
        penalties = penalty_evaluator(target)(points)
    except Exception as error:
        raise _raised_error(error, target.space, name="penalty").with_traceback(None) from None
    values = log_prob_evaluator(target)(points)
    is_wrong = np.where(np.isfinite(values), penalties != 0, ~(penalties > 0))
    if is_wrong.any():
        row = int(is_wrong.argmax())
        where = _describe(target.space, points[row])
        raise TargetError(
            "penalty",
            f"is {penalties[row]:g} where log_prob is {values[row]:.6g}, at theta = {where}",
            "return 0 where log_prob is finite, and the number of violated constraints elsewhere",
        )


def _probe_hints(target: Target) -> None:
    """Holds every hint against log pi at several configurations, possible ones where they can be found."""
    has_any = (target.site_logits_fn, target.running, target.one_hot_fn, target.colours) != (None,) * 4
    if not has_any:
        return
    evaluate, sizes, rng = log_prob_evaluator(target), target.space.sizes, np.random.default_rng(1)
    points = np.concatenate([(probes := probe_points(target.space))[2:], probes[:2]])
    points = points[np.isfinite(evaluate(points))]
    if len(points) < hints.NUM_POINTS - 1:
        more = random_possible(evaluate, sizes, rng, hints.NUM_POINTS, most=POSSIBLE_TRIES, seconds=POSSIBLE_SECONDS)
        points = np.concatenate([points, more])
    if not len(points) and target.penalty_fn is not None:
        found, _ = descend(penalty_evaluator(target), sizes, rng, hints.NUM_POINTS)
        points = found[np.isfinite(evaluate(found))] if len(found) else points
    if not len(points):
        points = probes[2:3]  # where all is impossible there is nothing to compare, but shapes and errors still show
    points = points[: hints.NUM_POINTS].astype(np.int32)
    if target.site_logits_fn is not None:
        hints.check_site_logits(target.site_logits_fn, evaluate, sizes, points, rng)
    if target.running is not None:
        check_running(target.running, target.log_prob, target.space, points)
    if target.one_hot_fn is not None:
        hints.check_one_hot(target.one_hot_fn, evaluate, sizes, points)
    if target.colours is not None:
        pair = hints.find_interaction(evaluate, sizes, np.asarray(target.colours), points, rng)
        if pair is not None:
            raise TargetError("colours", str(pair), "give them different colours, or leave colours out")


def _checked_colours(colours: Any, space: Space) -> tuple[int, ...]:
    array = np.asarray(colours)
    if array.shape != (space.num_dims,) or array.dtype.kind not in "iu" or array.min() < 0:
        raise TargetError(
            "colours", f"must be {space.num_dims} non-negative integers, got shape {array.shape}", "one colour each"
        )
    return tuple(int(c) for c in array)


def as_target(log_prob: Any, space: Any = None, *, vectorized: bool = False) -> Target:
    """A `Target` as it is, or a log-probability and its space made into one."""
    if isinstance(log_prob, Target):
        if space is not None and as_space(space) != log_prob.space:
            raise TargetError("space", "differs from the target's own space", "leave it out: sample(target, seed=0)")
        return in_this_precision(log_prob)
    if space is None:
        raise TargetError("space", "is missing", "e.g. tz.sample(log_prob, tz.binary(20), seed=0)")
    return Target(log_prob, space, vectorized=vectorized)
