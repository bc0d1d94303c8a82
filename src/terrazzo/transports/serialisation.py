"""Transports as a small JSON description and the raw bytes of their arrays. Reading runs no code."""

import io
from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import FileFormatError, TransportError
from terrazzo.spaces import Space
from terrazzo.transports.base import AbstractTransport
from terrazzo.transports.registry import REGISTRY


def _leaves(transport: AbstractTransport) -> list[Any]:
    return jax.tree.leaves(eqx.filter(transport, eqx.is_array))


def serialise(transport: AbstractTransport) -> tuple[bytes, dict[str, Any]]:
    """The arrays of a transport as bytes (an `.npz` without pickles), and what it takes to build its skeleton."""
    for name, spec in REGISTRY.items():
        if isinstance(transport, spec.kind):
            config = {"kind": name, **spec.describe(transport)}
            break
    else:
        raise TransportError(
            "transport", f"{type(transport).__name__} is not in the registry", "register it to make it storable"
        )
    stream = io.BytesIO()
    arrays: dict[str, Any] = {f"leaf{i}": np.asarray(leaf) for i, leaf in enumerate(_leaves(transport))}
    np.savez(stream, **arrays)
    return stream.getvalue(), config


def deserialise(data: bytes, config: Mapping[str, Any], space: Space) -> AbstractTransport:
    """The transport that `serialise` described."""
    config = dict(config)
    kind = config.pop("kind", None)
    if kind not in REGISTRY:
        raise FileFormatError("transport", f"unknown kind {kind!r}", "update terrazzo")
    skeleton = REGISTRY[kind].build(space, key=jax.random.key(0), **config)
    arrays, static = eqx.partition(skeleton, eqx.is_array)
    shapes, tree = jax.tree.flatten(arrays)
    with np.load(io.BytesIO(data), allow_pickle=False) as stored:
        loaded = [stored[f"leaf{i}"] for i in range(len(stored.files))]
    if [a.shape for a in loaded] != [s.shape for s in shapes]:
        raise FileFormatError("transport", "its arrays do not fit its description", "save it again")
    return eqx.combine(jax.tree.unflatten(tree, [jnp.asarray(a) for a in loaded]), static)
