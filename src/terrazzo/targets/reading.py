"""The structure of a target, read once and kept for the rest of the call.

What is read is log pi itself: untempered and not softened. Whoever uses it tempers what comes out.
"""

from collections import OrderedDict
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.runtime.compilation import jit
from terrazzo.targets.interactions import tolerance
from terrazzo.targets.structure import Structure, Summation, read
from terrazzo.targets.structure.terms import Terms
from terrazzo.targets.target import Target

SECONDS_A_SITE = 6e-5  # that samplers allow in large spaces: a lattice of a million sites takes 24 s on two busy cores
MAX_SECONDS = 10.0  # for all that is read: a lattice of 65,536 sites takes 1.2, a dense glass of 1,000 spins 3
NUM_COMPARED = 6  # configurations at which the terms of a mixed target are compared with log pi
MOST_KEPT = 4  # structures that are kept: a run reads its target in float32 and in float64

_kept: OrderedDict[Any, tuple[Structure | None, list[Any]]] = OrderedDict()


def is_traced(target: Target) -> bool:
    """Whether the target's arrays are abstract (inside a compiled function), so that it cannot be evaluated now."""
    return any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(target))


def structure_of(target: Target, *, max_seconds: float | None = None) -> Structure | None:
    """What the target's log pi reveals; of a mixed one, what holds for the discrete variables at all reals.

    Args:
        target: The target.
        max_seconds: Reading, and all that is found out from it later, is given up after this time; by default 10
            seconds, or more in spaces of more than 160,000 sites, where samplers have no other way.

    Returns:
        None for black boxes, where JAX cannot trace the function, and inside compiled code.

    >>> import terrazzo as tz
    >>> structure_of(tz.Target(lambda t: 0.5 * (t[1:] * t[:-1]).sum(), tz.binary(5))).graph.num_colours
    2
    """
    if target.is_blackbox or is_traced(target):
        return None
    if max_seconds is None:
        max_seconds = max(MAX_SECONDS, SECONDS_A_SITE * target.space.num_dims)
    arrays = [leaf for leaf in jax.tree.leaves(target.log_prob_fn) if eqx.is_array(leaf)]
    try:
        key = (target.compilation_group, tuple(map(id, arrays)), str(jnp.result_type(float)), max_seconds)
        hash(key)
    except TypeError:  # a function that holds what cannot be compared
        return _read(target, max_seconds)
    if key not in _kept:
        _kept[key] = (_read(target, max_seconds), arrays)  # the arrays are kept: their ids stay theirs
        while len(_kept) > MOST_KEPT:
            _kept.popitem(last=False)
    return _kept[key][0]


def _read(target: Target, max_seconds: float) -> Structure | None:
    try:
        if target.space.num_reals:
            family, num_data = lambda theta, y: target.unguarded(theta, y), target.space.num_reals
            return read(family, target.space.sizes, max_seconds=max_seconds, num_data=num_data)
        return read(lambda theta: target._traced(theta), target.space.sizes, max_seconds=max_seconds)
    except Exception:  # whatever tracing meets: such a function is evaluated as it is
        return None


@jit
def _both(target: Target, terms: Terms, theta: Array, y: Array) -> tuple[Array, Array]:
    """log pi as the function gives it, and as the sum of its terms."""
    return jax.vmap(target.unguarded)(theta, y), jax.vmap(lambda t, y: terms.values(t, y).sum())(theta, y)


def adds_up(target: Target, terms: Terms, summation: Summation | None = None) -> bool:
    """Whether the terms of a mixed target add up to log pi, at random configurations.

    Where all of these are impossible, it is compared at draws by the sum, which are not.
    """
    rng, space = np.random.default_rng(5), target.space
    theta = jnp.asarray(rng.integers(0, space.sizes, (NUM_COMPARED, space.num_dims)), jnp.int32)
    y = jnp.asarray(rng.uniform(-1.0, 1.0, (NUM_COMPARED, space.num_reals)), jnp.result_type(float))
    values = np.stack(_both(target, terms, theta, y))
    if summation is not None and not np.isfinite(values).any():
        values = np.stack(_both(target, terms, _drawn_by(summation, y), y))
    values[1] += terms.constant
    is_finite = np.isfinite(values)
    allowed = np.array([tolerance(both) for both in values.T]) * np.sqrt(space.num_dims)
    with np.errstate(invalid="ignore"):
        is_close = np.abs(values[0] - values[1]) <= allowed
    return bool((np.where(is_finite.all(axis=0), is_close, ~is_finite.any(axis=0))).all())


@jit
def _drawn_by(summation: Summation, y: Array) -> Array:
    keys = jax.random.split(jax.random.key(0), y.shape[0])
    return jax.vmap(lambda key, y: summation.backward(key, summation.forward(y)[1]))(keys, y)
