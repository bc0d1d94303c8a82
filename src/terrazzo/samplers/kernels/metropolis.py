"""Random-walk Metropolis: every coordinate moves with probability p, and the lot is accepted or rejected.

Ordered coordinates step by +-1, with wrap-around or with reflection at the half-integer walls; unordered ones jump to
another value, uniformly. All of these are symmetric, so the acceptance is min(1, pi(y) / pi(x)).
The "discrete MCMC" of Jaini et al. (2021) is p = 0.1 with wrap-around.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from terrazzo.errors import OptionError
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.acceptance import metropolis_hastings
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State, Tuning, as_float
from terrazzo.samplers.parts.tuning import dual_averaging_tuning
from terrazzo.spaces import Space
from terrazzo.targets.target import Target

BOUNDARIES = ("wrap", "reflect")


def propose(
    key: randomness.Key, space: Space, theta: Int[Array, " dim"], probability: Any, boundary: str
) -> Int[Array, " dim"]:
    """A symmetric proposal: every coordinate moves with the given probability, independently."""
    sizes, is_ordered = jnp.asarray(space.sizes), jnp.asarray(space.is_ordered)
    move_key, way_key = randomness.split(key, 2)
    log_prob = jnp.log(as_float(probability))
    is_moving, sign = randomness.moves_and_signs(move_key, log_prob, space.num_dims)
    stepped = theta + 2 * sign - 1
    # The reflecting wall stands at -1/2: -1 is reflected to 0. (Reflection to +1 would not be symmetric.)
    stepped = stepped % sizes if boundary == "wrap" else jnp.clip(stepped, 0, sizes - 1)
    if not space.is_ordered.all():
        other = randomness.uniform_rows(way_key, np.where(space.is_ordered, 1, space.sizes - 1))
        stepped = jnp.where(is_ordered, stepped, (theta + 1 + other) % sizes)
    return jnp.where(is_moving, stepped, theta)


def metropolis(target: Target, *, probability: Any = 0.1, boundary: str = "wrap") -> SamplingAlgorithm:
    """Random-walk Metropolis on any mixture of ordered and unordered coordinates.

    Args:
        target: The target.
        probability: The probability p that a coordinate moves (tuned in warm-up).
        boundary: "wrap" (the ends are neighbours) or "reflect", for ordered coordinates.

    Returns:
        The sampler. One evaluation a step.

    Reference: Metropolis et al. (1953); as "discrete MCMC" in Jaini, Nielsen & Welling (2021).

    >>> import jax, terrazzo as tz
    >>> sampler = metropolis(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state = sampler.init(jnp.zeros(3, jnp.int32))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), state)
    >>> int(info.num_evaluations)
    1
    """
    if boundary not in BOUNDARIES:
        raise OptionError("boundary", f"{boundary!r} is unknown", f"one of {', '.join(BOUNDARIES)}")

    def init(position: Int[Array, " dim"], rng_key: Any = None) -> State:
        return State(position, target.log_prob(position))

    def step(rng_key: randomness.Key, state: State) -> tuple[State, Info]:
        propose_key, accept_key = randomness.split(rng_key, 2)
        position = propose(propose_key, target.space, state.position, probability, boundary)
        proposed = State(position, target.log_prob(position))
        return metropolis_hastings(accept_key, state, proposed, num_evaluations=1)

    return SamplingAlgorithm(init, step)


def tuning(target: Target, **_: Any) -> Tuning:
    """Tunes the probability of moving between one coordinate a step and (nearly) all of them."""
    low = min(1.0 / target.space.num_dims, 0.5)
    return dual_averaging_tuning("probability", 0.1, 0.234, transform="logit", bounds=(low, 0.95))
