"""Preconditioned Crank-Nicolson in the latent space."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from terrazzo.samplers.parts.base import SamplingAlgorithm, as_float
from terrazzo.samplers.parts.latent import latent_log_weight, latent_metropolis
from terrazzo.samplers.parts.tuning import dual_averaging_tuning, for_any_target
from terrazzo.targets.target import Target
from terrazzo.transports.base import AbstractTransport


def pcn(target: Target, transport: AbstractTransport, *, scale: Any = 0.5) -> SamplingAlgorithm:
    """Preconditioned Crank-Nicolson: z' = sqrt(1 - s^2) z + s xi, accept min(1, w(z') / w(z)).

    The proposal is reversible with respect to the Gaussian p, so only the weight w = p~ / p decides.

    Args:
        target: The target.
        transport: The transport.
        scale: s in (0, 1]; 1 is the independence sampler. Tuned in warm-up.

    Reference: Cotter, Roberts, Stuart & White (2013).

    >>> import terrazzo as tz
    >>> tz.samplers.latent_pcn(scale=0.3)
    samplers.latent_pcn(scale=0.3)
    """

    def propose(key: Array, z: Array) -> Array:
        noise = jax.random.normal(key, z.shape, z.dtype)
        return jnp.sqrt(1.0 - as_float(scale) ** 2) * z + scale * noise

    return latent_metropolis(target, transport, propose, latent_log_weight)


tuning = for_any_target(dual_averaging_tuning("scale", 0.5, 0.3, transform="logit", bounds=(1e-3, 0.999)))
