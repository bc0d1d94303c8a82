"""Spaces: named variables of any shape, flat inside, the user's values outside.

A configuration is the vector theta in prod_i {0, ..., K_i - 1} of docs/theory.md, section 1; on a mixed space it is the
pair (theta, y) of that vector and of the unconstrained coordinates y in R^m of the real variables. A `Space` knows how
the flat arrays map to the values the user speaks of (a dict of arrays, or one plain array).
"""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import SpaceError, UnsupportedError
from terrazzo.spaces.reals import RealVariable as RealVariable
from terrazzo.spaces.reals import ordered as ordered
from terrazzo.spaces.reals import real as real
from terrazzo.spaces.reals import simplex as simplex
from terrazzo.spaces.variables import MAX_CARDINALITY as MAX_CARDINALITY
from terrazzo.spaces.variables import Variable as Variable
from terrazzo.spaces.variables import binary as binary
from terrazzo.spaces.variables import categorical as categorical
from terrazzo.spaces.variables import integers as integers

__all__ = [
    "MAX_CARDINALITY", "Configuration", "RealVariable", "Space", "Variable", "as_discrete_space", "as_space",
    "binary", "categorical", "integers", "ordered", "real", "simplex",
]  # fmt: skip

MAX_ENUMERATED = 2**24

RESERVED_NAMES = ("chain", "draw", "log_prob")


class Configuration(NamedTuple):
    """A configuration of a mixed space.

    Attributes:
        theta: The codes of the discrete variables, int32[d].
        reals: The unconstrained coordinates of the real ones, float[m].
    """

    theta: Any
    reals: Any


@dataclass(frozen=True, init=False)
class Space:
    """Named variables, in order; or one unnamed variable, called `theta`.

    >>> space = Space(gene=binary(4), count=integers(0, 9))
    >>> space.num_dims, space.num_states
    (5, 160)
    >>> mixed = Space(label=categorical(2, shape=4), mean=real(2), scale=real(low=0.0))
    >>> mixed.num_dims, mixed.num_reals, mixed.discrete.names
    (4, 3, ('label',))

    Args:
        variable: One unnamed variable: the user's function then gets a plain array.
        **variables: Named variables: the user's function then gets a dict of arrays.
    """

    variables: tuple[tuple[str, Variable | RealVariable], ...]
    is_plain: bool
    sizes: np.ndarray = field(compare=False, repr=False)
    is_ordered: np.ndarray = field(compare=False, repr=False)
    _low: np.ndarray = field(compare=False, repr=False)

    def __init__(self, variable: Variable | RealVariable | None = None, /, **variables: Variable | RealVariable):
        if variable is not None and variables:
            raise SpaceError("space", "mixes an unnamed variable with named ones", "name them all")
        if variable is None and not variables:
            raise SpaceError("space", "has no variables", "e.g. tz.Space(x=tz.binary(10))")
        items = (("theta", variable),) if variable is not None else tuple(variables.items())
        dims_seen: dict[str, tuple[int, tuple[Any, ...] | None]] = {}
        for name, v in items:
            if not isinstance(v, Variable | RealVariable):
                raise SpaceError(
                    name,
                    f"is not a variable but {type(v).__name__}",
                    "use tz.binary, tz.integers, tz.categorical, tz.real",
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
        self._fill(items, is_plain=variable is not None)

    def _fill(self, items: tuple[tuple[str, Variable | RealVariable], ...], *, is_plain: bool) -> None:
        set_, discrete = object.__setattr__, [v for _, v in items if isinstance(v, Variable)]
        joined = lambda parts, dtype: np.concatenate([np.zeros(0, dtype), *parts])
        set_(self, "variables", items)
        set_(self, "is_plain", is_plain)
        set_(self, "sizes", joined((np.full(v.num_elements, v.size, np.int32) for v in discrete), np.int32))
        set_(self, "is_ordered", joined((np.full(v.num_elements, v.is_ordered) for v in discrete), bool))
        set_(self, "_low", joined((np.full(v.num_elements, v.low, np.int32) for v in discrete), np.int32))
        for a in (self.sizes, self.is_ordered, self._low):
            a.setflags(write=False)

    # ---- its two parts

    @cached_property
    def real_variables(self) -> tuple[tuple[str, RealVariable], ...]:
        """The real variables, in order."""
        return tuple((name, v) for name, v in self.variables if isinstance(v, RealVariable))

    @cached_property
    def discrete_variables(self) -> tuple[tuple[str, Variable], ...]:
        """The discrete variables, in order."""
        return tuple((name, v) for name, v in self.variables if isinstance(v, Variable))

    @cached_property
    def discrete(self) -> "Space":
        """The space of the discrete variables alone; it has none if all variables are real."""
        if not self.real_variables:
            return self
        space = object.__new__(Space)
        space._fill(self.discrete_variables, is_plain=False)
        return space

    @cached_property
    def num_reals(self) -> int:
        """m, the number of unconstrained real coordinates."""
        return sum(v.num_unconstrained for _, v in self.real_variables)

    @cached_property
    def num_real_values(self) -> int:
        """The number of real values, as the user counts them (a simplex of k parts has k)."""
        return sum(v.num_elements for _, v in self.real_variables)

    def real_blocks(self, flat: Any, *, unconstrained: bool = False) -> dict[str, Any]:
        """The parts of a flat array of real values (or of unconstrained coordinates) by name, any leading axes."""
        out, start = {}, 0
        for name, v in self.real_variables:
            size = v.num_unconstrained if unconstrained else v.num_elements
            shape = v.bijection.unconstrained_shape if unconstrained else v.shape
            out[name] = flat[..., start : start + size].reshape(*flat.shape[:-1], *shape)
            start += size
        return out

    def constrain(self, y: Any) -> dict[str, Any]:
        """Unconstrained coordinates, float[m], as the user's values by name; traceable."""
        blocks = self.real_blocks(y, unconstrained=True)
        return {name: v.bijection.constrain(blocks[name]) for name, v in self.real_variables}

    def real_values(self, y: Any) -> Any:
        """Unconstrained coordinates, float[m], as the user's values, flat; traceable."""
        parts = [jnp.reshape(x, -1) for x in self.constrain(y).values()]
        return jnp.concatenate([jnp.zeros(0, y.dtype), *parts])

    def unconstrain(self, values: Any) -> Any:
        """The user's values, flat, as unconstrained coordinates, float[m]; traceable."""
        blocks = self.real_blocks(values)
        return jnp.concatenate([jnp.reshape(v.bijection.unconstrain(blocks[n]), -1) for n, v in self.real_variables])

    def log_jacobian(self, y: Any) -> Any:
        """log |d values / dy| of all real variables together; traceable."""
        blocks = self.real_blocks(y, unconstrained=True)
        return sum((v.bijection.log_jacobian(blocks[n]) for n, v in self.real_variables), jnp.zeros((), y.dtype))

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
        """The largest K_i; 1 if there is none."""
        return int(self.sizes.max(initial=1))

    @property
    def is_binary(self) -> bool:
        return self.max_size == 2

    @property
    def dtype(self) -> np.dtype:
        """The smallest unsigned type that holds every inner integer."""
        return np.dtype(np.uint8 if self.max_size <= 256 else np.uint16 if self.max_size <= 65536 else np.uint32)

    # ---- flat <-> the user's values

    def unflatten(self, theta: Any, y: Any = None) -> Any:
        """Flat configurations to what the log-probability takes (tracing and real theta are fine).

        Args:
            theta: The codes; leading axes are fine where all variables are discrete.
            y: The unconstrained coordinates of the real variables, if there are any.
        """
        values = theta + self._low.astype(theta.dtype) if self._low.any() else theta
        if self.real_variables and y is None:
            raise SpaceError("space", "has real variables, which have no codes", "give their coordinates too")
        parts, start = self.constrain(y) if self.real_variables else {}, 0
        for name, v in self.discrete_variables:
            parts[name] = values[..., start : start + v.num_elements].reshape(theta.shape[:-1] + v.shape)
            start += v.num_elements
        return self.arranged(parts)

    def arranged(self, parts: Mapping[str, Any]) -> Any:
        """Values by name as the log-probability takes them: a dict in the order of the variables, or the plain one."""
        return parts["theta"] if self.is_plain else {name: parts[name] for name in self.names}

    def decode(self, theta: np.ndarray) -> dict[str, np.ndarray]:
        """Flat configurations (any leading axes) to the user's values of the discrete variables by name."""
        theta = np.asarray(theta)
        out, start = {}, 0
        for name, v in self.discrete_variables:
            block = theta[..., start : start + v.num_elements]
            out[name] = v.decode(block.reshape(block.shape[:-1] + v.shape))
            start += v.num_elements
        return out

    def _by_name(self, values: Any) -> Mapping[str, Any]:
        if not isinstance(values, Mapping):
            if not self.is_plain:
                raise SpaceError("space", "several named variables need a dict", f"give {', '.join(self.names)}")
            values = {"theta": values}
        if set(values) != set(self.names):
            raise SpaceError("space", f"got {sorted(values)}", f"give exactly {sorted(self.names)}")
        return values

    def encode(self, values: Any) -> np.ndarray:
        """The user's values (a dict by name, or the plain array) to flat int32 configurations."""
        values = self._by_name(values)
        codes = []
        for name, v in self.discrete_variables:
            block = v.encode(values[name], name)
            codes.append(block.reshape(block.shape[: block.ndim - len(v.shape)] + (-1,)))
        return _joined(codes).astype(np.int32)

    def encode_reals(self, values: Any) -> np.ndarray:
        """The user's values (a dict by name, or the plain array) to flat unconstrained coordinates, float64."""
        values = self._by_name(values)
        return _joined([v.encode(values[name], name) for name, v in self.real_variables])

    def coordinate_names(self) -> list[str]:
        """One name per flat coordinate, ArviZ style: `gene[3]`, `w[0, 1]`; with the labels of coords where given.

        >>> Space(on=binary(2, dims="who", coords={"who": ["ann", "bob"]}), w=binary((1, 2))).coordinate_names()
        ['on[ann]', 'on[bob]', 'w[0, 0]', 'w[0, 1]']
        """
        return _coordinate_names(self.variables)

    def real_coordinate_names(self) -> list[str]:
        """One name per real value, in the order of `real_values`."""
        return _coordinate_names(self.real_variables)

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


def _joined(parts: list[np.ndarray]) -> np.ndarray:
    if len({part.shape[:-1] for part in parts}) > 1:
        raise SpaceError("space", "variables have different leading axes", "give the same number of configurations")
    return np.concatenate(parts, axis=-1) if parts else np.zeros(0)


def _coordinate_names(variables: Any) -> list[str]:
    out = []
    for name, v in variables:
        if not v.shape:
            out.append(name)
            continue
        along = dict(v.coords)
        axes = [along.get(dim) or range(n) for dim, n in zip(v.dims or ("",) * len(v.shape), v.shape, strict=True)]
        out += [f"{name}[{', '.join(map(str, labels))}]" for labels in itertools.product(*axes)]
    return out


def as_discrete_space(space: Any, field: str) -> Space:
    """A `Space` without real variables; raises where it has some."""
    found = as_space(space)
    if found.num_reals:
        raise UnsupportedError(field, "is for spaces without real variables", "tz.samplers.blocked() moves both kinds")
    return found


def as_space(space: Any) -> Space:
    """A `Space`, or a single unnamed variable, as a `Space`."""
    if isinstance(space, Space):
        return space
    if isinstance(space, Variable | RealVariable):
        return Space(space)
    if isinstance(space, Mapping) and all(isinstance(name, str) for name in space):
        for name, variable in space.items():
            if not isinstance(variable, Variable | RealVariable):
                raise SpaceError(f"space[{name!r}]", f"is not a variable but {variable!r}"[:80], "e.g. tz.binary(20)")
        return Space(**space)
    raise SpaceError("space", f"must be a Space or a variable, got {type(space).__name__}", "e.g. tz.binary(20)")
