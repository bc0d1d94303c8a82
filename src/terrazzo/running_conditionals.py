"""Running conditionals: what a target may know of all its sites at once, and how that is checked.

A sweep by them is in `samplers/running_gibbs.py`.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import TargetError
from terrazzo.spaces import Space

MOST_COMPARED = 6  # sites
TOLERANCE = 0.01  # of a difference of log pi, or nats where it is below one: float32 is no better far from 0


class AbstractRunningConditionals(eqx.Module):
    """All conditionals of one configuration, in tables that are kept up while single sites change.

    For targets where a configuration is dear to evaluate but the effect of changing one site follows from what is known
    of the others: a factorised matrix, local fields, counts. Sweeps then cost one `start` and as many `moved` as sites
    really change.

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> class Count(tz.AbstractRunningConditionals):  # log pi = -n^2 / 2 with n the number of ones
    ...     def start(self, theta):
    ...         return theta.sum()
    ...
    ...     def logits(self, tables, theta):
    ...         others = tables - theta
    ...         return -0.5 * jnp.stack([others**2, (others + 1) ** 2], axis=1)
    ...
    ...     def moved(self, tables, theta, i, value):
    ...         return tables + value - theta[i]
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum() ** 2, tz.binary(4), running_conditionals=Count())
    >>> target.all_site_logits(jnp.array([1, 0, 0, 1]))[0].tolist()
    [-0.5, -2.0]
    """

    @abstractmethod
    def start(self, theta: Int[Array, " dim"]) -> Any:
        """The tables of a configuration (any pytree), from scratch."""

    @abstractmethod
    def logits(self, tables: Any, theta: Int[Array, " dim"]) -> Float[Array, "dim max_size"]:
        """For every site i, log pi with theta_i set to 0..K_max-1, up to a constant of the row."""

    @abstractmethod
    def moved(self, tables: Any, theta: Int[Array, " dim"], i: Int[Array, ""], value: Int[Array, ""]) -> Any:
        """The tables after theta_i has become `value`, another one than in `theta`."""


def check_running(
    running: AbstractRunningConditionals, log_prob: Callable, space: Space, theta: Int[np.ndarray, " dim"]
) -> None:
    """Raises unless the conditionals are those of log pi, at a configuration and after a change of one site.

    Args:
        running: What is checked.
        log_prob: log pi of a flat configuration.
        space: The target's space.
        theta: A configuration.
    """
    num_compared = min(MOST_COMPARED, space.num_dims)
    sites = np.linspace(0, space.num_dims - 1, num_compared).astype(np.int32)
    try:
        ours, exact = (np.asarray(x, float) for x in _differences(running, log_prob, space, sites, jnp.asarray(theta)))
    except TargetError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise TargetError(
            "running_conditionals", f"raised {type(error).__name__}: {text}", "call start, logits and moved by hand"
        ) from None
    is_compared = np.isfinite(exact) & (np.arange(space.max_size) < space.sizes[sites][:, None])
    with np.errstate(invalid="ignore"):
        gaps = np.where(is_compared, np.abs(ours - exact) / np.maximum(1.0, np.abs(exact)), 0.0)
    gaps = np.where(np.isnan(gaps), np.inf, gaps)
    worst = np.unravel_index(np.argmax(gaps), gaps.shape)
    if gaps[worst] > TOLERANCE:
        when = "after a change of one site" if worst[0] else "from the start"
        raise TargetError(
            "running_conditionals",
            f"differ from log_prob at site {int(sites[worst[1]])}, {when}: {ours[worst]:.6g} for {exact[worst]:.6g}",
            "check moved" if worst[0] else "check start and logits",
        )


def _differences(
    running: AbstractRunningConditionals, log_prob: Callable, space: Space, sites: np.ndarray, theta: Array
) -> tuple[Array, Array]:
    """Log pi less that of the configuration, with each of the sites at each value, by the tables and by `log_prob`.

    First axis: the configuration, and the one in which the first site has moved on by one.
    """
    i, shape = jnp.asarray(sites[0]), (space.num_dims, space.max_size)
    values = jnp.arange(space.max_size, dtype=theta.dtype)

    def by_tables(tables: Any, at: Array) -> Array:
        logits = running.logits(tables, at)
        if logits.shape != shape:
            raise TargetError("running_conditionals", f"have logits of shape {logits.shape}", f"{shape} is wanted")
        return logits[sites] - jnp.take_along_axis(logits[sites], at[sites][:, None], axis=1)

    def by_log_prob(at: Array) -> Array:
        near = jax.vmap(lambda site: jax.vmap(lambda k: at.at[site].set(k))(values))(jnp.asarray(sites))
        return jax.lax.map(log_prob, near.reshape(-1, space.num_dims)).reshape(near.shape[:-1]) - log_prob(at)

    @jax.jit
    def both(theta: Array) -> tuple[Array, Array]:
        tables = running.start(theta)
        new = (theta[i] + 1) % jnp.asarray(space.sizes, theta.dtype)[i]
        moved = theta.at[i].set(new)
        ours = [by_tables(tables, theta), by_tables(running.moved(tables, theta, i, new), moved)]
        return jnp.stack(ours), jnp.stack([by_log_prob(theta), by_log_prob(moved)])

    return both(theta)
