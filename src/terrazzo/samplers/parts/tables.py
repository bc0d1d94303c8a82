"""Tables of factorised proposals: what each coordinate does, independently of the others.

    q(y | x) = prod_i q_i(c_i),    c_i = 0: stay,    c_i = 1 + l: add the offset of line l (see `ratios.Offsets`)

A table has one line for staying and one for each offset, all along the coordinates. On binary spaces this is two
lines, the log-probabilities of staying and of flipping.
"""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.samplers.parts import randomness

LARGEST = 1e30  # stands for infinity, which can be neither subtracted nor shared


class Table(NamedTuple):
    """Log-probabilities of the choices of each coordinate.

    Attributes:
        stay: Of staying.
        moved: Of each offset.
    """

    stay: Float[Array, " dim"]
    moved: Float[Array, "line dim"]

    def draw(self, key: randomness.Key, num_choices: np.ndarray) -> Int[Array, " dim"]:
        """A choice for each coordinate; `num_choices` (static) says how many it has."""
        return randomness.choice_rows(key, self.stay, self.moved, num_choices)

    def log_prob(self, choice: Int[Array, " dim"]) -> Float[Array, ""]:
        """The log-probability of these choices."""
        return jnp.sum(jnp.where(choice == 0, self.stay, 0.0)) + jnp.sum(picked(self.moved, choice))


def picked(lines: Float[Array, "line *n"], choice: Int[Array, "*n"]) -> Float[Array, "*n"]:
    """The entry of each place in the line of its choice, 0 where it stays: a sum, since gathers are slow."""
    numbers = jnp.arange(1, len(lines) + 1, dtype=jnp.int32).reshape(-1, *[1] * choice.ndim)
    return jnp.sum(jnp.where(choice == numbers, lines, 0.0), axis=0)


def log_sum(lines: Float[Array, "line *n"], other: Float[Array, "*n"] | None = None) -> Float[Array, "*n"]:
    """The log of the sum of exp over the lines, and over one more (finite) line."""
    if len(lines) == 1:
        return lines[0] if other is None else _log_sum_of_two(lines[0], other)
    top = jnp.max(lines, axis=0) if other is None else jnp.maximum(jnp.max(lines, axis=0), other)
    top = jnp.where(top == -jnp.inf, 0.0, top)
    total = jnp.sum(jnp.exp(lines - top), axis=0)
    return top + jnp.log(total if other is None else total + jnp.exp(other - top))


def _log_sum_of_two(a: Float[Array, "*n"], b: Float[Array, "*n"]) -> Float[Array, "*n"]:
    return jnp.maximum(a, b) + jnp.log(1.0 + jnp.exp(-jnp.abs(a - b)))


def normalised(log_weights: Float[Array, "line dim"]) -> Table:
    """The table with these log-weights of moving, relative to staying; NaN counts as impossible.

    >>> normalised(jnp.zeros((3, 2))).moved.shape
    (3, 2)
    """
    stay = jnp.zeros(log_weights.shape[1:], log_weights.dtype)
    weights = jnp.where(jnp.isnan(log_weights), -jnp.inf, jnp.minimum(log_weights, LARGEST))
    total = log_sum(weights, stay)
    return Table(stay - total, weights - total)
