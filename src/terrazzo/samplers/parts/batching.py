"""How a batch is computed: side by side, or one after the other where that is faster."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.custom_batching import custom_vmap


def one_by_one_on_cpu(fn: Callable[..., Any]) -> Callable[..., Any]:
    """A function of arrays whose batches a CPU takes one by one.

    For loops over small arrays that end at different times: side by side all of them wait for the last one and leave
    the cache together. Clusters of 64 lattices of 64 x 64 sites took 99 microseconds each in turn, 217 side by side.

    >>> import jax.numpy as jnp
    >>> jax.vmap(one_by_one_on_cpu(lambda x, y: x + y), in_axes=(0, None))(jnp.arange(3), jnp.asarray(1)).tolist()
    [1, 2, 3]
    """
    mapped = custom_vmap(fn)

    @mapped.def_vmap
    def batch(size: int, is_batched: list[bool], *args: Any) -> tuple[Any, Any]:
        if jax.default_backend() != "cpu":
            found = jax.vmap(fn, in_axes=tuple(0 if each else None for each in is_batched), axis_size=size)(*args)
        else:

            def one(batched: list[Any]) -> Any:
                left = iter(batched)
                return mapped(*(next(left) if each else x for x, each in zip(args, is_batched, strict=True)))

            found = jax.lax.map(one, [x for x, each in zip(args, is_batched, strict=True) if each])
        return found, jax.tree.map(lambda _: True, found)

    return functools.wraps(fn)(mapped)
