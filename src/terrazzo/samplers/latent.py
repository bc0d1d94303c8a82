"""Latent samplers: BlackJAX kernels on p~(z) = pi(push(z)) exp(v(z)), as ordinary samplers whose position is theta.

By the law of transports any kernel that leaves p~ invariant leaves pi invariant on theta (DESIGN section 1). p~ is a
standard Gaussian times the weight w(z) = p~(z) / p(z), so pCN, independence and elliptical slice accept by w alone.

p~ jumps at cell borders. MALA, HMC and NUTS are driven by a surrogate force, the straight-through gradient: a leapfrog
step with any deterministic force is reversible and volume-preserving, and accept/reject uses the true p~.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
from blackjax.mcmc.random_walk import RWState, build_rmh
from jaxtyping import Array, Float, Int

from terrazzo.samplers.base import Info, SamplerSpec, SamplingAlgorithm, Tuning, as_float
from terrazzo.samplers.tuning import dual_averaging_tuning
from terrazzo.targets import Target
from terrazzo.transports import normal
from terrazzo.transports.base import AbstractTransport


class LatentPoint(NamedTuple):
    """A latent point with everything that was computed on the way to its density.

    Attributes:
        z: The latent point.
        theta: push(z).
        log_prob: log pi(theta).
        log_volume: v(z).
    """

    z: Float[Array, " dim"]
    theta: Int[Array, " dim"]
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

    position: Int[Array, " dim"]
    log_prob: Float[Array, ""]
    z: Float[Array, " dim"]
    inner: Any


def evaluate(target: Target, transport: AbstractTransport, z: Float[Array, " dim"]) -> LatentPoint:
    """Pushes z and evaluates the target there, once."""
    theta, log_volume = transport.push(z)
    return LatentPoint(z, theta, target.log_prob(theta), log_volume)


def latent_logdensity(point: LatentPoint) -> Float[Array, ""]:
    """log p~(z) = log pi(theta) + v(z)."""
    return point.log_prob + point.log_volume


def latent_log_weight(point: LatentPoint) -> Float[Array, ""]:
    """log w(z) = log p~(z) - log p(z)."""
    return latent_logdensity(point) - normal.log_density(point.z)


def _info(acceptance_rate: Any, is_accepted: Any, num_evaluations: Any) -> Info:
    return Info(as_float(acceptance_rate), jnp.asarray(is_accepted), jnp.asarray(num_evaluations, jnp.int32))


def _metropolis(
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

    def init(position: Array, rng_key: Array) -> LatentState:
        point = evaluate(target, transport, transport.lift(rng_key, position))
        return as_state(RWState(point, density(point)))

    def step(rng_key: Array, state: LatentState) -> tuple[LatentState, Info]:
        def transition(key: Array, point: LatentPoint) -> LatentPoint:
            return evaluate(target, transport, propose(key, point.z))

        inner, info = kernel(rng_key, state.inner, density, transition)
        return as_state(inner), _info(info.acceptance_rate, info.is_accepted, 1)

    return SamplingAlgorithm(init, step)


def random_walk(target: Target, transport: AbstractTransport, *, scale: Any = 0.1) -> SamplingAlgorithm:
    """Random-walk Metropolis in the latent space (the paper): z' = z + scale xi, accept min(1, p~(z') / p~(z)).

    Args:
        target: The target.
        transport: The transport.
        scale: Standard deviation of the step; tuned in warm-up.

    Reference: Jaini, Nielsen & Welling (2021).

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> transport = tz.flow_transport(target.space, key=jax.random.key(0), num_layers=1, width=4, context_width=2)
    >>> sampler = random_walk(target, transport)
    >>> state = jax.jit(sampler.init)(jnp.zeros(3, jnp.int32), jax.random.key(1))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(2), state)
    >>> state.position.shape, state.z.shape
    ((3,), (3,))
    """

    def propose(key: Array, z: Array) -> Array:
        return z + scale * jax.random.normal(key, z.shape, z.dtype)

    return _metropolis(target, transport, propose, latent_logdensity)


def pcn(target: Target, transport: AbstractTransport, *, scale: Any = 0.5) -> SamplingAlgorithm:
    """Preconditioned Crank-Nicolson: z' = sqrt(1 - s^2) z + s xi, accept min(1, w(z') / w(z)).

    The proposal is reversible with respect to the Gaussian p, so only the weight w = p~ / p decides.

    Args:
        target: The target.
        transport: The transport.
        scale: s in (0, 1]; 1 is the independence sampler. Tuned in warm-up.

    Reference: Cotter, Roberts, Stuart & White (2013).

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> transport = tz.flow_transport(target.space, key=jax.random.key(0), num_layers=1, width=4, context_width=2)
    >>> sampler = pcn(target, transport)
    >>> state = jax.jit(sampler.init)(jnp.zeros(3, jnp.int32), jax.random.key(1))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(2), state)
    >>> state.position.shape, state.z.shape
    ((3,), (3,))
    """

    def propose(key: Array, z: Array) -> Array:
        noise = jax.random.normal(key, z.shape, z.dtype)
        return jnp.sqrt(1.0 - as_float(scale) ** 2) * z + scale * noise

    return _metropolis(target, transport, propose, latent_log_weight)


def independence(target: Target, transport: AbstractTransport) -> SamplingAlgorithm:
    """Independence Metropolis: z' ~ p, accept min(1, w(z') / w(z)). Nothing to tune.

    Reference: Tierney (1994); Albergo, Kanwar & Shanahan (2019) for flows.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> transport = tz.flow_transport(target.space, key=jax.random.key(0), num_layers=1, width=4, context_width=2)
    >>> sampler = independence(target, transport)
    >>> state = jax.jit(sampler.init)(jnp.zeros(3, jnp.int32), jax.random.key(1))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(2), state)
    >>> state.position.shape, state.z.shape
    ((3,), (3,))
    """

    def propose(key: Array, z: Array) -> Array:
        return jax.random.normal(key, z.shape, z.dtype)

    return _metropolis(target, transport, propose, latent_log_weight)


def elliptical_slice(target: Target, transport: AbstractTransport, *, max_shrinks: int = 40) -> SamplingAlgorithm:
    """Elliptical slice sampling on p~ = p w. Nothing to tune.

    The bracket shrinks at most `max_shrinks` times; then the state stays. Each shrinking path is as likely backwards
    as forwards, so the cap keeps the kernel exact, and one extreme weight cannot hold up a whole batch of chains.

    Reference: Murray, Adams & MacKay (2010).

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> transport = tz.flow_transport(target.space, key=jax.random.key(0), num_layers=1, width=4, context_width=2)
    >>> sampler = elliptical_slice(target, transport)
    >>> state = jax.jit(sampler.init)(jnp.zeros(3, jnp.int32), jax.random.key(1))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(2), state)
    >>> state.position.shape, state.z.shape
    ((3,), (3,))
    """

    def init(position: Array, rng_key: Array) -> LatentState:
        point = evaluate(target, transport, transport.lift(rng_key, position))
        return LatentState(point.theta, point.log_prob, point.z, point)

    def step(rng_key: Array, state: LatentState) -> tuple[LatentState, Info]:
        noise_key, level_key, angle_key, shrink_key = jax.random.split(rng_key, 4)
        start: LatentPoint = state.inner
        noise = jax.random.normal(noise_key, start.z.shape, start.z.dtype)
        level = latent_log_weight(start) - jax.random.exponential(level_key, (), start.z.dtype)
        angle = jax.random.uniform(angle_key, (), start.z.dtype, maxval=2.0 * jnp.pi)

        def at(angle: Array) -> LatentPoint:
            return evaluate(target, transport, start.z * jnp.cos(angle) + noise * jnp.sin(angle))

        def is_outside(point: LatentPoint) -> Array:
            weight = latent_log_weight(point)
            return ~(weight > level)  # NaN counts as outside; +inf as inside, to be found by the runner

        def attempt(carry):
            count, low, high, angle, _ = carry
            point = at(angle)
            low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
            next_angle = jax.random.uniform(jax.random.fold_in(shrink_key, count), (), angle.dtype, low, high)
            return count + 1, low, high, next_angle, point

        nowhere = start._replace(log_volume=jnp.full_like(start.log_volume, -jnp.inf))
        carry = (jnp.asarray(0, jnp.int32), angle - 2.0 * jnp.pi, angle, angle, nowhere)
        count, _, _, _, found = jax.lax.while_loop(lambda c: is_outside(c[4]) & (c[0] <= max_shrinks), attempt, carry)
        is_moved = ~is_outside(found)
        point = jax.tree.map(lambda new, old: jnp.where(is_moved, new, old), found, start)
        info = _info(is_moved.astype(start.z.dtype) / count.astype(start.z.dtype), is_moved, count)
        return LatentState(point.theta, point.log_prob, point.z, point), info

    return SamplingAlgorithm(init, step)


def surrogate_logdensity(target: Target, transport: AbstractTransport) -> Callable[[Array], Array]:
    """log p~ with its true value and the straight-through gradient (0 where that is not finite).

    Targets without a gradient contribute none: the force is then that of v alone, which is still valid.
    """

    def value(z: Array) -> Array:
        return latent_logdensity(evaluate(target, transport, z))

    def surrogate(z: Array) -> Array:
        theta, log_volume = transport.push_relaxed(z)
        return log_volume + target.log_prob_relaxed(theta) if target.has_gradient else log_volume

    @jax.custom_vjp
    def logdensity(z: Array) -> Array:
        return value(z)

    def forward(z: Array) -> tuple[Array, Array]:
        return value(z), jax.grad(surrogate)(z)

    def backward(force: Array, cotangent: Array) -> tuple[Array]:
        return (cotangent * jnp.where(jnp.isfinite(force), force, 0.0),)

    logdensity.defvjp(forward, backward)
    return logdensity


def _gradient_kernel(
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
        return as_state(inner), _info(info.acceptance_rate, is_accepted, num_evaluations(info) + 1)

    return SamplingAlgorithm(init, step)


def mala(target: Target, transport: AbstractTransport, *, step_size: Any = 0.1) -> SamplingAlgorithm:
    """Metropolis-adjusted Langevin with the straight-through force: z' = z + eps F(z) + sqrt(2 eps) xi.

    Reference: Roberts & Tweedie (1996).

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> transport = tz.flow_transport(target.space, key=jax.random.key(0), num_layers=1, width=4, context_width=2)
    >>> sampler = mala(target, transport)
    >>> state = jax.jit(sampler.init)(jnp.zeros(3, jnp.int32), jax.random.key(1))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(2), state)
    >>> state.position.shape, state.z.shape
    ((3,), (3,))
    """
    return _gradient_kernel(target, transport, lambda f: blackjax.mala(f, step_size), lambda info: 2)


def hmc(
    target: Target, transport: AbstractTransport, *, step_size: Any = 0.1, num_steps: int = 20
) -> SamplingAlgorithm:
    """Hamiltonian Monte Carlo with the straight-through force.

    Jumps at cell borders cap the acceptance whatever the step, so warm-up aims at 0.3 and not at 0.8.

    Reference: Duane et al. (1987); DESIGN section 1 for the surrogate force.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> transport = tz.flow_transport(target.space, key=jax.random.key(0), num_layers=1, width=4, context_width=2)
    >>> sampler = hmc(target, transport)
    >>> state = jax.jit(sampler.init)(jnp.zeros(3, jnp.int32), jax.random.key(1))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(2), state)
    >>> state.position.shape, state.z.shape
    ((3,), (3,))
    """

    def make(logdensity_fn: Callable) -> SamplingAlgorithm:
        return blackjax.hmc(logdensity_fn, step_size, jnp.ones(transport.num_dims), num_steps)

    return _gradient_kernel(target, transport, make, lambda info: 2 * num_steps)


def nuts(
    target: Target, transport: AbstractTransport, *, step_size: Any = 0.1, max_num_doublings: int = 6
) -> SamplingAlgorithm:
    """The no-U-turn sampler with the straight-through force.

    Reference: Hoffman & Gelman (2014).

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> transport = tz.flow_transport(target.space, key=jax.random.key(0), num_layers=1, width=4, context_width=2)
    >>> sampler = nuts(target, transport)
    >>> state = jax.jit(sampler.init)(jnp.zeros(3, jnp.int32), jax.random.key(1))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(2), state)
    >>> state.position.shape, state.z.shape
    ((3,), (3,))
    """

    def make(logdensity_fn: Callable) -> SamplingAlgorithm:
        return blackjax.nuts(
            logdensity_fn, step_size, jnp.ones(transport.num_dims), max_num_doublings=max_num_doublings
        )

    return _gradient_kernel(target, transport, make, lambda info: 2 * info.num_integration_steps)


def _tune(name: str, initial: float, acceptance: float, **options: Any) -> Callable[..., Tuning]:
    def tuning(target: Target, **ignored: Any) -> Tuning:
        return dual_averaging_tuning(name, initial, acceptance, **options)

    return tuning


_spec = partial(SamplerSpec, needs=frozenset({"transport"}))

SPECS: tuple[SamplerSpec, ...] = (
    _spec(
        "latent_random_walk",
        random_walk,
        "random-walk Metropolis in the latent space: the paper's method",
        "Jaini et al. (2021)",
        tuning=_tune("scale", 0.2, 0.3, bounds=(1e-4, 10.0)),
    ),
    _spec(
        "latent_pcn",
        pcn,
        "preconditioned Crank-Nicolson in the latent space",
        "Cotter et al. (2013)",
        tuning=_tune("scale", 0.5, 0.3, transform="logit", bounds=(1e-3, 0.999)),
    ),
    _spec("latent_independence", independence, "independent proposals from the transport", "Tierney (1994)"),
    _spec(
        "latent_elliptical_slice",
        elliptical_slice,
        "elliptical slice in the latent space, nothing to tune",
        "Murray et al. (2010)",
    ),
    _spec(
        "latent_mala",
        mala,
        "Langevin with a straight-through force in the latent space",
        "Roberts & Tweedie (1996)",
        tuning=_tune("step_size", 0.05, 0.4, bounds=(1e-6, 4.0)),
    ),
    _spec(
        "latent_hmc",
        hmc,
        "Hamiltonian Monte Carlo with a straight-through force",
        "Duane et al. (1987)",
        tuning=_tune("step_size", 0.1, 0.3, bounds=(1e-4, 2.0)),
    ),
    _spec(
        "latent_nuts",
        nuts,
        "no-U-turn sampler with a straight-through force",
        "Hoffman & Gelman (2014)",
        tuning=_tune("step_size", 0.1, 0.4, bounds=(1e-4, 2.0)),
    ),
)
