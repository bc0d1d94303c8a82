"""Hamiltonian Monte Carlo for pairwise binary models through the Gaussian integral trick.

For log pi(s) = a's + s'Ws / 2 with s in {0, 1}^d and a diagonal D with M = W + D = L L' positive semi-definite, add
v | s ~ N(L's, I). Since s_i^2 = s_i the quadratic term cancels:

    log p(v)     = -|v|^2 / 2 + sum_i log(1 + exp(b_i + (L v)_i)),     b = a - diag(D) / 2
    s_i | v      ~ Bernoulli(sigmoid(b_i + (L v)_i)),  independently.

A step draws v | s, moves v by HMC (its gradient -v + L' sigmoid(b + L v) is exact), and draws s | v. We take
D = -lambda_min(W) I, the least that makes M semi-definite; in these whitened coordinates M needs no inverse.
"""

from typing import Any

import blackjax
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from terrazzo.samplers.kernels.binary_hmc import check_binary
from terrazzo.samplers.kernels.gibbs import positive_int, start
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State, as_float
from terrazzo.samplers.parts.pairwise import (
    Pairwise,
    binary_form,
    check_pairwise,
    checked_terms,
    fields_of_base,
    inverse_temperature,
    pairwise_terms,
)
from terrazzo.samplers.parts.tuning import dual_averaging_tuning, for_any_target
from terrazzo.targets.target import Target

TARGET_ACCEPTANCE = 0.8
JITTER = 0.2


def check(target: Target) -> None:
    """Raises unless the target is binary and pairwise."""
    check_binary(target)
    check_pairwise(target)


def prepare(target: Target, *, terms: Any = None, **options: Any) -> dict[str, Any]:
    """Finds and verifies the terms on the host, once, so that the factory can be called inside compiled code."""
    return {**options, "terms": checked_terms(target, terms)}


def square_root(couplings: Float[Array, "dim dim"]) -> tuple[Float[Array, "dim dim"], Float[Array, ""]]:
    """(L, shift) with W + shift I = L L', shift = -lambda_min(W)."""
    values, vectors = jnp.linalg.eigh(couplings)
    return vectors * jnp.sqrt(jnp.maximum(values - values[0], 0.0)), -values[0]


def draw_auxiliary(key: Array, root: Float[Array, "dim dim"], spins: Float[Array, " dim"]) -> Float[Array, " dim"]:
    """v | s ~ N(L's, I)."""
    return jnp.matmul(spins, root, precision="highest") + jax.random.normal(key, spins.shape, spins.dtype)


def gaussian_integral_hmc(
    target: Target, *, step_size: Any = 0.5, num_steps: int = 10, terms: Pairwise | None = None
) -> SamplingAlgorithm:
    """HMC on the Gaussian augmentation of a pairwise binary target.

    Args:
        target: A pairwise binary target (Ising, Boltzmann machine, QUBO).
        step_size: The leapfrog step in whitened coordinates; tuned to an acceptance of 0.8.
        num_steps: Leapfrog steps.
        terms: Its fields and couplings; found and verified if None.

    Returns:
        The sampler. One evaluation a step, for log pi itself; the gradients are matrix products.

    Reference: Zhang, Sutton, Storkey, Ghahramani (2012), Continuous relaxations for discrete Hamiltonian Monte Carlo,
    NeurIPS; the augmentation is that of Martens & Sutskever (2010).

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda s: s[0] * s[1] - 0.5 * s[2] * s[0], tz.binary(3))
    >>> sampler = gaussian_integral_hmc(target)
    >>> _, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> int(info.num_evaluations)
    1
    """
    check_binary(target)
    num_steps = positive_int("num_steps", num_steps)
    beta = inverse_temperature(target)
    bias, couplings = binary_form(pairwise_terms(target) if terms is None else terms)
    root, shift = square_root(couplings.astype(beta.dtype))
    root = jnp.sqrt(beta) * root
    offset = beta * (bias.astype(beta.dtype) - shift / 2)
    of_base = fields_of_base(target)
    offset = offset if of_base is None else offset + of_base[:, 1] - of_base[:, 0]
    num_dims = target.space.num_dims
    step_size = as_float(step_size)

    def logits(v: Float[Array, " dim"]) -> Float[Array, " dim"]:
        return offset + jnp.matmul(root, v, precision="highest")

    def logdensity_fn(v: Float[Array, " dim"]) -> Float[Array, ""]:
        return -jnp.sum(v**2) / 2 + jnp.sum(jax.nn.softplus(logits(v)))

    def step(rng_key: Array, state: State) -> tuple[State, Info]:
        noise_key, jitter_key, move_key, spin_key = jax.random.split(rng_key, 4)
        v = draw_auxiliary(noise_key, root, state.position.astype(beta.dtype))
        eps = step_size * (1.0 - JITTER * jax.random.uniform(jitter_key, (), beta.dtype))
        hmc = blackjax.hmc(logdensity_fn, eps, jnp.ones(num_dims, beta.dtype), num_steps)
        moved, info = hmc.step(move_key, hmc.init(v))
        log_odds = logits(moved.position)
        position = randomness.bernoulli_rows(spin_key, jax.nn.log_sigmoid(log_odds)).astype(jnp.int32)
        is_moved = jnp.any(position != state.position)
        acceptance_rate = as_float(jnp.where(jnp.isnan(info.acceptance_rate), 0.0, info.acceptance_rate))
        out = Info(acceptance_rate, is_moved, jnp.asarray(1, jnp.int32))
        return State(position, target.log_prob(position)), out

    return SamplingAlgorithm(start(target), step)


tuning = for_any_target(dual_averaging_tuning("step_size", 0.3, TARGET_ACCEPTANCE, bounds=(1e-4, 2.0)))
