"""Bijections between unconstrained reals and the values a user speaks of.

A real variable with a restricted support is moved in unconstrained coordinates y in R^m. Its density there is

    log pi(constrain(y)) + log |d constrain / dy|,

and the second part is `log_jacobian(y)`. A bijection is a hashable object without arrays: it is a static part of the
space, so that compiled code belongs to it. Any object with the members of `Bijection` will do.

The support of a simplex or of ordered numbers has fewer or as many dimensions as its values; densities on a simplex are
with respect to the Lebesgue measure of all its values but the last.
"""

import math
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np


@runtime_checkable
class Bijection(Protocol):
    """What a real variable needs: two shapes and three functions of one value (callers `vmap`)."""

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""

    @property
    def unconstrained_shape(self) -> tuple[int, ...]:
        """The shape of its unconstrained coordinates."""

    def constrain(self, y: Any) -> Any:
        """The value of unconstrained coordinates."""

    def unconstrain(self, value: Any) -> Any:
        """The unconstrained coordinates of a value."""

    def log_jacobian(self, y: Any) -> Any:
        """log |d constrain / dy|, summed: a scalar."""


def _zero(y: Any) -> Any:
    return jnp.zeros((), jnp.result_type(y))


class _SameShape:
    """A bijection between arrays of one shape."""

    shape: tuple[int, ...]

    @property
    def unconstrained_shape(self) -> tuple[int, ...]:
        """The shape of the unconstrained coordinates."""
        return self.shape


@dataclass(frozen=True)
class Identity(_SameShape):
    """All reals.

    Forward: x = y. Inverse: y = x.
    """

    shape: tuple[int, ...] = ()

    def constrain(self, y: Any) -> Any:
        return y

    def unconstrain(self, value: Any) -> Any:
        return jnp.asarray(value)

    def log_jacobian(self, y: Any) -> Any:
        return _zero(y)


@dataclass(frozen=True)
class HalfLine(_SameShape):
    """Reals above (sign 1) or below (sign -1) a bound.

    Forward: x = bound + sign exp(y). Inverse: y = log(sign (x - bound)).
    """

    bound: float
    sign: int
    shape: tuple[int, ...] = ()

    def constrain(self, y: Any) -> Any:
        return self.bound + self.sign * jnp.exp(y)

    def unconstrain(self, value: Any) -> Any:
        return jnp.log(self.sign * (jnp.asarray(value) - self.bound))

    def log_jacobian(self, y: Any) -> Any:
        return jnp.sum(y)


@dataclass(frozen=True)
class Interval(_SameShape):
    """Reals between two bounds.

    Forward: x = low + (high - low) sigmoid(y). Inverse: y = logit((x - low) / (high - low)).
    """

    low: float
    high: float
    shape: tuple[int, ...] = ()

    def constrain(self, y: Any) -> Any:
        return self.low + (self.high - self.low) * jax.nn.sigmoid(y)

    def unconstrain(self, value: Any) -> Any:
        x = jnp.asarray(value)
        return jnp.log(x - self.low) - jnp.log(self.high - x)

    def log_jacobian(self, y: Any) -> Any:
        each = math.log(self.high - self.low) + jax.nn.log_sigmoid(y) + jax.nn.log_sigmoid(-y)
        return jnp.sum(each)


@dataclass(frozen=True)
class _Vectors:
    """A bijection of vectors along the last axis."""

    size: int
    batch: tuple[int, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of a value."""
        return (*self.batch, self.size)


@dataclass(frozen=True)
class Simplex(_Vectors):
    """Positive numbers that add up to 1, along the last axis, by breaking a stick.

    Forward: x_j = s_j sigmoid(y_j - log(k - j)), with s_j = 1 - x_1 - ... - x_{j-1} the rest of the stick, for
    j = 1..k-1; x_k is what is left. At y = 0 all parts are equal.
    """

    @property
    def unconstrained_shape(self) -> tuple[int, ...]:
        return (*self.batch, self.size - 1)

    def _breaks(self, y: Any) -> Any:
        return y - np.log(np.arange(self.size - 1, 0, -1)).astype(y.dtype)

    def _log_rests(self, t: Any) -> Any:
        """The logarithm of the stick that is left before each break, and after the last."""
        zero = jnp.zeros((*self.batch, 1), t.dtype)
        return jnp.concatenate([zero, jnp.cumsum(jax.nn.log_sigmoid(-t), axis=-1)], axis=-1)

    def constrain(self, y: Any) -> Any:
        t = self._breaks(y)
        rests = self._log_rests(t)
        parts = rests[..., :-1] + jax.nn.log_sigmoid(t)
        return jnp.exp(jnp.concatenate([parts, rests[..., -1:]], axis=-1))

    def unconstrain(self, value: Any) -> Any:
        x = jnp.asarray(value)
        rests = jnp.cumsum(x[..., ::-1], axis=-1)[..., ::-1]
        t = jnp.log(x[..., :-1]) - jnp.log(rests[..., 1:])
        return t + np.log(np.arange(self.size - 1, 0, -1)).astype(t.dtype)

    def log_jacobian(self, y: Any) -> Any:
        t = self._breaks(y)
        return jnp.sum(self._log_rests(t)[..., :-1] + jax.nn.log_sigmoid(t) + jax.nn.log_sigmoid(-t))


@dataclass(frozen=True)
class Ordered(_Vectors):
    """Increasing reals along the last axis.

    Forward: x_1 = y_1, x_j = x_{j-1} + exp(y_j). Inverse: y_j = log(x_j - x_{j-1}).
    """

    @property
    def unconstrained_shape(self) -> tuple[int, ...]:
        return self.shape

    def constrain(self, y: Any) -> Any:
        return jnp.cumsum(jnp.concatenate([y[..., :1], jnp.exp(y[..., 1:])], axis=-1), axis=-1)

    def unconstrain(self, value: Any) -> Any:
        x = jnp.asarray(value)
        return jnp.concatenate([x[..., :1], jnp.log(jnp.diff(x, axis=-1))], axis=-1)

    def log_jacobian(self, y: Any) -> Any:
        return jnp.sum(y[..., 1:])


@dataclass(frozen=True)
class Unknown(_SameShape):
    """What a stored result knows of a bijection that was the user's own: the shape of a value."""

    shape: tuple[int, ...] = ()

    def constrain(self, y: Any) -> Any:
        raise NotImplementedError("the bijection of a stored result is not known")

    unconstrain = log_jacobian = constrain
