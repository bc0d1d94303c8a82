"""Elliptical slice sampling in the latent space."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from terrazzo.samplers.parts.base import Info, SamplingAlgorithm
from terrazzo.samplers.parts.latent import LatentPoint, LatentState, evaluate, latent_info, latent_log_weight
from terrazzo.targets.target import Target
from terrazzo.transports.base import AbstractTransport, Position


def elliptical_slice(target: Target, transport: AbstractTransport, *, max_shrinks: int = 40) -> SamplingAlgorithm:
    """Elliptical slice sampling on p~ = p w. Nothing to tune.

    The bracket shrinks at most `max_shrinks` times; then the state stays. Each shrinking path is as likely backwards
    as forwards, so the cap keeps the kernel exact, and one extreme weight cannot hold up a whole batch of chains.

    Reference: Murray, Adams & MacKay (2010).

    >>> import terrazzo as tz
    >>> tz.samplers.latent_elliptical_slice(max_shrinks=20)
    samplers.latent_elliptical_slice(max_shrinks=20)
    """

    def init(position: Position, rng_key: Array) -> LatentState:
        point = evaluate(target, transport, transport.lift(rng_key, position))
        return LatentState(point.theta, point.log_prob, point.z, point)

    def step(rng_key: Array, state: LatentState) -> tuple[LatentState, Info]:
        noise_key, level_key, angle_key, shrink_key = jax.random.split(rng_key, 4)
        start: LatentPoint = state.inner
        noise = jax.random.normal(noise_key, start.z.shape, start.z.dtype)
        level = latent_log_weight(start) - jax.random.exponential(level_key, (), start.z.dtype)
        angle = jax.random.uniform(angle_key, (), start.z.dtype, maxval=2.0 * jnp.pi)

        def at(angle: Array) -> LatentPoint:
            return evaluate(target, transport, start.z * jnp.cos(angle) + noise * jnp.sin(angle))

        def is_outside(point: LatentPoint) -> Array:
            weight = latent_log_weight(point)
            return ~(weight > level)  # NaN counts as outside; +inf as inside, to be found by the runner

        def attempt(carry):
            count, low, high, angle, _ = carry
            point = at(angle)
            low, high = jnp.where(angle < 0, angle, low), jnp.where(angle < 0, high, angle)
            next_angle = jax.random.uniform(jax.random.fold_in(shrink_key, count), (), angle.dtype, low, high)
            return count + 1, low, high, next_angle, point

        nowhere = start._replace(log_volume=jnp.full_like(start.log_volume, -jnp.inf))
        carry = (jnp.asarray(0, jnp.int32), angle - 2.0 * jnp.pi, angle, angle, nowhere)
        count, _, _, _, found = jax.lax.while_loop(lambda c: is_outside(c[4]) & (c[0] <= max_shrinks), attempt, carry)
        is_moved = ~is_outside(found)
        point = jax.tree.map(lambda new, old: jnp.where(is_moved, new, old), found, start)
        info = latent_info(is_moved.astype(start.z.dtype) / count.astype(start.z.dtype), is_moved, count)
        return LatentState(point.theta, point.log_prob, point.z, point), info

    return SamplingAlgorithm(init, step)
