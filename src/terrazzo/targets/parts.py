"""Parts: what a function computes on the way to log pi, as guides to where its modes are.

The components of a mixture, log pi = logsumexp_k log w_k pi_k, are values on the way to it. Where a broad component
outweighs a narrow one, log pi does not show the narrow one at all, but its own log-density leads there from anywhere.
Nothing here needs to know that a function is a mixture: every small array of real numbers that the computation makes
holds parts, and those that order configurations in the same way are one. A part is a guide to starts and nothing more:
what is found by it is judged by log pi.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from terrazzo.runtime.compilation import jit
from terrazzo.targets.interactions import evaluate
from terrazzo.targets.precision import run_wide
from terrazzo.targets.target import Target
from terrazzo.targets.tracing import untraced

LARGEST = 16  # numbers of an array that may hold parts: a mixture of more has its modes found in other ways
MOST_NUMBERS = 4096  # numbers on the way that are looked at, all arrays together
NUM_ORDERED = 64  # random configurations by whose order two parts are told apart
MOST_CHANGED = 512  # coordinates that are changed to see how many a part depends on


class Parts(eqx.Module):
    """The numbers that a target computes on the way, in float64; to be used while `jax.enable_x64` is on.

    Attributes:
        target: The target, of discrete variables alone or of real ones alone.
        chosen: Which numbers, in the order of the computation; None for all of them.
    """

    target: Target
    chosen: tuple[int, ...] | None = eqx.field(static=True, default=None)

    def __call__(self, position: Array) -> Float[Array, " part"]:
        """The numbers at a configuration, or at unconstrained reals."""
        seen: list[Any] = []
        of_reals = lambda y: self.target.log_density(jnp.zeros(0, jnp.int32), y)
        function = of_reals if self.target.space.num_reals else untraced(self.target.log_prob)
        closed = jax.make_jaxpr(function)(position)
        run_wide(closed.jaxpr, closed.consts, [position], seen)
        small = [x.reshape(-1) for x in seen if x.size <= LARGEST and jnp.issubdtype(x.dtype, jnp.floating)]
        flat = jnp.concatenate([jnp.zeros(0), *small])
        flat = jnp.where(jnp.isnan(flat), -jnp.inf, flat)
        return flat if self.chosen is None else flat[np.array(self.chosen, int)]


@jit
def _values(parts: Parts, positions: Array) -> Array:
    return jax.lax.map(parts, positions, batch_size=64)


def parts_of(target: Target, most: int) -> Parts | None:
    """The parts that depend on most coordinates, at most so many that order configurations differently; None if none.

    Args:
        target: A target of discrete variables that can be traced; to be called while `jax.enable_x64` is on.
        most: How many parts.
    """
    d, sizes, rng = target.space.num_dims, target.space.sizes, np.random.default_rng(0)
    theta = rng.integers(0, sizes, (NUM_ORDERED, d), np.int32)
    sites = rng.permutation(d)[:MOST_CHANGED]
    changed = np.repeat(theta[:1], len(sites), axis=0)
    changed[np.arange(len(sites)), sites] = (changed[np.arange(len(sites)), sites] + 1) % sizes[sites]
    return _chosen(target, theta, changed, evaluate(target, theta), most)


def parts_of_reals(target: Target, y: np.ndarray, log_density: np.ndarray, most: int) -> Parts | None:
    """As `parts_of`, of a target without discrete variables, told apart at unconstrained reals (point, real)."""
    y, log_density = y[:NUM_ORDERED], log_density[:NUM_ORDERED]
    coordinates = np.arange(min(y.shape[1], MOST_CHANGED))
    changed = np.repeat(y[:1], len(coordinates), axis=0)
    changed[coordinates, coordinates] += 0.1 * (1.0 + np.abs(changed[coordinates, coordinates]))
    return _chosen(target, y, changed, log_density, most)


def num_equations(target: Target) -> int:
    """Equations of the density of a target without discrete variables, as JAX prints it."""
    y = jax.ShapeDtypeStruct((target.space.num_reals,), jnp.result_type(float))
    return str(jax.make_jaxpr(lambda y: target.log_density(jnp.zeros(0, jnp.int32), y))(y)).count(" = ")


def _chosen(target: Target, points: np.ndarray, changed: np.ndarray, log_prob: np.ndarray, most: int) -> Parts | None:
    """The parts, from random points and from the first of these with one coordinate changed each."""
    try:
        shape = jax.eval_shape(Parts(target), jax.ShapeDtypeStruct(points.shape[1:], points.dtype)).shape
    except Exception:  # a primitive that cannot be evaluated one by one
        return None
    if not 1 < shape[0] <= MOST_NUMBERS:
        return None
    num, values = len(points), np.asarray(_values(Parts(target), jnp.asarray(np.concatenate([points, changed]))))
    depends = (values[num:] != values[:1]).sum(axis=0)
    known = {_order(log_prob)}
    chosen: list[int] = []
    for number in np.argsort(-depends, kind="stable"):
        order = _order(values[:num, number])
        if depends[number] > 1 and order not in known and len(chosen) < most:
            known.add(order)
            chosen.append(int(number))
    return Parts(target, tuple(sorted(chosen))) if chosen else None


def _order(values: np.ndarray) -> bytes:
    """How a number orders configurations: the same for all increasing functions of it."""
    return np.unique(values, return_inverse=True)[1].astype(np.int32).tobytes()
