"""Independence Metropolis with proposals from the transport."""

import jax
from jaxtyping import Array

from terrazzo.samplers.parts.base import SamplingAlgorithm
from terrazzo.samplers.parts.latent import latent_log_weight, latent_metropolis
from terrazzo.targets.target import Target
from terrazzo.transports.base import AbstractTransport


def independence(target: Target, transport: AbstractTransport) -> SamplingAlgorithm:
    """Independence Metropolis: z' ~ p, accept min(1, w(z') / w(z)). Nothing to tune.

    Reference: Tierney (1994); Albergo, Kanwar & Shanahan (2019) for flows.

    >>> import terrazzo as tz
    >>> tz.samplers.latent_independence(transport=tz.flow(width=32))
    samplers.latent_independence(transport=flow(width=32))
    """

    def propose(key: Array, z: Array) -> Array:
        return jax.random.normal(key, z.shape, z.dtype)

    return latent_metropolis(target, transport, propose, latent_log_weight)
