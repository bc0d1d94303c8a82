"""Compiled programs over chains: start, and draw; sharded over devices, cut into chunks, independent of both.

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

from terrazzo.engine.rows import filled, num_rows, own_rows
from terrazzo.runtime.compilation import jit, jit_loop
from terrazzo.runtime.devices import AXIS, REPLICAS, SITES, num_parts
from terrazzo.samplers.parts.base import SamplerSpec, SamplingAlgorithm, Tuning, select
from terrazzo.targets.target import Target

_ALL, _SPLIT = PartitionSpec(), PartitionSpec(AXIS)


class Problem(NamedTuple):
    """What the compiled loops need to build the sampler inside a trace.

    Attributes:
        target: The target.
        transport: The transport, or None.
        options: Fixed keyword arguments of the sampler's factory.
        keep: Takes a flat configuration and returns what is kept in its place, arrays by name; None keeps it itself.
    """

    target: Target
    transport: Any
    options: dict[str, Any]
    keep: Any = None


def _laid_out(problem: Problem) -> Problem:
    """The problem with its transport laid out for a loop."""
    return problem if problem.transport is None else problem._replace(transport=problem.transport.for_drawing())


def build(spec: SamplerSpec, problem: Problem, parameters: dict[str, Any]) -> SamplingAlgorithm:
    """The sampler with these parameters; options the user fixed win over tuned ones."""
    arguments = {**parameters, **problem.options}
    if "transport" in spec.needs:
        return spec.factory(problem.target, problem.transport, **arguments)
    return spec.factory(problem.target, **arguments)


def _sharded(mesh: Mesh, fn: Callable, in_specs: Any, out_specs: Any, *args: Any) -> Any:
    """`shard_map` for arguments that are pytrees with static leaves; along sites the compiler distributes."""
    arrays, static = eqx.partition(args, eqx.is_array)

    def local(*arrays: Any) -> Any:
        return fn(*eqx.combine(arrays, static))

    own = {"axis_names": {AXIS, REPLICAS}} if SITES in mesh.axis_names else {}
    return jax.shard_map(local, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False, **own)(*arrays)


def _axes(mesh: Mesh, spec: SamplerSpec) -> Any:
    """How states are distributed over the devices of a mesh."""
    return _SPLIT if spec.distribution is None or mesh.shape[REPLICAS] == 1 else spec.distribution.axes


def _apart(spec: SamplerSpec, states: Any) -> Any:
    """States whose configurations are zero on devices that do not hold them; a kernel leaves them so."""
    if num_parts(REPLICAS) == 1:
        return states
    return states._replace(position=_where_held(spec, states, states.position))


def _whole(states: Any) -> Any:
    """States with their configurations on every device."""
    return states if num_parts(REPLICAS) == 1 else states._replace(position=jax.lax.psum(states.position, REPLICAS))


def _where_held(spec: SamplerSpec, states: Any, values: Array) -> Array:
    """Values of the configurations, (chain, ...), and zero on devices that do not hold these."""
    if spec.distribution is None or num_parts(REPLICAS) == 1:
        return values
    assert spec.distribution.has_position is not None
    is_held = jax.vmap(spec.distribution.has_position)(states)
    return jnp.where(is_held.reshape(-1, *(1,) * (values.ndim - 1)), values, jnp.zeros((), values.dtype))


def _chain_keys(key: Array, ids: Array) -> Array:
    return jax.vmap(lambda i: jax.random.fold_in(key, i))(ids)


@jit
def start(mesh: Mesh, spec: SamplerSpec, problem: Problem, parameters: dict, key: Array, theta: Any) -> Any:
    """The states of all chains at the configurations `theta`, (chain, dim), or at mixed ones."""

    def local(ids, theta, problem, parameters, key):
        init, num_own = build(spec, problem, parameters).init, ids.shape[0]
        rows = num_rows(mesh, problem.target, None, init, theta, _chain_keys(key, ids))
        ids, theta = filled(rows, (ids, theta))
        return own_rows(num_own, jax.vmap(init)(theta, _chain_keys(key, ids)))

    ids = jnp.arange(jax.tree.leaves(theta)[0].shape[0], dtype=jnp.int32)
    specs = (_SPLIT, _SPLIT, _ALL, _ALL, _ALL)
    return _sharded(mesh, local, specs, _axes(mesh, spec), ids, theta, problem, parameters, key)


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
    first_chain: Array | None = None,
    tuning_state: Any = None,
    is_tuning: Array | bool | None = None,
    num_chains: int | None = None,
) -> tuple[Any, dict[str, Array], dict[str, Array], Any]:
    """`count` (at most `length`) kept draws from step `start` on, `thin` steps each. Warm-up is a draw that is dropped.

    The states are those of consecutive chains from number `first_chain` on, out of `num_chains` in all processes (None:
    those of the mesh). While `is_tuning`, the kernel has the parameters of the tuning state, which is updated at every
    step; else it has `parameters`. As an array it makes one program of both, as True or None it makes two: for kernels
    that run for longer than they compile.

    Returns:
        The states; rows by name, (draw, chain, ...); the sums over all steps of all that the kernel's `Info` holds, by
        name, (chain, ...); and the tuning state.
    """
    ids = jnp.arange(jax.tree.leaves(states)[0].shape[0], dtype=jnp.int32)
    ids = ids if first_chain is None else ids + first_chain

    def local(ids, problem, parameters, key, start, count, thin, states, tuning_state, is_tuning):
        problem = _laid_out(problem)
        tuning = None if is_tuning is None else spec.tuning(problem.target, **problem.options)
        frozen, num_own = lambda *args: build(spec, problem, parameters).step(*args), ids.shape[0]
        num = num_rows(mesh, problem.target, num_chains, frozen, _chain_keys(key, ids), states)
        ids, states = filled(num, (ids, states))
        step = _stepper(spec, problem, parameters, _chain_keys(key, ids), tuning, is_tuning)
        zeros = jnp.zeros(ids.shape, jnp.result_type(float))

        def record(states, acceptance, evaluations):
            row = {
                **_kept(spec, problem, states),
                "acceptance_rate": acceptance / thin.astype(acceptance.dtype),
                "num_evaluations": evaluations,
            }
            return own_rows(num_own, {**row, "latent": states.z} if keep_latent else row)

        def body(i, carry):
            states, rows, totals, tuning_state = carry

            def one_step(j, carry):
                states, acceptance, evaluations, totals, tuning_state = carry
                states, info = step(start + i * thin + j, states, tuning_state)
                totals = jax.tree.map(lambda total, x: total + x.astype(total.dtype), totals, _named(info))
                tuning_state = _learned(tuning, is_tuning, num_own, tuning_state, states, info)
                acceptance, evaluations = acceptance + info.acceptance_rate, evaluations + info.num_evaluations
                return states, acceptance, evaluations, totals, tuning_state

            init = (states, zeros, jnp.zeros(ids.shape, jnp.int32), totals, tuning_state)
            states, acceptance, evaluations, totals, tuning_state = jax.lax.fori_loop(0, thin, one_step, init)
            row = record(states, acceptance, evaluations)
            return states, {name: rows[name].at[i].set(row[name]) for name in rows}, totals, tuning_state

        like = jax.eval_shape(record, states, zeros, jnp.zeros(ids.shape, jnp.int32))
        rows = {name: jnp.zeros((length, *x.shape), x.dtype) for name, x in like.items()}
        shapes = jax.eval_shape(lambda states: _named(step(start, states, tuning_state)[1]), states)
        totals = {name: jnp.zeros(x.shape, zeros.dtype) for name, x in shapes.items()}
        init = (_apart(spec, states), rows, totals, tuning_state)
        states, rows, totals, tuning_state = jax.lax.fori_loop(0, count, body, init)
        if num_parts(REPLICAS) > 1:  # a draw is where its configuration was: once a chunk, not in the loop
            kept = {"theta"} if problem.keep is None else set(jax.eval_shape(problem.keep, states.position[0]))
            rows = {name: jax.lax.psum(x, REPLICAS) if name in kept else x for name, x in rows.items()}
        return own_rows(num_own, _whole(states)), rows, own_rows(num_own, totals), tuning_state

    specs = (_SPLIT, _ALL, _ALL, _ALL, _ALL, _ALL, _ALL, _axes(mesh, spec), _ALL, _ALL)
    outs = (_axes(mesh, spec), PartitionSpec(None, AXIS), _SPLIT, _ALL)
    args = (ids, problem, parameters, key, start, count, thin, states, tuning_state, is_tuning)
    return _sharded(mesh, local, specs, outs, *args)


def _stepper(
    spec: SamplerSpec, problem: Problem, parameters: dict, chain_keys: Array, tuning: Tuning | None, is_tuning: Any
) -> Callable[[Array, Any, Any], tuple[Any, Any]]:
    """`(number, states, tuning_state) -> (states, info)`: a step of all chains, by frozen or by tuned parameters."""
    frozen = build(spec, problem, parameters) if tuning is None else None

    def step(number: Array, states: Any, tuning_state: Any) -> tuple[Any, Any]:
        sampler: Any = frozen
        if tuning is not None:
            tuned = tuning.parameters(tuning_state)
            sampler = build(spec, problem, tuned if is_tuning is True else select(is_tuning, tuned, parameters))
        keys = jax.vmap(lambda k: jax.random.fold_in(k, number))(chain_keys)
        return jax.vmap(sampler.step)(keys, states)

    return step if tuning is None else jax.jit(step)  # traced once, for its shapes and for the loop


def _learned(tuning: Tuning | None, is_tuning: Any, num_own: int, tuning_state: Any, states: Any, info: Any) -> Any:
    """The tuning state after a step, updated while `is_tuning`."""
    if tuning is None:
        return tuning_state
    seen = own_rows(num_own, jax.vmap(tuning.observe)(states, info))
    learn = lambda state: tuning.update(state, _gathered(seen))
    if is_tuning is True:
        return learn(tuning_state)
    return jax.lax.cond(is_tuning, learn, lambda state: state, tuning_state)


def _kept(spec: SamplerSpec, problem: Problem, states: Any) -> dict[str, Array]:
    """What is kept of the states of all chains with every draw, by name."""
    space, keep = problem.target.space, problem.keep
    values = {} if keep is None else jax.vmap(keep)(states.position)
    return {
        "theta": (states.position if keep is None else states.position[:, :0]).astype(space.dtype),
        **{name: _where_held(spec, states, x) for name, x in values.items()},
        "log_prob": states.log_prob,
        **({} if spec.record is None else spec.record(states)),
        **({"reals": jax.vmap(space.real_values)(states.reals)} if space.num_reals else {}),
    }


def _gathered(seen: Any) -> Any:
    """What the chains of all devices observed, in one order."""
    return jax.tree.map(lambda x: jax.lax.all_gather(x, AXIS, tiled=True), seen)


def _named(info: Any) -> dict[str, Array]:
    """The arrays of an `Info` by name: its fields, and those of its details."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(info)
    names = (jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in leaves)
    return {name.removeprefix("details."): jnp.asarray(leaf) for name, (_, leaf) in zip(names, leaves, strict=True)}
