"""Planted mistakes in latent kernels, as kernels: one step from exact starts must show each of them."""

import jax
import jax.numpy as jnp
from blackjax.mcmc.random_walk import RWState

from terrazzo.samplers.kernels.latent.elliptical_slice import elliptical_slice
from terrazzo.samplers.kernels.latent.independence import independence
from terrazzo.samplers.parts import latent
from terrazzo.samplers.parts.base import SamplingAlgorithm
from terrazzo.transports import normal


def _metropolis(density, propose, log_ratio):
    """A latent Metropolis kernel written out, with the ratio given."""

    def make(target, transport):
        good = independence(target, transport)

        def init(position, rng_key):
            return good.init(position, rng_key)

        def step(rng_key, state):
            propose_key, accept_key = jax.random.split(rng_key)
            old = state.inner.position
            new = latent.evaluate(target, transport, propose(propose_key, old.z))
            is_accepted = jnp.log(jax.random.uniform(accept_key)) < log_ratio(old, new, density)
            point = jax.tree.map(lambda a, b: jnp.where(is_accepted, a, b), new, old)
            inner = RWState(point, latent.latent_log_weight(point))
            return latent.LatentState(point.theta, point.log_prob, point.z, inner), None

        return SamplingAlgorithm(init, step)

    return make


def _fresh(key, z):
    return jax.random.normal(key, z.shape)


def _walk(key, z):
    return z + 0.7 * jax.random.normal(key, z.shape)


def _ratio(old, new, density):
    return density(new) - density(old)


def _lazy_ellipse(target, transport):
    """Elliptical slice whose level comes from p~ instead of the weight."""
    good = elliptical_slice(target, transport, max_shrinks=6)

    def step(rng_key, state):
        # Shifting the stored log_prob by log p(z) makes the level that of p~.
        wrong = state.inner._replace(log_prob=state.inner.log_prob + 0.3 * normal.log_density(state.z))
        new, info = good.step(rng_key, state._replace(inner=wrong))
        point = latent.evaluate(target, transport, new.z)
        return latent.LatentState(point.theta, point.log_prob, point.z, point), info

    return SamplingAlgorithm(good.init, step)


def _always_accepting_langevin(target, transport):
    """Langevin without the accept/reject step."""
    force = jax.grad(latent.surrogate_logdensity(target, transport))

    def init(position, rng_key):
        point = latent.evaluate(target, transport, transport.lift(rng_key, position))
        return latent.LatentState(point.theta, point.log_prob, point.z, point)

    def step(rng_key, state):
        z = state.z + 0.1 * force(state.z) + jnp.sqrt(0.2) * jax.random.normal(rng_key, state.z.shape)
        point = latent.evaluate(target, transport, z)
        return latent.LatentState(point.theta, point.log_prob, point.z, point), None

    return SamplingAlgorithm(init, step)


KERNEL_MUTANTS = {
    "independence ratio upside down": _metropolis(
        latent.latent_log_weight, _fresh, lambda old, new, w: 2.0 * (w(new) - w(old)) - _ratio(old, new, w) * 3.0
    ),
    "independence without its proposal density": _metropolis(latent.latent_logdensity, _fresh, _ratio),
    "temperature 1.1": _metropolis(latent.latent_logdensity, _walk, lambda a, b, f: _ratio(a, b, f) / 1.1),
    "random walk without the volume": _metropolis(lambda p: p.log_prob, _walk, _ratio),
    "pCN that does not keep the Gaussian": _metropolis(
        latent.latent_log_weight, lambda key, z: 0.5 * z + 0.5 * jax.random.normal(key, z.shape), _ratio
    ),
    "always accepted": _metropolis(latent.latent_logdensity, _walk, lambda a, b, f: jnp.zeros(())),
    "elliptical slice at the wrong level": _lazy_ellipse,
    "Langevin without correction": _always_accepting_langevin,
}
