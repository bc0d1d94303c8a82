"""Kernels that change two sites at once: where constraints tie sites together, single-site moves are cut off.

Both pick a pair of different sites at random, independently of the state.

`pair_gibbs` redraws the pair by its exact probability from all its values, or, where variables have many values, from a
line through the present ones,

    { (theta_i + t a, theta_j + t b) : t an integer, inside the space },    (a, b) in (1, 0), (0, 1), (1, 1), (1, -1),

which is the same line whichever of its points one starts from: no rejections. The directions keep one of the two
values, their difference, or their sum. `swap` exchanges the two values, which keeps any count of values, and accepts
by Metropolis; a redraw of one site follows, so that the kernel alone reaches everything that single sites reach.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np

from terrazzo.errors import OptionError
from terrazzo.samplers.kernels.blocks import block_gibbs, redraw_block, repeated
from terrazzo.samplers.kernels.gibbs import num_site_evaluations, positive_int, redraw_site, settled, start
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.acceptance import metropolis_hastings
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State, as_float
from terrazzo.targets.target import Target

MAX_PLANE = 64  # candidates up to which all values of a pair are tried
DIRECTIONS = np.array([[1, 0], [0, 1], [1, 1], [1, -1]], np.int32)
REACHES = ("plane", "line")


def pair_gibbs(target: Target, *, num_updates: int = 1, reach: str | None = None) -> SamplingAlgorithm:
    """Gibbs sampling of random pairs of sites.

    Args:
        target: The target.
        num_updates: Pairs redrawn per step.
        reach: "plane" redraws a pair from all its values, "line" along a random line through the present ones. By
            default the plane where it has at most 64 points.

    Returns:
        The sampler. K_max^2 - 1 evaluations per update in the plane, 2 K_max - 2 along a line.

    Reference: Jensen, Kjaerulff & Kong (1995), Blocking Gibbs sampling; Chen & Schmeiser (1993), Hit-and-run.

    >>> import jax, terrazzo as tz
    >>> tied = tz.Target(lambda t: jnp.where(t[0] == t[1], 0.0, -jnp.inf), tz.binary(2))
    >>> sampler = pair_gibbs(tied)
    >>> state, _ = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(2, jnp.int32)))
    >>> bool(state.position[0] == state.position[1])
    True
    """
    space, num_updates = target.space, positive_int("num_updates", num_updates)
    if reach is not None and reach not in REACHES:
        raise OptionError("reach", f"{reach!r} is unknown", f"one of {', '.join(REACHES)}")
    if space.num_dims == 1 or reach == "plane" or (reach is None and space.max_size**2 <= MAX_PLANE):
        return block_gibbs(target, block_size=min(2, space.num_dims), num_updates=num_updates)
    sizes = jnp.asarray(space.sizes)
    steps = np.arange(1 - space.max_size, space.max_size, dtype=np.int32)
    here = jnp.asarray(space.max_size - 1, jnp.int32)  # the place of step 0

    def update(key: randomness.Key, _: Any, state: State) -> State:
        pair_key, way_key, value_key = randomness.split(key, 3)
        sites = randomness.random_subset(pair_key, space.num_dims, 2)
        way = jnp.asarray(DIRECTIONS)[randomness.uniform_index(way_key, len(DIRECTIONS))]
        values = state.position[sites] + jnp.asarray(steps)[:, None] * way
        is_inside = jnp.all((values >= 0) & (values < sizes[sites]), axis=1)
        values = jnp.where(is_inside[:, None], values, state.position[sites])
        return redraw_block(value_key, target, state, sites, values, is_inside, here)

    return repeated(target, update, num_updates, len(steps) - 1)


def swap(target: Target, *, num_updates: int = 1) -> SamplingAlgorithm:
    """Exchanges of the values of two sites, each followed by a redraw of one site.

    Args:
        target: The target.
        num_updates: Exchanges (and redraws) per step. An exchange that leaves the space is rejected.

    Returns:
        The sampler. One evaluation per exchange, and those of a Gibbs update.

    Reference: Kawasaki (1966), Diffusion constants near the critical point for time-dependent Ising models.

    >>> import jax, terrazzo as tz
    >>> subset = tz.Target(lambda t: jnp.where(t.sum() == 2, t[0] * 1.0, -jnp.inf), tz.binary(4))
    >>> sampler = swap(subset)
    >>> state, _ = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.array([1, 1, 0, 0])))
    >>> int(state.position.sum())
    2
    """
    space, num_updates = target.space, positive_int("num_updates", num_updates)
    sizes = jnp.asarray(space.sizes)

    def update(key: randomness.Key, _: Any, carry: tuple[State, Any]) -> tuple[State, Any]:
        state, rates = carry
        pair_key, accept_key, site_key, value_key = randomness.split(key, 4)
        if space.num_dims > 1:
            sites = randomness.random_subset(pair_key, space.num_dims, 2)
            values = state.position[sites[::-1]]
            is_inside = jnp.all(values < sizes[sites])
            theta = state.position.at[sites].set(jnp.where(is_inside, values, state.position[sites]))
            proposed = State(theta, jnp.where(is_inside, target.log_prob(theta), -jnp.inf))
            state, info = metropolis_hastings(accept_key, state, proposed, num_evaluations=1)
            rates = rates + info.acceptance_rate / num_updates
        site = randomness.uniform_index(site_key, space.num_dims)
        return settled(target, redraw_site(value_key, target, state, site)), rates

    def step(rng_key: randomness.Key, state: State) -> tuple[State, Info]:
        new, rate = randomness.loop(rng_key, num_updates, update, (state, as_float(0.0)))
        is_moved = jnp.any(new.position != state.position)
        per_update = num_site_evaluations(target, 1) + (1 if space.num_dims > 1 else 0)
        return new, Info(rate, is_moved, jnp.asarray(num_updates * per_update, jnp.int32))

    return SamplingAlgorithm(start(target), step)
