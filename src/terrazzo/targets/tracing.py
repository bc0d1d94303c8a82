"""What a function computes, apart from its data: so that functions that differ only in data share compiled code.

A user's log-probability is traced once. Arrays that it closes over, and most Python floats in its arithmetic, become
arguments; what is left is the computation, which is the same for every data set of one shape. Compiled code belongs to
the computation: a loop over many closures compiles once. A function that hides what it does (a callback to the host, a
derivative rule over its own data) is left as it is, and compiled on its own.
"""

import hashlib
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal

from terrazzo.targets.contents import ADDRESS, check_unchanged, digest
from terrazzo.targets.pair_models import AbstractPairModel

LINEAR = ("add", "sub", "mul")  # whose float constants become arguments
KEPT = (0.0, 0.5, 1.0, 2.0)  # constants that the compiler simplifies: they stay part of the computation
RULES = ("jvp_jaxpr_fun", "fwd_jaxpr_thunk", "bwd")  # derivative rules, known by the gradient that they give
CALLS = ("jit", "pjit", "closed_call")


class HiddenError(Exception):
    """The trace does not show all that a function does."""


class Form(NamedTuple):
    """One trace of a function.

    Attributes:
        jaxpr: The computation, as a function of the constants and then of the arguments.
        dtypes: Of the arguments' leaves.
        places: Which of the function's constants it takes.
        out_tree: The structure of what it returns.
    """

    jaxpr: ClosedJaxpr
    dtypes: tuple[np.dtype, ...]
    places: tuple[int, ...]
    out_tree: Any


class Computation:
    """What a function computes, apart from its constants. Equal to any other of the same text.

    Attributes:
        key: The digest of the text.
        forms: The function at integers, and at reals where it takes them.
        function: The user's function, to be traced again in another precision.
        examples: Arguments to trace it with.
        is_double: The precision it was traced in.
    """

    def __init__(self, key: str, forms: dict[str, Form], function: Callable, examples: tuple, is_double: bool):
        self.key, self.forms, self.function = key, forms, function
        self.examples, self.is_double = examples, is_double

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Computation) and other.key == self.key

    def __hash__(self) -> int:
        return hash(self.key)

    def __repr__(self) -> str:
        return f"Computation({self.key[:12]})"


class TracedFunction(eqx.Module):
    """A user's function as its computation (static) and its constants (arrays): call it as the function itself."""

    constants: tuple[Any, ...]
    computation: Computation = eqx.field(static=True)

    def __call__(self, *args: Any) -> Any:
        leaves = [jnp.asarray(x) for x in jax.tree.leaves(args)]
        form = self.computation.forms.get(_kind(leaves))
        if form is None:
            raise TypeError(f"this function takes no {_kind(leaves)} arguments")
        values = [x.astype(dtype) for x, dtype in zip(leaves, form.dtypes, strict=True)]
        constants = [self.constants[i] for i in form.places]
        out = jax.core.eval_jaxpr(form.jaxpr.jaxpr, form.jaxpr.consts, *constants, *values)
        return jax.tree.unflatten(form.out_tree, out)


def is_double() -> bool:
    """Whether arrays are in double precision by default, here and now."""
    return bool(jax.config.read("jax_enable_x64"))


def traced(function: Any, *examples: Any) -> Any:
    """The function as a `TracedFunction`, or as it is (but for `untraced`) where its trace does not show what it does.

    Args:
        function: A plain function; modules keep their arrays as leaves already, and stay as they are.
        *examples: Arguments (abstract ones are enough); integers are tried as reals too.

    >>> import jax.numpy as jnp, numpy as np
    >>> def weighted(weights, scale):
    ...     return lambda theta: scale * (theta * jnp.asarray(weights)).sum()
    >>> one, two = (traced(weighted(np.arange(3.0) + i, 0.3 + i), jnp.zeros(3, jnp.int32)) for i in range(2))
    >>> one.computation == two.computation, round(float(two(jnp.ones(3, jnp.int32))), 3)
    (True, 7.8)
    """
    if (
        function is None
        or isinstance(function, AbstractPairModel)
        or (_is_module(function) and not _closes_over_data(function))
    ):
        return function
    try:
        return traced_anyway(function, *examples)
    except Exception:  # whatever tracing meets is reported by probing, which calls the function itself
        check_unchanged(function)
        return function if _is_module(function) else untraced(function)


def untraced(function: Callable) -> Callable:
    """The function as an object that JAX has not met.

    JAX keeps what it traced of a function object, with the values that NumPy arrays had at that time, and hands these
    values to the traces of other functions for as long as it keeps them. Data that a user changes in place between two
    calls would not be seen. So no function of a user's is handed to JAX itself.
    """
    return lambda *args: function(*args)


def _is_module(function: Any) -> bool:
    return isinstance(function, eqx.Module)


def _closes_over_data(module: eqx.Module) -> bool:
    """Whether some leaf is a function with variables of its own: JAX takes it for a constant."""
    return any(isinstance(leaf, types.FunctionType) and leaf.__closure__ for leaf in jax.tree.leaves(module))


def traced_anyway(function: Callable, *examples: Any) -> TracedFunction:
    """As `traced`, modules too; raises where the trace does not show what the function does."""
    examples = jax.tree.map(lambda x: jax.ShapeDtypeStruct(jnp.shape(x), x.dtype), examples)
    forms, texts, pool = {}, [f"double={is_double()}"], _Pool()
    leaves = jax.tree.leaves(examples)
    wanted = {_kind(leaves): examples}
    if _kind(leaves) == "integer" and len(examples) == 1:
        wanted["real"] = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, jnp.result_type(float)), examples)
    for kind, arguments in wanted.items():
        try:
            form, text = _form(function, arguments, pool)
        except HiddenError:
            raise
        except Exception:
            if kind == _kind(leaves):
                raise
            continue  # it does not take reals
        forms[kind] = form
        texts += [kind, str(form.places), text]
    key = hashlib.sha256("\n".join(texts).encode()).hexdigest()
    return TracedFunction(tuple(pool.constants), Computation(key, forms, function, examples, is_double()))


def here_and_now(function: Any) -> Any:
    """The function itself in place of its trace, where that is of another precision than that of here and now."""
    if isinstance(function, TracedFunction) and function.computation.is_double != is_double():
        return function.computation.function
    return function


def in_this_precision(tree: Any) -> Any:
    """The pytree with every `TracedFunction` traced in the precision of here and now."""

    def again(x: Any) -> Any:
        if not isinstance(x, TracedFunction) or x.computation.is_double == is_double():
            return x
        here = jnp.result_type(float)
        same_kind = lambda v: jax.ShapeDtypeStruct(v.shape, here if jnp.issubdtype(v.dtype, jnp.floating) else v.dtype)
        return traced_anyway(x.computation.function, *jax.tree.map(same_kind, x.computation.examples))

    return jax.tree.map(again, tree, is_leaf=lambda x: isinstance(x, TracedFunction))


# ---- one trace


def _kind(leaves: Sequence[Any]) -> str:
    """Whether arguments are all real; a mixed configuration, with integers among them, counts as "integer"."""
    return "real" if leaves and all(jnp.issubdtype(x.dtype, jnp.floating) for x in leaves) else "integer"


class _Pool:
    """The constants of all forms: what both forms close over is held once."""

    def __init__(self) -> None:
        self.constants: list[Any] = []
        self._found: dict[Any, int] = {}
        self._alive: list[Any] = []  # so that no address is given out twice

    def place(self, value: Any, aval: Any) -> int:
        """Where the constant is."""
        if isinstance(value, jax.Array | jax.core.Tracer):
            known: Any = id(value)
        elif np.ndim(value):
            array = np.asarray(value)
            known = (array.ctypes.data, array.shape, array.strides, str(array.dtype), str(aval.dtype))
            self._alive.append(array)
        else:
            known = object()  # equal numbers are not the same number
        self._alive.append(value)
        if known not in self._found:
            self._found[known] = len(self.constants)
            self.constants.append(_as_constant(value, aval))
        return self._found[known]


def _form(function: Callable, arguments: tuple, pool: _Pool) -> tuple[Form, str]:
    """One form, and the text of what it computes."""
    with jax.default_matmul_precision("highest"):
        closed, shape = jax.make_jaxpr(untraced(function), return_shape=True)(*arguments)
    has_rules = _look(closed)[0]
    places = [pool.place(value, aval) for value, aval in _each_constant(closed)]
    leaves = jax.tree.leaves(arguments)
    constants = [pool.constants[i] for i in places]

    def rest(*xs: Any) -> Any:
        return _interpret(closed, xs[len(places) :], iter(xs[: len(places)]))

    try:
        final = jax.make_jaxpr(rest)(*constants, *leaves)
    except TypeError:  # JAX hands over NumPy arrays in the precision in which it first met them
        for i in places:
            pool.constants[i] = _in_default_precision(pool.constants[i])
        constants = [pool.constants[i] for i in places]
        final = jax.make_jaxpr(rest)(*constants, *leaves)
    _, parts = _look(final)
    text = [str(final.jaxpr), *parts, *(digest(c) for c in final.consts), str(jax.tree.structure(shape))]
    if has_rules and _kind(leaves) == "real":
        text.append(_gradient(rest, constants, leaves))
    form = Form(final, tuple(x.dtype for x in leaves), tuple(places), jax.tree.structure(shape))
    return form, ADDRESS.sub("", "\n".join(text))


def _in_default_precision(value: Any) -> Any:
    return value.astype(jnp.result_type(float)) if jnp.issubdtype(value.dtype, jnp.floating) else value


def _as_constant(value: Any, aval: Any) -> Any:
    if isinstance(value, jax.core.Tracer) or (isinstance(value, jax.Array) and value.dtype == aval.dtype):
        return value
    return jnp.asarray(np.asarray(value), aval.dtype)


def _gradient(function: Callable, constants: list[Any], leaves: list[Any]) -> str:
    """The text of the gradient at the arguments; rules that bring data of their own would have it compiled in."""
    total = lambda *xs: sum(jnp.sum(x) for x in function(*xs))
    places = tuple(range(len(constants), len(constants) + len(leaves)))
    gradient = jax.make_jaxpr(jax.grad(total, argnums=places))(*constants, *leaves)
    if gradient.consts:
        raise HiddenError("a derivative rule has data of its own")
    return "\n".join([str(gradient.jaxpr), *_look(gradient)[1]])


def _is_free(atom: Any, equation: Any) -> bool:
    """Whether a number in the text becomes an argument: a float that something is multiplied by or added to."""
    if not isinstance(atom, Literal) or equation.primitive.name not in LINEAR:
        return False
    aval: Any = atom.aval
    is_float = jnp.issubdtype(aval.dtype, jnp.floating) and np.isfinite(atom.val)
    return bool(is_float and abs(float(atom.val)) not in KEPT)


def _opened(equation: Any) -> ClosedJaxpr | None:
    """The inside of a call, if constants are in it."""
    inner = equation.params.get("jaxpr") if equation.primitive.name in CALLS else None
    return inner if isinstance(inner, ClosedJaxpr) and _has_constants(inner) else None


def _each_constant(closed: ClosedJaxpr) -> Iterator[tuple[Any, Any]]:
    """Value and type of each constant, in the order in which `_interpret` asks for them."""
    for variable, value in zip(closed.jaxpr.constvars, closed.consts, strict=True):
        yield value, variable.aval
    for equation in closed.jaxpr.eqns:
        yield from ((atom.val, atom.aval) for atom in equation.invars if _is_free(atom, equation))
        if (inner := _opened(equation)) is not None:
            yield from _each_constant(inner)


def _interpret(closed: ClosedJaxpr, args: Sequence[Any], constants: Iterator[Any]) -> list[Any]:
    """Evaluates a jaxpr with its constants replaced, in order."""
    env: dict[Any, Any] = dict(zip(closed.jaxpr.invars, args, strict=True))
    env |= {variable: next(constants) for variable in closed.jaxpr.constvars}
    read = lambda atom: atom.val if isinstance(atom, Literal) else env[atom]
    for equation in closed.jaxpr.eqns:
        values = [next(constants) if _is_free(atom, equation) else read(atom) for atom in equation.invars]
        if (inner := _opened(equation)) is not None:
            out = _interpret(inner, values, constants)
        else:
            found = equation.primitive.get_bind_params(equation.params)
            functions, params = found if isinstance(found, tuple) else ((), found)
            lines = source_info_util.user_context(equation.source_info.traceback)  # the user's own, for `explain`
            with lines, equation.ctx.manager:
                out = equation.primitive.bind(*functions, *values, **params)
            out = out if equation.primitive.multiple_results else [out]
        env |= dict(zip(equation.outvars, out, strict=True))
    return [read(atom) for atom in closed.jaxpr.outvars]


def _has_constants(closed: ClosedJaxpr) -> bool:
    inner = (e.params.get("jaxpr") for e in closed.jaxpr.eqns if e.primitive.name in CALLS)
    return bool(closed.consts) or any(isinstance(c, ClosedJaxpr) and _has_constants(c) for c in inner)


def _look(closed: ClosedJaxpr) -> tuple[bool, list[str]]:
    """Whether derivative rules are inside, and digests of arrays that the text does not spell out.

    Raises `HiddenError` for anything else that the text does not show: callbacks, functions as parameters, effects.
    """
    if closed.effects:
        raise HiddenError
    has_rules = False
    digests: list[str] = []

    def visit(value: Any, name: str = "") -> None:
        nonlocal has_rules
        if name in RULES:
            has_rules = True
        elif isinstance(value, ClosedJaxpr):
            digests.extend(digest(c) for c in value.consts)
            visit(value.jaxpr)
        elif isinstance(value, Jaxpr):
            for equation in value.eqns:
                for key, parameter in equation.params.items():
                    visit(parameter, key)
        elif isinstance(value, dict):
            for key, item in value.items():
                visit(item, str(key))
        elif isinstance(value, list | tuple):
            for item in value:
                visit(item)
        elif isinstance(value, np.ndarray | jax.Array | jax.sharding.Mesh | jax.sharding.AbstractMesh):
            digests.append(digest(value))
        elif callable(value) and not isinstance(value, type) and not _is_known(value):
            raise HiddenError(f"{name}: {value!r}")

    visit(closed.jaxpr)
    return has_rules, digests


def _is_known(function: Any) -> bool:
    """Whether a parameter is a function of JAX itself, without data of its own."""
    if not isinstance(function, types.FunctionType):
        return False
    return function.__module__.split(".")[0] == "jax" and function.__closure__ is None
