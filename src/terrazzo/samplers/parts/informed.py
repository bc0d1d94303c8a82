"""What the gradient-informed samplers share: the state that keeps the gradient, and factorised proposals.

A *factorised* proposal draws an offset for every coordinate independently, from a table of log-probabilities (see
`tables`) that depends on the current configuration alone, and is corrected by MH.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.acceptance import metropolis_hastings
from terrazzo.samplers.parts.balancing import balancing_function
from terrazzo.samplers.parts.base import Info
from terrazzo.samplers.parts.ratios import Gradient, Offsets, check_gradient, gradient, num_gradients, taylor_log_ratios
from terrazzo.samplers.parts.tables import Table
from terrazzo.targets.target import Target


class GradientState(NamedTuple):
    """A configuration with the gradient there, which the next step needs."""

    position: Int[Array, " dim"]
    log_prob: Float[Array, ""]
    gradient: Gradient


def evaluate(target: Target, position: Int[Array, " dim"]) -> GradientState:
    """The value of log pi (at the integers: the truth) and the gradient (of its continuation: only a guide)."""
    return GradientState(position, target.log_prob(position), gradient(target, position))


def num_evaluations(target: Target) -> int:
    """What `evaluate` counts as."""
    return 1 + num_gradients(target)


def gradient_start(target: Target) -> Callable[..., GradientState]:
    """Checks the target and returns the `init` of a gradient-informed sampler."""
    check_gradient(target)

    def init(position: Int[Array, " dim"], rng_key: Any = None) -> GradientState:
        return evaluate(target, position)

    return init


def balanced_log_weights(
    target: Target, offsets: Offsets, balancing: str, reach: int | None
) -> Callable[[GradientState], Float[Array, "line dim"]]:
    """`state -> log g(exp D)` for the first-order log-ratios D of all moves within reach; -inf elsewhere."""
    log_g = balancing_function(balancing)

    def log_weights(state: GradientState) -> Float[Array, "line dim"]:
        ratios = taylor_log_ratios(target, offsets, state.position, state.gradient)
        return jnp.where(offsets.is_allowed(state.position, reach), log_g(ratios), -jnp.inf)

    return log_weights


def factorised_step(
    key: randomness.Key,
    target: Target,
    state: GradientState,
    offsets: Offsets,
    log_table_fn: Callable[[GradientState], Table],
) -> tuple[GradientState, Info]:
    """One MH step with independent offsets per coordinate.

    Args:
        key: The key.
        target: The target.
        state: The current state.
        offsets: The offsets that the lines of the table stand for.
        log_table_fn: `state -> table`: the log-probabilities of what each coordinate may do.
    """
    propose_key, accept_key = randomness.split(key, 2)
    forward = log_table_fn(state)
    choice = forward.draw(propose_key, offsets.num_choices)
    proposed = evaluate(target, offsets.apply(state.position, choice))
    log_hastings = log_table_fn(proposed).log_prob(offsets.undone(choice)) - forward.log_prob(choice)
    return metropolis_hastings(accept_key, state, proposed, log_hastings, num_evaluations=num_evaluations(target))
