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
from jax.extend.core import ClosedJaxpr, Literal
from jaxtyping import Array

from terrazzo.targets.structure.scans import batched_scan, carry_plan, known_carry, known_steps, with_known_carry

MAX_UNROLLED = 4096  # equations of one unrolled scan: reading 10,000 small equations takes about a second
CALLS = {
    *("jit", "pjit", "closed_call", "core_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
    *("remat", "remat2", "checkpoint", "custom_lin", "run_state"),
}
ELEMENTWISE = {
    *("add", "add_any", "sub", "mul", "div", "rem", "max", "min", "pow", "integer_pow", "square", "neg", "abs", "sign"),
    *("exp", "exp2", "expm1", "log", "log1p", "sqrt", "rsqrt", "cbrt", "logistic", "tanh", "sin", "cos", "tan", "asin"),
    *("acos", "atan", "atan2", "sinh", "cosh", "asinh", "acosh", "atanh", "floor", "ceil", "round", "is_finite"),
    *("eq", "ne", "lt", "le", "gt", "ge", "eq_to", "lt_to", "le_to", "and", "or", "xor", "not", "select_n", "clamp"),
    *("lgamma", "digamma", "polygamma", "erf", "erfc", "erf_inv", "igamma", "igammac", "zeta", "nextafter"),
    *("regularized_incomplete_beta", "bessel_i0e", "bessel_i1e", "real", "imag", "complex", "conj", "population_count"),
    *("clz", "shift_left", "shift_right_logical", "shift_right_arithmetic", "mulhi"),
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
        by_theta: Those that depend on theta.
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
        self.by_theta = {0}
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
        selection = self._selection(equation, avals) if self.has_data else None
        if selection is not None:
            self._known[key] = self._selected_later(equation, avals, *selection)
            return self._known[key]
        self._known[key] = list(equation.outputs)
        self.avals.extend(avals)
        self.equations.append(equation)
        self.made_by.update({s: equation for s in equation.outputs})
        if not self.by_data.isdisjoint(inputs):
            self.by_data.update(equation.outputs)
        if not self.by_theta.isdisjoint(inputs):
            self.by_theta.update(equation.outputs)
        return list(equation.outputs)

    def _selection(self, equation: Equation, avals: Sequence[Any]) -> tuple[Equation, set[int]] | None:
        """The one selection by theta that an elementwise equation looks at theta through, and the inputs it is in."""
        seen = {s for s in equation.inputs if s in self.by_theta}
        made = [self.made_by.get(s) for s in seen]
        if equation.name not in ELEMENTWISE or not all(e is not None and e.name == "select_n" for e in made):
            return None
        selections = [e for e in made if e is not None]
        if len({e.inputs[0] for e in selections}) != 1 or any(self.shape(s) != tuple(avals[0].shape) for s in seen):
            return None
        is_free = all(self.by_theta.isdisjoint(e.inputs[1:]) and len(e.inputs) == 3 for e in selections)
        return (selections[0], seen) if is_free else None

    def _selected_later(
        self, equation: Equation, avals: Sequence[Any], selection: Equation, seen: set[int]
    ) -> list[int]:
        """f(where(which, a, b)) as where(which, f(a), f(b)): f is then taken twice, and not once a configuration.

        With a change point among n places a sum over it has n^2 logarithms else: a gradient took five times as long.
        """
        cases = []
        for i in (1, 2):
            inputs = [self.made_by[s].inputs[i] if s in seen else s for s in equation.inputs]
            cases += self.apply(equation.primitive, inputs, avals, equation.params, equation.source)
        made = [jax.ShapeDtypeStruct(avals[0].shape, avals[0].dtype)]
        return self.apply(selection.primitive, [selection.inputs[0], *cases], made, selection.params, equation.source)

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
        steps = known_steps(params, is_known, [self._constants.get(s) for s in inputs])
        if steps is None:
            return None
        before, last = ([self.constant(x) for x in part] for part in steps)
        carry = inputs[num_consts : num_consts + num_carry]
        rest = [s for s, known in zip(carry, is_known, strict=True) if not known]
        after = inputs[num_consts + num_carry :]
        less = with_known_carry(params, is_known)
        read = self._batched(less, [*inputs[:num_consts], *rest, *before, *after])
        if read is None:
            return None
        found, ends = iter(read), iter(last)
        return [next(ends) if known else next(found) for known in is_known] + list(found)
