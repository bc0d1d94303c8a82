"""Compiled programs over chains: start, warm up, draw; sharded over devices, cut into chunks, independent of both.

Step s of chain c uses the key fold_in(fold_in(key, c), s), so draws do not depend on how steps are cut into chunks or
how chains are distributed over devices. The sampling loop holds no collective: every device runs its chains alone.
Warm-up pools what chains observe; it gathers first and reduces in one fixed order.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from terrazzo.runtime.compilation import jit, jit_loop
from terrazzo.runtime.devices import AXIS
from terrazzo.samplers.parts.base import SamplerSpec, SamplingAlgorithm, as_float
from terrazzo.targets.target import Target

_ALL, _SPLIT = PartitionSpec(), PartitionSpec(AXIS)


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
def start(mesh: Mesh, spec: SamplerSpec, problem: Problem, parameters: dict, key: Array, theta: Any) -> Any:
    """The states of all chains at the configurations `theta`, (chain, dim), or at mixed ones."""

    def local(ids, theta, problem, parameters, key):
        sampler = build(spec, problem, parameters)
        return jax.vmap(sampler.init)(theta, _chain_keys(key, ids))

    ids = jnp.arange(jax.tree.leaves(theta)[0].shape[0], dtype=jnp.int32)
    specs = (_SPLIT, _SPLIT, _ALL, _ALL, _ALL)
    return _sharded(mesh, local, specs, _SPLIT, ids, theta, problem, parameters, key)


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

    specs = (_SPLIT, _ALL, _ALL, _ALL, _ALL, _SPLIT, _ALL)
    outs = (_SPLIT, _ALL, _ALL)
    states, tuning_state, total = _sharded(
        mesh, local, specs, outs, ids, problem, key, start, count, states, tuning_state
    )
    return states, tuning_state, total / jnp.maximum(count, 1).astype(total.dtype)


@jit_loop
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
) -> tuple[Any, dict[str, Array], dict[str, Array]]:
    """`count` (at most `length`) kept draws from draw `start` on, `thin` steps each.

    Returns:
        The states; rows by name, (draw, chain, ...); and the sums over all steps of every field of the kernel's `Info`,
        by name, (chain, ...).
    """
    space, dtype = problem.target.space, problem.target.space.dtype
    ids = jnp.arange(jax.tree.leaves(states)[0].shape[0], dtype=jnp.int32)

    def local(ids, problem, parameters, key, start, count, thin, states):
        sampler = build(spec, problem, parameters)
        chain_keys = _chain_keys(key, ids)
        zeros = jnp.zeros(ids.shape, jnp.result_type(float))

        def step(number, states):
            keys = jax.vmap(lambda k: jax.random.fold_in(k, number))(chain_keys)
            return jax.vmap(sampler.step)(keys, states)

        def record(states, acceptance, evaluations):
            row = {
                "theta": states.position.astype(dtype),
                "log_prob": states.log_prob,
                "acceptance_rate": acceptance / thin.astype(acceptance.dtype),
                "num_evaluations": evaluations,
                **({} if spec.record is None else spec.record(states)),
                **({"reals": jax.vmap(space.real_values)(states.reals)} if space.num_reals else {}),
            }
            return {**row, "latent": states.z} if keep_latent else row

        def body(i, carry):
            states, rows, totals = carry

            def one_step(j, carry):
                states, acceptance, evaluations, totals = carry
                states, info = step((start + i) * thin + j, states)
                totals = jax.tree.map(lambda total, x: total + x.astype(total.dtype), totals, _named(info))
                return states, acceptance + info.acceptance_rate, evaluations + info.num_evaluations, totals

            init = (states, zeros, jnp.zeros(ids.shape, jnp.int32), totals)
            states, acceptance, evaluations, totals = jax.lax.fori_loop(0, thin, one_step, init)
            row = record(states, acceptance, evaluations)
            return states, {name: rows[name].at[i].set(row[name]) for name in rows}, totals

        like = jax.eval_shape(record, states, zeros, jnp.zeros(ids.shape, jnp.int32))
        rows = {name: jnp.zeros((length, *x.shape), x.dtype) for name, x in like.items()}
        shapes = jax.eval_shape(lambda states: _named(step(start, states)[1]), states)
        totals = {name: jnp.zeros(x.shape, zeros.dtype) for name, x in shapes.items()}
        return jax.lax.fori_loop(0, count, body, (states, rows, totals))

    specs = (_SPLIT, _ALL, _ALL, _ALL, _ALL, _ALL, _ALL, _SPLIT)
    outs = (_SPLIT, PartitionSpec(None, AXIS), _SPLIT)
    return _sharded(mesh, local, specs, outs, ids, problem, parameters, key, start, count, thin, states)


def _named(info: Any) -> dict[str, Array]:
    """The arrays of an `Info` by the names of its fields."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(info)
    return {jax.tree_util.keystr(path, simple=True, separator="."): jnp.asarray(leaf) for path, leaf in leaves}
