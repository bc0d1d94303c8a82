"""Slice sampling of one site at a time: Gibbs for variables with very many values.

    level = log pi(x) - Exp(1);    shrink [0, K_i - 1] around x_i until a uniform draw from it lies above the level

Starting from the whole range there is nothing to step out, and every rejected draw shortens the interval from one side,
so that a site update needs O(log K) evaluations instead of K (Neal 2003, section 4; the interval always holds x_i, and
when nothing else is left of it there is nothing to evaluate).

All site updates of a step are one loop over evaluations: of many chains in one batch, each begins its next site as soon
as it is through with one, and waits for the others only at the end of the step.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from terrazzo.samplers.kernels.gibbs import moved_info, positive_int, start
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State, select
from terrazzo.targets.target import Target

UPDATES = 16  # a step


class Slice(NamedTuple):
    """The values [low, high] of a site among which one at or above the level is looked for."""

    site: Int[Array, ""]
    level: Float[Array, ""]
    low: Int[Array, ""]
    high: Int[Array, ""]


def draw_level(key: Array, log_prob: Float[Array, ""]) -> Float[Array, ""]:
    """The logarithm of a uniform height below pi."""
    return log_prob - jax.random.exponential(key, (), log_prob.dtype)


class Search(NamedTuple):
    """A step under way: the slice at the present site, and what is left to do."""

    key: Array
    state: State
    slice: Slice
    num_left: Int[Array, ""]
    num_evaluations: Int[Array, ""]


def slice_gibbs(target: Target, *, num_updates: int = UPDATES) -> SamplingAlgorithm:
    """Single-site slice sampling with shrinkage, at sites picked uniformly.

    Args:
        target: The target. Any variables; neighbouring values of similar probability make it fast.
        num_updates: Site updates per step. Chains in a batch wait for the slowest at the end of a step only, so that a
            few together are cheaper apiece.

    Returns:
        The sampler. A random number of evaluations, of the order of log K per site update.

    Reference: Neal (2003), Slice sampling.

    >>> import terrazzo as tz
    >>> sampler = slice_gibbs(tz.Target(lambda theta: -0.5 * theta.sum(), tz.integers(0, 99, 3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    num_updates = positive_int("num_updates", num_updates)
    num_dims, sizes = target.space.num_dims, jnp.asarray(target.space.sizes)

    def begin(key: Array, state: State, num_left: Int[Array, ""], num_evaluations: Int[Array, ""]) -> Search:
        """A fresh site, with its whole range."""
        key, site_key, level_key = jax.random.split(key, 3)
        site = jax.random.randint(site_key, (), 0, num_dims, jnp.int32)
        level = draw_level(level_key, state.log_prob)
        whole = Slice(site, level, jnp.zeros((), jnp.int32), sizes[site] - 1)
        return Search(key, state, whole, num_left, num_evaluations)

    def body(search: Search) -> Search:
        state, (site, level, low, high) = search.state, search.slice
        here = state.position[site]
        key, draw_key = jax.random.split(search.key)
        value = jax.random.randint(draw_key, (), low, high + 1, jnp.int32)
        position = state.position.at[site].set(value)
        tried = State(position, target.log_prob(position))
        low, high = jnp.where(value < here, value + 1, low), jnp.where(value > here, value - 1, high)
        is_found = (tried.log_prob >= level) | (value == here)
        is_over = is_found | (low == high)
        num_left, num_evaluations = search.num_left, search.num_evaluations + 1
        shrunk = Search(key, state, Slice(site, level, low, high), num_left, num_evaluations)
        following = begin(key, select(is_found, tried, state), num_left - 1, num_evaluations)
        return select(is_over, following, shrunk)

    def step(rng_key: Array, state: State) -> tuple[State, Info]:
        first = begin(rng_key, state, jnp.asarray(num_updates, jnp.int32), jnp.zeros((), jnp.int32))
        last = jax.lax.while_loop(lambda search: search.num_left > 0, body, first)
        return last.state, moved_info(state, last.state, last.num_evaluations)

    return SamplingAlgorithm(start(target), step)
