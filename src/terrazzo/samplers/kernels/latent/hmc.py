"""Hamiltonian Monte Carlo in the latent space."""

from collections.abc import Callable
from typing import Any

import blackjax
import jax.numpy as jnp

from terrazzo.samplers.parts.base import SamplingAlgorithm
from terrazzo.samplers.parts.latent import gradient_kernel
from terrazzo.samplers.parts.tuning import dual_averaging_tuning, for_any_target
from terrazzo.targets.target import Target
from terrazzo.transports.base import AbstractTransport


def hmc(
    target: Target, transport: AbstractTransport, *, step_size: Any = 0.1, num_steps: int = 20
) -> SamplingAlgorithm:
    """Hamiltonian Monte Carlo with the straight-through force.

    Jumps at cell borders cap the acceptance whatever the step, so warm-up aims at 0.3 and not at 0.8.

    Reference: Duane et al. (1987); docs/theory.md, section 1 for the surrogate force.

    >>> import terrazzo as tz
    >>> tz.samplers.latent_hmc(num_steps=10)
    samplers.latent_hmc(num_steps=10)
    """

    def make(logdensity_fn: Callable) -> SamplingAlgorithm:
        return blackjax.hmc(logdensity_fn, step_size, jnp.ones(transport.num_dims), num_steps)

    return gradient_kernel(target, transport, make, lambda info: 2 * num_steps)


tuning = for_any_target(dual_averaging_tuning("step_size", 0.1, 0.3, bounds=(1e-4, 2.0)))
