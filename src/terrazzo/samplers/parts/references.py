"""References of mixed ladders: distributions that can be drawn from, whose density is known and normalised.

    pi_beta(theta, y) is proportional to q0(theta, y)^(1 - beta) pi(theta, y)^beta

q0 is the user's (`tz.Reference`, such as a prior) or one fitted to short chains: site by site for theta, half uniform;
for y a mixture of two products, Student-t around what the chains saw and wide normals around the origin, so that a mode
that the short chains missed is still within reach.

Reference: Surjanovic, Syed, Bouchard-Cote, Campbell (2022), Parallel tempering with a variational reference.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.targets.mixed import of_reference
from terrazzo.targets.structure import Summation
from terrazzo.targets.target import Target

DEGREES = 5  # of freedom: tails heavier than those of most posteriors
WIDENING = 2.0  # standard deviations of the fitted part, in those of the chains
WIDE = 3.0  # standard deviation of the wide part: in unconstrained coordinates most priors are within -6..6
UNIFORM_SHARE = 0.5


class AbstractReference(eqx.Module):
    """A normalised law on a mixed space, or on its reals alone where theta is summed out."""

    has_independent_sites: ClassVar[bool]

    @property
    @abstractmethod
    def is_over_sites(self) -> bool:
        """Whether theta is part of it."""

    @property
    @abstractmethod
    def variances(self) -> Float[Array, " real"]:
        """Of the reals, about: what moves along them are scaled by."""

    @abstractmethod
    def log_density(self, theta: Int[Array, " dim"], y: Float[Array, " real"]) -> Float[Array, ""]:
        """The log-density with respect to counting x Lebesgue measure of y; of y alone where theta is summed out."""

    @abstractmethod
    def draw(self, key: Array) -> tuple[Array, Array]:
        """theta and y."""

    @abstractmethod
    def site_logits(self, theta: Int[Array, " dim"], y: Array, i: Array) -> Float[Array, " value"]:
        """The conditional of one site."""


class FittedReference(AbstractReference):
    """A product over sites times a mixture of two products over reals.

    Attributes:
        mean: Of the Student part.
        sd: Its scales.
        log_probs: Of each value of each site, (site, value); no sites where theta is summed out.
    """

    mean: Float[Array, " real"]
    sd: Float[Array, " real"]
    log_probs: Float[Array, "site value"]
    has_independent_sites = True

    @property
    def is_over_sites(self) -> bool:
        return self.log_probs.shape[0] > 0

    @property
    def variances(self) -> Float[Array, " real"]:
        return self.sd**2

    def log_density(self, theta: Int[Array, " dim"], y: Float[Array, " real"]) -> Float[Array, ""]:
        near = jnp.sum(jax.scipy.stats.t.logpdf(y, float(DEGREES), self.mean, self.sd))
        wide = jnp.sum(jax.scipy.stats.norm.logpdf(y, 0.0, WIDE))
        both = jnp.logaddexp(near, wide) - np.log(2.0)
        sites = jnp.arange(self.log_probs.shape[0])
        return both + (jnp.sum(self.log_probs[sites, theta]) if self.log_probs.shape[0] else 0.0)

    def draw(self, key: Array) -> tuple[Array, Array]:
        which, near, wide, theta = jax.random.split(key, 4)
        shape = self.mean.shape
        normal, squares = jnp.split(jax.random.normal(near, (1 + DEGREES, *shape), self.mean.dtype), [1])
        one = self.mean + self.sd * normal[0] / jnp.sqrt(jnp.mean(squares**2, axis=0))  # gammas compile for seconds
        two = WIDE * jax.random.normal(wide, shape, self.mean.dtype)
        y = jnp.where(jax.random.bernoulli(which), one, two)
        return jax.random.categorical(theta, self.log_probs, axis=-1).astype(jnp.int32), y

    def site_logits(self, theta: Int[Array, " dim"], y: Array, i: Array) -> Float[Array, " value"]:
        return self.log_probs[i]


class UserReference(AbstractReference):
    """The user's reference, in unconstrained coordinates.

    Attributes:
        prior: The reference as a target.
        draw_fn: Draws a configuration in the user's values.
        summation: Sums its density over theta, where ladders run on the reals alone.
    """

    prior: Target
    draw_fn: Callable = eqx.field(static=True)
    summation: Summation | None = eqx.field(static=True)
    has_independent_sites = False

    def __init__(self, target: Target, summation: Summation | None = None):
        assert target.reference is not None
        self.prior, self.draw_fn, self.summation = of_reference(target), target.reference.draw, summation

    @property
    def is_over_sites(self) -> bool:
        return self.summation is None and self.prior.space.num_dims > 0

    @property
    def variances(self) -> Float[Array, " real"]:
        return jnp.ones(self.prior.space.num_reals)

    def log_density(self, theta: Int[Array, " dim"], y: Float[Array, " real"]) -> Float[Array, ""]:
        if self.summation is None:
            return self.prior.log_density(theta, y)
        value = self.summation(y) + self.prior.space.log_jacobian(y)
        return jnp.where(jnp.isnan(value), -jnp.inf, value)

    def draw(self, key: Array) -> tuple[Array, Array]:
        values, space = self.draw_fn(key), self.prior.space
        named = {"theta": values} if space.is_plain else values
        dtype = jnp.result_type(float)
        codes = [
            jnp.reshape(jnp.asarray(named[name]) - v.low, -1).astype(jnp.int32) for name, v in space.discrete_variables
        ]
        y = [jnp.reshape(v.bijection.unconstrain(jnp.asarray(named[n], dtype)), -1) for n, v in space.real_variables]
        return jnp.concatenate([jnp.zeros(0, jnp.int32), *codes]), jnp.concatenate(y).astype(dtype)

    def site_logits(self, theta: Int[Array, " dim"], y: Array, i: Array) -> Float[Array, " value"]:
        return self.prior.given(y).site_logits(theta, i)


def fitted_reference(target: Target, theta: np.ndarray, y: np.ndarray, *, is_collapsed: bool) -> FittedReference:
    """The reference that fits draws of short chains.

    Args:
        target: The target.
        theta: Codes, (draw, dim).
        y: Unconstrained reals, (draw, real).
        is_collapsed: Whether theta is summed out, so that only the reals need one.
    """
    dtype, space = jnp.result_type(float), target.space
    sizes = np.zeros(0, int) if is_collapsed else space.sizes
    is_value = np.arange(space.max_size) < sizes[:, None]
    counts = np.zeros(is_value.shape)
    for i in range(len(sizes)):
        counts[i] = np.bincount(theta[:, i], minlength=space.max_size)
    share = (1 - UNIFORM_SHARE) * counts / max(len(theta), 1)
    with np.errstate(divide="ignore"):
        log_probs = np.log(share + UNIFORM_SHARE * is_value / np.maximum(sizes, 1)[:, None])
    sd = WIDENING * np.maximum(y.std(axis=0), 1e-3)
    return FittedReference(jnp.asarray(y.mean(axis=0), dtype), jnp.asarray(sd, dtype), jnp.asarray(log_probs, dtype))
