"""The hybrid on mixed spaces: a joint jump of theta and the reals through the transport, then local moves of both.

    (theta', y') ~ q,   accept with probability min(1, w(theta', y') / w(theta, y)),   w = pi(theta, x(y)) |dx / dy| / q

where x(y) are the reals in the user's scale. By the law of transports on mixed spaces (docs/theory.md) the jump leaves
the joint law invariant; the local moves are those of `blocked`. A transport whose dequantizer is not exact moves from a
fresh lift, as on discrete spaces.

Where theta can be summed out, the transport may be one of the reals alone. The jump is then by the marginal density

    w(y) = sum_theta pi(theta, x(y)) |dx / dy| / q(y),

and the local move is that of `collapsed`, which draws theta given the reals afresh.
"""

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from terrazzo.errors import OptionError
from terrazzo.samplers.kernels import blocked as _blocked
from terrazzo.samplers.kernels import collapsed as _collapsed
from terrazzo.samplers.kernels.gibbs import positive_int
from terrazzo.samplers.kernels.hybrid import latent_kernel
from terrazzo.samplers.parts.base import BoundSampler, Info, SamplerSpec, SamplingAlgorithm, Tuning, as_float, select
from terrazzo.samplers.parts.real_moves import MAX_DOUBLINGS, MixedState
from terrazzo.spaces import Configuration
from terrazzo.spaces import real as real_variable
from terrazzo.targets.target import Target
from terrazzo.transports import normal
from terrazzo.transports.base import AbstractTransport


def joint_log_weight(target: Target, transport: Any, position: Configuration) -> Float[Array, ""]:
    """log w of a configuration, for a transport whose weight depends on it alone."""
    return target.log_density(position.theta, position.reals) - transport.log_prob(position)


def jumped(
    key: Array, target: Target, transport: Any, start: Configuration, *, move: str, scale: Any
) -> tuple[Configuration, Array, Array]:
    """A configuration after one jump, its acceptance probability, and the evaluations that it took."""
    draw_key, accept_key = jax.random.split(key)
    if move != "independence" or not transport.has_exact_dequantizer:
        algorithm = latent_kernel(target, transport, move, scale)
        state = algorithm.init(start, draw_key)
        is_lifted = jnp.all(state.position.theta == start.theta) & jnp.all(jnp.isfinite(state.z))
        new, info = algorithm.step(accept_key, state)
        is_moved = is_lifted & jnp.asarray(info.is_accepted)
        rate = jnp.where(is_lifted, as_float(info.acceptance_rate), 0.0)
        return select(is_moved, new.position, start), rate, info.num_evaluations + 1
    z = jax.random.normal(draw_key, (transport.num_dims,))
    new, log_volume = transport.push(z)
    log_weight = target.log_density(new.theta, new.reals) + log_volume - normal.log_density(z)
    log_ratio = log_weight - joint_log_weight(target, transport, start)
    log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
    is_moved = -jax.random.exponential(accept_key, (), log_ratio.dtype) < log_ratio
    return select(is_moved, new, start), jnp.exp(jnp.minimum(log_ratio, 0.0)), jnp.asarray(2, jnp.int32)


def mixed_hybrid(
    target: Target,
    transport: AbstractTransport | None,
    *,
    local: Any = "auto",
    local_options: Any = None,
    num_local: int = 1,
    move: str = "independence",
    scale: Any = 0.5,
    num_rounds: int = 1,
    real: Any = "auto",
    step_size: Any = 0.1,
    inverse_mass_matrix: Any = None,
    max_doublings: int = MAX_DOUBLINGS,
    conditionals: Any = None,
    summation: Any = None,
    marginal: Target | None = None,
) -> SamplingAlgorithm:
    """A joint jump through the transport, then `num_local` steps of `blocked`; `num_rounds` times.

    Args:
        target: A target with real variables.
        transport: A transport of its space; of the reals alone, where there is a `marginal`.
        local: The discrete kernel at fixed reals, as `blocked(discrete=...)` takes it; or `tz.samplers.blocked(...)`.
        local_options: Further options of the discrete kernel.
        num_local: How many local steps go with one jump.
        move: "independence", "pcn" or "elliptical_slice".
        scale: The scale of pCN.
        num_rounds: Rounds a step.
        real: The kernel of the reals at fixed theta: "nuts", "hmc", "mala" or "random_walk".
        step_size: Its step size; tuned in warm-up.
        inverse_mass_matrix: The variances of the unconstrained reals; tuned in warm-up.
        max_doublings: The longest trajectory of NUTS, in doublings.
        conditionals: As `prepare` reads them.
        summation: How to sum out theta, where the transport is one of the reals alone.
        marginal: The density of the unconstrained reals by that sum (`marginal_target`).

    >>> import terrazzo as tz
    >>> space = tz.Space(k=tz.binary(), x=tz.real())
    >>> target = tz.Target(lambda v: -0.5 * (v["x"] - 2.0 * v["k"]) ** 2, space)
    >>> transport = tz.transports.autoregressive_transport(space, key=jax.random.key(0), width=8)
    >>> sampler = mixed_hybrid(target, transport)
    >>> state = sampler.init(Configuration(jnp.zeros(1, jnp.int32), jnp.zeros(1)))
    >>> jax.jit(sampler.step)(jax.random.key(1), state)[0].reals.shape
    (1,)

    Reference: Gabrie, Rotskoff & Vanden-Eijnden (2022), PNAS 119.
    """
    if transport is None:
        raise OptionError("transport", "is missing", "sampler='blocked' makes local moves alone")
    num_local, num_rounds = positive_int("num_local", num_local), positive_int("num_rounds", num_rounds)
    moves = {
        "real": real, "scale": step_size, "inverse_mass_matrix": inverse_mass_matrix, "max_doublings": max_doublings,
    }  # fmt: skip
    if marginal is None:
        local_sampler = _blocked.blocked(
            target, discrete=local, discrete_options=local_options, conditionals=conditionals, **moves
        )
    else:
        local_sampler = _collapsed.collapsed(target, summation=summation, **moves)

    def jump(key: Array, start: Configuration) -> tuple[Configuration, Array, Array]:
        if marginal is None:
            return jumped(key, target, transport, start, move=move, scale=scale)
        reals = start._replace(theta=start.theta[:0])
        found, rate, count = jumped(key, marginal, transport, reals, move=move, scale=scale)
        return found._replace(theta=start.theta), rate, count  # the local move draws theta given the reals

    def play(state: MixedState, key: Array) -> tuple[MixedState, Info]:
        jump_key, walk_key = jax.random.split(key)
        walk_keys = jax.random.split(walk_key, num_local)
        start = Configuration(state.position, state.reals)
        found, rate, count = jump(jump_key, start)
        new, local = jax.lax.scan(lambda s, k: local_sampler.step(k, s), local_sampler.init(found), walk_keys)
        is_accepted = jnp.any(new.position != state.position) | jnp.any(new.reals != state.reals)
        evaluations = jnp.sum(local.num_evaluations, dtype=jnp.int32) + count + 1  # one for log pi after the jump
        details = {**_pooled(local.details), "global_acceptance_rate": as_float(rate)}
        return new, Info(jnp.mean(local.acceptance_rate), is_accepted, evaluations, details)

    def step(rng_key: Array, state: MixedState) -> tuple[MixedState, Info]:
        state, rounds = jax.lax.scan(play, state, jax.random.split(rng_key, num_rounds))
        evaluations = jnp.sum(rounds.num_evaluations, dtype=jnp.int32)
        details = {
            **_pooled(rounds.details),
            "global_acceptance_rate": jnp.mean(rounds.details["global_acceptance_rate"]),
        }
        return state, Info(jnp.mean(rounds.acceptance_rate), jnp.any(rounds.is_accepted), evaluations, details)

    return SamplingAlgorithm(local_sampler.init, step)


def _pooled(details: dict[str, Array]) -> dict[str, Array]:
    """What several moves of the reals report, as one: whether any diverged, and all their leapfrog steps."""
    return {
        "is_divergent": jnp.any(details["is_divergent"]),
        "num_leapfrogs": jnp.sum(details["num_leapfrogs"], dtype=jnp.int32),
    }


def marginal_target(target: Target, summation: Any) -> Target:
    """The density of the unconstrained reals, theta summed out, as a target of its own; log Z is the same.

    >>> import terrazzo as tz
    >>> space = tz.Space(k=tz.binary(), x=tz.real(low=0.0))
    >>> target = tz.Target(lambda v: -v["x"] * (1.0 + v["k"]), space)
    >>> found = marginal_target(target, _collapsed.find_summation(target))
    >>> bool(jnp.allclose(found.log_density(jnp.zeros(0, jnp.int32), jnp.zeros(1)), jnp.log(jnp.exp(-1) + jnp.exp(-2))))
    True
    """
    space = target.space
    return Target(lambda y: summation(y) + space.log_jacobian(y), real_variable(space.num_reals), probe=False)


def beside_jumps(
    options: Mapping[str, Any], parameters: Mapping[str, Any], marginal: Target | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Options and tuned parameters of `blocked` or `collapsed` chains, as those of the hybrid with the same moves."""
    renamed = {"discrete": "local", "discrete_options": "local_options", "scale": "step_size"}
    found = {renamed.get(name, name): value for name, value in options.items()}
    return {**found, "marginal": marginal}, {renamed.get(name, name): value for name, value in parameters.items()}


def prepare(
    target: Target, *, local: Any = "auto", local_options: Any = None, real: Any = "auto", **others: Any
) -> dict[str, Any]:
    """Chooses the local kernels and reads colours, on the host, as `blocked` does."""
    chosen: dict[str, Any] = {}
    if isinstance(local, SamplerSpec):
        local = local()
    if isinstance(local, BoundSampler) and local.spec.name == "blocked":
        chosen = dict(local.options)
        if "num_sweeps" in chosen or "scale" in chosen:
            raise OptionError("local", "cannot set num_sweeps or scale here", "num_local= and step_size= of the hybrid")
        local = chosen.pop("discrete", "auto")
        real = chosen.pop("real", real)
    found = _blocked.prepare(
        target, discrete=local, discrete_options=local_options, real=real, conditionals=others.pop("conditionals", None)
    )
    renamed = {"discrete": "local", "discrete_options": "local_options"}
    return {**others, **chosen, **{renamed.get(name, name): value for name, value in found.items()}}


def tuning(target: Target, *, real: Any = "auto", **_: Any) -> Tuning:
    """Finds the step size and the variances of the reals in warm-up."""
    found = _blocked.tuning(target, real=real)

    def renamed(parameters: dict[str, Any]) -> dict[str, Any]:
        return {"step_size" if name == "scale" else name: value for name, value in parameters.items()}

    return found._replace(
        parameters=lambda state: renamed(found.parameters(state)), final=lambda state: renamed(found.final(state))
    )
