"""Coloured Gibbs: all sites of one colour of the interaction graph are redrawn at once.

Sites of one colour are independent given the rest (see `colouring`), so redrawing them together is a Gibbs step of a
block, and a sweep over the colours is as good as a sweep over the sites, in a few vectorised passes.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Float, Int

from terrazzo.errors import UnsupportedError
from terrazzo.errors.arguments import flag, shown
from terrazzo.runtime.devices import AXIS, SITES, chosen_devices
from terrazzo.samplers.kernels.gibbs import moved_info, positive_int, start
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import Distribution, Info, SamplingAlgorithm, State
from terrazzo.samplers.parts.colouring import Colours, checked_colours, find_colours, is_traced, read_conditionals
from terrazzo.targets.target import Target

MAX_COLOURS = 64
MANY_SITES = 4096  # from which colours are one value: as a tuple, those of 100,000 sites cost half a second a call


class SiteMap(eqx.Module):
    """Where sites are, as arrays that can be distributed over devices.

    Attributes:
        colours: The colour of each site.
        places: Its place among those of its colour.
    """

    colours: Any
    places: Any


def prepare(target: Target, *, colours: Any = None, shard_sites: Any = False, **options: Any) -> dict[str, Any]:
    """Finds and verifies the colours on the host, once, so that the factory can be called inside compiled code."""
    if options.get("conditionals") is not None:  # read with their colours, and compared with log pi
        return {**options, "colours": colours, "verify": False, "shard_sites": shard_sites}
    read = read_conditionals(target) if colours is None else None
    if read is not None and len(read[1]) <= MAX_COLOURS:
        colours = read[0] if len(read[0]) < MANY_SITES else Colours(read[0])
        found = {**options, "colours": colours, "verify": False, "conditionals": read[1]}
        return _sharded(found) if flag("shard_sites", shard_sites) else found
    if shard_sites:
        raise UnsupportedError(
            "shard_sites", "the terms of this function were not read", "see tz.explain(target), or leave it out"
        )
    found_colours = find_colours(target) if colours is None else checked_colours(target, colours)
    return {**options, "colours": found_colours, "verify": False}


def _sharded(options: dict[str, Any]) -> dict[str, Any]:
    """Options whose arrays are on the host: devices get their parts of them, and none gets all."""
    counts = [len(one.sites) for one in options["conditionals"]]
    if math.gcd(*counts) == 1 and len(chosen_devices()) > 1:
        raise UnsupportedError(
            "shard_sites", f"colours have {shown(counts)} sites, which no number of devices divides",
            "choose lattices with even sides, or leave it out",
        )  # fmt: skip
    names, colours = np.unique(np.asarray(options["colours"]), return_inverse=True)
    sites = SiteMap(colours.astype(np.int8), _places(colours, len(names)))
    conditionals = jax.tree.map(lambda x: np.asarray(x) if eqx.is_array(x) else x, options["conditionals"])
    return {**options, "conditionals": conditionals, "shard_sites": sites}


def num_parts(problem: Any, parameters: Any) -> int:
    """Into how many equal parts the sites of every colour can be cut; 1 where that was not asked for."""
    if not problem.options.get("shard_sites"):
        return 1
    return math.gcd(*(len(one.sites) for one in problem.options["conditionals"]))


_AXES = State._make((PartitionSpec(AXIS, SITES), PartitionSpec(AXIS)))
DISTRIBUTION = Distribution(num_parts=num_parts, axes=_AXES, axis=SITES)


def _places(colours: np.ndarray, num_colours: int) -> np.ndarray:
    """The place of each site among those of its colour."""
    places = np.zeros(len(colours), np.int32)
    for c in range(num_colours):
        places[colours == c] = np.arange(np.sum(colours == c))
    return places


def coloured_gibbs(
    target: Target,
    *,
    colours: Any = None,
    num_sweeps: int = 1,
    verify: bool = True,
    conditionals: Any = None,
    shard_sites: Any = False,
) -> SamplingAlgorithm:
    """Gibbs sweeps, a colour at a time.

    Args:
        target: The target; with `site_logits` a sweep is as cheap as it gets.
        colours: One colour per coordinate (default: the target's own, or found by probing).
        num_sweeps: Sweeps over all colours per step.
        verify: Whether to check given colours on random configurations now (not possible inside compiled code).
        conditionals: Those of the sites of each colour, untempered, as `prepare` reads them from the terms of a plain
            function; by default all candidates are evaluated.
        shard_sites: Whether the sites of a chain, and what was read of them, are distributed over the devices that
            chains leave free: for configurations that are too large for one. The draws are the same.

    Returns:
        The sampler. One evaluation a step with `conditionals`, or if the target has `site_logits`; otherwise
        sum_i (K_i - 1), and one more per colour.

    Reference: Geman & Geman (1984); Gonzalez et al. (2011), Parallel Gibbs sampling: from coloured fields to thin
    junction trees.

    >>> import terrazzo as tz
    >>> chain = tz.Target(lambda t: 0.5 * (t[1:] * t[:-1]).sum(), tz.binary(5))
    >>> sampler = coloured_gibbs(chain)
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(5, jnp.int32)))
    >>> int(info.num_evaluations)  # five candidates and two colours
    7
    """
    num_sweeps = positive_int("num_sweeps", num_sweeps)
    if not is_traced(target) and (colours is None or verify):
        colours = find_colours(target) if colours is None else checked_colours(target, colours)
    elif colours is None:
        colours = target.colours
    if colours is None:
        raise UnsupportedError(
            "colours",
            "cannot be found inside compiled code",
            "pass colours=terrazzo.samplers.parts.colouring.find_colours(target), found beforehand",
        )
    names, colours = np.unique(np.asarray(colours), return_inverse=True)
    if len(names) > MAX_COLOURS:
        raise UnsupportedError(
            "colours", f"the interaction graph needs {len(names)} colours", "use sampler='gibbs': too dense to gain"
        )
    classes = [np.flatnonzero(colours == c).astype(np.int32) for c in range(len(names))]
    is_cheap = conditionals is not None or target.site_logits_fn is not None
    if is_cheap:
        sites = shard_sites if isinstance(shard_sites, SiteMap) else SiteMap(colours, _places(colours, len(names)))
        sweep = _cheap_sweep(target, sites, classes, conditionals)
    else:
        sweep = _batched_sweep(target, classes)
    per_sweep = sum(int((target.space.sizes[sites] - 1).sum()) + (len(sites) > 1) for sites in classes)

    def step(rng_key: randomness.Key, state: State) -> tuple[State, Info]:
        new = randomness.loop(rng_key, num_sweeps, sweep, state)
        if is_cheap:
            new = State(new.position, target.log_prob(new.position))
        return new, moved_info(state, new, 1 if is_cheap else num_sweeps * per_sweep)

    return SamplingAlgorithm(start(target), step)


def _cheap_sweep(target: Target, site_map: SiteMap, classes: list[np.ndarray], conditionals: Any) -> Any:
    """Redraws the sites of each colour from conditionals that were read from terms, or are the target's own.

    Every site reads its value from those of its colour. Writing them would be a scatter, and XLA computes what it
    writes to several chains across these: 8 chains of 4096 sites took six times as long as 4. A colour more has mostly
    one more neighbour to read, too, so reading adds little to what a sweep costs.
    """
    sizes, counts = target.space.sizes, [len(sites) for sites in classes]
    is_sharded = not isinstance(site_map.places, np.ndarray)
    dtype = target.space.dtype if is_sharded else np.dtype(np.int32)  # devices send each other few bytes

    def logits_of(c: int, theta: Int[Array, " dim"]) -> Float[Array, "site value"]:
        if conditionals is None:
            return jax.vmap(lambda i: target.site_logits(theta, i))(jnp.asarray(classes[c]))
        logits = conditionals[c].logits(theta.astype(dtype))
        of_base = target.of_base(lambda q0: q0.site_logits(theta)[classes[c], : logits.shape[1]])
        return target.tempered_values(jnp.where(jnp.isnan(logits), jnp.inf, logits), of_base)

    def sweep(key: randomness.Key, _: Any, state: State) -> State:
        theta = state.position
        shape = jax.eval_shape(lambda theta: logits_of(0, theta), theta)
        for c, part in enumerate(randomness.keys_of_rows(key, counts, shape.shape[1], shape.dtype)):
            logits, own = logits_of(c, theta), sizes[classes[c]]
            is_valid = np.arange(logits.shape[1]) < own[:, None] if conditionals is None else conditionals[c].is_value
            values = randomness.categorical_rows(part, logits, is_valid, sizes=own).astype(dtype)
            read = values.at[site_map.places].get(mode="clip")  # sites of other colours read what is not used
            theta = jnp.where(site_map.colours == c, read.astype(theta.dtype), theta)
        return State(theta, state.log_prob)

    return sweep


def _batched_sweep(target: Target, classes: list[np.ndarray]) -> Any:
    """Redraws the sites of each colour by evaluating all their candidates."""
    updates = [_class_update(target, sites) for sites in classes]

    def sweep(key: randomness.Key, _: Any, state: State) -> State:
        for update, part in zip(updates, randomness.split(key, len(updates)), strict=True):
            state = update(part, state)
        return state

    return sweep


def _class_update(target: Target, sites: np.ndarray) -> Any:
    """Redraws all sites of one colour; all their candidates are one batch."""
    space = target.space
    sizes, max_size = space.sizes[sites], int(space.sizes[sites].max())
    rows, offsets = np.nonzero(np.arange(max_size)[None] < sizes[:, None])
    rows, offsets = rows[offsets > 0].astype(np.int32), offsets[offsets > 0].astype(np.int32)
    is_valid = np.arange(max_size)[None] < sizes[:, None]

    def update(key: randomness.Key, state: State) -> State:
        theta: Int[Array, " dim"] = state.position
        values = (theta[sites[rows]] + offsets) % sizes[rows]
        evaluate = lambda i, k: target.log_prob(theta.at[i].set(k))
        candidates = jax.vmap(evaluate)(jnp.asarray(sites[rows]), values)
        table = jnp.full((len(sites), max_size), -jnp.inf, candidates.dtype)
        table = table.at[:, 0].set(state.log_prob).at[rows, offsets].set(candidates)
        chosen = randomness.categorical_rows(key, table, is_valid, sizes=sizes)
        new = theta.at[sites].set((theta[sites] + chosen) % sizes)
        return State(new, table[0, chosen[0]] if len(sites) == 1 else target.log_prob(new))

    return update
