"""Compiled loops over chains: start, warm up, sample; sharded over devices, cut into chunks, independent of both.

Step s of chain c uses the key fold_in(fold_in(key, c), s), so draws do not depend on how steps are cut into chunks or
how chains are dealt out over devices. The sampling loop holds no collective: every device runs its chains alone.
Warm-up pools what chains observe; it gathers first and reduces in one fixed order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from terrazzo.compilation import jit
from terrazzo.devices import AXIS
from terrazzo.samplers.base import SamplerSpec, SamplingAlgorithm, as_float
from terrazzo.targets import Target

BUFFER_BYTES = 2**25
CHUNK_SECONDS = 1.0
_ALL, _DEALT = PartitionSpec(), PartitionSpec(AXIS)


class Problem(NamedTuple):
    """What the compiled loops need to build the sampler inside a trace.

    Attributes:
        target: The target.
        transport: The transport, or None.
        options: Fixed keyword arguments of the sampler's factory.
    """

    target: Target
    transport: Any
    options: dict[str, Any]


def build(spec: SamplerSpec, problem: Problem, parameters: dict[str, Any]) -> SamplingAlgorithm:
    """The sampler with these parameters; options the user fixed win over tuned ones."""
    arguments = {**parameters, **problem.options}
    if "transport" in spec.needs:
        return spec.factory(problem.target, problem.transport, **arguments)
    return spec.factory(problem.target, **arguments)


def _sharded(mesh: Mesh, fn: Callable, in_specs: Any, out_specs: Any, *args: Any) -> Any:
    """`shard_map` for arguments that are pytrees with static leaves."""
    arrays, static = eqx.partition(args, eqx.is_array)

    def local(*arrays: Any) -> Any:
        return fn(*eqx.combine(arrays, static))

    return jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)(*arrays)


def _chain_keys(key: Array, ids: Array) -> Array:
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)


@jit
def start(mesh: Mesh, spec: SamplerSpec, problem: Problem, parameters: dict, key: Array, theta: Array) -> Any:
    """The states of all chains at the configurations `theta`, (chain, dim)."""

    def local(ids, theta, problem, parameters, key):
        sampler = build(spec, problem, parameters)
        return jax.vmap(sampler.init)(theta, _chain_keys(key, ids))

    ids = jnp.arange(theta.shape[0], dtype=jnp.int32)
    specs = (_DEALT, _DEALT, _ALL, _ALL, _ALL)
    return _sharded(mesh, local, specs, _DEALT, ids, theta, problem, parameters, key)


@jit
def warm_up(
    mesh: Mesh,
    spec: SamplerSpec,
    problem: Problem,
    key: Array,
    start: Array,
    count: Array,
    states: Any,
    tuning_state: Any,
) -> tuple[Any, Any, Array]:
    """`count` steps from step `start`, tuning as it goes. Returns states, tuning state and the mean acceptance."""
    ids = jnp.arange(jax.tree.leaves(states)[0].shape[0], dtype=jnp.int32)

    def local(ids, problem, key, start, count, states, tuning_state):
        tuning = None if spec.tuning is None else spec.tuning(problem.target, **problem.options)
        chain_keys = _chain_keys(key, ids)

        def body(i, carry):
            states, tuning_state, acceptance = carry
            parameters = {} if tuning is None else tuning.parameters(tuning_state)
            sampler = build(spec, problem, parameters)
            keys = jax.vmap(lambda k: jax.random.fold_in(k, start + i))(chain_keys)
            states, info = jax.vmap(sampler.step)(keys, states)
            if tuning is not None:
                seen = jax.vmap(tuning.observe)(states, info)
                seen = jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS, tiled=True), seen)
                tuning_state = tuning.update(tuning_state, seen)
            rates = jax.lax.all_gather(info.acceptance_rate, AXIS, tiled=True)
            return states, tuning_state, acceptance + jnp.mean(rates)

        return jax.lax.fori_loop(0, count, body, (states, tuning_state, as_float(0.0)))

    specs = (_DEALT, _ALL, _ALL, _ALL, _ALL, _DEALT, _ALL)
    outs = (_DEALT, _ALL, _ALL)
    states, tuning_state, total = _sharded(
        mesh, local, specs, outs, ids, problem, key, start, count, states, tuning_state
    )
    return states, tuning_state, total / jnp.maximum(count, 1).astype(total.dtype)


def next_chunk(count: int, seconds: float, *, is_first: bool) -> int:
    """How many units take about a second; grows gently, and not from the first chunk, which compiled.

    >>> next_chunk(10, 0.25, is_first=False), next_chunk(1, 9.0, is_first=True)
    (40, 1)
    """
    if is_first:
        return max(1, count)
    return int(np.clip(count * CHUNK_SECONDS / max(seconds, 1e-4), 1, 8 * count))


def buffer_length(num_chains: int, num_dims: int, itemsize: int, draws: int, keep_latent: bool) -> int:
    """How many kept draws one chunk can hold."""
    per_draw = num_chains * (num_dims * (itemsize + (8 if keep_latent else 0)) + 16)
    return max(1, min(draws, BUFFER_BYTES // per_draw))


@jit
def draw(
    mesh: Mesh,
    spec: SamplerSpec,
    problem: Problem,
    length: int,
    keep_latent: bool,
    parameters: dict,
    key: Array,
    start: Array,
    count: Array,
    thin: Array,
    states: Any,
) -> tuple[Any, dict[str, Array]]:
    """`count` (at most `length`) kept draws from draw `start` on, `thin` steps each; arrays are (draw, chain, ...)."""
    dtype = problem.target.space.dtype
    ids = jnp.arange(jax.tree.leaves(states)[0].shape[0], dtype=jnp.int32)

    def local(ids, problem, parameters, key, start, count, thin, states):
        sampler = build(spec, problem, parameters)
        chain_keys = _chain_keys(key, ids)
        zeros = jnp.zeros(ids.shape, jnp.result_type(float))

        def record(states, acceptance, evaluations):
            row = {
                "theta": states.position.astype(dtype),
                "log_prob": states.log_prob,
                "acceptance_rate": acceptance / thin.astype(acceptance.dtype),
                "num_evaluations": evaluations,
            }
            if hasattr(states, "log_probs"):  # a ladder of temperatures: what all of them say gives log Z
                row["replica_log_probs"] = states.log_probs
            return {**row, "latent": states.z} if keep_latent else row

        def body(i, carry):
            states, rows = carry

            def one_step(j, carry):
                states, acceptance, evaluations = carry
                step = (start + i) * thin + j
                keys = jax.vmap(lambda k: jax.random.fold_in(k, step))(chain_keys)
                states, info = jax.vmap(sampler.step)(keys, states)
                return states, acceptance + info.acceptance_rate, evaluations + info.num_evaluations

            init = (states, zeros, jnp.zeros(ids.shape, jnp.int32))
            states, acceptance, evaluations = jax.lax.fori_loop(0, thin, one_step, init)
            row = record(states, acceptance, evaluations)
            return states, {name: rows[name].at[i].set(row[name]) for name in rows}

        example = jax.eval_shape(record, states, zeros, jnp.zeros(ids.shape, jnp.int32))
        rows = {name: jnp.zeros((length, *x.shape), x.dtype) for name, x in example.items()}
        return jax.lax.fori_loop(0, count, body, (states, rows))

    specs = (_DEALT, _ALL, _ALL, _ALL, _ALL, _ALL, _ALL, _DEALT)
    outs = (_DEALT, PartitionSpec(None, AXIS))
    return _sharded(mesh, local, specs, outs, ids, problem, parameters, key, start, count, thin, states)
