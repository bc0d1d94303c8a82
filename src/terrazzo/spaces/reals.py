"""Real variables: unbounded, bounded, on a simplex, ordered, or with a bijection of their own."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np

from terrazzo.errors import SpaceError
from terrazzo.spaces.bijections import Bijection, HalfLine, Identity, Interval, Ordered, Simplex
from terrazzo.spaces.variables import as_array, as_shape, named_axes


@dataclass(frozen=True)
class RealVariable:
    """One real variable of any shape. Build it with `real`, `simplex` or `ordered`.

    Attributes:
        kind: "real", "simplex" or "ordered".
        bijection: Between its unconstrained coordinates and its values.
        low: The lower bound, if it has one.
        high: The upper bound, if it has one.
        dims: Names of the axes, for ArviZ.
        coords: Names along each axis, for ArviZ, as (dim, names) pairs.
    """

    kind: str
    bijection: Any
    low: float | None = None
    high: float | None = None
    dims: tuple[str, ...] | None = None
    coords: tuple[tuple[str, tuple[Any, ...]], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return tuple(self.bijection.shape)

    @property
    def num_elements(self) -> int:
        """Numbers of a value."""
        return math.prod(self.shape)

    @property
    def num_unconstrained(self) -> int:
        """Numbers of its unconstrained coordinates."""
        return math.prod(self.bijection.unconstrained_shape)

    @property
    def is_own(self) -> bool:
        """Whether the bijection is the user's own."""
        return self.kind == "real" and not isinstance(self.bijection, Identity | HalfLine | Interval)

    @property
    def labels(self) -> None:
        """Reals have no labels."""
        return None

    def encode(self, values: Any, name: str = "theta") -> np.ndarray:
        """The user's values to flat unconstrained coordinates, float64; raises `SpaceError` outside the support."""
        array = as_array(values, name)
        if array.dtype.kind not in "biuf":
            raise SpaceError(name, "must be real numbers", "give one number per element")
        array = array.astype(float)
        lead = array.ndim - len(self.shape)
        if lead < 0 or array.shape[lead:] != self.shape:
            raise SpaceError(name, f"shape {array.shape} does not end in {self.shape}", "give one value per element")
        rows = array.reshape(-1, *self.shape)
        with np.errstate(all="ignore"):
            y = [np.asarray(self.bijection.unconstrain(jnp.asarray(row)), float).ravel() for row in rows]
            back = [
                np.asarray(self.bijection.constrain(jnp.asarray(v).reshape(self.bijection.unconstrained_shape)))
                for v in y
            ]
        flat = np.stack(y).reshape(*array.shape[:lead], self.num_unconstrained)
        if not np.isfinite(flat).all() or not np.allclose(np.stack(back), rows, rtol=1e-4, atol=1e-6):
            raise SpaceError(name, f"a value is outside {self.support}", "keep values inside the variable")
        return flat

    @property
    def support(self) -> str:
        """Where its values lie, in words."""
        if self.kind != "real":
            return {"simplex": "the simplex", "ordered": "increasing order"}[self.kind]
        low, high = (
            ("-inf" if self.low is None else f"{self.low:g}"),
            ("inf" if self.high is None else f"{self.high:g}"),
        )
        return f"({low}, {high})" if not self.is_own else "its support"


def _bound(field: str, value: Any) -> float | None:
    if value is None or (isinstance(value, float | int | np.number) and abs(float(value)) == np.inf):
        return None
    if isinstance(value, bool) or not isinstance(value, float | int | np.number) or math.isnan(float(value)):
        raise SpaceError(field, f"must be a number, got {value!r}"[:100], "e.g. tz.real(0.0, 1.0)")
    return float(value)


def _is_shape(value: Any) -> bool:
    is_whole = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_whole or isinstance(value, tuple | list)


def real(
    *arguments: Any,
    low: Any = None,
    high: Any = None,
    shape: Any = None,
    bijection: Any = None,
    dims: Any = None,
    coords: Mapping[str, Sequence[Any]] | None = None,
) -> RealVariable:
    """A real variable: `real()`, `real(3)`, `real((2, 3))`, `real(0.0, 1.0)`, `real(low=0.0, shape=4)`.

    Args:
        *arguments: One is the shape; two are the lower and the upper bound, and a third is the shape.
        low: The lower bound; the value lies strictly above it.
        high: The upper bound; the value lies strictly below it.
        shape: The shape; () is a scalar.
        bijection: For another support: a hashable object with `shape`, `unconstrained_shape`, `constrain(y)`,
            `unconstrain(value)` and `log_jacobian(y)`. It says the shape itself.
        dims: Names of its axes (they reach ArviZ).
        coords: Names along each axis, by dim.

    >>> real(0.0, 1.0).support, real((2, 3)).shape, real(low=0.0, shape=4).num_unconstrained
    ('(0, 1)', (2, 3), 4)
    """
    if len(arguments) > 3 or (len(arguments) == 1 and not _is_shape(arguments[0])):
        raise SpaceError("real", f"cannot read {arguments!r}"[:100], "tz.real(shape), tz.real(low, high, shape=...)")
    given = (
        {"shape": arguments[0]} if len(arguments) == 1 else dict(zip(("low", "high", "shape"), arguments, strict=False))
    )
    for name, value in (("low", low), ("high", high), ("shape", shape)):
        if value is not None and name in given:
            raise SpaceError(f"real.{name}", "is given twice", "once is enough")
        given.setdefault(name, value)
    bottom, top = _bound("real.low", given["low"]), _bound("real.high", given["high"])
    if bottom is not None and top is not None and top <= bottom:
        raise SpaceError("real.high", f"must be above low={bottom:g}, got {top:g}", "both ends are left out")
    if bijection is not None:
        if not isinstance(bijection, Bijection) or bottom is not None or top is not None or given["shape"] is not None:
            raise SpaceError(
                "real.bijection", "needs constrain, unconstrain, log_jacobian, shape and unconstrained_shape",
                "and neither bounds nor a shape beside it",
            )  # fmt: skip
        try:
            hash(bijection)
        except TypeError:
            raise SpaceError(
                "real.bijection", "cannot be hashed", "make it a frozen dataclass without arrays"
            ) from None
        return RealVariable("real", bijection, None, None, *named_axes("real", tuple(bijection.shape), dims, coords))
    axes = as_shape("real", () if given["shape"] is None else given["shape"])
    names = named_axes("real", axes, dims, coords)
    if bottom is not None and top is not None:
        return RealVariable("real", Interval(bottom, top, axes), bottom, top, *names)
    if bottom is not None:
        return RealVariable("real", HalfLine(bottom, 1, axes), bottom, None, *names)
    if top is not None:
        return RealVariable("real", HalfLine(top, -1, axes), None, top, *names)
    return RealVariable("real", Identity(axes), None, None, *names)


def _size(field: str, k: Any) -> int:
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 2:
        raise SpaceError(field, f"needs at least 2 parts, got {k!r}"[:80], f"e.g. tz.{field}(3)")
    return int(k)


def simplex(
    k: int, shape: Any = (), *, dims: Any = None, coords: Mapping[str, Sequence[Any]] | None = None
) -> RealVariable:
    """Positive numbers that add up to 1 along a last axis of length k.

    The log-probability is a density of all but the last of them (as Dirichlet densities are written). `shape` is the
    shape before that axis; `dims` and `coords` name all axes, the last one too.

    >>> simplex(3, shape=2).shape, simplex(3, shape=2).num_unconstrained
    ((2, 3), 4)
    """
    bijection = Simplex(_size("simplex", k), as_shape("simplex", shape))
    return RealVariable("simplex", bijection, None, None, *named_axes("simplex", bijection.shape, dims, coords))


def ordered(
    k: int, shape: Any = (), *, dims: Any = None, coords: Mapping[str, Sequence[Any]] | None = None
) -> RealVariable:
    """Increasing reals along a last axis of length k; `shape`, `dims` and `coords` as in `simplex`.

    >>> ordered(3).shape
    (3,)
    """
    bijection = Ordered(_size("ordered", k), as_shape("ordered", shape))
    return RealVariable("ordered", bijection, None, None, *named_axes("ordered", bijection.shape, dims, coords))
