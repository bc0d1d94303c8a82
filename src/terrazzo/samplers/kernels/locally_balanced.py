"""Locally balanced proposals: single-site moves weighted by a balancing function of the exact ratio (Zanella 2020).

q(x -> y) = g(pi(y) / pi(x)) / Z(x),    a = min(1, Z(x) / Z(y)),    Z(x) = sum over neighbours of g(.)

Weighting by a balancing function is optimal among such proposals, in Peskun's order, as the dimension grows.
"""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.acceptance import metropolis_hastings
from terrazzo.samplers.parts.balancing import balancing_function
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm
from terrazzo.samplers.parts.ratios import (
    Moves,
    log_ratio,
    moves_of,
    neighbour_log_probs,
    num_neighbour_evaluations,
    within_reach,
)
from terrazzo.samplers.parts.reading import with_conditionals
from terrazzo.targets.target import Target


class NeighbourState(NamedTuple):
    """A configuration with log pi of all its single-site neighbours, which the next step needs."""

    position: Int[Array, " dim"]
    log_prob: Float[Array, ""]
    neighbours: Float[Array, " move"]


class Neighbourhood(NamedTuple):
    """The exact, balanced weights of the moves of a target; shared with the Zanella process and Tabu."""

    target: Target
    moves: Moves
    balancing: str
    reach: int | None

    def init(self, position: Int[Array, " dim"], rng_key: Any = None) -> NeighbourState:
        """The state at a configuration."""
        log_prob = self.target.log_prob(position)
        return NeighbourState(position, log_prob, neighbour_log_probs(self.target, self.moves, position, log_prob))

    def log_weights(self, state: NeighbourState) -> tuple[Float[Array, " move"], Bool[Array, " move"]]:
        """The logarithm of g(ratio) of every move, and which moves exist at this configuration."""
        is_allowed = within_reach(self.moves, state.position, self.reach)
        ratios = log_ratio(state.neighbours, state.log_prob)
        return jnp.where(is_allowed, balancing_function(self.balancing)(ratios), -jnp.inf), is_allowed

    def after(self, state: NeighbourState, move: Int[Array, ""]) -> NeighbourState:
        """The state after a move. log pi there is known already, unless it came from cheap conditionals."""
        position = self.moves.apply(state.position, move)
        is_rounded = self.target.has_cheap_neighbours
        log_prob = self.target.log_prob(position) if is_rounded else state.neighbours[move]
        return NeighbourState(position, log_prob, neighbour_log_probs(self.target, self.moves, position, log_prob))

    @property
    def num_evaluations(self) -> int:
        """Evaluations that `after` needs."""
        return max(1, num_neighbour_evaluations(self.target, self.moves))


def neighbourhood(target: Target, balancing: str, reach: int | None, conditionals: Any) -> Neighbourhood:
    """Checks the options and lists the moves of the target, read through running conditionals if there are any."""
    balancing_function(balancing)
    target = with_conditionals(target, conditionals)
    return Neighbourhood(target, moves_of(target.space, reach), balancing, reach)


def locally_balanced(
    target: Target, *, balancing: str = "barker", reach: int | None = None, conditionals: Any = None
) -> SamplingAlgorithm:
    """Locally balanced informed proposals with exact ratios.

    Args:
        target: The target.
        balancing: "sqrt", "barker", "min" or "max". Barker's is the robust choice far from stationarity.
        reach: The largest change of an ordered coordinate; None allows all values.
        conditionals: Running conditionals, untempered, as `prepare` reads them from a plain function: one evaluation
            then stands for those of all neighbours.

    Returns:
        The sampler. sum_i (K_i - 1) evaluations a step (fewer with `reach`; one if the target has cheap conditionals).

    Reference: Zanella (2020), Informed proposals for local MCMC in discrete spaces.

    >>> import jax, terrazzo as tz
    >>> sampler = locally_balanced(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> int(info.num_evaluations)
    3
    """
    local = neighbourhood(target, balancing, reach, conditionals)

    def step(rng_key: randomness.Key, state: NeighbourState) -> tuple[NeighbourState, Info]:
        move_key, accept_key = randomness.split(rng_key, 2)
        log_weights, is_allowed = local.log_weights(state)
        move = randomness.categorical(move_key, log_weights, is_allowed)
        proposed = local.after(state, move)
        log_forward = randomness.log_normalised(log_weights, is_allowed)[move]
        back = jnp.asarray(local.moves.reverse)[move]
        log_backward = randomness.log_normalised(*local.log_weights(proposed))[back]
        return metropolis_hastings(
            accept_key, state, proposed, log_backward - log_forward, num_evaluations=local.num_evaluations
        )

    return SamplingAlgorithm(local.init, step)
