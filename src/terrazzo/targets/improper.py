"""Improper distributions are noticed before anything long starts.

Along one unconstrained coordinate, with all else fixed, a density that has an integral must fall far out. It is looked
at far beyond where data and priors are: at 1e12 and 1e15 for coordinates that are the values themselves, at 300 and 600
for those whose values are exponentials (e^600 is the largest that float64 holds with room for a square root of it).
Where it does not fall between the two, at a possible theta, no normalising constant exists.

The point that all else is fixed at is a random one. At equal means of a hierarchical model its density grows without
bound as their scale goes to 0, and yet it has an integral.

What is improper only along several coordinates together (a sum that the data leave open) is not seen here. Chains drift
apart on it, which R-hat shows.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.errors import TargetError
from terrazzo.runtime.compilation import jit
from terrazzo.spaces.bijections import HalfLine, Identity, Interval, Ordered, Simplex
from terrazzo.targets.mixed import probe_points
from terrazzo.targets.target import Target

PLAIN, EXPONENTIAL = (1e12, 1e15), (300.0, 600.0)
LEAST_FALL = 1e-6  # of the size of log pi: ten thousand times the rounding of float64 in sums of a million terms
MOST_LOOKED_AT = 500  # coordinates: four evaluations each


def _distances(bijection: Any) -> np.ndarray:
    """How far out to look along each unconstrained coordinate, (coordinate, 2); NaN where nothing is known."""
    shape = bijection.unconstrained_shape
    if isinstance(bijection, Identity):
        found = np.broadcast_to(PLAIN, (*shape, 2))
    elif isinstance(bijection, HalfLine | Interval | Simplex):
        found = np.broadcast_to(EXPONENTIAL, (*shape, 2))
    elif isinstance(bijection, Ordered):
        found = np.broadcast_to(EXPONENTIAL, (*shape, 2)).copy()
        found[..., 0, :] = PLAIN
    else:
        found = np.full((*shape, 2), np.nan)
    return found.reshape(-1, 2)


@jit
def _densities(target: Target, theta: Array, y: Array) -> Array:
    return jax.vmap(target.log_density)(theta, y)


@jit
def _along(target: Target, theta: Array, y: Array, places: Array, steps: Array) -> Array:
    """log pi with one coordinate moved by each of some steps, (place, step)."""
    moved = lambda place, step: target.log_density(theta, y.at[place].add(step))
    return jax.vmap(lambda place, own: jax.vmap(lambda step: moved(place, step))(own))(places, steps)


def check_proper(target: Target) -> None:
    """Raises a `TargetError` where the density does not fall along a real coordinate."""
    space = target.space
    if target.is_blackbox or not space.num_reals:
        return
    far = np.concatenate([_distances(v.bijection) for _, v in space.real_variables])
    places = np.flatnonzero(np.isfinite(far[:, 0]))[:MOST_LOOKED_AT]
    points, dtype = probe_points(space), jnp.result_type(float)
    reals = np.concatenate([points.reals[1:2], points.reals[1:]])  # not at the origin: see the top of this file
    values = _densities(target, jnp.asarray(points.theta), jnp.asarray(reals, dtype))
    possible = np.flatnonzero(np.isfinite(np.asarray(values)))
    if not len(places) or not len(possible):
        return
    theta, y = jnp.asarray(points.theta[possible[0]]), jnp.asarray(reals[possible[0]], dtype)
    steps = jnp.asarray(np.concatenate([far[places], -far[places]], axis=1), dtype)
    found = np.asarray(_along(target, theta, y, jnp.asarray(places), steps)).reshape(len(places), 2, 2)
    near, beyond = found[..., 0], found[..., 1]
    with np.errstate(invalid="ignore"):
        is_flat = np.isfinite(found).all(axis=-1) & (beyond >= near - LEAST_FALL * np.maximum(1.0, np.abs(near)))
    if is_flat.any():
        place, side = (int(i) for i in np.argwhere(is_flat)[0])
        raise _improper(target, int(places[place]), bool(side))


def _improper(target: Target, place: int, is_down: bool) -> TargetError:
    ends = np.cumsum([v.num_unconstrained for _, v in target.space.real_variables])
    number = int(np.searchsorted(ends, place, side="right"))
    name, v = target.space.real_variables[number]
    place -= int(ends[number]) - v.num_unconstrained
    inner = "" if v.num_unconstrained == 1 else f" (coordinate {place})"
    end = "its lower end" if is_down else "its upper end"
    return TargetError(
        "log_prob", f"does not fall as {name!r}{inner} goes to {end}: its integral is infinite, so that it is improper",
        f"give {name!r} a prior, or bounds: tz.real(low, high)",
    )  # fmt: skip
