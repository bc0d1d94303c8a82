"""Steps in log pi along a coordinate, for samplers that spend momentum on them.

A move that changes log pi by `change` is affordable if kinetic energy + change > 0, and pays for it. The rules for
impossible and erroneous configurations are those of `acceptance`: leaving an impossible one is free, a +inf (an error
of the user's function) is entered and then held, so that the runner finds it.
"""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from terrazzo.samplers.parts.base import Info, as_float
from terrazzo.samplers.parts.ratios import log_ratio
from terrazzo.targets.target import Target


def wall_info(old: Any, new: Any, num_evaluations: Any, crossing_rate: Array) -> Info:
    """The info of one trajectory without rejection; `crossing_rate` of its coordinate updates were not turned back."""
    is_moved = jnp.any(old.position != new.position)
    details = {"crossing_rate": as_float(crossing_rate)}
    return Info(as_float(1.0), is_moved, jnp.asarray(num_evaluations, jnp.int32), details)


def log_change(new: Float[Array, ""], old: Float[Array, ""]) -> Float[Array, ""]:
    """The change of log pi that momentum must pay for; finite or -inf (a wall).

    >>> float(log_change(jnp.array(-1.0), jnp.array(-jnp.inf)))
    0.0
    """
    is_free = (old == -jnp.inf) | ((new == jnp.inf) & (old < jnp.inf))
    return jnp.where(is_free, 0.0, jnp.where(old == jnp.inf, -jnp.inf, new - old))


def changed_log_prob(
    target: Target, theta: Int[Array, " dim"], log_prob: Float[Array, ""], site: Int[Array, ""], value: Int[Array, ""]
) -> Float[Array, ""]:
    """Log pi with one site set to `value`: one evaluation, or the target's cheap conditionals."""
    if target.site_logits_fn is None:
        return target.log_prob(theta.at[site].set(value))
    logits = target.site_logits(theta, site)
    return log_prob + log_ratio(logits[value], logits[theta[site]])
