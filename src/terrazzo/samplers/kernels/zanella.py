"""The Zanella process: a continuous-time, rejection-free chain, observed on a time grid.

The process jumps from x to its neighbour y at rate g(pi(y) / pi(x)), with a balancing function g; since
pi(x) g(pi(y) / pi(x)) is symmetric, pi is invariant. The usual output is a list of states weighted by their holding
times. Here one `step` advances the process by a fixed duration tau instead and returns the state it is in, so that
draws are *unweighted*, live in the same arrays as those of any other sampler, and the kernel exp(tau Q) leaves pi
invariant exactly. The price is a random number of jumps (and evaluations) a step; `tuning` sets tau so that a given
number happens on average.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from terrazzo.samplers.kernels.locally_balanced import NeighbourState, neighbourhood
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, Tuning, as_float
from terrazzo.targets.target import Target

NUM_JUMPS = 4.0  # of a step, on average


def holding_time(key: Array, log_rate: Float[Array, ""]) -> Float[Array, ""]:
    """An exponential time; infinite at rate 0 and zero at an infinite rate."""
    return jax.random.exponential(key, (), log_rate.dtype) / jnp.exp(log_rate)


def advance(
    key: Array,
    state: Any,
    duration: Any,
    log_rate_fn: Callable[[Any], Float[Array, ""]],
    jump_fn: Callable[[Array, Any], tuple[Any, Int[Array, ""]]],
) -> tuple[Any, Info]:
    """Runs a jump process for a duration.

    The holding time of a state is drawn once, when it is entered; what is left of it at the end of the step is
    redrawn in the next one, which is the same law (the exponential has no memory).
    """

    def cond(carry: Any) -> Array:
        _, _, hold, left, _, _ = carry
        return hold < left

    def body(carry: Any) -> Any:
        key, state, hold, left, num_jumps, num_evaluations = carry
        key, jump_key, hold_key = jax.random.split(key, 3)
        state, cost = jump_fn(jump_key, state)
        return (
            key,
            state,
            holding_time(hold_key, log_rate_fn(state)),
            left - hold,
            num_jumps + 1,
            num_evaluations + cost,
        )

    key, hold_key = jax.random.split(key)
    zero = jnp.zeros((), jnp.int32)
    carry = (key, state, holding_time(hold_key, log_rate_fn(state)), as_float(duration), zero, zero)
    _, state, _, _, num_jumps, num_evaluations = jax.lax.while_loop(cond, body, carry)
    return state, Info(as_float(1.0), num_jumps > 0, num_evaluations, {"num_jumps": num_jumps})


def zanella(
    target: Target,
    *,
    duration: Any = 1.0,
    balancing: str = "barker",
    reach: int | None = None,
    conditionals: Any = None,
) -> SamplingAlgorithm:
    """The Zanella process, advanced by a fixed duration each step.

    Args:
        target: The target.
        duration: The time tau between two draws (tuned in warm-up to a number of jumps).
        balancing: As in `locally_balanced`. Barker's and min bound the rates, and so the work of a step; under sqrt
            and max a step from an unlikely start may need very many jumps.
        reach: The largest change of an ordered coordinate; None allows all values.
        conditionals: Running conditionals, untempered, as `prepare` reads them from a plain function: one evaluation
            then stands for those of all neighbours.

    Returns:
        The sampler. sum_i (K_i - 1) evaluations a jump.

    Reference: Zanella (2020); Power & Goldman (2019), Accelerated sampling on discrete spaces.

    >>> import terrazzo as tz
    >>> sampler = zanella(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    local = neighbourhood(target, balancing, reach, conditionals)

    def log_rate(state: NeighbourState) -> Float[Array, ""]:
        return jax.nn.logsumexp(local.log_weights(state)[0])

    def jump(key: Array, state: NeighbourState) -> tuple[NeighbourState, Int[Array, ""]]:
        move = randomness.categorical(key, *local.log_weights(state))
        return local.after(state, move), jnp.asarray(local.num_evaluations, jnp.int32)

    def step(rng_key: Array, state: NeighbourState) -> tuple[NeighbourState, Info]:
        return advance(rng_key, state, duration, log_rate, jump)

    return SamplingAlgorithm(local.init, step)


class Rate(NamedTuple):
    """Jumps per unit time, as found so far: the number of steps looked at, and the log of the rate."""

    step: Float[Array, ""]
    log_rate: Float[Array, ""]


def tuning(target: Target, **_: Any) -> Tuning:
    """Sets the duration so that a step makes `NUM_JUMPS` jumps on average: tau = NUM_JUMPS / (jumps per unit time)."""

    def duration(state: Rate) -> dict[str, Any]:
        return {"duration": NUM_JUMPS * jnp.exp(-state.log_rate)}

    def update(state: Rate, jumps: Float[Array, " chain"]) -> Rate:
        step = state.step + 1.0
        observed = jnp.log(jnp.mean(jumps) + 0.1) - jnp.log(duration(state)["duration"])
        return Rate(step, state.log_rate + step**-0.6 * (observed - state.log_rate))

    return Tuning(
        init=lambda: Rate(as_float(0.0), as_float(jnp.log(as_float(target.space.num_dims)))),
        parameters=duration,
        observe=lambda state, info: info.details["num_jumps"].astype(jnp.result_type(float)),
        update=update,
        final=duration,
    )
