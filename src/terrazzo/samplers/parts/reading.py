"""Conditionals of single sites, read from plain functions and compared with log pi before they are used.

Kernels that ask for them take an option `conditionals`, which their `prepare` fills in: it runs on the host, before
anything is compiled. The kernel then works with a target that has running conditionals, as if the user had given them.
"""

from collections import deque
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.samplers.parts.colouring import differs
from terrazzo.targets.interactions import evaluate, random_pair, tolerance
from terrazzo.targets.reading import MOST_KEPT, structure_of
from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.structure import Structure
from terrazzo.targets.target import Target

NUM_COMPARED = 4  # configurations at which conditionals that were read are compared with log pi
NUM_SITES = 8  # sites that are looked at in each of them

_compared: deque[tuple[Structure, AbstractRunningConditionals | None]] = deque(maxlen=MOST_KEPT)


def read_running(target: Target) -> AbstractRunningConditionals | None:
    """Running conditionals from the terms or the linear products of a plain function.

    Returns:
        None where the target has hints of its own or cannot be read, where conditionals cost as much as log pi, and
        where they are not the differences of log pi at random configurations.

    >>> import terrazzo as tz
    >>> glass = tz.Target(lambda t: 0.1 * (2 * t - 1).sum() ** 2 / 2, tz.binary(40))
    >>> type(read_running(glass)).__name__
    'RunningField'
    """
    has_hints = target.has_cheap_neighbours or target.colours is not None or target.soft_level is not None
    structure = None if has_hints else structure_of(target)
    if structure is None:
        return None
    for known, found in tuple(_compared):  # another thread may add to it
        if known is structure:
            return found
    found = structure.conditionals
    found = found if found is not None and _are_differences(target, found) else None
    _compared.append((structure, found))
    return found


def prepare_neighbours(target: Target, *, conditionals: Any = None, **options: Any) -> dict[str, Any]:
    """The `prepare` of kernels that look at all neighbours."""
    found = read_running(target) if conditionals is None else conditionals
    return options if found is None else {**options, "conditionals": found}


def with_conditionals(target: Target, conditionals: AbstractRunningConditionals | None) -> Target:
    """The target as a kernel uses it: with what was read, or as it is."""
    return target if conditionals is None else target.with_running(conditionals)


def _are_differences(target: Target, running: AbstractRunningConditionals) -> bool:
    """Whether conditionals agree with log pi: at random configurations, and after a change of one site."""
    target = eqx.tree_at(lambda t: t.inverse_temperature, target, None, is_leaf=lambda x: x is None)
    rng, num_dims = np.random.default_rng(4), target.space.num_dims
    for _ in range(NUM_COMPARED):
        theta, other = random_pair(target, rng)
        sites = rng.permutation(num_dims)[: min(NUM_SITES, num_dims)]
        moved = theta.copy()
        moved[sites[0]] = other[sites[0]]
        rows = _rows(running, *(jnp.asarray(x, jnp.int32) for x in (theta, other, sites)))
        for at, kept in zip((theta, moved), np.asarray(rows, float), strict=True):
            points = np.tile(at, (1 + len(sites), 1))
            points[1 + np.arange(len(sites)), sites] = np.where(at[sites] == other[sites], theta[sites], other[sites])
            values = evaluate(target, points)
            if not np.isfinite(values[0]):  # impossible after the change: only what is possible again says something
                continue
            for row, site, point, value in zip(kept, sites, points[1:], values[1:], strict=True):
                with np.errstate(invalid="ignore"):
                    expected = row[:, point[site]] - row[:, at[site]] + values[0]
                if differs(value, expected, tolerance(values) * np.sqrt(num_dims)).any():
                    return False
    return True


@eqx.filter_jit
def _rows(running: AbstractRunningConditionals, theta: Any, other: Any, sites: Any) -> Any:
    """Logits of some sites before and after the first of them has changed: one by one, and out of all."""

    def both_ways(tables: Any, theta: Any) -> Any:
        one = jax.vmap(lambda site: running.site_logits(tables, theta, site))(sites)
        return jnp.stack([one, running.logits(tables, theta)[sites]], axis=1)

    with jax.default_matmul_precision("highest"):
        i, tables = sites[0], running.start(theta)
        before, after = (tables, theta), (running.moved(tables, theta, i, other[i]), theta.at[i].set(other[i]))
        return jax.vmap(both_ways)(*jax.tree.map(lambda x, y: jnp.stack([x, y]), before, after))
