"""Spaces as JSON, and back: built as a user would build them, so that nothing else gets in."""

import math
from collections.abc import Mapping
from typing import Any

from terrazzo.spaces import (
    RealVariable,
    Space,
    Variable,
    binary,
    categorical,
    integers,
    ordered,
    real,
    simplex,
)
from terrazzo.spaces.bijections import Unknown
from terrazzo.storage.files import jsonable

REAL_KINDS = ("real", "simplex", "ordered")


def space_to_json(space: Space) -> dict[str, Any]:
    """A space as plain JSON."""
    variables = [
        {
            "name": name,
            "kind": v.kind,
            "low": v.low,
            **({"size": v.size} if isinstance(v, Variable) else {"high": v.high, "is_own": v.is_own}),
            "shape": list(v.shape),
            "labels": None if v.labels is None else jsonable(v.labels),
            "dims": None if v.dims is None else list(v.dims),
            "coords": [[dim, jsonable(names)] for dim, names in v.coords],
        }
        for name, v in space.variables
    ]
    return {"is_plain": space.is_plain, "variables": variables}


def space_from_json(data: Mapping[str, Any], *, num_dims: int | None = None) -> Space:
    """The space that `space_to_json` described; `SpaceError` or `ValueError` if no space is described so.

    Args:
        data: The description.
        num_dims: The coordinates it must have, looked at before anything of that length is built.
    """
    variables = data["variables"]
    found = sum(math.prod(int(n) for n in v["shape"]) for v in variables if v["kind"] not in REAL_KINDS)
    if num_dims is not None and found != num_dims:
        raise ValueError(f"its space has {found} coordinates, its draws {num_dims}")
    built = {v["name"]: _variable_from_json(v) for v in variables}
    if len(built) != len(variables) or not all(isinstance(name, str) for name in built):
        raise ValueError("its variables have no names of their own")
    if data["is_plain"] is True:
        (variable,) = built.values()
        return Space(variable)
    return Space(**built)


def _real_from_json(data: Mapping[str, Any], shape: tuple[int, ...], axes: dict[str, Any]) -> RealVariable:
    """A real variable; of one with a bijection of the user's own, its shape is known."""
    if data["is_own"] is True:
        return real(bijection=Unknown(shape), **axes)
    if data["kind"] == "real":
        return real(low=data["low"], high=data["high"], shape=shape, **axes)
    return {"simplex": simplex, "ordered": ordered}[data["kind"]](shape[-1], shape[:-1], **axes)


def _variable_from_json(data: Mapping[str, Any]) -> Variable | RealVariable:
    """A variable, built as a user would build it."""
    if data["kind"] in REAL_KINDS:
        axes = {"dims": data["dims"], "coords": {dim: names for dim, names in data["coords"]} or None}
        return _real_from_json(data, tuple(data["shape"]), axes)
    kind, low, size, labels = data["kind"], data["low"], data["size"], data["labels"]
    axes = {"dims": data["dims"], "coords": {dim: names for dim, names in data["coords"]} or None}
    shape = tuple(data["shape"])
    if any(isinstance(n, bool) or not isinstance(n, int) for n in (low, size)):
        raise ValueError(f"a variable has low {str(low)[:20]} and size {str(size)[:20]}")
    if kind == "binary":
        variable = binary(shape, **axes)
    elif kind == "integers":
        variable = integers(low, low + size - 1, shape, **axes)
    elif kind == "categorical":
        variable = categorical(size if labels is None else labels, shape, **axes)
    else:
        raise ValueError(f"a variable is of kind {str(kind)[:40]!r}")
    if (variable.low, variable.size, variable.labels is None) != (low, size, labels is None):
        raise ValueError(f"a {kind} variable has low {low} and size {size}")
    return variable
