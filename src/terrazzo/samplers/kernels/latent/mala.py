"""Metropolis-adjusted Langevin in the latent space."""

from typing import Any

import blackjax

from terrazzo.samplers.parts.base import SamplingAlgorithm
from terrazzo.samplers.parts.latent import gradient_kernel
from terrazzo.samplers.parts.tuning import dual_averaging_tuning, for_any_target
from terrazzo.targets.target import Target
from terrazzo.transports.base import AbstractTransport


def mala(target: Target, transport: AbstractTransport, *, step_size: Any = 0.1) -> SamplingAlgorithm:
    """Metropolis-adjusted Langevin with the straight-through force: z' = z + eps F(z) + sqrt(2 eps) xi.

    Reference: Roberts & Tweedie (1996).

    >>> import terrazzo as tz
    >>> tz.samplers.latent_mala(step_size=0.05)
    samplers.latent_mala(step_size=0.05)
    """
    return gradient_kernel(target, transport, lambda f: blackjax.mala(f, step_size), lambda info: 2)


tuning = for_any_target(dual_averaging_tuning("step_size", 0.05, 0.4, bounds=(1e-6, 4.0)))
