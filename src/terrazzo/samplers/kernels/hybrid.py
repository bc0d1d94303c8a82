"""The hybrid sampler: one global move through the transport, then m local moves on theta.

By the law of transports both leave pi invariant, so any mixture of them does (docs/theory.md). The global move is an
independence, pCN or elliptical-slice step in the latent space, started from a fresh lift of theta. Where the
dequantizer is exact the weight depends on theta alone, and the independence move needs no lift at all:

    theta' ~ q,   accept with probability min(1, pi(theta') q(theta) / (pi(theta) q(theta'))).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int

from terrazzo.errors import OptionError
from terrazzo.samplers.kernels.gibbs import positive_int
from terrazzo.samplers.kernels.latent.elliptical_slice import elliptical_slice
from terrazzo.samplers.kernels.latent.independence import independence
from terrazzo.samplers.kernels.latent.pcn import pcn
from terrazzo.samplers.kernels.tempering import prepared_kernel, resolve_kernel
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State, as_float, select, starts_plainly
from terrazzo.targets.target import Target
from terrazzo.transports import normal
from terrazzo.transports.base import AbstractTransport

MOVES = ("independence", "pcn", "elliptical_slice")


class GlobalMove(NamedTuple):
    """A move through the transport, in the part that needs no state and the part that does.

    Attributes:
        draw: `key -> proposal`, drawn ahead, for many rounds at once.
        move: `(key, state, proposal) -> (state, acceptance, is_accepted)`.
    """

    draw: Callable[[Array], Any]
    move: Callable[[Array, State, Any], tuple[State, Array, Array]]


def _exact_independence(target: Target, transport: Any) -> GlobalMove:
    """The independence move of a transport whose weight depends on theta alone."""

    def draw(key: Array) -> tuple[State, Array]:
        z = jax.random.normal(key, (transport.num_dims,))
        theta, log_volume = transport.push(z)
        return State(theta, target.log_prob(theta)), normal.log_density(z) - log_volume

    def move(key: Array, state: State, proposal: tuple[State, Array]) -> tuple[State, Array, Array]:
        new, log_q_new = proposal
        log_ratio = (new.log_prob - log_q_new) - (state.log_prob - transport.log_prob(state.position))
        log_ratio = jnp.where(jnp.isnan(log_ratio), -jnp.inf, log_ratio)
        is_accepted = -jax.random.exponential(key, (), log_ratio.dtype) < log_ratio
        return select(is_accepted, new, state), jnp.minimum(1.0, jnp.exp(log_ratio)), is_accepted

    return GlobalMove(draw, move)


def _lifted(algorithm: SamplingAlgorithm) -> GlobalMove:
    """A latent kernel from a fresh lift; a theta too improbable to be lifted stays where it is."""

    def move(key: Array, state: State, _: Any) -> tuple[State, Array, Array]:
        lift_key, step_key = jax.random.split(key)
        start = algorithm.init(state.position, lift_key)
        is_lifted = jnp.all(start.position == state.position) & jnp.all(jnp.isfinite(start.z))
        new, info = algorithm.step(step_key, start)
        rate = jnp.where(is_lifted, info.acceptance_rate, 0.0)
        return select(is_lifted, State(new.position, new.log_prob), state), rate, info.is_accepted & is_lifted

    return GlobalMove(lambda key: None, move)


def global_move(
    target: Target, transport: AbstractTransport, *, move: str = "independence", scale: Any = 0.5
) -> GlobalMove:
    """One step through the transport."""
    if move == "independence" and transport.has_exact_dequantizer:
        return _exact_independence(target, transport)
    return _lifted(latent_kernel(target, transport, move, scale))


def latent_kernel(target: Target, transport: AbstractTransport, move: str, scale: Any) -> SamplingAlgorithm:
    """The latent kernel of a name; `scale` is that of pCN."""
    if move not in MOVES:
        raise OptionError("move", f"{move!r} is unknown", f"one of {', '.join(MOVES)}")
    if move == "independence":
        return independence(target, transport)
    return pcn(target, transport, scale=scale) if move == "pcn" else elliptical_slice(target, transport)


def hybrid(
    target: Target,
    transport: AbstractTransport | None,
    *,
    local: Any = "gibbs",
    local_options: Any = None,
    num_local: Any = 5,
    move: str = "independence",
    scale: Any = 0.5,
    num_rounds: int = 1,
) -> SamplingAlgorithm:
    """One global move through the transport, then `num_local` local moves; `num_rounds` times.

    On a space with real variables `mixed_hybrid` takes its place: its jumps are joint, and its local moves those of
    `blocked`.

    Args:
        target: The target.
        transport: The transport; None leaves the global move out.
        local: The local sampler: a name of the registry, or a function `target -> SamplingAlgorithm`.
        local_options: Its keyword arguments.
        num_local: How many of its steps go with one global move (may be traced: changing it does not recompile).
            Without a transport, 1 as a plain number is the local sampler itself, with no loop around it.
        move: "independence", "pcn" or "elliptical_slice".
        scale: The scale of pCN.
        num_rounds: Rounds a step. What the global moves of all rounds can draw ahead (independent proposals) is drawn
            at once: a push takes the coordinates one after the other, and many side by side take hardly longer.

    >>> import jax, jax.numpy as jnp, terrazzo as tz
    >>> target = tz.Target(lambda t: jnp.sum(t * 0.5), tz.binary(3))
    >>> sampler = hybrid(target, tz.transports.product_transport(target.space))
    >>> state = sampler.init(jnp.zeros(3, jnp.int32), jax.random.key(0))
    >>> jax.jit(sampler.step)(jax.random.key(1), state)[0].position.shape
    (3,)
    """
    local_sampler = resolve_kernel(local, local_options)(target)
    jump = None if transport is None else global_move(target, transport, move=move, scale=scale)
    num_rounds = positive_int("num_rounds", num_rounds)
    num_global = 0 if jump is None else 1
    is_plain_local = jump is None and num_rounds == 1 and type(num_local) is int and num_local == 1
    count = jnp.asarray(num_local, jnp.int32)

    def init(position: Int[Array, " dim"], rng_key: Array) -> State:
        return State(position, target.log_prob(position))

    def play(state: State, given: tuple[Array, Any]) -> tuple[State, Info]:
        """One round, with what was drawn ahead for it."""
        round_key, proposal = given
        jump_key, start_key, walk_key = jax.random.split(round_key, 3)
        rate, is_accepted = as_float(0.0), jnp.asarray(False)
        if jump is not None:
            state, rate, is_accepted = jump.move(jump_key, state, proposal)
        is_plain = starts_plainly(local_sampler, state.position, start_key)
        inner = state if is_plain else local_sampler.init(state.position, start_key)

        def walk(i: Int[Array, ""], carry: Any) -> Any:
            inner, acceptance, evaluations = carry
            inner, info = local_sampler.step(jax.random.fold_in(walk_key, i), inner)
            return inner, acceptance + as_float(info.acceptance_rate), evaluations + info.num_evaluations

        # One evaluation for the proposal, and one to start a local sampler that holds more than theta and log pi.
        start = (inner, as_float(rate), jnp.asarray(num_global + (0 if is_plain else 1), jnp.int32))
        inner, acceptance, evaluations = jax.lax.fori_loop(0, count, walk, start)
        num_moves = jnp.maximum(num_global + count, 1).astype(acceptance.dtype)
        info = Info(acceptance / num_moves, is_accepted, evaluations, {"global_acceptance_rate": as_float(rate)})
        return State(inner.position, inner.log_prob), info

    def step(rng_key: Array, state: State) -> tuple[State, Info]:
        if is_plain_local and starts_plainly(local_sampler, state.position, rng_key):
            new, info = local_sampler.step(rng_key, state)
            nothing = {"global_acceptance_rate": as_float(0.0)}
            return new, Info(as_float(info.acceptance_rate), jnp.asarray(False), info.num_evaluations, nothing)
        draw_key, play_key = jax.random.split(rng_key)
        ahead = None if jump is None else jax.vmap(jump.draw)(jax.random.split(draw_key, num_rounds))
        state, rounds = jax.lax.scan(play, state, (jax.random.split(play_key, num_rounds), ahead))
        evaluations = jnp.sum(rounds.num_evaluations, dtype=jnp.int32)
        details = jax.tree.map(jnp.mean, rounds.details)
        return state, Info(jnp.mean(rounds.acceptance_rate), jnp.any(rounds.is_accepted), evaluations, details)

    return SamplingAlgorithm(init, step)


def prepare(target: Target, *, local: Any = "gibbs", local_options: Any = None, **options: Any) -> dict[str, Any]:
    """Does the host-side work of the local sampler once."""
    local, chosen = prepared_kernel(target, "local", local, local_options)
    return {**options, "local": local, "local_options": chosen}
