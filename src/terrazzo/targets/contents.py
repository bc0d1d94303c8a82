"""What functions hold: digests of arrays, and arrays that were changed in place."""

import hashlib
import inspect
import re
import types
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import TargetError

ADDRESS = re.compile(r"0x[0-9a-fA-F]+")

_seen: dict[int, tuple[Any, str]] = {}  # arrays that hidden functions held, by id: a weak reference, and their digest


def check_unchanged(function: Any) -> None:
    """Raises where a hidden function holds a NumPy array that has been changed since such a function held it.

    The values of that time are compiled in, and JAX may hand them to any later trace for as long as the code lives.
    """
    for array in jax.tree.leaves(list(_held(function))):
        if not isinstance(array, np.ndarray) or array.dtype.kind == "O":
            continue
        place, now = id(array), digest(array)
        if place not in _seen or _seen[place][0]() is not array:
            _seen[place] = weakref.ref(array, partial(_forget, place)), now
        elif _seen[place][1] != now:
            raise TargetError(
                "log_prob",
                f"holds a NumPy array of shape {array.shape} that was changed in place, and JAX has its old values",
                "give it a changed copy of the array instead",
            )


def _forget(place: int, _: Any) -> None:
    _seen.pop(place, None)


def _held(function: Any) -> Iterator[Any]:
    """What a plain function can reach by name: its closure, its globals, its defaults."""
    if isinstance(function, types.FunctionType):
        found = inspect.getclosurevars(function)
        yield from (*found.nonlocals.values(), *found.globals.values())
        yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())


def digest(*values: Any) -> str:
    """A digest of arrays (type, shape, every byte) and of anything else by its text.

    >>> digest(np.zeros(3)) == digest(np.zeros(3)) != digest(np.zeros((3, 1)))
    True
    """
    out = hashlib.sha256()
    for value in values:
        if eqx.is_array_like(value) or hasattr(value, "__array__"):
            if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                value = jax.random.key_data(value)
            array = np.asarray(value)
            out.update(f"{array.dtype.str}{array.shape}".encode())
            out.update(np.ascontiguousarray(array).tobytes())
        else:
            out.update(ADDRESS.sub("", str(value)).encode())
        out.update(b";")
    return out.hexdigest()
