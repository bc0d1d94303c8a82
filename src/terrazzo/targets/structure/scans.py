"""Scans that are one batched step: their carry counts, adds up, or only hands values to the next step."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array

MAX_HANDED_ON = 4  # steps that a value may travel in the carry of a batched scan


def known_carry(params: dict[str, Any], is_constant: Sequence[bool]) -> list[bool]:
    """Which parts of a scan's carry are known at every step, as counters and keys are.

    They start from constants, and their new values look at constants and at parts of the same kind alone.
    """
    jaxpr, first = params["jaxpr"].jaxpr, params["num_consts"]
    carry = range(first, first + params["num_carry"])
    made = {v: e for e in jaxpr.eqns for v in e.outvars}
    seen = {i: _ancestors(jaxpr.outvars[i - first], made) for i in carry}
    known = {i for i in carry if is_constant[i]}
    while True:
        unknown = {v for i, v in enumerate(jaxpr.invars) if (i not in known if i in carry else not is_constant[i])}
        left = {i for i in known if seen[i].isdisjoint(unknown)}
        if left == known:
            return [i in known for i in carry]
        known = left


def known_steps(params: dict[str, Any], is_known: list[bool], values: list[Any]) -> tuple[list, list] | None:
    """The known parts of a carry before every step, and after the last; None if that cannot be computed."""
    jaxpr, first, num_carry = params["jaxpr"].jaxpr, params["num_consts"], params["num_carry"]
    like = [v.aval for v in jaxpr.invars]
    if any(jnp.issubdtype(a.dtype, jax.dtypes.extended) for a, x in zip(like, values, strict=True) if x is None):
        return None
    anything = [jnp.zeros(a.shape, a.dtype) if x is None else None for a, x in zip(like, values, strict=True)]

    def step(known: list, xs: list) -> tuple[list, list]:
        parts, rows = iter(known), iter(xs)
        carry = [next(parts) if k else anything[first + i] for i, k in enumerate(is_known)]
        carry = [values[first + i] if c is None else c for i, c in enumerate(carry)]
        after = [next(rows) if x is not None else anything[first + num_carry + i] for i, x in enumerate(later)]
        out = jaxpr_as_fun(params["jaxpr"])(*fixed, *carry, *after)
        return [o for o, k in zip(out, is_known, strict=False) if k], known

    fixed = [anything[i] if x is None else x for i, x in enumerate(values[:first])]
    later = values[first + num_carry :]
    start = [jnp.asarray(values[first + i]) for i, k in enumerate(is_known) if k]
    rows = [jnp.asarray(x) for x in later if x is not None]
    with jax.ensure_compile_time_eval():
        last, before = jax.lax.scan(step, start, rows, params["length"], params["reverse"])
    return before, last


def with_known_carry(params: dict[str, Any], is_known: list[bool]) -> dict[str, Any]:
    """The parameters of a scan whose known parts of the carry are given with every step: carry, then these, then xs."""
    body, first, num_carry = params["jaxpr"], params["num_consts"], params["num_carry"]
    like = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in body.jaxpr.invars]
    carry = range(first, first + num_carry)
    order = [i for i in carry if not is_known[i - first]] + [i for i in carry if is_known[i - first]]
    order = [*range(first), *order, *range(first + num_carry, len(like))]

    def step(*args: Any) -> list[Any]:
        placed = dict(zip(order, args, strict=True))
        out = jaxpr_as_fun(body)(*(placed[i] for i in range(len(like))))
        return [o for o, k in zip(out, is_known, strict=False) if not k] + list(out[num_carry:])

    made = jax.make_jaxpr(step)(*(like[i] for i in order))
    return {**params, "jaxpr": made, "num_carry": num_carry - sum(is_known)}


def carry_plan(body: ClosedJaxpr, num_consts: int, num_carry: int) -> tuple[list[bool], int] | None:
    """Whether each part of a carry adds up, and for how many steps the others are handed on. None: a true recurrence.

    A part adds up if its new value is the old one plus something, and nothing else looks at it.
    """
    jaxpr = body.jaxpr
    carry = list(jaxpr.invars[num_consts : num_consts + num_carry])
    new = list(jaxpr.outvars[:num_carry])
    made = {v: e for e in jaxpr.eqns for v in e.outvars}
    readers: dict[Any, int] = {}
    for v in [v for e in jaxpr.eqns for v in e.invars] + list(jaxpr.outvars):
        if not isinstance(v, Literal):
            readers[v] = readers.get(v, 0) + 1

    def adds_up(old: Any, out: Any) -> bool:
        """Follows the new value back to the old one through sums and conversions that nobody else reads."""
        while not isinstance(out, Literal) and out is not old:
            equation = made.get(out)
            if equation is None or equation.primitive.name not in ("add", "convert_element_type") or readers[out] > 1:
                return False
            if equation.primitive.name == "convert_element_type" and out.aval.dtype != equation.invars[0].aval.dtype:
                return False
            paths = [v for v in equation.invars if not isinstance(v, Literal) and old in _ancestors(v, made)]
            if len(paths) != 1 or paths[0].aval.shape != out.aval.shape:
                return False
            out = paths[0]
        return out is old and readers.get(old, 0) == 1

    is_sum = [adds_up(old, out) for old, out in zip(carry, new, strict=True)]
    handed = {old: out for old, out, s in zip(carry, new, is_sum, strict=True) if not s}
    for travelled in range(MAX_HANDED_ON + 1):
        if not handed:
            return is_sum, travelled
        found = {old: {v for v in _ancestors(out, made) if v in handed} for old, out in handed.items()}
        handed = {old: out for old, out in handed.items() if found[old]}
    return None


def _ancestors(v: Any, made: dict[Any, Any]) -> set[Any]:
    seen, stack = set(), [] if isinstance(v, Literal) else [v]
    while stack:
        v = stack.pop()
        if v not in seen:
            seen.add(v)
            stack += [u for u in (made[v].invars if v in made else ()) if not isinstance(u, Literal)]
    return seen


def batched_scan(params: dict[str, Any], plan: tuple[list[bool], int], *args: Array) -> list[Array]:
    """All steps of a scan at once: parts of the carry that are handed on settle after as many rounds as they travel."""
    is_sum, num_rounds = plan
    num_consts, num_carry, length = params["num_consts"], params["num_carry"], params["length"]
    consts, start, xs = args[:num_consts], args[num_consts : num_consts + num_carry], args[num_consts + num_carry :]
    inputs = [x[::-1] if params["reverse"] else x for x in xs]
    steps = jax.vmap(lambda carry, *x: jaxpr_as_fun(params["jaxpr"])(*consts, *carry, *x))
    repeat = lambda x, n: jnp.broadcast_to(x[None], (n, *x.shape))
    zeros = lambda x: jnp.zeros((length, *x.shape), x.dtype)
    before = [zeros(c) if s else repeat(c, length) for c, s in zip(start, is_sum, strict=True)]
    out = steps(before, *inputs)
    for _ in range(num_rounds):
        shifted = [jnp.concatenate([c[None], o[:-1]]) for c, o in zip(start, out, strict=False)]
        before = [b if s else h for b, h, s in zip(before, shifted, is_sum, strict=True)]
        out = steps(before, *inputs)
    ends = [c + o.sum(axis=0) if s else o[-1] for c, o, s in zip(start, out, is_sum, strict=False)]
    return ends + [y[::-1] if params["reverse"] else y for y in out[num_carry:]]
