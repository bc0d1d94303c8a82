"""Exact Hamiltonian Monte Carlo for binary variables: continuous motion, jumps in energy at the walls.

Each theta_i is the sign of a real y_i with a smooth density on either side:

    gaussian:     y | theta half-normal,     U(y) = |y|^2 / 2 - log pi(theta),    y_i swings with period 2 pi
    exponential:  y | theta exponential,     U(y) = |y|_1     - log pi(theta),    y_i flies as a ball under gravity

Between walls the motion is known in closed form. At the wall y_i = 0 with kinetic energy e_i, flipping theta_i changes
log pi by `change`: if e_i + change > 0 the particle crosses and e_i grows by `change`, else it bounces. Energy is
conserved exactly and every trajectory is accepted. y and p are redrawn from their exact law at each step, which
leaves only what matters of them: in the Gaussian case the first hits are uniform in (0, pi), then come every pi, and
e_i ~ Exp(1).
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.samplers.kernels.gibbs import positive_int, settled, start
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State, as_float
from terrazzo.samplers.parts.energy import changed_log_prob, log_change, wall_info
from terrazzo.targets.target import Target

AUGMENTATIONS = ("gaussian", "exponential")
MAX_HITS_PER_SITE = 1000  # exponential only: a ball of no energy would bounce forever (probability below 1e-9)


def check_binary(target: Target) -> None:
    """Raises unless every coordinate has two values."""
    if not target.space.is_binary:
        raise UnsupportedError(
            "target",
            f"has a coordinate with {target.space.max_size} values",
            "this sampler is for binary variables only",
        )


def hit_wall(target: Target, site: Int[Array, ""], state: State, energy: Float[Array, " dim"]) -> tuple:
    """Coordinate `site` is at its wall: it crosses and flips if its energy pays for the change, else it bounces."""
    flipped = 1 - state.position[site]
    log_prob = changed_log_prob(target, state.position, state.log_prob, site, flipped)
    change = log_change(log_prob, state.log_prob)
    is_crossed = energy[site] + change > 0
    new = State(
        jnp.where(is_crossed, state.position.at[site].set(flipped), state.position),
        jnp.where(is_crossed, log_prob, state.log_prob),
    )
    return new, energy.at[site].add(jnp.where(is_crossed, change, 0.0)), is_crossed


def _gaussian_trajectory(key: Array, target: Target, state: State, num_sweeps: int) -> tuple:
    num_dims = target.space.num_dims
    time_key, energy_key = jax.random.split(key)
    dtype = jnp.result_type(float)
    first_hit = jax.random.uniform(time_key, (num_dims,), dtype, 0.0, np.pi)
    energy = jax.random.exponential(energy_key, (num_dims,), dtype)
    order = jnp.argsort(first_hit).astype(jnp.int32)
    # within (num_sweeps + 1/2) pi every coordinate hits num_sweeps times, and once more if it hits before pi / 2
    num_hits = num_sweeps * num_dims + jnp.sum(first_hit < np.pi / 2).astype(jnp.int32)

    def body(j: Array, carry: tuple) -> tuple:
        state, energy, num_crossed = carry
        state, energy, is_crossed = hit_wall(target, order[j % num_dims], state, energy)
        return state, energy, num_crossed + is_crossed.astype(jnp.int32)

    zero = jnp.zeros((), jnp.int32)
    state, _, num_crossed = jax.lax.fori_loop(zero, num_hits, body, (state, energy, zero))
    return state, num_hits, num_crossed


def _exponential_trajectory(key: Array, target: Target, state: State, num_sweeps: int) -> tuple:
    num_dims = target.space.num_dims
    height_key, speed_key = jax.random.split(key)
    dtype = jnp.result_type(float)
    height = jax.random.exponential(height_key, (num_dims,), dtype)
    speed = jax.random.normal(speed_key, (num_dims,), dtype)
    energy = height + speed**2 / 2
    next_hit = speed + jnp.sqrt(2 * energy)
    travel_time = (num_sweeps + 0.5) * np.pi

    def is_flying(carry: tuple) -> Array:
        return (carry[2].min() < travel_time) & (carry[3] < MAX_HITS_PER_SITE * num_dims)

    def body(carry: tuple) -> tuple:
        state, energy, next_hit, num_hits, num_crossed = carry
        site = jnp.argmin(next_hit).astype(jnp.int32)
        state, energy, is_crossed = hit_wall(target, site, state, energy)
        next_hit = next_hit.at[site].add(2 * jnp.sqrt(2 * energy[site]))
        return state, energy, next_hit, num_hits + 1, num_crossed + is_crossed.astype(jnp.int32)

    zero = jnp.zeros((), jnp.int32)
    state, _, _, num_hits, num_crossed = jax.lax.while_loop(is_flying, body, (state, energy, next_hit, zero, zero))
    return state, num_hits, num_crossed


def binary_hmc(target: Target, *, augmentation: str = "gaussian", num_sweeps: int = 1) -> SamplingAlgorithm:
    """Exact Hamiltonian Monte Carlo on binary variables; nothing to tune.

    Args:
        target: A target whose coordinates all have two values.
        augmentation: "gaussian" (all walls are hit equally often) or "exponential" (energetic coordinates less often).
        num_sweeps: The travel time is (num_sweeps + 1/2) pi: each coordinate hits its wall about that often.

    Returns:
        The sampler; one evaluation a hit.

    Reference: Pakman & Paninski (2013), Auxiliary-variable exact Hamiltonian Monte Carlo samplers for binary
    distributions, NeurIPS.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(4))
    >>> sampler = binary_hmc(target)
    >>> _, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(4, jnp.int32)))
    >>> 4 <= int(info.num_evaluations) <= 8
    True
    """
    check_binary(target)
    num_sweeps = positive_int("num_sweeps", num_sweeps)
    if augmentation not in AUGMENTATIONS:
        raise OptionError("augmentation", f"{augmentation!r} is unknown", f"one of {', '.join(AUGMENTATIONS)}")
    trajectory = _gaussian_trajectory if augmentation == "gaussian" else _exponential_trajectory

    def step(rng_key: Array, state: State) -> tuple[State, Info]:
        new, num_hits, num_crossed = trajectory(rng_key, target, state, num_sweeps)
        crossing_rate = num_crossed.astype(as_float(0.0).dtype) / jnp.maximum(num_hits, 1).astype(as_float(0.0).dtype)
        num_evaluations: Any = num_hits if target.site_logits_fn is None else 1
        new = settled(target, new)
        return new, wall_info(state, new, num_evaluations, crossing_rate)

    return SamplingAlgorithm(start(target), step)
