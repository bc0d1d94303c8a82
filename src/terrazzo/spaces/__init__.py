"""Spaces: named integer variables of any shape, flat inside, the user's values outside.

A configuration is the vector theta in prod_i {0, ..., K_i - 1} of docs/theory.md, section 1. A `Space` knows how
that flat int32 vector maps to the values the user speaks of (a dict of arrays, or one plain array).
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import SpaceError

MAX_CARDINALITY = 2**24  # beyond it float32 cannot tell neighbouring values of the embedding apart
MAX_ENUMERATED = 2**24


def _as_shape(name: str, shape: Any) -> tuple[int, ...]:
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


def _as_array(values: Any, name: str) -> np.ndarray:
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
        values = _as_array(values, name)
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


def _named_axes(
    name: str, shape: tuple[int, ...], dims: Sequence[str] | str | None, coords: Mapping[str, Sequence[Any]] | None
) -> tuple[tuple[str, ...] | None, tuple[tuple[str, tuple[Any, ...]], ...]]:
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
    shape = _as_shape("binary", shape)
    return Variable("binary", 0, 2, shape, None, *_named_axes("binary", shape, dims, coords))


def integers(
    low: int, high: int, shape: Any = (), *, dims: Any = None, coords: Mapping[str, Sequence[Any]] | None = None
) -> Variable:
    """An ordered variable on low, low + 1, ..., high: both ends included.

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
    shape = _as_shape("integers", shape)
    return Variable("integers", low, high - low + 1, shape, None, *_named_axes("integers", shape, dims, coords))


def categorical(
    k_or_labels: int | Sequence[Any],
    shape: Any = (),
    *,
    dims: Any = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> Variable:
    """An unordered variable: k categories, or the labels of the categories.

    The log-probability sees the codes 0, ..., k - 1; draws come back as labels.

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
    shape = _as_shape("categorical", shape)
    return Variable("categorical", 0, k, shape, labels, *_named_axes("categorical", shape, dims, coords))


RESERVED_NAMES = ("chain", "draw", "log_prob")


@dataclass(frozen=True, init=False)
class Space:
    """Named variables, in order; or one unnamed variable, called `theta`.

    >>> space = Space(gene=binary(4), count=integers(0, 9))
    >>> space.num_dims, space.num_states
    (5, 160)

    Args:
        variable: One unnamed variable: the user's function then gets a plain array.
        **variables: Named variables: the user's function then gets a dict of arrays.
    """

    variables: tuple[tuple[str, Variable], ...]
    is_plain: bool
    sizes: np.ndarray = field(compare=False, repr=False)
    is_ordered: np.ndarray = field(compare=False, repr=False)
    _low: np.ndarray = field(compare=False, repr=False)

    def __init__(self, variable: Variable | None = None, /, **variables: Variable):
        if variable is not None and variables:
            raise SpaceError("space", "mixes an unnamed variable with named ones", "name them all")
        if variable is None and not variables:
            raise SpaceError("space", "has no variables", "e.g. tz.Space(x=tz.binary(10))")
        items = (("theta", variable),) if variable is not None else tuple(variables.items())
        dims_seen: dict[str, tuple[int, tuple[Any, ...] | None]] = {}
        for name, v in items:
            if not isinstance(v, Variable):
                raise SpaceError(
                    name, f"is not a variable but {type(v).__name__}", "use tz.binary, tz.integers, tz.categorical"
                )
            if name in RESERVED_NAMES:
                raise SpaceError(name, "is a reserved name", f"reserved are {', '.join(RESERVED_NAMES)}")
            coords = dict(v.coords)
            for dim, length in zip(v.dims or (), v.shape if v.dims else (), strict=True):
                known = dims_seen.setdefault(dim, (length, coords.get(dim)))
                if known[0] != length or (dim in coords and known[1] not in (None, coords[dim])):
                    raise SpaceError(
                        f"{name}.dims", f"{dim!r} has another length or names elsewhere", "use another dim name"
                    )
        set_ = object.__setattr__
        set_(self, "variables", items)
        set_(self, "is_plain", variable is not None)
        set_(self, "sizes", np.concatenate([np.full(v.num_elements, v.size, np.int32) for _, v in items]))
        set_(self, "is_ordered", np.concatenate([np.full(v.num_elements, v.is_ordered) for _, v in items]))
        set_(self, "_low", np.concatenate([np.full(v.num_elements, v.low, np.int32) for _, v in items]))
        for a in (self.sizes, self.is_ordered, self._low):
            a.setflags(write=False)

    # ---- size

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.variables)

    @property
    def num_dims(self) -> int:
        """d, the number of integer coordinates."""
        return len(self.sizes)

    @property
    def num_states(self) -> int:
        """prod_i K_i, as an exact Python integer."""
        return math.prod(int(k) for k in self.sizes)

    @property
    def max_size(self) -> int:
        """The largest K_i."""
        return int(self.sizes.max())

    @property
    def is_binary(self) -> bool:
        return self.max_size == 2

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned type that holds every inner integer."""
        return np.dtype(np.uint8 if self.max_size <= 256 else np.uint16 if self.max_size <= 65536 else np.uint32)

    # ---- flat <-> the user's values

    def unflatten(self, theta: Any) -> Any:
        """Flat configurations to what the log-probability takes (leading axes, tracing and real theta are fine)."""
        values = theta + self._low.astype(theta.dtype) if self._low.any() else theta
        parts, start = {}, 0
        for name, v in self.variables:
            parts[name] = values[..., start : start + v.num_elements].reshape(theta.shape[:-1] + v.shape)
            start += v.num_elements
        return parts["theta"] if self.is_plain else parts

    def decode(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Flat configurations (any leading axes) to the user's values by name."""
        theta = np.asarray(theta)
        out, start = {}, 0
        for name, v in self.variables:
            block = theta[..., start : start + v.num_elements]
            out[name] = v.decode(block.reshape(block.shape[:-1] + v.shape))
            start += v.num_elements
        return out

    def encode(self, values: Any) -> np.ndarray:
        """The user's values (a dict by name, or the plain array) to flat int32 configurations."""
        if not isinstance(values, Mapping):
            if not self.is_plain:
                raise SpaceError("space", "several named variables need a dict", f"give {', '.join(self.names)}")
            values = {"theta": values}
        if set(values) != set(self.names):
            raise SpaceError("space", f"got {sorted(values)}", f"give exactly {sorted(self.names)}")
        codes = []
        for name, v in self.variables:
            block = v.encode(values[name], name)
            codes.append(block.reshape(block.shape[: block.ndim - len(v.shape)] + (v.num_elements,)))
        if len({c.shape[:-1] for c in codes}) > 1:
            raise SpaceError("space", "variables have different leading axes", "give the same number of configurations")
        return np.concatenate(codes, axis=-1).astype(np.int32)

    def coordinate_names(self) -> list[str]:
        """One name per flat coordinate, ArviZ style: `gene[3]`, `w[0, 1]`; with the labels of coords where given.

        >>> Space(on=binary(2, dims="who", coords={"who": ["ann", "bob"]}), w=binary((1, 2))).coordinate_names()
        ['on[ann]', 'on[bob]', 'w[0, 0]', 'w[0, 1]']
        """
        out = []
        for name, v in self.variables:
            if not v.shape:
                out.append(name)
                continue
            along = dict(v.coords)
            axes = [along.get(dim) or range(n) for dim, n in zip(v.dims or ("",) * len(v.shape), v.shape, strict=True)]
            out += [f"{name}[{', '.join(map(str, labels))}]" for labels in itertools.product(*axes)]
        return out

    def contains(self, theta: np.ndarray) -> np.ndarray:
        """Whether flat configurations lie in the space, over leading axes."""
        return np.all((np.asarray(theta) >= 0) & (np.asarray(theta) < self.sizes), axis=-1)

    # ---- small spaces

    def enumerate(self) -> np.ndarray:
        """All configurations, shape (num_states, d), in the order of `index`."""
        if self.num_states > MAX_ENUMERATED:
            raise SpaceError("space", f"{self.num_states:.3g} states are too many to enumerate", "use a smaller space")
        return np.stack(np.unravel_index(np.arange(self.num_states), self.sizes), axis=-1).astype(np.int32)

    def index(self, theta: Any) -> Any:
        """The place of a flat configuration in `enumerate` (row-major); traceable; small spaces only."""
        if self.num_states > 2**31 - 1:
            raise SpaceError("space", f"{self.num_states:.3g} states have no 32-bit index", "use a smaller space")
        strides = np.cumprod(np.concatenate([[1], self.sizes[:0:-1].astype(np.int64)]))[::-1].astype(np.int32)
        return (theta * strides).sum(axis=-1)

    def random(self, key: jax.Array, shape: tuple[int, ...] = ()) -> jax.Array:
        """Uniform flat configurations, int32, shape (*shape, d)."""
        return jax.random.randint(key, (*shape, self.num_dims), 0, jnp.asarray(self.sizes), jnp.int32)


def as_space(space: Any) -> Space:
    """A `Space`, or a single unnamed variable, as a `Space`."""
    if isinstance(space, Space):
        return space
    if isinstance(space, Variable):
        return Space(space)
    if isinstance(space, Mapping) and all(isinstance(name, str) for name in space):
        for name, variable in space.items():
            if not isinstance(variable, Variable):
                raise SpaceError(f"space[{name!r}]", f"is not a variable but {variable!r}"[:80], "e.g. tz.binary(20)")
        return Space(**space)
    raise SpaceError("space", f"must be a Space or a variable, got {type(space).__name__}", "e.g. tz.binary(20)")
