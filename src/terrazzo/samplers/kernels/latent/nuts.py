"""The no-U-turn sampler in the latent space."""

from collections.abc import Callable
from typing import Any

import blackjax
import jax.numpy as jnp

from terrazzo.samplers.parts.base import SamplingAlgorithm
from terrazzo.samplers.parts.latent import gradient_kernel
from terrazzo.samplers.parts.tuning import dual_averaging_tuning, for_any_target
from terrazzo.targets.target import Target
from terrazzo.transports.base import AbstractTransport


def nuts(
    target: Target, transport: AbstractTransport, *, step_size: Any = 0.1, max_num_doublings: int = 6
) -> SamplingAlgorithm:
    """The no-U-turn sampler with the straight-through force.

    Reference: Hoffman & Gelman (2014).

    >>> import terrazzo as tz
    >>> tz.samplers.latent_nuts(max_num_doublings=5)
    samplers.latent_nuts(max_num_doublings=5)
    """

    def make(logdensity_fn: Callable) -> SamplingAlgorithm:
        return blackjax.nuts(
            logdensity_fn, step_size, jnp.ones(transport.num_dims), max_num_doublings=max_num_doublings
        )

    return gradient_kernel(target, transport, make, lambda info: 2 * info.num_integration_steps)


tuning = for_any_target(dual_averaging_tuning("step_size", 0.1, 0.4, bounds=(1e-4, 2.0)))
