"""Targets are probed before anything long starts.

JAX hides mistakes: NaN, vector-valued functions and indices out of range all run without an error.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import checkify
from jaxtyping import Array

from terrazzo.errors import TargetError
from terrazzo.errors.arguments import shown
from terrazzo.errors.user_code import described, place_of
from terrazzo.runtime.compilation import jit
from terrazzo.spaces import Space
from terrazzo.targets import hints
from terrazzo.targets.black_boxes import BlackBox
from terrazzo.targets.running_conditionals import check_running
from terrazzo.targets.starts import Evaluator, descend, random_possible
from terrazzo.targets.tracing import untraced

NUM_PROBES = 6
SAME_AGAIN = 1e-6  # relative and absolute: sums in threads may differ in their last digits
POSSIBLE_TRIES, POSSIBLE_SECONDS = 2**15, 0.5  # for configurations that hints are checked at


def check_functions(log_prob: Any, penalty: Any, **hints: Any) -> None:
    """Raises where what should be a function is none; a penalty and hints may be left out."""
    if not callable(log_prob) and not isinstance(log_prob, BlackBox):
        got = type(log_prob).__name__
        raise TargetError("log_prob", f"must be a function of a configuration, got {got}", "pass a function")
    for name, fn in hints.items():
        if fn is not None and not callable(fn):
            raise TargetError(name, f"must be a function, got {shown(fn)}", "leave it out if there is none")
    if penalty is not None and not callable(penalty) and not isinstance(penalty, BlackBox):
        raise TargetError("penalty", f"must be a function, got {shown(penalty)}", "or leave it out")


def log_prob_evaluator(target: Any) -> Evaluator:
    """log pi of many flat configurations on the host; NaN and +inf raise."""
    bad = lambda theta: non_finite_error(target, theta)
    if target.is_blackbox:
        fn = lambda theta: target.log_prob_fn.evaluate_quietly(target.space, theta)
        return Evaluator(fn, is_on_host=True, on_bad=bad)
    return Evaluator(target.log_prob, is_on_host=False, on_bad=bad)


def penalty_evaluator(target: Any) -> Evaluator:
    """The penalty of many flat configurations on the host."""
    fn = target.penalty_fn

    def bad(theta: np.ndarray) -> TargetError:
        return TargetError(
            "penalty", f"is NaN or +inf at theta = {_describe(target.space, theta)}", "return how many are violated"
        )

    if not isinstance(fn, BlackBox):
        return Evaluator(target.penalty, is_on_host=False, on_bad=bad)
    return Evaluator(lambda theta: fn.evaluate(target.space, theta), is_on_host=True, on_bad=bad)


@jit
def _values(target: Any, points: Array) -> Any:
    return jax.vmap(target._traced)(points)


@jit
def _checked_values(target: Any, points: Array) -> Any:
    return jax.vmap(checkify.checkify(target._traced, errors=checkify.index_checks))(points)


@jit
def _values_and_slopes(target: Any, points: Array) -> Any:
    return jax.vmap(jax.value_and_grad(target._traced))(points)


def _describe(space: Space, theta: np.ndarray) -> str:
    values = space.unflatten(np.asarray(theta))
    text = np.array2string(values, threshold=12) if space.is_plain else str({k: v.tolist() for k, v in values.items()})
    return " ".join(text.split())[:160]


def non_finite_error(target: Any, theta: np.ndarray) -> TargetError:
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
    return raised_error(error, where="" if theta is None else f"theta = {_describe(space, theta)}", name=name)


def raised_error(error: BaseException, *, where: str = "", name: str = "log_prob") -> TargetError:
    """The error for what a user's function raised, at a configuration in words."""
    if isinstance(error, TargetError):
        return error
    where = f" at {where}" if where else ""
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


def probe_values(target: Any) -> None:
    points = probe_points(target.space)
    if target.is_blackbox:
        for theta in points:
            try:
                value = target.log_prob_fn.evaluate(target.space, theta)
            except Exception as error:
                raise _raised_error(error, target.space, theta) from None
            if np.isnan(value) or value == np.inf:
                raise non_finite_error(target, theta)
            again = target.log_prob_fn.evaluate(target.space, theta)
            if not np.isclose(value, again, rtol=SAME_AGAIN, atol=SAME_AGAIN):
                where = _describe(target.space, theta)
                raise TargetError(
                    "log_prob",
                    f"is {float(value):.8g} and then {float(again):.8g} at the same theta = {where}",
                    "return the same value every time: fix the seed of what it draws",
                )
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


def probe_shape(target: Any) -> None:
    probe_output(target, target.space.unflatten(jnp.zeros(target.space.num_dims, jnp.int32)), target.space)


def probe_output(target: Any, example: Any, space: Space) -> None:
    """Raises unless the function returns one real number for an example of what it takes (abstract ones will do)."""
    if target.vectorized:
        example = jax.tree.map(lambda v: jax.ShapeDtypeStruct((3, *v.shape), v.dtype), example)
    try:
        out = jax.eval_shape(untraced(target.log_prob_fn), example)
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


def probe_gradient(target: Any) -> bool:
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


def probe_penalty(target: Any) -> None:
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


def probe_hints(target: Any) -> None:
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


def checked_colours(colours: Any, space: Space) -> tuple[int, ...]:
    array = np.asarray(colours)
    if array.shape != (space.num_dims,) or array.dtype.kind not in "iu" or array.min() < 0:
        raise TargetError(
            "colours", f"must be {space.num_dims} non-negative integers, got shape {array.shape}", "one colour each"
        )
    return tuple(int(c) for c in array)
