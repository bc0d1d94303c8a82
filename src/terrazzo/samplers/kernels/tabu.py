"""The Tabu sampler: a Zanella process that does not undo what it has just done (Power & Goldman 2019).

Each generator gamma (an involution of the space) carries a switch alpha_gamma. Only generators that are on may act;
acting turns a generator off; and when too few are left, all switches flip. With L and L' the summed rates of the
generators that are on and off, at (x, alpha):

    x -> gamma x, alpha_gamma -> 0   at rate g(pi(gamma x) / pi(x)) for every gamma that is on,
    alpha -> 1 - alpha               at rate max(L' - L, 0),

which leaves pi(x) times uniform(alpha) invariant: inflow and outflow are both max(L, L'). The generators are the
exchanges of two values a <-> b of one coordinate; for binary variables these are the bit flips of the paper.
Time runs on a grid as in the Zanella process, and the switches are part of the state.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.samplers.kernels.locally_balanced import NeighbourState, neighbourhood
from terrazzo.samplers.kernels.zanella import advance
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm
from terrazzo.samplers.parts.ratios import Moves
from terrazzo.targets.target import Target


class TabuState(NamedTuple):
    """A configuration, log pi of its neighbours, and the switches of the generators."""

    position: Int[Array, " dim"]
    log_prob: Float[Array, ""]
    neighbours: Float[Array, " move"]
    switches: Bool[Array, " generator"]

    @property
    def local(self) -> NeighbourState:
        return NeighbourState(self.position, self.log_prob, self.neighbours)


def num_generators(sizes: np.ndarray) -> int:
    """One exchange for each pair of values of each coordinate."""
    return int((sizes.astype(np.int64) * (sizes.astype(np.int64) - 1) // 2).sum())


def generators(moves: Moves, sizes: np.ndarray, theta: Int[Array, " dim"]) -> Int[Array, " move"]:
    """Which generator each move belongs to: the pair (old value, new value) of its coordinate, unordered."""
    pairs = sizes.astype(np.int64) * (sizes.astype(np.int64) - 1) // 2
    base = jnp.asarray(np.concatenate([[0], np.cumsum(pairs)[:-1]])[moves.sites].astype(np.int32))
    old, new = theta[moves.sites], moves.values(theta)
    low, high = jnp.minimum(old, new), jnp.maximum(old, new)
    return base + high * (high - 1) // 2 + low


def flip_log_rate(on: Float[Array, ""], off: Float[Array, ""]) -> Float[Array, ""]:
    """The logarithm of max(L' - L, 0), from log L and log L'."""
    return jnp.where(off > on, off + randomness.log1mexp(jnp.minimum(on - off, 0.0)), -jnp.inf)


def tabu(
    target: Target, *, duration: Any = 1.0, balancing: str = "barker", reach: Any = None, conditionals: Any = None
) -> SamplingAlgorithm:
    """The Tabu sampler, advanced by a fixed duration each step.

    Args:
        target: The target.
        duration: The time between two draws (tuned in warm-up to a number of jumps, as for the Zanella process).
        balancing: As in `zanella`, like the rest.
        reach: The largest change of an ordered coordinate.
        conditionals: Running conditionals.

    Returns:
        The sampler. sum_i (K_i - 1) evaluations a jump; flipping the switches costs none.

    Reference: Power & Goldman (2019), Accelerated sampling on discrete spaces with non-reversible Markov processes.

    >>> import terrazzo as tz
    >>> sampler = tabu(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape, state.switches.shape
    ((3,), (3,))
    """
    local = neighbourhood(target, balancing, reach, conditionals)
    sizes = target.space.sizes
    num_switches = num_generators(sizes)

    def init(position: Int[Array, " dim"], rng_key: Any = None) -> TabuState:
        on = jnp.ones(num_switches, bool) if rng_key is None else jax.random.bernoulli(rng_key, 0.5, (num_switches,))
        return TabuState(*local.init(position), on)

    def event_log_rates(state: TabuState) -> Float[Array, " event"]:
        """The log-rates of all moves, and last that of flipping the switches."""
        log_weights, _ = local.log_weights(state.local)
        is_on = state.switches[generators(local.moves, sizes, state.position)]
        on = jax.nn.logsumexp(jnp.where(is_on, log_weights, -jnp.inf))
        off = jax.nn.logsumexp(jnp.where(is_on, -jnp.inf, log_weights))
        return jnp.concatenate([jnp.where(is_on, log_weights, -jnp.inf), flip_log_rate(on, off)[None]])

    def jump(key: Array, state: TabuState) -> tuple[TabuState, Int[Array, ""]]:
        event = randomness.categorical(key, event_log_rates(state))
        is_flip = event == local.moves.num_moves

        def moved(_: Any, state: TabuState) -> TabuState:
            used = generators(local.moves, sizes, state.position)[event]
            return TabuState(*local.after(state.local, event), state.switches.at[used].set(False))

        # a loop of one pass or none: `lax.cond` would copy the arrays of the target for every chain of a batch
        new = jax.lax.fori_loop(0, 1 - is_flip.astype(jnp.int32), moved, state)
        cost = jnp.where(is_flip, 0, local.num_evaluations).astype(jnp.int32)
        return new._replace(switches=new.switches ^ is_flip), cost

    def step(rng_key: Array, state: TabuState) -> tuple[TabuState, Info]:
        log_rate = lambda s: jax.nn.logsumexp(event_log_rates(s))
        return advance(rng_key, state, duration, log_rate, jump)

    return SamplingAlgorithm(init, step)
