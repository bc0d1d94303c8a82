"""One mesh axis over all visible devices: chains and training batches are distributed along it.

Draws do not depend on how many devices there are: every chain has its own key, and what is pooled over chains is first
gathered and then reduced in one fixed order. A training batch is split into groups that are distributed in the same
way; the same number of groups gives the same weights on any number of devices, up to rounding.
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "chains"


def make_mesh(num_units: int) -> Mesh:
    """A mesh over as many visible devices as divide `num_units` (chains, or groups of a batch) evenly."""
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if num_units % n == 0)
    return Mesh(np.array(devices[:count]), (AXIS,))


def default_groups() -> int:
    """Into how many groups a training batch is split: one for each accelerator.

    CPU "devices" share the same cores, so distributing a batch over them gains nothing: one group there.
    """
    return 1 if jax.default_backend() == "cpu" else len(jax.devices())


def distribute(mesh: Mesh, tree):
    """Places a pytree of arrays with a leading chain axis on the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(AXIS)))


def replicate(mesh: Mesh, tree):
    """Places a copy of every array on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
