"""How many rows a device computes: one for each of its chains and, where that decides about bits, copies of these.

XLA multiplies a matrix by few vectors in other orders than by many, so that the last bit of a product depends on how
many chains a device has; in float32 such a bit can change a decision, and long paths make it larger. So a device that
has fewer than eight chains computes eight rows, or as many as there are chains: then any number of devices, or of
processes, computes arrays of the same shape. From 8 to 32 rows products on a CPU had the same bits (docs/scaling.md).
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh

from terrazzo.runtime.devices import AXIS, SITES
from terrazzo.targets.target import Target

LEAST = 8
PRODUCTS = ("dot_general", "conv_general_dilated")


def num_rows(mesh: Mesh, target: Target, total: int | None, fn: Callable, *args: Any) -> int:
    """How many rows a device has, for a function of its chains that is about to be mapped.

    Without products of matrices there are no copies: a sum of few terms does not depend on how many there are. Nor are
    there of a black box, which would be called for each, or of a chain whose sites are on several devices.

    Args:
        mesh: The devices.
        target: The target.
        total: How many chains there are in all processes; None: those of the mesh.
        fn: The function of one chain.
        *args: Its arguments for the chains of this device, with a leading axis.
    """
    num_own = jax.tree.leaves(args)[0].shape[0]
    wanted = min(LEAST, total or num_own * mesh.shape[AXIS])
    if num_own >= wanted or target.is_blackbox or SITES in mesh.axis_names:
        return int(num_own)
    text = str(jax.make_jaxpr(jax.vmap(fn))(*args))
    return wanted if any(name in text for name in PRODUCTS) else int(num_own)


def filled(rows: int, tree: Any) -> Any:
    """Arrays of chains with so many rows: the chains, and then these again and again."""

    def more(x: Any) -> Any:
        return x if x.shape[0] == rows else x[jnp.arange(rows) % x.shape[0]]

    return jax.tree.map(more, tree)


def own_rows(num_own: int, tree: Any) -> Any:
    """Of arrays of rows what belongs to the chains themselves."""
    return jax.tree.map(lambda x: x if x.shape[0] == num_own else jax.lax.slice_in_dim(x, 0, num_own), tree)
