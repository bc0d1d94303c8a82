"""The Metropolis-Hastings decision, once, with the rules for impossible and erroneous configurations.

    log a = min(0, log pi(y) - log pi(x) + log q(y -> x) - log q(x -> y))

A chain on an impossible configuration (log pi = -inf) accepts any move, so that it can leave; a NaN ratio rejects;
a configuration whose log pi came out as +inf (NaN or +inf in the user's function) is accepted and then held, so that
the runner finds it and reports it.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import Info, as_float, select


def log_acceptance(
    log_prob: Float[Array, ""], proposed_log_prob: Float[Array, ""], log_hastings: Any = 0.0
) -> Float[Array, ""]:
    """The logarithm of the acceptance probability.

    Args:
        log_prob: log pi at the current configuration.
        proposed_log_prob: log pi at the proposed one.
        log_hastings: log q(y -> x) - log q(x -> y).

    >>> float(log_acceptance(jnp.array(-jnp.inf), jnp.array(-3.0)))
    0.0
    """
    log_ratio = proposed_log_prob - log_prob + log_hastings
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, jnp.minimum(log_ratio, 0.0))
    is_forced = (log_prob == -jnp.inf) | ((proposed_log_prob == jnp.inf) & (log_prob < jnp.inf))
    return jnp.where(is_forced, 0.0, log_ratio)


def metropolis_hastings(
    key: randomness.Key, state: Any, proposed: Any, log_hastings: Any = 0.0, *, num_evaluations: Any
) -> tuple[Any, Info]:
    """Accepts or rejects a proposed state (any pytree with `.log_prob`)."""
    log_prob = log_acceptance(state.log_prob, proposed.log_prob, log_hastings)
    is_accepted = randomness.bernoulli(key, log_prob)
    info = Info(as_float(jnp.exp(log_prob)), is_accepted, jnp.asarray(num_evaluations, jnp.int32))
    return select(is_accepted, proposed, state), info
