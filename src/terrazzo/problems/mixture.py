"""Gaussian mixtures on a grid: the paper's first experiment (2-D, 5 components, 6 bits a coordinate).

The answers are exact:

log pi(theta) = log sum_c weight_c N(x(theta); mean_c, Sigma_c),    x = the centre of cell theta of a grid on [-1, 1]^2.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Num

from terrazzo.errors import arguments
from terrazzo.spaces import Space, integers
from terrazzo.targets.target import Target

NUM_TARGETS = 4


class Mixture(eqx.Module):
    """The log-density of a Gaussian mixture at the centres of grid cells."""

    means: Float[Array, "component 2"]
    precisions: Float[Array, "component 2 2"]
    log_weights: Float[Array, " component"]
    num_bits: int = eqx.field(static=True)

    def __call__(self, theta: Num[Array, " 2"]) -> Float[Array, ""]:
        real = theta.astype(self.means.dtype)
        x = (2.0 * real + 1.0) / 2**self.num_bits - 1.0
        shift = x - self.means
        squares = jnp.einsum("ci,cij,cj->c", shift, self.precisions, shift)
        log_dets = 0.5 * jnp.log(
            self.precisions[:, 0, 0] * self.precisions[:, 1, 1] - self.precisions[:, 0, 1] * self.precisions[:, 1, 0]
        )
        return logsumexp(self.log_weights + log_dets - 0.5 * squares)


def _components(index: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Means, covariances and weights of the four shapes: ring, row of stripes, cross, scattered."""
    angle = 2 * np.pi * np.arange(5) / 5 + np.pi / 2
    if index == 0:
        means = 0.6 * np.stack([np.cos(angle), np.sin(angle)], 1)
        covariances = np.tile(np.eye(2) * 0.012, (5, 1, 1))
        weights = np.ones(5)
    elif index == 1:
        means = np.stack([np.linspace(-0.7, 0.7, 5), np.zeros(5)], 1)
        covariances = np.tile(np.diag([0.004, 0.09]), (5, 1, 1))
        weights = np.array([1.0, 2.0, 3.0, 2.0, 1.0])
    elif index == 2:
        means = np.array([[0.0, 0.0], [0.55, 0.55], [-0.55, 0.55], [-0.55, -0.55], [0.55, -0.55]])
        covariances = np.stack(
            [np.eye(2) * 0.02] + [np.array([[0.03, s * 0.024], [s * 0.024, 0.03]]) for s in (1, -1, 1, -1)]
        )
        weights = np.array([2.0, 1.0, 1.0, 1.0, 1.0])
    else:
        rng = np.random.default_rng(2021)
        means = rng.uniform(-0.65, 0.65, (5, 2))
        factors = rng.normal(size=(5, 2, 2)) * 0.1
        covariances = factors @ np.swapaxes(factors, 1, 2) + np.eye(2) * 0.006
        weights = rng.uniform(0.5, 1.5, 5)
    return means, covariances, weights / weights.sum()


def mixture(index: int = 0, *, num_bits: int = 6) -> Target:
    """One of four discretised Gaussian mixtures with 5 components in two dimensions.

    Args:
        index: Which one: 0 (ring), 1 (stripes), 2 (cross), 3 (scattered).
        num_bits: Bits per coordinate; 6 in the paper.

    >>> mixture(0).space.num_states
    4096
    """
    index = arguments.count("index", index, low=0, high=NUM_TARGETS - 1, remedy="0 to 3: there are four mixtures")
    num_bits = arguments.count("num_bits", num_bits, high=16)
    means, covariances, weights = _components(index)
    space = Space(integers(0, 2**num_bits - 1, 2))
    dtype = jnp.result_type(float)
    precisions = jnp.asarray(np.linalg.inv(covariances), dtype)
    log_prob = Mixture(jnp.asarray(means, dtype), precisions, jnp.asarray(np.log(weights), dtype), num_bits)
    return Target(log_prob, space)


def exact_probabilities(target: Target) -> np.ndarray:
    """Pi of every state of a small space, normalised, in the order of `Space.enumerate`."""
    states = jnp.asarray(target.space.enumerate())
    log_prob = np.asarray(jax.jit(jax.vmap(target.log_prob))(states), float)
    weights = np.exp(log_prob - log_prob.max())
    return weights / weights.sum()


def nearest_component(target: Target, theta: np.ndarray) -> np.ndarray:
    """The component with the highest responsibility for each configuration, (..., 2) -> (...)."""
    fn = target.log_prob_fn
    x = (2.0 * np.asarray(theta, float) + 1.0) / 2**fn.num_bits - 1.0
    shift = x[..., None, :] - np.asarray(fn.means, float)
    precisions = np.asarray(fn.precisions, float)
    scores = -0.5 * np.einsum("...ci,cij,...cj->...c", shift, precisions, shift)
    scores += np.asarray(fn.log_weights, float) + 0.5 * np.log(np.linalg.det(precisions))
    return scores.argmax(-1)
