"""Mixed targets: real variables beside discrete ones.

A mixed target is a family of discrete targets indexed by the unconstrained reals y: `target.given(y)` is a plain
discrete `Target` whose function has y among its data, so that every discrete kernel works on it as it is. For the reals
at fixed theta the density is

    log_density(theta, y) = log pi(theta, x(y)) + log |dx / dy|,

with respect to counting measure x Lebesgue measure of y. Given y the
second part is a constant: `given(y)` leaves it out.

Tempering is from a proper reference q0: pi_beta is proportional to q0^(1 - beta) pi^beta. (pi^beta alone need not be
proper on reals.)
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from terrazzo.errors import GradientError, StartError, TargetError, arguments
from terrazzo.runtime.compilation import jit
from terrazzo.spaces import Configuration, Space
from terrazzo.targets.black_boxes import BlackBox
from terrazzo.targets.tracing import TracedFunction, here_and_now, traced

NUM_PROBES = 6
SPREAD = 2.0  # unconstrained starts are uniform within -2..2, as in Stan
MAX_REDRAWS = 100
NO_HINTS = ("site_logits", "running_conditionals", "one_hot_log_prob", "colours", "penalty")


class Reference(eqx.Module):
    """A distribution that can be drawn from and evaluated: the prior, where a model has one.

    Args:
        log_prob: Takes what the target's function takes and returns a normalised log-density, in the user's scale, with
            respect to counting x Lebesgue measure.
        draw: Takes a JAX key and returns one configuration in the user's values.

    >>> prior = Reference(lambda x: -0.5 * x**2 - 0.919, lambda key: jax.random.normal(key))
    >>> round(float(prior.log_prob(0.0)), 3)
    -0.919
    """

    log_prob: Any
    draw: Callable = eqx.field(static=True)

    def __init__(self, log_prob: Callable, draw: Callable):
        for name, fn in (("log_prob", log_prob), ("draw", draw)):
            if not callable(fn):
                raise TargetError(f"reference.{name}", f"must be a function, got {arguments.shown(fn)}", "pass one")
        self.log_prob, self.draw = log_prob, draw


class Given(eqx.Module):
    """The function of the discrete variables of a mixed target at fixed reals, which are data."""

    log_prob_fn: Any
    reference_fn: Any
    inverse_temperature: Any
    reals: Any
    space: Space = eqx.field(static=True)
    vectorized: bool = eqx.field(static=True)

    def __call__(self, values: dict[str, Any]) -> Float[Array, ""]:
        merged = self.space.arranged({**values, **self.space.constrain(self.reals)})
        return tempered_value(self, merged)


def user_value(fn: Any, values: Any, *, vectorized: bool = False) -> Float[Array, ""]:
    """The user's function at one configuration in the user's values; NaN counts as impossible.

    Far out, where trajectories of reals may look, overflow makes NaN of many functions. Where chains start and where a
    target is probed NaN is an error.
    """
    if isinstance(fn, BlackBox):
        value = _called_back(fn, values)
    elif vectorized:
        value = fn(jax.tree.map(lambda v: v[None], values))[0]
    else:
        value = here_and_now(fn)(values)
    value = jnp.asarray(value).astype(jnp.result_type(float))
    return jnp.where(jnp.isnan(value), -jnp.inf, value)


def tempered_value(part: Any, values: Any) -> Float[Array, ""]:
    """(1 - beta) log q0 + beta log pi in the user's scale; log pi alone where nothing is tempered."""
    with jax.default_matmul_precision("highest"):
        value = user_value(part.log_prob_fn, values, vectorized=part.vectorized)
        beta = part.inverse_temperature
        if beta is None:
            return value
        reference = user_value(part.reference_fn, values)
        return interpolated(beta, reference, value)


def interpolated(beta: Array, reference: Array, value: Array) -> Array:
    """(1 - beta) log q0 + beta log pi; what either of them forbids is forbidden, but at beta = 0 or 1 only by one."""
    both = (1 - beta) * jnp.where(jnp.isinf(reference), 0.0, reference) + beta * jnp.where(jnp.isinf(value), 0.0, value)
    is_banned = ((reference == -jnp.inf) & (beta < 1)) | ((value == -jnp.inf) & (beta > 0))
    is_bad = ((value == jnp.inf) & (beta > 0)) | ((reference == jnp.inf) & (beta < 1))
    return jnp.where(is_bad, jnp.inf, jnp.where(is_banned, -jnp.inf, both))


def log_density_at(target: Any, position: Any) -> Float[Array, ""]:
    """log pi of a configuration as it is moved: of codes; or of codes and unconstrained reals, their Jacobian added."""
    if isinstance(position, Configuration):
        return target.log_density(position.theta, position.reals)
    return target.log_prob(position)


def _called_back(box: BlackBox, values: Any) -> Float[Array, ""]:
    """A black box at one configuration in the user's values, by a call to the host (as words: see `Target`)."""
    dtype = np.dtype(jnp.result_type(float))
    num_words = dtype.itemsize // 4
    leaves, tree = jax.tree.flatten(values)
    ndims = [jnp.ndim(x) for x in leaves]

    def call(*batch: Any) -> np.ndarray:
        arrays = [np.asarray(x) for x in batch]
        lead = arrays[0].shape[: arrays[0].ndim - ndims[0]]
        rows = [x.reshape(-1, *x.shape[x.ndim - n :]) for x, n in zip(arrays, ndims, strict=True)]
        found = box.evaluate_values(jax.tree.unflatten(tree, rows), len(rows[0]))
        return np.array(found.reshape(lead), dtype, order="C")[..., None].view(np.uint32)

    words = jax.pure_callback(
        call, jax.ShapeDtypeStruct((num_words,), jnp.uint32), *leaves, vmap_method="broadcast_all"
    )
    return jax.lax.bitcast_convert_type(words if num_words == 2 else words[0], dtype)


# ---- making and probing a target


def checked_reference(reference: Any, space: Space) -> Reference | None:
    """The reference with its function traced; raises where it is none.

    Without real variables nobody draws from it: it is kept without `draw`, so that models share compiled code.
    """
    if reference is None:
        return None
    arguments.instance("reference", reference, Reference, "tz.Reference(log_prob, draw)", TargetError)
    theta, y = _abstract(space)
    given = (theta, y) if space.num_reals else (theta,)
    found = traced(reference.log_prob, jax.eval_shape(space.unflatten, *given))
    return Reference(found, reference.draw if space.num_reals else _not_drawn)


def _not_drawn(key: Any) -> Any:
    raise TargetError("reference.draw", "is not kept without real variables", "call the function that you gave")


def _abstract(space: Space) -> tuple[Any, Any]:
    real = jnp.result_type(float)
    return jax.ShapeDtypeStruct((space.num_dims,), jnp.int32), jax.ShapeDtypeStruct((space.num_reals,), real)


def refuse_hints(given: dict[str, Any]) -> None:
    """Hints are for targets whose variables are all discrete."""
    for name in NO_HINTS:
        if given[name] is not None:
            raise TargetError(name, "is not for spaces with real variables", "leave it out: structure is read")


def example_values(space: Space) -> Any:
    """What the function takes, abstractly."""
    return jax.eval_shape(space.unflatten, *_abstract(space))


def probe_points(space: Space) -> Configuration:
    """Configurations at which a target is probed: corners of the discrete part, reals near the origin."""
    rng = np.random.default_rng(0)
    inner = rng.integers(0, np.maximum(space.sizes, 1), (NUM_PROBES, space.num_dims))
    theta = np.concatenate([np.zeros((1, space.num_dims)), space.sizes[None] - 1, inner]).astype(np.int32)
    y = rng.uniform(-SPREAD / 2, SPREAD / 2, (len(theta), space.num_reals))
    y[0] = 0.0
    return Configuration(theta, y)


@jit
def _raw_values(target: Any, theta: Array, y: Array) -> Array:
    def one(theta: Array, y: Array) -> Array:
        values = target.space.unflatten(theta, y)
        return jnp.asarray(target._called(values)).astype(jnp.result_type(float))

    return jax.vmap(one)(theta, y)


@jit
def _gradients(target: Any, theta: Array, y: Array) -> Array:
    return jax.vmap(jax.grad(target.log_density, argnums=1))(theta, y)


def describe(space: Space, theta: Any, y: Any) -> str:
    """A configuration in the user's values, for messages."""
    values = space.unflatten(np.asarray(theta, np.int32), jnp.asarray(y, jnp.result_type(float)))
    shown = jax.tree.map(lambda v: np.round(np.asarray(v, float), 4).tolist(), values)
    return " ".join(str(shown).split())[:160]


def probe(target: Any) -> bool:
    """Raises where the function cannot be used; whether it has a gradient along the reals."""
    from terrazzo.targets import probing

    space, points = target.space, probe_points(target.space)
    if target.is_blackbox:
        for theta, y in zip(*points, strict=True):
            values = jax.tree.map(np.asarray, space.unflatten(theta, jnp.asarray(y)))
            try:
                value = target.log_prob_fn.evaluate_one(values)
            except Exception as error:
                raise probing.raised_error(error, where=describe(space, theta, y)) from None
            if np.isnan(value) or value == np.inf:
                raise non_finite_error(target, theta, y, value)
        return False
    probing.probe_output(target, example_values(space), space)
    theta, y = jnp.asarray(points.theta), jnp.asarray(points.reals, jnp.result_type(float))
    try:
        values = np.asarray(_raw_values(target, theta, y))
    except Exception as error:
        raise probing.raised_error(error) from None
    bad = np.isnan(values) | (values == np.inf)
    if bad.any():
        k = int(bad.argmax())
        raise non_finite_error(target, points.theta[k], points.reals[k], values[k])
    try:
        slopes = np.asarray(_gradients(target, theta, y))
    except Exception:
        return False
    possible = np.isfinite(values)
    if possible.any() and not np.isfinite(slopes[possible]).all():
        k = int((possible & ~np.isfinite(slopes).all(axis=1)).argmax())
        raise GradientError(
            "log_prob",
            f"has a gradient that is not finite at {describe(space, points.theta[k], points.reals[k])}",
            "avoid sqrt, log or norms at 0 inside jnp.where: select their argument first; or wrap it: tz.blackbox",
        )
    return bool(not possible.any() or np.abs(slopes[possible]).max() > 0)


def non_finite_error(target: Any, theta: Any, y: Any, value: Any = None) -> TargetError:
    """The error for a log-probability that is NaN or +inf."""
    shown = "NaN or +inf" if value is None else f"{float(value)}"
    return TargetError(
        "log_prob",
        f"returned {shown} at {describe(target.space, theta, y)}",
        "return -inf for impossible configurations; NaN and +inf are errors",
    )


# ---- starts


@jit
def _drawn(target: Any, key: Array, num_chains: int, most: int, summation: Any = None) -> tuple[Array, Array, Array]:
    space = target.space

    def fresh(key: Array) -> tuple[Array, Array]:
        theta_key, real_key = jax.random.split(key)
        y = jax.random.uniform(real_key, (space.num_reals,), jnp.result_type(float), -SPREAD, SPREAD)
        if summation is not None:
            return summation.backward(theta_key, summation.forward(y)[1]), y
        return space.random(theta_key) if space.num_dims else jnp.zeros(0, jnp.int32), y

    def usable(theta: Array, y: Array) -> Array:
        if not target.has_real_gradient:
            return target.log_density(theta, y) > -jnp.inf
        value, slope = jax.value_and_grad(target.log_density, argnums=1)(theta, y)
        return (value > -jnp.inf) & jnp.all(jnp.isfinite(slope))

    def redraw(carry: Any) -> Any:
        count, theta, y, is_good = carry
        new = jax.vmap(fresh)(jax.random.split(jax.random.fold_in(key, count), num_chains))
        theta = jnp.where(is_good[:, None], theta, new[0])
        y = jnp.where(is_good[:, None], y, new[1])
        return count + 1, theta, y, jax.vmap(usable)(theta, y)

    zeros = jnp.zeros((num_chains, space.num_dims), jnp.int32), jnp.zeros((num_chains, space.num_reals))
    start = (jnp.asarray(0, jnp.int32), *zeros, jnp.zeros(num_chains, bool))
    _, theta, y, is_good = jax.lax.while_loop(lambda c: (c[0] < most) & ~jnp.all(c[3]), redraw, start)
    return theta, y, is_good


def possible_starts(target: Any, key: Array, num_chains: int) -> Configuration:
    """Configurations of positive probability and finite gradient: uniform codes, reals within -2..2 unconstrained.

    Where no such codes are found, and the discrete variables can be summed out, they are drawn given the reals: a site
    where an animal was seen is occupied, and of all sites chance never finds them all.

    Raises:
        StartError: If 100 rounds of tries find none.
    """
    from terrazzo.targets.reading import structure_of  # late: it reads targets

    theta, y, is_good = _drawn(target, key, num_chains, MAX_REDRAWS)
    structure = None if np.asarray(is_good).any() or not target.space.num_dims else structure_of(target)
    if structure is not None and structure.summation is not None:
        theta, y, is_good = _drawn(target, key, num_chains, MAX_REDRAWS, structure.summation)
    good = np.flatnonzero(np.asarray(is_good))
    if not len(good):
        raise StartError(
            "log_prob",
            f"is -inf, or its gradient is not finite, at all of {MAX_REDRAWS * num_chains} random configurations",
            "pass init=... to tz.sample with a possible configuration",
        )
    rows = np.where(np.asarray(is_good), np.arange(num_chains), np.resize(good, num_chains))
    return Configuration(theta[rows], y[rows])


def of_given(target: Any, y: Array, cls: type) -> Any:
    """The discrete target of a mixed one at fixed reals; built without a probe, so that y may be traced."""
    reference = None if target.reference is None else target.reference.log_prob
    given = Given(
        log_prob_fn=target.log_prob_fn, reference_fn=reference, inverse_temperature=target.inverse_temperature, reals=y,
        space=target.space, vectorized=target.vectorized,
    )  # fmt: skip
    made: Any = object.__new__(cls)
    own = {
        "space": target.space.discrete, "log_prob_fn": given, "site_logits_fn": None, "running": None,
        "one_hot_fn": None, "colours": None, "penalty_fn": None, "vectorized": False, "has_gradient": False,
        "has_real_gradient": False, "reference": None, "model": None, "inverse_temperature": None, "base": None,
        "soft_level": None, "clamped": None,
    }  # fmt: skip
    for name, value in own.items():
        object.__setattr__(made, name, value)
    return made


def of_reference(target: Any) -> Any:
    """The reference as a target of its own, on the same space."""
    changed = {
        "log_prob_fn": target.reference.log_prob, "reference": None, "inverse_temperature": None, "model": None,
        "vectorized": False, "soft_level": None, "base": None, "penalty_fn": None, "site_logits_fn": None,
        "running": None, "one_hot_fn": None, "colours": None, "has_gradient": False,
    }  # fmt: skip
    made: Any = object.__new__(type(target))
    for field in dataclasses.fields(target):
        object.__setattr__(made, field.name, changed.get(field.name, getattr(target, field.name)))
    return made


def trace(target: Any) -> None:
    """Replaces the plain function of a mixed target, still being made, by what it computes and its data."""
    if isinstance(target.log_prob_fn, BlackBox):
        return
    fn = target.log_prob_fn
    single = (lambda values: fn(jax.tree.map(lambda v: v[None], values))[0]) if target.vectorized else fn
    found = traced(single, example_values(target.space))
    if found is not single and not (target.vectorized and not isinstance(found, TracedFunction)):
        target.log_prob_fn, target.vectorized = found, False
