"""Pair models: fields on sites, couplings between equal values of two sites, and what ladders may start from.

log pi(theta) = constant + sum_i h_i(theta_i) + sum_e J_e [theta_a = theta_b]
"""

from abc import abstractmethod
from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int


class AbstractPairModel(eqx.Module):
    """log pi(theta) = sum_i h_i(theta_i) + sum_e J_e [theta_a = theta_b], and its fields and couplings."""

    @abstractmethod
    def __call__(self, theta: Any) -> Float[Array, ""]:
        """log pi."""

    @abstractmethod
    def pairwise(self) -> tuple[Array, np.ndarray, Array]:
        """h, (site, value); the edges (a, b), (edge, 2); and J, one an edge."""


class Pairwise(NamedTuple):
    """The terms of a pairwise target.

    Attributes:
        fields: h, shape (d, K).
        edges: Pairs (i, j), shape (m, 2), integers.
        couplings: J of each edge, shape (m,); positive favours equal values.
    """

    fields: Any
    edges: Any
    couplings: Any


def energy_of(terms: Pairwise, theta: Array) -> Float[Array, ""]:
    """The sum of the terms at one configuration: log pi up to its constant."""
    sites = jnp.arange(theta.shape[0])
    fields = jnp.asarray(terms.fields)[sites, theta].sum()
    edges = jnp.asarray(terms.edges)
    is_equal = theta[edges[:, 0]] == theta[edges[:, 1]]
    couplings = jnp.asarray(terms.couplings)
    return fields + jnp.where(is_equal, couplings, jnp.zeros_like(couplings)).sum()


class PairReference(eqx.Module):
    """A normalised pair model q0 that a ladder of discrete variables starts from; without edges, a product of sites.

    Attributes:
        terms: Its terms, all finite. Where it has edges, they are those of the target's own terms, in their order.
        log_z: The logarithm of the sum of exp(terms) over all configurations.
        has_fields: Whether some site favours a value.
    """

    terms: Pairwise
    log_z: Float[Array, ""]
    has_fields: bool = eqx.field(static=True)

    def log_density(self, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        """log q0 at one configuration."""
        return energy_of(self.terms, theta) - self.log_z

    def site_logits(self, theta: Int[Array, " dim"]) -> Float[Array, "dim value"]:
        """The conditional of every site, up to constants."""
        logits, edges = jnp.asarray(self.terms.fields), jnp.asarray(self.terms.edges)
        if not edges.shape[0]:
            return logits
        couplings, (a, b) = jnp.asarray(self.terms.couplings), edges.T
        return logits.at[a, theta[b]].add(couplings).at[b, theta[a]].add(couplings)

    def scaled(self, share: Float[Array, ""]) -> "PairReference":
        """exp(share log q0): q0 itself for 1, and for 0 the counting measure."""
        terms = self.terms._replace(fields=share * self.terms.fields, couplings=share * self.terms.couplings)
        return PairReference(terms, share * self.log_z, self.has_fields)

    @property
    def name(self) -> str:
        """What it is, in a word."""
        return "parts" if self.has_edges else "product"

    @property
    def has_edges(self) -> bool:
        return self.terms.edges.shape[0] > 0
