"""A traced function as one flat list of equations over numbered slots: calls inlined, conditionals made selections.

Slot 0 is theta; slot 1 is its data, if the function has some that are not known yet. Every other slot is a constant, or
the output of exactly one equation. Short scans are unrolled; a scan whose carry only hands values to the next step or
adds them up is one batched step, whatever its length (`_batched`).
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Literal, jaxpr_as_fun
from jaxtyping import Array

MAX_UNROLLED = 4096  # equations of one unrolled scan: reading 10,000 small equations takes about a second
MAX_HANDED_ON = 4  # steps that a value may travel in the carry of a batched scan
CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
    *("remat", "remat2", "checkpoint", "custom_lin", "run_state"),
}
SUBPROGRAMS = {"jaxpr", "body_jaxpr", "cond_jaxpr", "branches", "call_jaxpr", "update_jaxpr", "fun", "callback"}


class Equation(NamedTuple):
    """outputs = primitive(inputs): slots, and the line of the user's code."""

    primitive: Any
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    params: dict[str, Any]
    source: Any

    @property
    def name(self) -> str:
        return self.primitive.name


class Program:
    """A function of theta, (d,) int32, read into equations; an opaque one is a single call.

    With data it is a function of theta and of reals, which are in slot 1: what is read then holds for all of them.

    Attributes:
        equations: In the order of the computation; only those that depend on theta or on data.
        by_data: The slots that depend on data.
        avals: Shape and dtype of each slot.
        output: The slot of the result.
        made_by: The equation behind each slot.
    """

    def __init__(
        self, function: Callable[..., Array], num_dims: int, *, is_opaque: bool = False, num_data: int | None = None
    ):
        inputs = [jax.ShapeDtypeStruct((num_dims,), jnp.int32)]
        if num_data is not None:
            inputs.append(jax.ShapeDtypeStruct((num_data,), jnp.result_type(float)))
        closed = jax.make_jaxpr(jax.jit(function) if is_opaque else function)(*inputs)
        self._is_opaque = is_opaque
        self.has_data = num_data is not None
        self.by_data = {1} if self.has_data else set()
        self.avals: list[Any] = list(inputs)
        self.equations: list[Equation] = []
        self.made_by: dict[int, Equation] = {}
        self._constants: dict[int, Any] = {}
        self._known: dict[Any, list[int]] = {}  # equations that were met before, and scalar constants
        self.output = self._inline(closed.jaxpr, closed.consts, list(range(len(inputs))))[0]

    # ---- what a slot holds

    def shape(self, slot: int) -> tuple[int, ...]:
        return tuple(self.avals[slot].shape)

    def size(self, slot: int) -> int:
        return int(np.prod(self.shape(slot), dtype=np.int64))

    def dtype(self, slot: int) -> Any:
        return self.avals[slot].dtype

    def is_constant(self, slot: int) -> bool:
        return slot in self._constants

    def value(self, slot: int) -> np.ndarray:
        """The value of a constant slot."""
        return np.asarray(self._constants[slot])

    def evaluate(self, theta: Array, slots: Sequence[int], data: Array | None = None) -> list[Array]:
        """The values of some slots at a configuration; traceable."""
        return self.resume({0: theta} if data is None else {0: theta, 1: data}, slots)

    def resume(self, values: dict[int, Any], slots: Sequence[int]) -> list[Array]:
        """The values of some slots, computed from those of others (a cut between theta and the slots)."""
        values = dict(values)
        for equation in self.needed(slots, values):
            for slot, out in zip(equation.outputs, self._bind(equation, values), strict=True):
                values.setdefault(slot, out)
        return [jnp.asarray(self._constants[s]) if self.is_constant(s) else values[s] for s in slots]

    def needed(self, slots: Iterable[int], given: Iterable[int] = ()) -> list[Equation]:
        """The equations behind some slots, in order, as far as they do not follow from the given ones."""
        wanted, given = set(slots) - set(given), set(given)
        kept = []
        for equation in reversed(self.equations):
            if not wanted.isdisjoint(equation.outputs):
                kept.append(equation)
                wanted.update(set(equation.inputs) - given)
        return kept[::-1]

    def _bind(self, equation: Equation, values: dict[int, Any]) -> Sequence[Any]:
        inputs = [jnp.asarray(self._constants[s]) if self.is_constant(s) else values[s] for s in equation.inputs]
        out = equation.primitive.bind(*inputs, **equation.params)
        return out if equation.primitive.multiple_results else [out]

    # ---- reading

    def constant(self, value: Any, dtype: Any = None) -> int:
        """A new slot that holds a constant."""
        is_key = jnp.issubdtype(getattr(value, "dtype", np.float32), jax.dtypes.extended)
        value = value if is_key else np.asarray(value, dtype)
        key = ("constant", value.dtype, value.tobytes()) if not is_key and value.shape == () else None
        if key in self._known:
            return self._known[key][0]
        self.avals.append(jax.ShapeDtypeStruct(value.shape, value.dtype))
        self._constants[len(self.avals) - 1] = value
        if key is not None:
            self._known[key] = [len(self.avals) - 1]
        return len(self.avals) - 1

    def apply(
        self, primitive: Any, inputs: Sequence[int], avals: Sequence[Any], params: dict, source: Any
    ) -> list[int]:
        """One more equation (or, of constants, its value) and the slots of its outputs."""
        first = len(self.avals)
        equation = Equation(primitive, tuple(inputs), tuple(range(first, first + len(avals))), params, source)
        if all(self.is_constant(s) for s in inputs):
            with jax.ensure_compile_time_eval():
                return [self.constant(value) for value in self._bind(equation, {})]
        key = (equation.name, equation.inputs, str(params)) if not SUBPROGRAMS & params.keys() else len(self.equations)
        if key in self._known:
            return self._known[key]
        self._known[key] = list(equation.outputs)
        self.avals.extend(avals)
        self.equations.append(equation)
        self.made_by.update({s: equation for s in equation.outputs})
        if not self.by_data.isdisjoint(inputs):
            self.by_data.update(equation.outputs)
        return list(equation.outputs)

    def _inline(self, jaxpr: Any, consts: Sequence[Any], arguments: Sequence[int]) -> list[int]:
        slots = dict(zip(jaxpr.invars, arguments, strict=True))
        slots |= {v: self.constant(c) for v, c in zip(jaxpr.constvars, consts, strict=True)}

        def look(v: Any) -> int:
            if not isinstance(v, Literal):
                return slots[v]
            aval: Any = v.aval
            return self.constant(v.val, aval.dtype)

        for equation in jaxpr.eqns:
            inputs = [look(v) for v in equation.invars]
            slots.update(zip(equation.outvars, self._read(equation, inputs), strict=True))
        return [look(v) for v in jaxpr.outvars]

    def _read(self, equation: Any, inputs: list[int]) -> list[int]:
        name, params = equation.primitive.name, equation.params
        if self._is_opaque:
            name = "opaque"
        inner = next((params[k] for k in ("jaxpr", "call_jaxpr", "fun_jaxpr") if k in params), None)
        if name in CALLS and inner is not None:
            is_closed = isinstance(inner, ClosedJaxpr)
            return self._inline(inner.jaxpr if is_closed else inner, inner.consts if is_closed else [], inputs)
        if name == "cond":
            return self._branches(params["branches"], inputs)
        if name == "scan" and not all(self.is_constant(s) for s in inputs):
            read = self._batched(params, inputs)
            if read is not None:
                return read
            if params["length"] * len(params["jaxpr"].eqns) <= MAX_UNROLLED:
                return self._unrolled(equation, inputs)
        avals = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in equation.outvars]
        return self.apply(equation.primitive, inputs, avals, params, equation.source_info)

    def trace(self, function: Callable, inputs: Sequence[int]) -> list[int]:
        """Reads a function of some slots."""
        closed = jax.make_jaxpr(function)(*[self.avals[s] for s in inputs])
        return self._inline(closed.jaxpr, closed.consts, inputs)

    def _branches(self, branches: Sequence[ClosedJaxpr], inputs: list[int]) -> list[int]:
        """All branches, and a selection among what they give."""
        which, operands = inputs[0], inputs[1:]
        if self.is_constant(which):
            chosen = branches[int(np.clip(self.value(which), 0, len(branches) - 1))]
            return self._inline(chosen.jaxpr, chosen.consts, operands)
        outs = [self._inline(b.jaxpr, b.consts, operands) for b in branches]
        select = lambda i, *cases: jax.lax.select_n(jnp.broadcast_to(i, cases[0].shape), *cases)
        return [self.trace(select, [which, *cases])[0] for cases in zip(*outs, strict=True)]

    def _unrolled(self, equation: Any, inputs: list[int]) -> list[int]:
        params, body = equation.params, equation.params["jaxpr"]
        num_consts, length = params["num_consts"], params["length"]
        first_x = num_consts + params["num_carry"]
        consts, carry, xs = inputs[:num_consts], inputs[num_consts:first_x], inputs[first_x:]
        steps = range(length - 1, -1, -1) if params["reverse"] else range(length)
        ys: dict[int, list[int]] = {}
        for t in steps:
            part = [self.trace(lambda x: x[t], [x])[0] for x in xs]
            out = self._inline(body.jaxpr, body.consts, [*consts, *carry, *part])
            carry, ys[t] = out[: params["num_carry"]], out[params["num_carry"] :]
        stacked = [ys[t] for t in range(length)]
        return carry + [self.trace(lambda *y: jnp.stack(y), y)[0] for y in zip(*stacked, strict=True)]

    def _batched(self, params: dict[str, Any], inputs: list[int]) -> list[int] | None:
        """A scan without a true recurrence as one batched step; None if it has one."""
        if params["length"] < 2:
            return None
        num_consts, num_carry = params["num_consts"], params["num_carry"]
        is_known = known_carry(params, [self.is_constant(s) for s in inputs])
        if not any(is_known):
            plan = carry_plan(params["jaxpr"], num_consts, num_carry)
            return None if plan is None else self.trace(lambda *args: batched_scan(params, plan, *args), inputs)
        steps = _known_steps(params, is_known, [self._constants.get(s) for s in inputs])
        if steps is None:
            return None
        before, last = ([self.constant(x) for x in part] for part in steps)
        carry = inputs[num_consts : num_consts + num_carry]
        rest = [s for s, known in zip(carry, is_known, strict=True) if not known]
        after = inputs[num_consts + num_carry :]
        less = _with_known_carry(params, is_known)
        read = self._batched(less, [*inputs[:num_consts], *rest, *before, *after])
        if read is None:
            return None
        found, ends = iter(read), iter(last)
        return [next(ends) if known else next(found) for known in is_known] + list(found)


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


def _known_steps(params: dict[str, Any], is_known: list[bool], values: list[Any]) -> tuple[list, list] | None:
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


def _with_known_carry(params: dict[str, Any], is_known: list[bool]) -> dict[str, Any]:
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
