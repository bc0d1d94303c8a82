"""Conditionals of single sites from tables, in the form of running conditionals: there is nothing to keep up."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.structure.conditionals import AbstractSiteLogits


class RunningTables(AbstractRunningConditionals):
    """The tables that a site is in are looked up when its conditional is asked for.

    Attributes:
        every: The conditionals of all sites, in their order.
    """

    every: AbstractSiteLogits

    @property
    def is_sequential(self) -> bool:
        return self.every.has_slots

    def start(self, theta: Int[Array, " dim"]) -> tuple[()]:
        return ()

    def logits(self, tables: tuple[()], theta: Int[Array, " dim"]) -> Float[Array, "dim value"]:
        return _numbers(self.every.logits(theta))

    def site_logits(self, tables: tuple[()], theta: Int[Array, " dim"], i: Int[Array, ""]) -> Float[Array, " value"]:
        return _numbers(self.every.site_logits(theta, i))

    def moved(
        self, tables: tuple[()], theta: Int[Array, " dim"], i: Int[Array, ""], value: Int[Array, ""]
    ) -> tuple[()]:
        return ()


def _numbers(logits: Array) -> Array:
    """NaN as log pi itself shows it: +inf."""
    return jnp.where(jnp.isnan(logits), jnp.inf, logits)
