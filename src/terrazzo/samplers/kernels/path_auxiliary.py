"""The path-auxiliary sampler: several informed single-site changes in a row, one MH correction (Sun et al. 2022).

From the gradient at x only (the fast variant): L distinct sites are drawn one after the other without replacement, site
i with weight s_i(x) = sum_{k != x_i} g(exp D_ik), and each gets a new value k with probability
g(exp D_ik) / s_i(x). The path of sites is the auxiliary variable: its reverse visits the same sites in reverse order,
with the weights at y.

    log q(x -> y, path) = sum_{r <= L} [ log s_(r) - log sum_{sites not yet visited} s + log g_(r) / s_(r) ]
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.samplers.kernels.gibbs import positive_int
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.acceptance import metropolis_hastings
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, Tuning, as_float
from terrazzo.samplers.parts.informed import (
    GradientState,
    balanced_log_weights,
    evaluate,
    gradient_start,
    num_evaluations,
)
from terrazzo.samplers.parts.ratios import offsets_of
from terrazzo.samplers.parts.tables import log_sum, picked
from terrazzo.samplers.parts.tuning import dual_averaging_tuning
from terrazzo.targets.target import Target

MAX_LENGTH = 64
FEW_SITES = 16


def log_path(
    log_weights: Float[Array, " place"], is_visited: Bool[Array, " place"], log_never: Float[Array, ""], reverse: bool
) -> Float[Array, ""]:
    """The log-probability of visiting the leading places of a path in order, or in reverse order, without replacement.

    Args:
        log_weights: The log-weights of the sites along the path.
        is_visited: True for the leading places, up to the length of the path.
        log_never: The log of the summed weights of all sites that are not visited.
        reverse: Whether the last visited place comes first.
    """
    visited = jnp.where(is_visited, log_weights, -jnp.inf)
    still_to_come = randomness.cumulative_log_sum(visited, reverse=not reverse)
    return jnp.sum(jnp.where(is_visited, log_weights - jnp.logaddexp(log_never, still_to_come), 0.0))


def longest_path(num_dims: int, max_length: int | None) -> int:
    """The most sites a step may change: all of a few, half of many, at most 64; or what is asked for."""
    if max_length is not None:
        return min(positive_int("max_length", max_length), num_dims)
    return num_dims if num_dims <= FEW_SITES else min(MAX_LENGTH, num_dims // 2)


def path_auxiliary(
    target: Target,
    *,
    path_length: Any = 2.0,
    balancing: str = "sqrt",
    reach: int | None = 1,
    max_length: int | None = None,
) -> SamplingAlgorithm:
    """The path-auxiliary (fast) sampler.

    Args:
        target: A target with a gradient (and `one_hot_log_prob` for unordered variables).
        path_length: The mean number of sites changed; fractions are met at random (tuned in warm-up).
        balancing: "sqrt", "barker", "min" or "max".
        reach: The largest change of an ordered coordinate; None allows all values.
        max_length: The most sites ever changed in a step (default: half of them, at most 64; a step costs more).

    Returns:
        The sampler. One evaluation and one gradient a step, whatever the length.

    Reference: Sun, Dai, Xia & Ramamurthy (2022), Path auxiliary proposal for MCMC in discrete space.

    >>> import terrazzo as tz
    >>> sampler = path_auxiliary(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    init = gradient_start(target)
    space = target.space
    offsets = offsets_of(space, reach)
    balanced = balanced_log_weights(target, offsets, balancing, reach)
    limit = longest_path(space.num_dims, max_length)
    places, impossible = jnp.arange(limit, dtype=jnp.int32), jnp.full(limit, -jnp.inf)
    num_choices = np.full(limit, len(offsets.lines) + 1)

    def log_weights(state: GradientState) -> tuple[Float[Array, " dim"], Float[Array, "line dim"]]:
        """The log-weights of the sites, and those of the offsets at each."""
        lines = balanced(state)
        return log_sum(lines), lines

    def draw_length(key: randomness.Key) -> Int[Array, ""]:
        length = jnp.clip(as_float(path_length), 1.0, float(limit))
        whole = jnp.floor(length)
        is_longer = randomness.bernoulli(key, jnp.log(length - whole))
        return whole.astype(jnp.int32) + is_longer.astype(jnp.int32)

    def step(rng_key: randomness.Key, state: GradientState) -> tuple[GradientState, Info]:
        length_key, path_key, value_key, accept_key = randomness.split(rng_key, 4)
        length = draw_length(length_key)
        site_weights, lines = log_weights(state)
        path, ranks = randomness.path_ranks(path_key, site_weights, limit, length)
        is_visited = places < length
        log_values = lines[:, path] - site_weights[path]
        choice = randomness.choice_rows(value_key, impossible, log_values, num_choices)
        values = offsets.apply(state.position[path], choice, path)
        changed = jnp.where(is_visited, path, space.num_dims)  # beyond the path: outside, and dropped
        proposed = evaluate(target, state.position.at[changed].set(values, mode="drop"))
        back_weights, back_lines = log_weights(proposed)
        back_values = back_lines[:, path] - back_weights[path]
        never = lambda weights: jax.nn.logsumexp(jnp.where(ranks < limit, -jnp.inf, weights))
        log_forward = log_path(site_weights[path], is_visited, never(site_weights), reverse=False)
        log_backward = log_path(back_weights[path], is_visited, never(back_weights), reverse=True)
        change = picked(back_values, offsets.undone(choice, path)) - picked(log_values, choice)
        log_hastings = log_backward - log_forward + jnp.sum(jnp.where(is_visited, change, 0.0))
        return metropolis_hastings(accept_key, state, proposed, log_hastings, num_evaluations=num_evaluations(target))

    return SamplingAlgorithm(init, step)


def tuning(target: Target, **options: Any) -> Tuning:
    """Tunes the path length, between one site and all of them."""
    longest = float(longest_path(target.space.num_dims, options.get("max_length")))
    return dual_averaging_tuning("path_length", min(2.0, longest), 0.574, bounds=(1.0, max(longest, 1.001)))
