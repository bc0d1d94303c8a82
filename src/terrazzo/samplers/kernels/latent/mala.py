"""Metropolis-adjusted Langevin in the latent space."""

from typing import Any

import blackjax

from terrazzo.samplers.parts.base import SamplingAlgorithm, Tuning
from terrazzo.samplers.parts.latent import gradient_kernel
from terrazzo.samplers.parts.tuning import dual_averaging_tuning
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


def tuning(target: Target, **ignored: Any) -> Tuning:
    """The rule that finds `step_size` in warm-up."""
    return dual_averaging_tuning("step_size", 0.05, 0.4, bounds=(1e-6, 4.0))
