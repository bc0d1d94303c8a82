"""Which run a stored run is: what its target computes and from what data, and every option that its draws depend on.

A checkpoint may only be continued by the same run. Here everything that decides the draws is turned into short texts,
by name, that can be stored and compared: plain values as they are, anything larger as a digest of all its contents.
"""

import dataclasses
import functools
import hashlib
import types
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.targets import mixed
from terrazzo.targets.contents import ADDRESS, digest
from terrazzo.targets.target import Target
from terrazzo.targets.tracing import TracedFunction, traced_anyway

NUM_POINTS = 6
COMPUTATION, DATA = "target's computation", "target's data"


def target_identity(target: Target) -> dict[str, str]:
    """What the target and its hints compute, and the data that they compute it from, as two digests.

    A black box shows nothing of itself: it is known by its name and its values at a few fixed configurations.

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> one, two = (target_identity(tz.Target(lambda t, a=a: a * t.sum(), tz.binary(3))) for a in (0.3, 0.4))
    >>> one[COMPUTATION] == two[COMPUTATION], one[DATA] == two[DATA]
    (True, False)
    """
    if target.space.num_reals:
        return _mixed_identity(target)
    texts, data = [str(target.colours)], [digest(target.inverse_temperature)]
    dim, size = target.space.num_dims, target.space.max_size
    theta, one = jax.ShapeDtypeStruct((dim,), jnp.int32), jax.ShapeDtypeStruct((), jnp.int32)
    reals = jax.ShapeDtypeStruct((dim, size), jnp.result_type(float))
    parts: list[tuple[str, Any, tuple]] = [
        ("site_logits", target.site_logits_fn, (theta, one)),
        ("one_hot", target.one_hot_fn, (reals,)),
    ]
    if target.is_blackbox:
        texts.append(f"black box {target.log_prob_fn.name}")
        data.append(_values(target))
    else:
        parts.append(("log_prob", target._called, (jax.eval_shape(target.space.unflatten, theta),)))
    if target.running is not None:
        parts.append(("running", _all_of(target.running), (theta, one, one)))
    for name, function, examples in parts:
        if function is None:
            continue
        try:
            found = function if isinstance(function, TracedFunction) else traced_anyway(function, *examples)
        except Exception:  # its trace does not show what it does: it calls the host, say
            texts.append(f"{name} hidden")
            data.append(_values(target))
            continue
        texts.append(f"{name} {found.computation.key}")
        data.append(digest(*found.constants))
    return {COMPUTATION: digest(*texts), DATA: digest(*data)}


def _mixed_identity(target: Target) -> dict[str, str]:
    """The same of a target with real variables: its function alone, which has no hints."""
    example = mixed.example_values(target.space)
    texts, data = [str(target.space)], [digest(target.inverse_temperature)]
    functions: dict[str, Any] = {"log_prob": target.log_prob_fn}
    if target.reference is not None:
        functions["reference"] = target.reference.log_prob
    for name, function in functions.items():
        try:
            found = function if isinstance(function, TracedFunction) else traced_anyway(function, example)
            texts.append(f"{name} {found.computation.key}")
            data.append(digest(*found.constants))
        except Exception:  # a black box, or a trace that does not show what it does: known by its values
            points = mixed.probe_points(target.space)
            at = [target.log_prob_of(jnp.asarray(t), jnp.asarray(y)) for t, y in zip(*points, strict=True)]
            texts.append(f"{name} hidden {getattr(function, 'name', None)}")
            data.append(", ".join(f"{float(value):.7e}" for value in at))
    return {COMPUTATION: digest(*texts), DATA: digest(*data)}


def _values(target: Target) -> str:
    """The values at fixed configurations, to eight digits: sums may differ in their last ones."""
    inner = np.random.default_rng(0).integers(0, target.space.sizes, (NUM_POINTS, target.space.num_dims))
    points = np.concatenate([0 * inner[:1], target.space.sizes[None] - 1, inner]).astype(np.int32)
    if target.is_blackbox:
        values = [float(target.log_prob_fn.evaluate(target.space, theta)) for theta in points]
    else:
        values = [float(target.log_prob(jnp.asarray(theta))) for theta in points]
    return ", ".join(f"{value:.7e}" for value in values)


def _all_of(running: Any) -> Any:
    def every(theta: Any, i: Any, value: Any) -> Any:
        tables = running.start(theta)
        return running.logits(tables, theta), running.moved(tables, theta, i, value)

    return every


def shown(value: Any) -> Any:
    """A value to be stored and compared: plain ones as they are, others as their type and a digest of all they hold.

    >>> shown(3), shown("gibbs"), shown(np.zeros(5000)) == shown(np.zeros(5000)), shown([1.0]) == shown([2.0])
    (3, 'gibbs', True, False)
    """
    if value is None or isinstance(value, bool | int | float) or (isinstance(value, str) and len(value) <= 200):
        return value
    if isinstance(value, np.generic):
        return shown(value.item())
    return f"{type(value).__name__} {contents_digest(value)[:32]}"


def options_shown(name: str, options: Any) -> dict[str, Any]:
    """The entries of a dict of options, each by its full name; anything else under the name itself."""
    if isinstance(options, Mapping):
        return {f"{name}[{key!r}]": shown(value) for key, value in options.items()}
    return {name: shown(options)}


def contents_digest(value: Any) -> str:
    """A digest of everything a value holds: the bytes of arrays, the fields of objects, the code of functions."""
    out = hashlib.sha256()
    _feed(out, value, ())
    return out.hexdigest()


def _feed(out: Any, value: Any, above: tuple[int, ...]) -> None:
    if id(value) in above:
        out.update(b"again;")
        return
    inside = (*above, id(value))
    out.update(f"{type(value).__module__}.{type(value).__qualname__}:".encode())
    if isinstance(value, np.ndarray | np.generic | jax.Array) and value.dtype.kind != "O":
        out.update(digest(value).encode())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=repr):
            _feed(out, (key, value[key]), inside)
    elif isinstance(value, set | frozenset):
        _feed(out, sorted(value, key=repr), inside)
    elif isinstance(value, list | tuple):
        for item in value:
            _feed(out, item, inside)
    elif isinstance(value, types.CodeType):
        _feed(out, (value.co_code, value.co_names, value.co_consts), inside)
    elif isinstance(value, types.FunctionType):
        cells = tuple(_cell(c) for c in value.__closure__ or ())
        _feed(out, (value.__code__, value.__defaults__, value.__kwdefaults__, cells), inside)
    elif isinstance(value, types.MethodType):
        _feed(out, (value.__func__, value.__self__), inside)
    elif isinstance(value, functools.partial):
        _feed(out, (value.func, value.args, value.keywords), inside)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _feed(out, [(f.name, getattr(value, f.name, None)) for f in dataclasses.fields(value)], inside)
    elif isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
        _feed(out, value.__wrapped__, inside)
    else:
        out.update(ADDRESS.sub("", repr(value)).encode())
    out.update(b";")


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # empty
        return None
