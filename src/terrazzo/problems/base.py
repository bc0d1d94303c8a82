"""What a ready problem is: a target and what is known about it."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float

from terrazzo.targets.target import Target


def as_floats(values: Any) -> Float[Array, "..."]:
    """Numbers as an array of JAX's default float."""
    return jnp.asarray(values, jnp.result_type(float))


class Problem(NamedTuple):
    """A ready target, with exact answers where they exist.

    Attributes:
        name: Its name.
        target: The target.
        summary: One line.
        reference: Where it comes from.
        log_z: The exact log Z, if it is known.
        truth: Further known answers and the data, by name.
    """

    name: str
    target: Target
    summary: str
    reference: str
    log_z: float | None = None
    truth: Mapping[str, Any] = MappingProxyType({})
