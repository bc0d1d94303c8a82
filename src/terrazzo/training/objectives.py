"""What a transport is trained for. Training never touches exactness: it only decides how fast chains mix.

    reverse KL:  L = E_{z ~ p} [ log p(z) - beta log pi(theta(z)) - v(z) ]      (= KL(p || p~) - log Z at beta = 1)

Its gradient comes either straight through the floor (the paper; needs log pi at real theta) or from the score function
with a leave-one-out baseline (unbiased; needs only evaluations of log pi).

    forward KL:  L = -E_{theta ~ draws} [ log q(theta) ]        (for flows: the dequantization bound on it)

covers every mode that the draws cover; the draws come from running (tempered) chains.

With real variables the score function is that of the discrete ones, and the gradient goes along the path of the reals
where transport and target have one. A power of a density on reals need not be proper, so the objective anneals from a
proper density: (1 - beta) log q0 + beta log pi, with q0 the target's reference or wide normals.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from terrazzo.errors import GradientError, OptionError, arguments
from terrazzo.spaces import Configuration
from terrazzo.targets.mixed import of_reference
from terrazzo.targets.target import Target
from terrazzo.transports import normal
from terrazzo.transports.base import AbstractTransport, Scored, codes_of

IMPOSSIBLE_PENALTY = 10.0
STRAIGHT = ("straight_through", "paper")  # gradients that go through the floor
WIDE = 3.0  # standard deviation that annealing begins at: in unconstrained coordinates most priors are within -6..6


class LossInfo(NamedTuple):
    """What a group of latent draws says besides the gradient.

    Attributes:
        value: The objective, a plain average.
        log_weights: log p~ - log p of each draw at beta = 1.
    """

    value: Float[Array, ""]
    log_weights: Float[Array, " sample"]


def _possible(log_prob: Array) -> Array:
    """Impossible draws count as 10 nats below the worst possible one of the batch: a slope, not a cliff."""
    is_possible = log_prob > -jnp.inf
    worst = jnp.min(jnp.where(is_possible, log_prob, jnp.inf))
    floor = jnp.where(jnp.isfinite(worst), worst, 0.0) - IMPOSSIBLE_PENALTY
    return jnp.where(is_possible, log_prob, jax.lax.stop_gradient(floor))


def _along_reals(target: Target, position: Configuration) -> Array:
    """log pi of a mixed configuration with its derivative along the reals; 0 where there is none, or no finite one."""
    theta, fixed = jax.lax.stop_gradient(position)
    if not target.has_real_gradient:
        return target.log_density(theta, fixed)
    value, slope = jax.value_and_grad(target.log_density, argnums=1)(theta, fixed)
    usable = jnp.isfinite(slope) & jnp.isfinite(fixed)
    change = jnp.where(usable, jax.lax.stop_gradient(slope) * (position.reals - fixed), 0.0)
    return jax.lax.stop_gradient(value) + jnp.sum(change)


def _annealed(target: Target, position: Any, log_prob: Array, beta: Array) -> Array:
    """What the objective is trained on at beta: a power of pi; on reals what lies between a proper density and pi."""
    if not isinstance(position, Configuration):
        return beta * _possible(log_prob)
    if target.reference is None:
        start = -0.5 * jnp.sum((position.reals / WIDE) ** 2, axis=-1)
    else:
        start = _possible(jax.vmap(lambda one: _along_reals(of_reference(target), one))(position))
    return (1.0 - beta) * start + beta * _possible(log_prob)


def _scored(transport: AbstractTransport, target: Target, z: Array) -> tuple[Scored, Array]:
    """The draws of the transport with the terms of their score, and log pi of each."""
    scored = jax.vmap(transport.push_scored)(z)
    if not isinstance(scored.theta, Configuration):
        return scored, jax.vmap(target.log_prob)(scored.theta)
    if not target.has_real_gradient and transport.has_exact_dequantizer:  # no path: the score of all coordinates
        fixed = jax.lax.stop_gradient(scored)
        keys = jax.random.split(jax.random.key(0), z.shape[0])  # not used: the likelihood is exact
        scored = fixed._replace(log_model=jax.vmap(transport.log_likelihood)(keys, fixed.theta))
    return scored, jax.vmap(lambda one: _along_reals(target, one))(scored.theta)


def _mean_where(mask: Array, values: Array) -> Array:
    return jnp.sum(jnp.where(mask, values, 0.0)) / jnp.maximum(jnp.sum(mask.astype(values.dtype)), 1.0)


@dataclass(frozen=True)
class ReverseKL:
    """Reverse KL in the latent space. Build it with `reverse_kl`."""

    gradient: str

    def resolve(self, transport: AbstractTransport, target: Target) -> "ReverseKL":
        """Chooses the gradient estimator where "auto" was asked for; raises where the choice cannot work."""
        if self.gradient == "auto":
            return ReverseKL("score_function")
        if self.gradient in STRAIGHT and not target.has_gradient:
            raise GradientError(
                "objective",
                "straight-through training needs log_prob at real theta, which this target cannot give",
                "use reverse_kl(gradient='score_function')",
            )
        if self.gradient in STRAIGHT and not transport.has_straight_through:
            raise OptionError(
                "objective",
                f"{type(transport).__name__} has no straight-through gradient",
                "use reverse_kl(gradient='score_function')",
            )
        return self

    def __call__(
        self, transport: AbstractTransport, target: Target, key: Array, num_samples: int, beta: Array
    ) -> tuple[Float[Array, ""], LossInfo]:
        """A surrogate whose gradient in the weights is the estimator, and the figures of this group of draws."""
        z = jax.random.normal(key, (num_samples, transport.num_dims))
        base = jax.vmap(normal.log_density)(z)
        if self.gradient in STRAIGHT:
            is_held = self.gradient == "paper"
            theta, log_volume = jax.vmap(lambda point: transport.push_relaxed(point, is_offset_held=is_held))(z)
            log_prob = jax.vmap(target.log_prob_relaxed)(theta)
        else:
            scored, log_prob = _scored(transport, target, z)
            theta, log_volume = scored.theta, scored.log_volume
        is_inside = log_volume > -jnp.inf  # a draw exactly on a border has density 0 and teaches nothing
        log_volume = jnp.where(is_inside, log_volume, 0.0)
        cost = base - _annealed(target, theta, log_prob, beta) - log_volume
        value = _mean_where(is_inside, cost)
        log_weights = jnp.where(is_inside, log_prob + log_volume - base, -jnp.inf)
        info = jax.lax.stop_gradient(LossInfo(value, log_weights))
        if self.gradient in STRAIGHT:
            return value, info
        others = (jnp.sum(cost) - cost) / max(num_samples - 1, 1)
        advantage = jax.lax.stop_gradient(cost - others)
        terms = advantage * scored.log_model - scored.log_dequantizer
        if isinstance(theta, Configuration):
            terms = terms + cost  # the rest of the gradient, along the reals
        return _mean_where(is_inside, terms), info


def reverse_kl(gradient: str = "auto") -> ReverseKL:
    """KL(p || p~) in the latent space, the paper's objective: p is the Gaussian, p~ the target pulled back to it.

    It needs evaluations of log pi and no draws, and may miss modes that the transport does not reach.

    Args:
        gradient: "straight_through" (through the floor, with du/dx = 1), "paper" (the authors' own: the offset u is
            held, du/dx = 0, so that the flow follows log pi alone), "score_function" (leave-one-out baseline; needs
            evaluations only), or "auto": the score function, which is unbiased. The straight-through gradient is not:
            on a pairwise target over 20 spins it stops 7 nats above what the score function reaches.

    >>> reverse_kl().gradient
    'auto'
    """
    arguments.choice("gradient", gradient, ("auto", *STRAIGHT, "score_function"))
    return ReverseKL(gradient)


class ForwardKL(eqx.Module):
    """Maximum likelihood on stored draws, optionally with the reverse KL beside it. Build it with `forward_kl`."""

    draws: Int[Array, "draw dim"] | Configuration
    weight: Float[Array, ""]
    reverse: ReverseKL | None = eqx.field(static=True)

    def resolve(self, transport: AbstractTransport, target: Target) -> "ForwardKL":
        """Chooses the gradient estimator of the reverse part, if there is one."""
        space = target.space
        given = (
            codes_of(self.draws).shape[1],
            self.draws.reals.shape[1] if isinstance(self.draws, Configuration) else 0,
        )
        if given != (space.num_dims, space.num_reals):
            raise OptionError(
                "draws",
                f"have {sum(given)} coordinates, the target has {space.num_dims + space.num_reals}",
                "flat draws of this target",
            )
        reverse = None if self.reverse is None else self.reverse.resolve(transport, target)
        return ForwardKL(self.draws, self.weight, reverse)

    def __call__(
        self, transport: AbstractTransport, target: Target, key: Array, num_samples: int, beta: Array
    ) -> tuple[Float[Array, ""], LossInfo]:
        pick_key, lift_key, reverse_key = jax.random.split(key, 3)
        rows = jax.random.randint(pick_key, (num_samples,), 0, codes_of(self.draws).shape[0])
        keys = jax.random.split(lift_key, num_samples)
        picked: Any = codes_of(self.draws)[rows].astype(jnp.int32)
        if isinstance(self.draws, Configuration):
            picked = Configuration(picked, self.draws.reals[rows])
        likelihood = jax.vmap(transport.log_likelihood)(keys, picked)
        is_finite = jnp.isfinite(likelihood)
        forward = -_mean_where(is_finite, jnp.where(is_finite, likelihood, 0.0))
        if self.reverse is None:
            return forward, jax.lax.stop_gradient(LossInfo(forward, jnp.zeros(num_samples, forward.dtype)))
        surrogate, info = self.reverse(transport, target, reverse_key, num_samples, beta)
        value = self.weight * jax.lax.stop_gradient(forward) + (1.0 - self.weight) * info.value
        return self.weight * forward + (1.0 - self.weight) * surrogate, info._replace(value=value)


def forward_kl(draws: Any, *, weight: float = 1.0, reverse: ReverseKL | None = None) -> ForwardKL:
    """KL(pi || q), maximum likelihood of the transport's distribution q on given draws: it covers their modes.

    Args:
        draws: Flat configurations, (draw, dim): a large replay buffer, not a handful of correlated states. With real
            variables a `Configuration` of codes and unconstrained reals, (draw, dim) and (draw, real).
        weight: The share of the forward term if `reverse` is given.
        reverse: A `reverse_kl` objective to train on at the same time.

    >>> import numpy as np
    >>> forward_kl(np.zeros((5, 2), int)).draws.shape
    (5, 2)
    """
    try:
        array = jnp.asarray(codes_of(draws))
        reals = jnp.asarray(draws.reals, jnp.result_type(float)) if isinstance(draws, Configuration) else None
    except (TypeError, ValueError):
        shown = arguments.shown(draws)
        raise OptionError("draws", f"must be integers, got {shown}", "flat draws, of shape (draw, dim)") from None
    if array.ndim != 2 or not jnp.issubdtype(array.dtype, jnp.integer) or not array.shape[0]:
        raise OptionError("draws", f"must be integers of shape (draw, dim), got {array.shape}", "flatten the chains")
    if reals is not None and (reals.ndim != 2 or reals.shape[0] != array.shape[0]):
        raise OptionError("draws", f"has reals of shape {reals.shape}", "(draw, real), one row a draw")
    weight = arguments.number("weight", weight, at_most=1.0, remedy="1 is the forward KL alone")
    if reverse is not None:
        arguments.instance("reverse", reverse, ReverseKL, "e.g. tz.reverse_kl()")
    found = array if reals is None else Configuration(array, reals)
    return ForwardKL(found, jnp.asarray(weight, jnp.result_type(float)), reverse)


def importance_ess(log_weights: Array) -> Array:
    """(sum w)^2 / (N sum w^2), the effective fraction of importance-weighted draws."""
    log_weights = log_weights.reshape(-1)
    top = jnp.max(log_weights)
    w = jnp.exp(log_weights - jnp.where(jnp.isfinite(top), top, 0.0))
    return jnp.sum(w) ** 2 / (w.size * jnp.maximum(jnp.sum(w**2), jnp.finfo(w.dtype).tiny))
