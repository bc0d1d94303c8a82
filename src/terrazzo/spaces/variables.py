"""Integer variables: binary, ordered, and unordered ones, of any shape, with the user's values and labels."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from terrazzo.errors import SpaceError

MAX_CARDINALITY = 2**24  # beyond it float32 cannot tell neighbouring values of the embedding apart


def as_shape(name: str, shape: Any) -> tuple[int, ...]:
    """A shape as a tuple of positive integers."""
    dims = (shape,) if isinstance(shape, int | np.integer) and not isinstance(shape, bool) else shape
    try:
        dims = tuple(dims)
        valid = all(isinstance(n, int | np.integer) and not isinstance(n, bool) and n >= 1 for n in dims)
    except TypeError:
        valid = False
    if not valid:
        raise SpaceError(name, f"shape must be positive integers, got {shape!r}", "use e.g. shape=20 or shape=(28, 28)")
    return tuple(int(n) for n in dims)


def _as_int(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise SpaceError(name, f"must be an integer, got {value!r}", "give a Python int")
    return int(value)


def as_array(values: Any, name: str) -> np.ndarray:
    """The user's values as an array; `SpaceError` where they are none."""
    try:
        return np.asarray(values)
    except Exception:  # ragged lists, objects that fail at being arrays
        raise SpaceError(name, "is not an array of values", "give one value per element") from None


@dataclass(frozen=True)
class Variable:
    """One integer variable of any shape. Build it with `binary`, `integers` or `categorical`.

    Attributes:
        kind: "binary", "integers" or "categorical".
        low: The value that the inner integer 0 stands for.
        size: The number of values, K.
        shape: The shape of the variable, () for a scalar.
        labels: The names of the categories, if they have names.
        dims: Names of the axes, for ArviZ.
        coords: Names along each axis, for ArviZ, as (dim, names) pairs.
    """

    kind: str
    low: int
    size: int
    shape: tuple[int, ...] = ()
    labels: tuple[Any, ...] | None = None
    dims: tuple[str, ...] | None = None
    coords: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    @property
    def is_ordered(self) -> bool:
        """Whether neighbouring values are near in meaning (binary counts as ordered)."""
        return self.kind != "categorical"

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)

    def decode(self, theta: np.ndarray) -> np.ndarray:
        """Inner integers to the user's values (labels where there are labels), any leading axes.

        Values are int64, whatever the inner integers are stored as: users subtract and square them.
        """
        if self.labels is not None:
            return np.asarray(self.labels)[np.asarray(theta)]
        return np.asarray(theta).astype(np.int64) + self.low

    def encode(self, values: Any, name: str = "theta") -> np.ndarray:
        """The user's values to inner integers; raises `SpaceError` outside the range."""
        values = as_array(values, name)
        if self.labels is not None:
            lookup = {label: code for code, label in enumerate(self.labels)}
            try:
                codes = np.array([lookup[v] for v in values.ravel().tolist()], np.int64).reshape(values.shape)
            except (KeyError, TypeError) as missing:
                bad = repr(missing.args[0])[:60] if isinstance(missing, KeyError) else "a list"
                raise SpaceError(
                    name, f"{bad} is not one of its labels", f"labels are {list(self.labels)[:8]}"
                ) from None
        else:
            if values.dtype.kind not in "biuf":
                text = " ".join(str(values).split())[:60]
                raise SpaceError(name, f"must be whole numbers, got {text!r}", "give one number per element")
            if not np.all(np.isfinite(values)) or not np.all(np.equal(np.mod(values, 1), 0)):
                raise SpaceError(name, "values must be whole numbers", "round them first")
            codes = np.asarray(values.astype(np.int64) - self.low)  # arithmetic makes scalars of 0-d arrays
        if codes.shape[codes.ndim - len(self.shape) :] != self.shape:
            raise SpaceError(name, f"shape {codes.shape} does not end in {self.shape}", "give one value per element")
        if codes.size and (codes.min() < 0 or codes.max() >= self.size):
            bad = values.ravel()[np.argmax((codes.ravel() < 0) | (codes.ravel() >= self.size))]
            raise SpaceError(
                name, f"{bad} is outside {self.low}..{self.low + self.size - 1}", "keep values inside the variable"
            )
        return codes


def named_axes(
    name: str, shape: tuple[int, ...], dims: Sequence[str] | str | None, coords: Mapping[str, Sequence[Any]] | None
) -> tuple[tuple[str, ...] | None, tuple[tuple[str, tuple[Any, ...]], ...]]:
    """Names of axes and names along them, checked against a shape."""
    if dims is not None:
        dims = (dims,) if isinstance(dims, str) or not isinstance(dims, Sequence) else tuple(dims)
        if len(dims) != len(shape) or not all(isinstance(d, str) for d in dims):
            raise SpaceError(f"{name}.dims", f"{dims!r} does not name the {len(shape)} axes", "one string per axis")
        if {"chain", "draw"} & set(dims):
            raise SpaceError(f"{name}.dims", f"{dims!r} uses a reserved name", "'chain' and 'draw' are taken")
    items = []
    if coords is not None and not isinstance(coords, Mapping):
        raise SpaceError(
            f"{name}.coords", f"must be a dict by dim, got {type(coords).__name__}", "e.g. {'x': ['a', 'b']}"
        )
    for dim, labels in (coords or {}).items():
        if dims is None or dim not in dims:
            raise SpaceError(f"{name}.coords", f"{dim!r} is not one of the dims {dims!r}", "name it in dims first")
        if not isinstance(labels, Sequence | np.ndarray | range) or isinstance(labels, str):
            raise SpaceError(
                f"{name}.coords[{dim!r}]", f"must be a list of names, got {labels!r}", "one name an element"
            )
        labels = tuple(labels)
        if len(labels) != shape[dims.index(dim)]:
            raise SpaceError(
                f"{name}.coords[{dim!r}]",
                f"has {len(labels)} names for {shape[dims.index(dim)]} elements",
                "match them",
            )
        items.append((dim, labels))
    return dims, tuple(items)


def binary(shape: Any = (), *, dims: Any = None, coords: Mapping[str, Sequence[Any]] | None = None) -> Variable:
    """A variable of zeros and ones.

    Args:
        shape: Its shape; () is a scalar.
        dims: Names of its axes (they reach ArviZ).
        coords: Names along each axis, by dim.

    >>> binary(3).size
    2
    """
    shape = as_shape("binary", shape)
    return Variable("binary", 0, 2, shape, None, *named_axes("binary", shape, dims, coords))


def integers(
    low: int, high: int, shape: Any = (), *, dims: Any = None, coords: Mapping[str, Sequence[Any]] | None = None
) -> Variable:
    """An ordered variable on low, low + 1, ..., high: both ends included.

    Args:
        low: Its smallest value.
        high: Its largest value.
        shape: Its shape; () is a scalar.
        dims: Names of its axes (they reach ArviZ).
        coords: Names along each axis, by dim.

    >>> integers(-8, 7, shape=(2, 2)).size
    16
    """
    low, high = _as_int("integers.low", low), _as_int("integers.high", high)
    if high <= low:
        raise SpaceError("integers.high", f"must be above low={low}, got {high}", "both ends are included")
    if high - low + 1 > MAX_CARDINALITY:
        raise SpaceError("integers", f"{high - low + 1} values are more than {MAX_CARDINALITY}", "use a coarser grid")
    if low < -(2**31) or high >= 2**31:
        raise SpaceError("integers", f"{low}..{high} does not fit 32-bit integers", "shift the variable")
    shape = as_shape("integers", shape)
    return Variable("integers", low, high - low + 1, shape, None, *named_axes("integers", shape, dims, coords))


def categorical(
    k_or_labels: int | Sequence[Any],
    shape: Any = (),
    *,
    dims: Any = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> Variable:
    """An unordered variable: k categories, or the labels of the categories.

    The log-probability sees the codes 0, ..., k - 1; draws come back as labels.

    Args:
        k_or_labels: The number of categories; or their labels, strings or numbers that differ.
        shape: Its shape; () is a scalar.
        dims: Names of its axes (they reach ArviZ).
        coords: Names along each axis, by dim.

    >>> categorical(["red", "green", "blue"]).size
    3
    """
    labels = None
    if isinstance(k_or_labels, int | np.integer) and not isinstance(k_or_labels, bool):
        k = int(k_or_labels)
    else:
        if isinstance(k_or_labels, str | bytes | bool) or not isinstance(k_or_labels, Sequence | np.ndarray):
            raise SpaceError("categorical", f"needs a number or a list of labels, got {k_or_labels!r}", "e.g. 3")
        labels = tuple(x.item() if isinstance(x, np.generic) else x for x in k_or_labels)
        if not all(isinstance(x, str | int | float | bool) for x in labels):
            raise SpaceError("categorical.labels", "labels must be strings or numbers", "convert them with str()")
        if len(set(labels)) != len(labels) or len({type(x) for x in labels}) > 1:
            raise SpaceError("categorical.labels", f"{list(labels)[:8]!r} must be distinct and of one type", "rename")
        k = len(labels)
    if not 2 <= k <= MAX_CARDINALITY:
        raise SpaceError("categorical", f"needs 2 to {MAX_CARDINALITY} categories, got {k}", "leave constants out")
    shape = as_shape("categorical", shape)
    return Variable("categorical", 0, k, shape, labels, *named_axes("categorical", shape, dims, coords))
