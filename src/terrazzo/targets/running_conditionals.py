"""Running conditionals: what a target may know of all its sites at once, and how that is checked.

A sweep by them is in `samplers/parts/running_sweeps.py`.
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
from terrazzo.errors.user_code import described
from terrazzo.spaces import Space

MOST_COMPARED = 6  # sites
TOLERANCE = 0.01  # of a difference of log pi, or nats where it is below one: float32 is no better far from 0


class AbstractRunningConditionals(eqx.Module):
    """All conditionals of one configuration, in tables that are kept up while single sites change.

    For targets where a configuration is expensive to evaluate but the effect of changing one site follows from what is
    known of the others: a factorised matrix, local fields, counts. A sweep then costs one `start` and as many `moved`
    as sites really change.

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

    @property
    def is_sequential(self) -> bool:
        """Whether one site's conditional costs so little that sweeps ask for one after the other, not for all at once.

        `moved` then also takes the value that a site has already.
        """
        return False

    def site_logits(self, tables: Any, theta: Int[Array, " dim"], i: Int[Array, ""]) -> Float[Array, " max_size"]:
        """The row of `logits` that belongs to one site."""
        return self.logits(tables, theta)[i]

    def redrawn(
        self, tables: Any, theta: Int[Array, " dim"], i: Int[Array, ""], draw: Callable[[Array], Array]
    ) -> tuple[Int[Array, ""], Any]:
        """A new value of one site, `draw` of its logits, and the tables with it."""
        value = draw(self.site_logits(tables, theta, i))
        return value, self.moved(tables, theta, i, value)


def check_running(
    running: AbstractRunningConditionals, log_prob: Callable, space: Space, points: Int[np.ndarray, "point dim"]
) -> None:
    """Raises unless the conditionals are those of log pi, at configurations and after a change of one site.

    Args:
        running: What is checked.
        log_prob: log pi of a flat configuration.
        space: The target's space.
        points: Configurations; those of probability zero say nothing and are passed over.
    """
    if not isinstance(running, AbstractRunningConditionals):
        raise TargetError(
            "running_conditionals",
            f"must be a tz.AbstractRunningConditionals, got {type(running).__name__}",
            "write a subclass with start, logits and moved",
        )
    num_compared = min(MOST_COMPARED, space.num_dims)
    rng = np.random.default_rng(0)
    both = _comparison(running, log_prob, space)
    for number, theta in enumerate(points):
        sites = np.linspace(0, space.num_dims - 1, num_compared).astype(np.int32)
        if number:
            sites = rng.permutation(space.num_dims)[:num_compared].astype(np.int32)
        try:
            ours, exact = (np.asarray(x, float) for x in both(jnp.asarray(theta, jnp.int32), jnp.asarray(sites)))
        except TargetError as error:
            raise error.with_traceback(None) from None
        except Exception as error:
            raise TargetError(
                "running_conditionals", f"raised {described(error)}", "call start, logits and moved by hand"
            ) from None
        _compare(ours, exact, space, sites)


def _compare(ours: np.ndarray, exact: np.ndarray, space: Space, sites: np.ndarray) -> None:
    is_compared = (np.arange(space.max_size) < space.sizes[sites][:, None]) & (exact < np.inf)  # NaN is not below
    with np.errstate(invalid="ignore"):
        gaps = np.abs(ours - exact) / np.maximum(1.0, np.where(np.isfinite(exact), np.abs(exact), 1.0))
    gaps = np.where(np.isneginf(ours) & np.isneginf(exact), 0.0, np.where(np.isnan(gaps), np.inf, gaps))
    gaps = np.where(is_compared, gaps, 0.0)
    worst = np.unravel_index(np.argmax(gaps), gaps.shape)
    if gaps[worst] > TOLERANCE:
        when = "after a change of one site" if worst[0] else "from the start"
        raise TargetError(
            "running_conditionals",
            f"differ from log_prob at site {int(sites[worst[1]])}, {when}: {ours[worst]:.6g} for {exact[worst]:.6g}",
            "check moved" if worst[0] else "check start and logits",
        )


def _comparison(running: AbstractRunningConditionals, log_prob: Callable, space: Space) -> Callable:
    """A compiled `(theta, sites) -> ` log pi less that of theta, each site at each value, by the tables and by log pi.

    First axis of both: the configuration, and the one in which the first site has moved on by one.
    """
    shape = (space.num_dims, space.max_size)
    values = jnp.arange(space.max_size, dtype=jnp.int32)

    def by_tables(tables: Any, at: Array, sites: Array) -> Array:
        logits = running.logits(tables, at)
        if logits.shape != shape:
            raise TargetError("running_conditionals", f"have logits of shape {logits.shape}", f"{shape} is wanted")
        return logits[sites] - jnp.take_along_axis(logits[sites], at[sites][:, None], axis=1)

    def by_log_prob(at: Array, sites: Array) -> Array:
        near = jax.vmap(lambda site: jax.vmap(lambda k: at.at[site].set(k))(values))(sites)
        return jax.lax.map(log_prob, near.reshape(-1, space.num_dims)).reshape(near.shape[:-1]) - log_prob(at)

    @jax.jit
    def both(theta: Array, sites: Array) -> tuple[Array, Array]:
        i = sites[0]
        tables = running.start(theta)
        new = (theta[i] + 1) % jnp.asarray(space.sizes, theta.dtype)[i]
        moved = theta.at[i].set(new)
        ours = [by_tables(tables, theta, sites), by_tables(running.moved(tables, theta, i, new), moved, sites)]
        return jnp.stack(ours), jnp.stack([by_log_prob(theta, sites), by_log_prob(moved, sites)])

    return both
