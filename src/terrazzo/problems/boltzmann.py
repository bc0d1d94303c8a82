"""Restricted Boltzmann machines with the hidden units summed out.

    log pi(v) = b'v + sum_j log(1 + exp(c_j + W_j'v)),    v in {0, 1}^d

Given the visible units the hidden ones are independent, and the other way round, so log Z is a sum over the states of
whichever side is smaller.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import logsumexp

from terrazzo.errors import arguments
from terrazzo.problems.base import Problem
from terrazzo.spaces import binary
from terrazzo.targets.target import Target

MAX_SUMMED = 16


class VisibleUnits(eqx.Module):
    """The free energy of the visible units, with its sign changed."""

    weights: Float[Array, "hidden dim"]
    visible_bias: Float[Array, " dim"]
    hidden_bias: Float[Array, " hidden"]

    def __init__(self, weights: Any, visible_bias: Any, hidden_bias: Any):
        arrays = (jnp.asarray(a, jnp.result_type(float)) for a in (weights, visible_bias, hidden_bias))
        self.weights, self.visible_bias, self.hidden_bias = arrays

    def __call__(self, theta: Any) -> Float[Array, ""]:
        units = theta.astype(self.visible_bias.dtype)
        return jnp.dot(self.visible_bias, units) + jnp.sum(jax.nn.softplus(self.hidden_bias + self.weights @ units))


def boltzmann_log_z(weights: np.ndarray, visible_bias: np.ndarray, hidden_bias: np.ndarray) -> float:
    """Log Z by a sum over the smaller side.

    >>> round(boltzmann_log_z(np.zeros((2, 3)), np.zeros(3), np.zeros(2)) / np.log(2), 9).item()
    5.0
    """
    if weights.shape[0] > weights.shape[1]:
        return boltzmann_log_z(weights.T, hidden_bias, visible_bias)
    num_hidden = weights.shape[0]
    hidden = np.stack(np.unravel_index(np.arange(2**num_hidden), (2,) * num_hidden), axis=1)
    return float(logsumexp(hidden @ hidden_bias + np.logaddexp(0, visible_bias + hidden @ weights).sum(axis=1)))


def boltzmann_machine(num_visible: int = 64, num_hidden: int = 12, scale: float = 1.0, seed: int = 0) -> Problem:
    """A restricted Boltzmann machine with random weights; about one mode for each few hidden units.

    Args:
        num_visible: d.
        num_hidden: Hidden units, summed out.
        scale: The sd of the input of a unit; larger means more separate modes.
        seed: Decides the weights.

    Reference: Smolensky (1986); Hinton (2002), Training products of experts.

    >>> boltzmann_machine(6, 3).log_z > 0
    True
    """
    for name, value in (("num_visible", num_visible), ("num_hidden", num_hidden)):
        arguments.count(name, value, high=2**20)
    scale = arguments.finite("scale", scale)
    rng = np.random.default_rng(arguments.seed_number(seed))
    weights = rng.normal(size=(num_hidden, num_visible)) * scale * 2 / np.sqrt(max(num_hidden, num_visible))
    visible_bias = -weights.sum(axis=0) / 2 + 0.1 * scale * rng.normal(size=num_visible)
    hidden_bias = -weights.sum(axis=1) / 2 + 0.1 * scale * rng.normal(size=num_hidden)
    target = Target(VisibleUnits(weights, visible_bias, hidden_bias), binary(num_visible))
    is_summed = min(num_visible, num_hidden) <= MAX_SUMMED
    log_z = boltzmann_log_z(weights, visible_bias, hidden_bias) if is_summed else None
    summary = f"restricted Boltzmann machine, {num_visible} visible and {num_hidden} hidden units"
    return Problem(f"boltzmann_{num_visible}", target=target, summary=summary, reference="Hinton (2002)", log_z=log_z)
