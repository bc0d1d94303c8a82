"""Precision: whether float32 can tell configurations apart, and log pi in float64 where it cannot.

A sampler needs *differences* of log pi between neighbouring configurations, and float32 has a spacing of 2 at 2e7. So
differences are compared with those of the same computation in float64. A function whose arrays are float32 computes in
float32 whatever the mode is; `Doubled` reads its computation and does every step of it in float64.
"""

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal

from terrazzo.runtime.compilation import jit
from terrazzo.targets.target import Target
from terrazzo.targets.tracing import untraced

MAX_ROUNDING = 0.01  # nats: an error of 1 % in a ratio of probabilities
RELEVANT = 30.0  # nats: larger differences are as good as infinite
NUM_COMPARED = 256
SINGLE, DOUBLE = np.dtype(np.float32), np.dtype(np.float64)


class PrecisionLoss(Exception):  # noqa: N818
    """Raised inside a run that must start again in float64."""


class Doubled(eqx.Module):
    """A function of arrays whose every step is done in float64; to be called while `jax.enable_x64` is on.

    >>> with jax.enable_x64(True):
    ...     table = jnp.asarray([0.1, 0.2], jnp.float32)
    ...     float(Doubled(lambda i: 1e9 + table[i])(jnp.asarray(1)) - 1e9) > 0.15
    True
    """

    function: Any

    def __call__(self, *args: Any) -> Any:
        closed, shape = jax.make_jaxpr(untraced(self.function), return_shape=True)(*args)
        out = run_wide(closed.jaxpr, closed.consts, jax.tree.leaves(args))
        return jax.tree.unflatten(jax.tree.structure(shape), out)


def doubled(target: Target) -> Target:
    """The target with its log-probability and hints computed in float64; to be used while `jax.enable_x64` is on."""
    if target.is_blackbox:
        return target
    arrays = lambda tree: jax.tree.map(_wide, tree, is_leaf=lambda x: x is None)
    fields = {
        "log_prob_fn": Doubled(target.log_prob_fn),
        "site_logits_fn": None if target.site_logits_fn is None else Doubled(target.site_logits_fn),
        "one_hot_fn": None if target.one_hot_fn is None else Doubled(target.one_hot_fn),
        "running": arrays(target.running),
    }
    changed = {name: value for name, value in fields.items() if value is not None}
    names = list(changed)
    return eqx.tree_at(
        lambda t: [getattr(t, n) for n in names], target, list(changed.values()), is_leaf=lambda x: x is None
    )


def in_float64(target: Target) -> Target | None:
    """The target for use while `jax.enable_x64` is on; None for a black box, and where it has no float64 form."""
    if target.is_blackbox:
        return None
    if jnp.result_type(float) == DOUBLE:
        return target
    try:
        with jax.enable_x64(True):
            wide = doubled(target)
            jax.eval_shape(wide.log_prob, jax.ShapeDtypeStruct((target.space.num_dims,), jnp.int32))
    except Exception:  # a primitive that has no float64 form, or cannot be traced there
        return None
    return wide


def rounding(target: Target, theta: np.ndarray) -> float:
    """The largest error of a difference of log pi between a configuration and a neighbour, in nats.

    In float32, against float64; in float64, by the size of log pi. NaN where the computation cannot be done in float64.

    Args:
        target: The target, in the precision of here and now.
        theta: Configurations, (row, dim).
    """
    rng = np.random.default_rng(0)
    rows = np.asarray(theta)[rng.integers(0, len(theta), NUM_COMPARED)].astype(np.int32)
    sites = rng.integers(0, target.space.num_dims, len(rows))
    sizes = target.space.sizes[sites]
    near = rows.copy()
    near[np.arange(len(rows)), sites] = (rows[np.arange(len(rows)), sites] + rng.integers(1, sizes)) % sizes
    both = np.concatenate([rows, near])
    here = np.asarray(_values(target, jnp.asarray(both)), float)
    if jnp.result_type(float) == DOUBLE or target.is_blackbox:
        finite = np.abs(here[np.isfinite(here)])
        return float(np.finfo(np.asarray(_values(target, jnp.asarray(both[:1]))).dtype).eps * finite.max(initial=0.0))
    try:
        with jax.enable_x64(True):
            wide = np.asarray(_values(doubled(target), jnp.asarray(both)), float)
    except Exception:  # a primitive that has no float64 form, or cannot be traced there
        return float("nan")
    with np.errstate(invalid="ignore"):
        ours, exact = (x[len(rows) :] - x[: len(rows)] for x in (here, wide))
        is_relevant = np.isfinite(ours) & np.isfinite(exact) & (np.abs(exact) <= RELEVANT)
        return float(np.abs(ours - exact)[is_relevant].max(initial=0.0))


@jit
def _values(target: Target, theta: jax.Array) -> jax.Array:
    return jax.vmap(target.log_prob)(theta)


# ---- the interpreter


def _wide(x: Any) -> Any:
    """Float32 arrays as float64, anything else as it is."""
    if eqx.is_array_like(x) and getattr(x, "dtype", None) == SINGLE:
        return jnp.asarray(x, DOUBLE)
    return x


def run_wide(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], seen: list[Any] | None = None) -> list[Any]:
    """The outputs of a jaxpr in float64; what its equations give on the way, but for those in loops, goes to `seen`."""
    env: dict[Any, Any] = {}
    read = lambda v: _wide(jnp.asarray(v.val)) if isinstance(v, Literal) else env[v]
    env.update(zip(jaxpr.constvars, map(_wide, consts), strict=True))
    env.update(zip(jaxpr.invars, map(_wide, args), strict=True))
    for equation in jaxpr.eqns:
        out = _step(equation, [read(v) for v in equation.invars], seen)
        if seen is not None:
            seen.extend(out)
        env.update(zip(equation.outvars, out, strict=True))
    return [read(v) for v in jaxpr.outvars]


def _inner(closed: Any, seen: list[Any] | None = None) -> Callable:
    """A jaxpr as a function of arrays, in float64."""
    jaxpr, consts = (closed.jaxpr, closed.consts) if isinstance(closed, ClosedJaxpr) else (closed, ())
    return lambda *args: run_wide(jaxpr, consts, args, seen)


def _step(equation: Any, values: list[Any], seen: list[Any] | None) -> list[Any]:
    name, params = equation.primitive.name, equation.params
    if name == "scan":
        return _scan(params, values)
    if name == "while":
        return _while(params, values)
    if name == "cond":
        return list(jax.lax.switch(values[0], [_inner(branch) for branch in params["branches"]], *values[1:]))
    body = params.get("jaxpr") or params.get("call_jaxpr") or params.get("fun_jaxpr")
    if body is not None:
        return _inner(body, seen)(*values)
    wider = {k: DOUBLE if _is_single(v) else v for k, v in params.items()}
    out = equation.primitive.bind(*values, **wider)
    return list(out) if equation.primitive.multiple_results else [out]


def _is_single(value: Any) -> bool:
    try:
        return isinstance(value, np.dtype | type) and np.dtype(value) == SINGLE
    except TypeError:
        return False


def _scan(params: dict[str, Any], values: list[Any]) -> list[Any]:
    num_consts, num_carry = params["num_consts"], params["num_carry"]
    body = _inner(params["jaxpr"])
    consts, rest = values[:num_consts], values[num_consts:]
    carry, xs = rest[:num_carry], rest[num_carry:]

    def one(carry: Any, x: Any) -> Any:
        out = body(*consts, *carry, *x)
        return tuple(out[:num_carry]), tuple(out[num_carry:])

    last, ys = jax.lax.scan(one, tuple(carry), tuple(xs), params["length"], params["reverse"])
    return [*last, *ys]


def _while(params: dict[str, Any], values: list[Any]) -> list[Any]:
    num_cond, num_body = params["cond_nconsts"], params["body_nconsts"]
    of_cond, of_body, carry = values[:num_cond], values[num_cond : num_cond + num_body], values[num_cond + num_body :]
    goes_on, body = _inner(params["cond_jaxpr"]), _inner(params["body_jaxpr"])
    out = jax.lax.while_loop(lambda c: goes_on(*of_cond, *c)[0], lambda c: tuple(body(*of_body, *c)), tuple(carry))
    return list(out)
