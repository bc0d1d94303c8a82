"""The structure of a target, read once and kept for the rest of the call.

What is read is log pi itself: untempered and not softened. Whoever uses it tempers what comes out.
"""

from collections import OrderedDict
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from terrazzo.targets.structure import Structure, read
from terrazzo.targets.target import Target

SECONDS_A_SITE = 6e-5  # that samplers allow in large spaces: a lattice of a million sites takes 24 s on two busy cores
MAX_SECONDS = 10.0  # for all that is read: a lattice of 65,536 sites takes 1.2, a dense glass of 1,000 spins 3
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
