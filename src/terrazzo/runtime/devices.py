"""A mesh over the devices of this process: chains and training batches are distributed along its first axis.

Where there are fewer chains than devices, the replicas of a tempered chain are distributed along the second one. A
third one, where it is asked for, distributes the sites of a chain that is too large for one device.

Draws do not depend on how many devices there are: every chain has its own key, and what is pooled over chains is first
gathered and then reduced in one fixed order. A training batch is split into groups that are distributed in the same
way; the same number of groups gives the same weights on any number of devices, up to rounding.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from terrazzo.errors import OptionError
from terrazzo.errors.arguments import is_integer, shown

AXIS, REPLICAS, SITES = "chains", "replicas", "sites"
_chosen: ContextVar[tuple[Any, ...] | None] = ContextVar("terrazzo_devices", default=None)


@contextlib.contextmanager
def use_devices(devices: Any) -> Iterator[None]:
    """Samples and trains on these devices, inside a `with` block; outside of one, on all that the process sees.

    Draws do not depend on it. It is a context, as `jax.default_device` is, because it says something of the machine
    and nothing of the run, and because everything that computes takes part in it: `sample`, `fit`, `maximize`.

    Args:
        devices: How many of the visible devices, or which ones (`jax.devices()[2:4]`).

    >>> import terrazzo as tz, jax.numpy as jnp
    >>> with tz.use_devices(1):
    ...     result = tz.sample(lambda t: 1.0 * jnp.sum(t), tz.binary(2), seed=0, draws=10, progress="off")
    >>> result.num_draws
    10
    """
    visible = jax.local_devices()
    if is_integer(devices):
        if not 1 <= int(devices) <= len(visible):
            raise OptionError("devices", f"must be 1 to {len(visible)} here, got {devices}", "see jax.local_devices()")
        found = tuple(visible[: int(devices)])
    else:
        found = tuple(devices) if isinstance(devices, Sequence | np.ndarray) and not isinstance(devices, str) else ()
        if not found or any(d not in visible for d in found) or len(set(found)) < len(found):
            text = f"must be a count, or devices of this process, got {shown(devices)}"
            raise OptionError("devices", text, "e.g. jax.local_devices()[:2]")
    token = _chosen.set(found)
    try:
        yield
    finally:
        _chosen.reset(token)


def chosen_devices() -> tuple[Any, ...]:
    """The devices to use: those of `use_devices`, else all of this process."""
    return _chosen.get() or tuple(jax.local_devices())


def make_mesh(num_units: int) -> Mesh:
    """A mesh over as many of the devices as divide `num_units` (chains, or groups of a batch) evenly."""
    devices = chosen_devices()
    count = _divisor(num_units, len(devices))
    return Mesh(np.array(devices[:count]).reshape(count, 1), (AXIS, REPLICAS))


def widened(mesh: Mesh, num_units: int, axis: str = REPLICAS) -> Mesh:
    """A mesh with the devices that it leaves free along another axis, as many as divide `num_units` evenly."""
    devices, count = chosen_devices(), mesh.shape[AXIS]
    wide = _divisor(num_units, len(devices) // count)
    if wide <= 1:
        return mesh
    used = np.array(devices[: count * wide])
    if axis == SITES:
        return Mesh(used.reshape(count, 1, wide), (AXIS, REPLICAS, SITES))
    return Mesh(used.reshape(count, wide), (AXIS, REPLICAS))


def _divisor(number: int, most: int) -> int:
    """The largest divisor of a number up to a bound."""
    return max((n for n in range(1, most + 1) if number % n == 0), default=1)


def num_parts(axis: str) -> int:
    """How many devices an axis has in the function that is being traced; 1 outside of any mesh."""
    try:
        return int(jax.lax.axis_size(axis))
    except NameError:
        return 1


def default_groups() -> int:
    """Into how many groups a training batch is split: one for each accelerator.

    CPU "devices" share the same cores, so distributing a batch over them gains nothing: one group there.
    """
    return 1 if jax.default_backend() == "cpu" else len(chosen_devices())


def distribute(mesh: Mesh, tree, axes: Any = None):
    """Places a pytree of arrays with a leading chain axis on the mesh; `axes` says how, where it is not by chains."""
    if axes is None or mesh.size == mesh.shape[AXIS]:
        return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(AXIS)))
    return jax.device_put(tree, jax.tree.map(lambda axis: NamedSharding(mesh, axis), axes))


def replicate(mesh: Mesh, tree):
    """Places a copy of every array on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))


def spread(mesh: Mesh, tree):
    """Cuts every array along its longest axis over the devices of `SITES`, where they divide it; else copies it.

    The compiler may be given arrays that are cut in any way: what it computes does not depend on it.
    """
    parts = mesh.shape.get(SITES, 1)

    def put(x: Any) -> Any:
        if not isinstance(x, np.ndarray | jax.Array):
            return x
        longest = int(np.argmax(x.shape)) if x.ndim else 0
        is_cut = parts > 1 and x.ndim and x.shape[longest] and x.shape[longest] % parts == 0
        axes = [SITES if axis == longest and is_cut else None for axis in range(x.ndim)]
        return jax.device_put(x, NamedSharding(mesh, PartitionSpec(*axes)))

    return jax.tree.map(put, tree)
