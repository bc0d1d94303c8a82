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
from terrazzo.storage.files import read_arrays
from terrazzo.storage.spaces import space_from_json, space_to_json
from terrazzo.transports.base import AbstractTransport
from terrazzo.transports.clamped import ClampedTransport, clamp_transport
from terrazzo.transports.registry import REGISTRY

OWN_SPACE = "space"  # of a transport that is not of the run's space: of the reals alone, theta summed out
CLAMPED = "clamped"  # a transport with some coordinates held fixed, around one of the registry
MOST_LAYERS = 256  # that a description may ask for beyond the lengths of its arrays


def _leaves(transport: AbstractTransport) -> list[Any]:
    return jax.tree.leaves(eqx.filter(transport, eqx.is_array))


def is_storable(transport: AbstractTransport) -> bool:
    """Whether `serialise` knows the kind of a transport."""
    inner = transport.inner if isinstance(transport, ClampedTransport) else transport
    return any(isinstance(inner, spec.kind) for spec in REGISTRY.values())


def serialise(transport: AbstractTransport, space: Space | None = None) -> tuple[bytes, dict[str, Any]]:
    """The arrays of a transport as bytes (an `.npz` without pickles), and what it takes to build its skeleton.

    Args:
        transport: The transport.
        space: The space that `deserialise` will be given, if the transport may be one of another.
    """
    if space is not None and transport.space != space:
        data, config = serialise(transport)
        return data, {**config, OWN_SPACE: space_to_json(transport.space)}
    if isinstance(transport, ClampedTransport):
        data, inner = serialise(transport.inner)
        codes = np.asarray(transport.codes).tolist()
        return data, {"kind": CLAMPED, "inner": inner, "whole": space_to_json(transport.inner.space), "codes": codes}
    for name, spec in REGISTRY.items():
        if isinstance(transport, spec.kind):
            config = {"kind": name, **transport.describe()}
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
    """The transport that `serialise` described. Nothing larger than what is stored is ever built."""
    try:
        return _deserialised(data, dict(config), space)
    except FileFormatError:
        raise
    except Exception as error:  # whatever a builder says about options that it did not write
        text = " ".join(str(error).split())[:200]
        raise FileFormatError("transport", f"cannot be understood ({text})", "save it again from its source") from None


def _deserialised(data: bytes, config: dict[str, Any], space: Space) -> AbstractTransport:
    kind = config.pop("kind", None)
    if kind == CLAMPED:
        codes = np.asarray(config["codes"], np.int32)
        whole = space_from_json(config["whole"], num_dims=len(codes))
        return clamp_transport(_deserialised(data, dict(config["inner"]), whole), codes, space)
    if not isinstance(kind, str) or kind not in REGISTRY:
        raise FileFormatError("transport", f"unknown kind {str(kind)[:40]!r}", "update terrazzo")
    stored = read_arrays(io.BytesIO(data), len(data))
    loaded = [stored[f"leaf{i}"] for i in range(len(stored))]
    most = max([MOST_LAYERS, *(n for array in loaded for n in array.shape)])
    numbers = jax.tree.leaves(config)
    if any(isinstance(n, int | float) and not abs(n) <= most for n in numbers):
        raise FileFormatError("transport", "its description does not fit its arrays", "save it again")
    own_space = config.pop(OWN_SPACE, None)
    space = space if own_space is None else space_from_json(own_space, num_dims=0)
    build = lambda key: REGISTRY[kind].build(space, key=key, **config)
    skeleton = eqx.filter_eval_shape(build, jax.random.key(0))
    is_shape = lambda x: isinstance(x, jax.ShapeDtypeStruct)
    shapes, tree = jax.tree.flatten(eqx.filter(skeleton, is_shape))
    same = [(a.shape, a.dtype.kind) for a in loaded] == [(s.shape, s.dtype.kind) for s in shapes]
    if not same or any(a.dtype.kind == "f" and np.isnan(a).any() for a in loaded):
        raise FileFormatError("transport", "its arrays do not fit its description", "save it again")
    arrays = jax.tree.unflatten(tree, [jnp.asarray(a) for a in loaded])
    return eqx.combine(arrays, eqx.filter(skeleton, is_shape, inverse=True))
