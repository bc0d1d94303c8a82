"""Kernels that redraw a block of sites jointly: block Gibbs and the Hamming ball sampler.

Both pick a block of B sites at random (independently of the state), list candidate values for it, and draw one of the
candidates by its exact probability: no rejections. Block Gibbs lists all of them; the Hamming ball sampler (Titsias &
Yau 2017) first draws a centre u uniformly from the ball of radius m around x, then redraws x from pi restricted to the
ball around u:

    u ~ Uniform{ u : hamming(x_B, u_B) <= m },    x' ~ pi( . | hamming(x'_B, u_B) <= m, rest)

The ball around u has the same size whatever u is, so (x, u) and (x', u) are in balance.
"""

import itertools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import OptionError
from terrazzo.samplers.kernels.gibbs import moved_info, positive_int, start
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State
from terrazzo.samplers.parts.ratios import log_probs_of
from terrazzo.targets.target import Target

MAX_CANDIDATES = 2**16


def offset_grid(block_size: int, max_size: int, radius: int) -> np.ndarray:
    """All offset vectors with at most `radius` non-zero entries, the zero vector first: shape (candidates, block).

    >>> offset_grid(2, 2, 1).tolist()
    [[0, 0], [1, 0], [0, 1]]
    """
    rows = [np.zeros((1, block_size), np.int32)]
    for count in range(1, radius + 1):
        changes = np.array(list(itertools.product(range(1, max_size), repeat=count)), np.int32)
        for places in itertools.combinations(range(block_size), count):
            part = np.zeros((len(changes), block_size), np.int32)
            part[:, places] = changes
            rows.append(part)
    return np.concatenate(rows)


def num_candidates(block_size: int, max_size: int, radius: int) -> int:
    """The number of rows of `offset_grid`: sum_{j <= m} C(B, j) (K - 1)^j."""
    return sum(int(np.round(_choose(block_size, j))) * (max_size - 1) ** j for j in range(radius + 1))


def _choose(n: int, k: int) -> int:
    out = 1
    for j in range(k):
        out = out * (n - j) // (j + 1)
    return out


def candidate_log_probs(
    target: Target,
    theta: Int[Array, " dim"],
    sites: Int[Array, " block"],
    values: Int[Array, "candidate block"],
    known: Int[Array, ""],
    known_log_prob: Float[Array, ""],
) -> Float[Array, " candidate"]:
    """Log pi of all candidates; the one at index `known` is not evaluated again."""
    others = jnp.arange(values.shape[0] - 1, dtype=jnp.int32)
    others = others + (others >= known).astype(jnp.int32)
    log_probs = log_probs_of(target, lambda v: theta.at[sites].set(v), values[others])
    out = jnp.full(values.shape[0], known_log_prob, log_probs.dtype)
    return out.at[others].set(log_probs)


def redraw_block(
    key: randomness.Key,
    target: Target,
    state: State,
    sites: Int[Array, " block"],
    values: Int[Array, "candidate block"],
    is_valid: Bool[Array, " candidate"],
    known: Int[Array, ""],
) -> State:
    """One of the valid candidates by its exact probability; the one at index `known` is where the chain is."""
    log_probs = candidate_log_probs(target, state.position, sites, values, known, state.log_prob)
    chosen = randomness.categorical(key, jnp.where(is_valid, log_probs, -jnp.inf), is_valid)
    return State(state.position.at[sites].set(values[chosen]), log_probs[chosen])


def repeated(
    target: Target, update: Callable[[randomness.Key, Any, State], State], num_updates: int, num_evaluations: int
) -> SamplingAlgorithm:
    """The sampler whose step is several updates without rejections, each of that many evaluations."""

    def step(rng_key: randomness.Key, state: State) -> tuple[State, Info]:
        new = randomness.loop(rng_key, num_updates, update, state)
        return new, moved_info(state, new, num_updates * num_evaluations)

    return SamplingAlgorithm(start(target), step)


def _checked_grid(target: Target, block_size: int, radius: int) -> np.ndarray:
    number = num_candidates(block_size, target.space.max_size, radius)
    if number > MAX_CANDIDATES:
        raise OptionError(
            "block_size", f"{block_size} sites with radius {radius} have {number:.3g} candidates", "make it smaller"
        )
    return offset_grid(block_size, target.space.max_size, radius)


def _block_size(target: Target, block_size: Any, default: int) -> int:
    size = min(default, target.space.num_dims) if block_size is None else positive_int("block_size", block_size)
    if size > target.space.num_dims:
        raise OptionError(
            "block_size", f"{size} is more than the {target.space.num_dims} coordinates", "make it smaller"
        )
    return size


def _is_offset(grid: np.ndarray, sizes: Int[Array, " block"]) -> Bool[Array, " candidate"]:
    return jnp.all(jnp.asarray(grid) < sizes, axis=1)


def block_gibbs(
    target: Target, *, block_size: int | None = None, blocks: Any = None, num_updates: int = 1
) -> SamplingAlgorithm:
    """Gibbs sampling of several sites jointly, from all their prod K_i values.

    Args:
        target: The target.
        block_size: Sites per block (default 2), drawn at random for every update.
        blocks: Instead of random blocks: a list of blocks of coordinates, one of which is picked per update. Together
            they must cover all coordinates.
        num_updates: Block updates per step.

    Returns:
        The sampler. K_max^B - 1 evaluations per update.

    Reference: Geman & Geman (1984); Jensen, Kjaerulff & Kong (1995), Blocking Gibbs sampling.

    >>> import jax, terrazzo as tz
    >>> sampler = block_gibbs(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    num_updates = positive_int("num_updates", num_updates)
    space = target.space
    table = None
    if blocks is None:
        size = _block_size(target, block_size, 2)
    else:
        table, size = _block_table(blocks, space.num_dims)
    grid = _checked_grid(target, size, size)
    sizes = jnp.asarray(space.sizes)

    def update(key: randomness.Key, _: Any, state: State) -> State:
        block_key, value_key = randomness.split(key, 2)
        if table is None:
            sites = randomness.random_subset(block_key, space.num_dims, size)
            block_sizes = sizes[sites]
        else:  # a short block is filled up with copies of its first site, which are held at offset 0
            padded = jnp.asarray(table)[randomness.uniform_index(block_key, len(table))]
            sites = jnp.where(padded < 0, padded[0], padded)
            block_sizes = jnp.where(padded < 0, 1, sizes[sites])
        is_valid = _is_offset(grid, block_sizes)
        values = (state.position[sites] + grid) % sizes[sites]
        if table is not None:  # copies must agree with the first site, or the scatter would be ambiguous
            values = jnp.where(padded < 0, values[:, :1], values)
        return redraw_block(value_key, target, state, sites, values, is_valid, jnp.zeros((), jnp.int32))

    return repeated(target, update, num_updates, len(grid) - 1)


def _block_table(blocks: Any, num_dims: int) -> tuple[np.ndarray, int]:
    lists = [[int(i) for i in block] for block in blocks]
    covered = {i for block in lists for i in block}
    if covered != set(range(num_dims)) or any(len(set(block)) != len(block) or not block for block in lists):
        raise OptionError("blocks", "must cover every coordinate, each block without repeats", f"use 0..{num_dims - 1}")
    size = max(len(block) for block in lists)
    return np.array([block + [-1] * (size - len(block)) for block in lists], np.int32), size


def draw_centre(key: randomness.Key, grid: np.ndarray, is_valid: Bool[Array, " candidate"]) -> Int[Array, " block"]:
    """The offset of the auxiliary centre u from x: uniform in the ball."""
    log_weights = jnp.where(is_valid, jnp.zeros(len(grid)), -jnp.inf)
    return jnp.asarray(grid)[randomness.categorical(key, log_weights, is_valid)]


def hamming_ball(
    target: Target, *, radius: int = 1, block_size: int | None = None, num_updates: int = 1
) -> SamplingAlgorithm:
    """The Hamming ball sampler.

    Args:
        target: The target.
        radius: m, the number of sites that may differ from the auxiliary centre; x moves by up to 2 m sites.
        block_size: B, the number of sites considered per update (default 10, or all if there are fewer).
        num_updates: Updates per step.

    Returns:
        The sampler. sum_{j <= m} C(B, j) (K_max - 1)^j - 1 evaluations per update.

    Reference: Titsias & Yau (2017), The Hamming ball sampler.

    >>> import jax, terrazzo as tz
    >>> sampler = hamming_ball(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    num_updates, radius = positive_int("num_updates", num_updates), positive_int("radius", radius)
    size = _block_size(target, block_size, 10)
    radius = min(radius, size)
    grid = _checked_grid(target, size, radius)
    space, sizes = target.space, jnp.asarray(target.space.sizes)

    def update(key: randomness.Key, _: Any, state: State) -> State:
        block_key, centre_key, value_key = randomness.split(key, 3)
        sites = randomness.random_subset(block_key, space.num_dims, size)
        is_valid = _is_offset(grid, sizes[sites])
        shift = draw_centre(centre_key, grid, is_valid)
        centre = (state.position[sites] + shift) % sizes[sites]
        values = (centre + grid) % sizes[sites]
        back = (sizes[sites] - shift) % sizes[sites]  # from the centre to where we are: a member of the ball
        known = jnp.argmax(jnp.all(jnp.asarray(grid) == back, axis=1)).astype(jnp.int32)
        return redraw_block(value_key, target, state, sites, values, is_valid, known)

    return repeated(target, update, num_updates, len(grid) - 1)
