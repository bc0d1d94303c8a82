"""What latent samplers share: points of the latent space, and BlackJAX kernels on p~(z) = pi(push(z)) exp(v(z)).

By the law of transports any kernel that leaves p~ invariant leaves pi invariant on theta (docs/theory.md). p~ is a
standard Gaussian times the weight w(z) = p~(z) / p(z), so pCN, independence and elliptical slice accept by w alone.

p~ jumps at cell borders. MALA, HMC and NUTS are driven by a surrogate force, the straight-through gradient: a leapfrog
step with any deterministic force is reversible and volume-preserving, and accept/reject uses the true p~.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.mcmc.random_walk import RWState, build_rmh
from jaxtyping import Array, Float

from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, as_float
from terrazzo.targets.mixed import log_density_at
from terrazzo.targets.target import Target
from terrazzo.transports import normal
from terrazzo.transports.base import AbstractTransport, Position, Relaxed


class LatentPoint(NamedTuple):
    """A latent point with everything that was computed on the way to its density.

    Attributes:
        z: The latent point.
        theta: push(z).
        log_prob: log pi(theta), on mixed spaces as a density of the unconstrained reals.
        log_volume: v(z).
    """

    z: Float[Array, " all"]
    theta: Position
    log_prob: Float[Array, ""]
    log_volume: Float[Array, ""]


class LatentState(NamedTuple):
    """The state of a latent sampler.

    Attributes:
        position: theta.
        log_prob: log pi(theta).
        z: The latent point.
        inner: What the latent kernel carries: a BlackJAX state.
    """

    position: Position
    log_prob: Float[Array, ""]
    z: Float[Array, " all"]
    inner: Any


def evaluate(target: Target, transport: AbstractTransport, z: Float[Array, " dim"]) -> LatentPoint:
    """Pushes z and evaluates the target there, once."""
    theta, log_volume = transport.push(z)
    return LatentPoint(z, theta, log_density_at(target, theta), log_volume)


def latent_logdensity(point: LatentPoint) -> Float[Array, ""]:
    """log p~(z) = log pi(theta) + v(z)."""
    return point.log_prob + point.log_volume


def latent_log_weight(point: LatentPoint) -> Float[Array, ""]:
    """log w(z) = log p~(z) - log p(z)."""
    return latent_logdensity(point) - normal.log_density(point.z)


def latent_info(acceptance_rate: Any, is_accepted: Any, num_evaluations: Any) -> Info:
    """The `Info` of a step."""
    return Info(as_float(acceptance_rate), jnp.asarray(is_accepted), jnp.asarray(num_evaluations, jnp.int32))


def latent_metropolis(
    target: Target,
    transport: AbstractTransport,
    propose: Callable[[Array, Array], Array],
    density: Callable[[LatentPoint], Array],
) -> SamplingAlgorithm:
    """A BlackJAX Metropolis kernel on latent points; `propose` is reversible with respect to p~ / exp(density)."""
    kernel = build_rmh()

    def as_state(inner: RWState) -> LatentState:
        point = inner.position
        return LatentState(point.theta, point.log_prob, point.z, inner)

    def init(position: Position, rng_key: Array) -> LatentState:
        point = evaluate(target, transport, transport.lift(rng_key, position))
        return as_state(RWState(point, density(point)))

    def step(rng_key: Array, state: LatentState) -> tuple[LatentState, Info]:
        def transition(key: Array, point: LatentPoint) -> LatentPoint:
            return evaluate(target, transport, propose(key, point.z))

        inner, info = kernel(rng_key, state.inner, density, transition)
        return as_state(inner), latent_info(info.acceptance_rate, info.is_accepted, 1)

    return SamplingAlgorithm(init, step)


def surrogate_logdensity(target: Target, transport: AbstractTransport) -> Callable[[Array], Array]:
    """log p~ with its true value and the straight-through gradient (0 where that is not finite), of one push.

    Targets without a gradient contribute none: the force is then that of v alone, which is still valid.
    """

    def value_and_force(z: Array) -> tuple[Array, Array]:
        pushed, pull_back = jax.vjp(transport.push_relaxed, z)
        theta = pushed.theta.astype(jnp.int32)
        slope = target.slope(theta).astype(z.dtype) if target.has_gradient else jnp.zeros_like(pushed.theta)
        (force,) = pull_back(Relaxed(slope, jnp.ones_like(pushed.log_volume)))
        return target.log_prob(theta) + pushed.log_volume, jnp.where(jnp.isfinite(force), force, 0.0)

    @jax.custom_vjp
    def logdensity(z: Array) -> Array:
        return latent_logdensity(evaluate(target, transport, z))

    logdensity.defvjp(value_and_force, lambda force, cotangent: (cotangent * force,))
    return logdensity


def gradient_kernel(
    target: Target,
    transport: AbstractTransport,
    make: Callable[[Callable], SamplingAlgorithm],
    num_evaluations: Callable[[Any], Any],
) -> SamplingAlgorithm:
    """A BlackJAX kernel driven by the surrogate force."""
    algorithm = make(surrogate_logdensity(target, transport))

    def as_state(inner: Any) -> LatentState:
        point = evaluate(target, transport, inner.position)
        return LatentState(point.theta, point.log_prob, point.z, inner)

    def init(position: Array, rng_key: Array) -> LatentState:
        return as_state(algorithm.init(transport.lift(rng_key, position)))

    def step(rng_key: Array, state: LatentState) -> tuple[LatentState, Info]:
        inner, info = algorithm.step(rng_key, state.inner)
        is_accepted = jnp.any(inner.position != state.inner.position)
        return as_state(inner), latent_info(info.acceptance_rate, is_accepted, num_evaluations(info) + 1)

    return SamplingAlgorithm(init, step)
