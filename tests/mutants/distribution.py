"""Planted mistakes in how chains and ladders are distributed. On several devices each must change the draws.

The law of a mutant is a key of the runs in `test_distributed_mutants.py`.
"""

import jax
import jax.numpy as jnp

from mutants import Mutant, sampler_module
from terrazzo.engine import kernels
from terrazzo.runtime.devices import REPLICAS, num_parts

TEMPERING = sampler_module("tempering")
CHAIN_KEYS = kernels._chain_keys


def by_place(self, values):
    """The number of a place is taken for that of its temperature: right until two swaps have followed each other."""
    return jax.lax.dynamic_slice_in_dim(jnp.argsort(values).astype(values.dtype), self.first, self.size)


def of_the_first_device(self, values):
    """All devices take the keys and the temperatures of the first one."""
    return values[: self.size]


def own_alone(self, values):
    """What a device says of its replicas is taken for what the others say."""
    return jnp.tile(values, (num_parts(REPLICAS), *(1,) * (values.ndim - 1)))


def everywhere(self, place):
    """Every device takes a configuration for its own."""
    return jnp.clip(place - self.first, 0, self.size - 1), jnp.asarray(True)


def without_log_probs(is_swapped, places, *rows):
    """A swap exchanges temperatures, and forgets log pi."""
    return (*EXCHANGED(is_swapped, places), *rows)


def one_each(mesh, target, total, fn, *args):
    """A device computes its own chains alone."""
    return jax.tree.leaves(args)[0].shape[0]


EXCHANGED = TEMPERING.exchanged

MUTANTS = [
    Mutant("temperatures by place", "ladder", ((TEMPERING._Held, "rows", by_place),)),
    Mutant("keys and temperatures of another device", "ladder", ((TEMPERING._Held, "rows", of_the_first_device),)),
    Mutant("log pi of other replicas not heard", "ladder", ((TEMPERING._Held, "all", own_alone),)),
    Mutant("a cold configuration on every device", "ladder", ((TEMPERING._Held, "local", everywhere),)),
    Mutant("a swap without log pi", "ladder", ((TEMPERING, "exchanged", without_log_probs),)),
    Mutant("chains numbered on each device", "gibbs",
           ((kernels, "_chain_keys", lambda key, ids: CHAIN_KEYS(key, ids - ids[0])),)),
    Mutant("a lone chain has one row", "lone chain", ((kernels, "num_rows", one_each),)),
]  # fmt: skip
