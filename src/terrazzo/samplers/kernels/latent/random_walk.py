"""Random-walk Metropolis in the latent space: the paper's method."""

from typing import Any

import jax
from jaxtyping import Array

from terrazzo.samplers.parts.base import SamplingAlgorithm
from terrazzo.samplers.parts.latent import latent_logdensity, latent_metropolis
from terrazzo.samplers.parts.tuning import dual_averaging_tuning, for_any_target
from terrazzo.targets.target import Target
from terrazzo.transports.base import AbstractTransport


def random_walk(target: Target, transport: AbstractTransport, *, scale: Any = 0.1) -> SamplingAlgorithm:
    """Random-walk Metropolis in the latent space (the paper): z' = z + scale xi, accept min(1, p~(z') / p~(z)).

    Args:
        target: The target.
        transport: The transport.
        scale: Standard deviation of the step; tuned in warm-up.

    Reference: Jaini, Nielsen & Welling (2021).

    >>> import terrazzo as tz
    >>> tz.samplers.latent_random_walk(scale=0.3)
    samplers.latent_random_walk(scale=0.3)
    """

    def propose(key: Array, z: Array) -> Array:
        return z + scale * jax.random.normal(key, z.shape, z.dtype)

    return latent_metropolis(target, transport, propose, latent_logdensity)


tuning = for_any_target(dual_averaging_tuning("scale", 0.2, 0.3, bounds=(1e-4, 10.0)))
