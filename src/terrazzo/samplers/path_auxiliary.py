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
from jaxtyping import Array, Bool, Float, Int

from terrazzo.samplers import randomness
from terrazzo.samplers.acceptance import metropolis_hastings
from terrazzo.samplers.balancing import balancing_function
from terrazzo.samplers.base import Info, SamplingAlgorithm, Tuning, as_float
from terrazzo.samplers.gibbs import positive_int
from terrazzo.samplers.informed import GradientState, evaluate, gradient_start, num_evaluations
from terrazzo.samplers.ratios import as_rows, columns_of, moves_of, taylor_log_ratios, within_reach
from terrazzo.samplers.tuning import dual_averaging_tuning
from terrazzo.targets import Target

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
    log_g = balancing_function(balancing)
    space = target.space
    moves = moves_of(space, reach)
    columns = columns_of(moves, space)
    rows = jnp.arange(space.num_dims, dtype=jnp.int32)
    limit = longest_path(space.num_dims, max_length)
    places = jnp.arange(limit, dtype=jnp.int32)

    def log_tables(state: GradientState) -> tuple[Float[Array, " dim"], Float[Array, "dim column"]]:
        """The log-weights of the sites, and the log-probabilities of the offsets at each."""
        is_allowed = within_reach(moves, state.position, reach)
        ratios = taylor_log_ratios(target, moves, state.position, state.gradient)
        table = as_rows(moves, space, jnp.where(is_allowed, log_g(ratios), -jnp.inf), stay=-jnp.inf)
        return jax.nn.logsumexp(table, axis=1), randomness.log_normalised(table)

    def draw_length(key: randomness.Key) -> Int[Array, ""]:
        length = jnp.clip(as_float(path_length), 1.0, float(limit))
        whole = jnp.floor(length)
        is_longer = randomness.bernoulli(key, jnp.log(length - whole))
        return whole.astype(jnp.int32) + is_longer.astype(jnp.int32)

    def step(rng_key: randomness.Key, state: GradientState) -> tuple[GradientState, Info]:
        length_key, path_key, value_key, accept_key = randomness.split(rng_key, 4)
        site_weights, log_values = log_tables(state)
        is_visited = places < draw_length(length_key)
        path = randomness.ordered_subset(path_key, site_weights, limit)
        chosen = 1 + randomness.categorical_rows(value_key, log_values[:, 1:], sizes=columns.moduli - 1)
        is_changed = jnp.zeros(space.num_dims, bool).at[path].set(is_visited)
        proposed = evaluate(target, columns.apply(space, state.position, jnp.where(is_changed, chosen, 0)))
        back_weights, back_values = log_tables(proposed)
        never = lambda weights: jax.nn.logsumexp(jnp.where(is_changed, -jnp.inf, weights))
        log_forward = log_path(site_weights[path], is_visited, never(site_weights), reverse=False)
        log_backward = log_path(back_weights[path], is_visited, never(back_weights), reverse=True)
        change = back_values[rows, columns.undone(chosen)] - log_values[rows, chosen]
        log_hastings = log_backward - log_forward + jnp.sum(jnp.where(is_changed, change, 0.0))
        return metropolis_hastings(accept_key, state, proposed, log_hastings, num_evaluations=num_evaluations(target))

    return SamplingAlgorithm(init, step)


def tuning(target: Target, *, target_acceptance: float = 0.574, **options: Any) -> Tuning:
    """Tunes the path length, between one site and all of them."""
    longest = float(longest_path(target.space.num_dims, options.get("max_length")))
    return dual_averaging_tuning("path_length", min(2.0, longest), target_acceptance, bounds=(1.0, max(longest, 1.001)))
