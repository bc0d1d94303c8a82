"""One mesh axis over all visible devices: chains and training batches are dealt out along it.

Results do not depend on how many devices there are: every chain has its own key, and what is pooled over chains or
over a batch is first gathered and then reduced in one fixed order.
"""

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

AXIS = "chains"
NUM_GROUPS = 8  # a training batch is always this many groups, each with its own key, whatever the device count


def make_mesh(num_units: int) -> Mesh:
    """A mesh over as many visible devices as divide `num_units` (chains, or groups of a batch) evenly."""
    devices = jax.devices()
    count = max(n for n in range(1, len(devices) + 1) if num_units % n == 0)
    return Mesh(np.array(devices[:count]), (AXIS,))


def deal(mesh: Mesh, tree):
    """Places a pytree of arrays with a leading chain axis on the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec(AXIS)))


def replicate(mesh: Mesh, tree):
    """Places a copy of every array on every device of the mesh."""
    return jax.device_put(tree, NamedSharding(mesh, PartitionSpec()))
