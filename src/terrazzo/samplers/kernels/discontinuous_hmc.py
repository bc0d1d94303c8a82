"""Discontinuous Hamiltonian Monte Carlo: Laplace momentum and a coordinate-wise integrator.

theta is embedded as x = theta + u with u uniform in the cell, so U(x) = -log pi(floor x) is piecewise constant.
With kinetic energy sum_i |p_i| the speed of each coordinate is sign(p_i), whatever its energy. One coordinate update is

    x* = x + eps sign(p_i) e_i
    if |p_i| > U(x*) - U(x):   x <- x*,  |p_i| <- |p_i| - (U(x*) - U(x))
    else:                      p_i <- -p_i

It is a bijection that preserves volume and energy exactly, so every trajectory is accepted. Outside the box U is
infinite and the momentum turns back.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import OptionError
from terrazzo.samplers.kernels.gibbs import positive_int, settled, start
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State, Tuning, as_float
from terrazzo.samplers.parts.energy import changed_log_prob, log_change, wall_info
from terrazzo.samplers.parts.tuning import dual_averaging_tuning
from terrazzo.targets.target import Target

TARGET_CROSSING = 0.75
SMALLEST_STEP = 0.75  # in cells: below it, too many updates stay inside their cell (measured on Ising and regression)


def at_wall(
    speed: Float[Array, ""], change: Float[Array, ""], is_inside: Bool[Array, ""]
) -> tuple[Bool[Array, ""], Float[Array, ""]]:
    """Whether a move that changes log pi by `change` is made, and the speed after it (negative: turned back)."""
    is_crossed = is_inside & (speed + change > 0)
    return is_crossed, jnp.where(is_crossed, speed + change, -speed)


def discontinuous_hmc(
    target: Target, *, step_size: Any = 1.0, num_steps: int = 5, jitter: float = 0.2
) -> SamplingAlgorithm:
    """Discontinuous HMC on the uniformly dequantized target.

    Args:
        target: The target. Unordered values are walked through in the order of their codes.
        step_size: The length eps of a coordinate update, in cells; tuned to a crossing rate of 0.75.
        num_steps: Integrator steps per trajectory; each updates every coordinate once, in a fresh random order.
        jitter: Each trajectory uses a step size uniform in (1 - jitter, 1) times `step_size`.

    Returns:
        The sampler; num_steps * d evaluations a step.

    Reference: Nishimura, Dunson, Lu (2020), Discontinuous Hamiltonian Monte Carlo for discrete parameters and
    discontinuous likelihoods, Biometrika 107(2).

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.integers(0, 7, shape=3))
    >>> sampler = discontinuous_hmc(target)
    >>> _, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> int(info.num_evaluations)
    15
    """
    num_steps = positive_int("num_steps", num_steps)
    if not 0 <= jitter < 1:
        raise OptionError("jitter", f"must be at least 0 and below 1, got {jitter!r}", "e.g. jitter=0.2")
    num_dims = target.space.num_dims
    sizes = jnp.asarray(target.space.sizes)
    step_size = as_float(step_size)

    def update(site: Int[Array, ""], carry: tuple, eps: Array) -> tuple:
        state, u, momentum, num_crossed = carry
        speed, direction = jnp.abs(momentum[site]), jnp.sign(momentum[site])
        x = u[site] + eps * direction
        cells = jnp.floor(x)
        value = state.position[site] + cells.astype(jnp.int32)
        is_inside = (value >= 0) & (value < sizes[site])
        inside = jnp.clip(value, 0, sizes[site] - 1)
        log_prob = changed_log_prob(target, state.position, state.log_prob, site, inside)
        change = jnp.where(cells == 0, 0.0, log_change(log_prob, state.log_prob))
        is_crossed, speed = at_wall(speed, change, is_inside)
        state = State(
            jnp.where(is_crossed, state.position.at[site].set(inside), state.position),
            jnp.where(is_crossed & (cells != 0), log_prob, state.log_prob),
        )
        u = u.at[site].set(jnp.where(is_crossed, x - cells, u[site]))
        return state, u, momentum.at[site].set(direction * speed), num_crossed + is_crossed.astype(num_crossed.dtype)

    def step(rng_key: Array, state: State) -> tuple[State, Info]:
        u_key, momentum_key, jitter_key, order_key = jax.random.split(rng_key, 4)
        dtype = step_size.dtype
        u = jax.random.uniform(u_key, (num_dims,), dtype)
        momentum = jax.random.laplace(momentum_key, (num_dims,), dtype)
        eps = step_size * (1.0 - jitter * jax.random.uniform(jitter_key, (), dtype))

        def sweep(key: Array, _: Any, carry: tuple) -> tuple:
            order = randomness.ordered_subset(key, jnp.zeros(num_dims), num_dims)
            return jax.lax.fori_loop(0, num_dims, lambda j, c: update(order[j], c, eps), carry)

        carry = (state, u, momentum, as_float(0.0))
        new, _, _, num_crossed = randomness.loop(order_key, num_steps, sweep, carry)
        num_updates = num_steps * num_dims
        num_evaluations = 1 if target.site_logits_fn is not None else num_updates
        new = settled(target, new)
        return new, wall_info(state, new, num_evaluations, num_crossed / num_updates)

    return SamplingAlgorithm(start(target), step)


def tuning(target: Target, **_: Any) -> Tuning:
    """Finds the step size at which a given share of coordinate updates is not turned back."""
    return dual_averaging_tuning(
        "step_size",
        1.0,
        TARGET_CROSSING,
        bounds=(SMALLEST_STEP, float(max(2, target.space.max_size))),
        statistic=lambda state, info: info.details["crossing_rate"],
    )
