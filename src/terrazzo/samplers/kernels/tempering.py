"""Parallel tempering over any kernel: non-reversible even/odd swaps on an adapted ladder.

Replica r follows a kernel on pi^beta_r, 0 <= beta_0 < ... < beta_n = 1. After each round of moves neighbours (r, r + 1)
swap configurations with probability

    min(1, exp((beta_{r+1} - beta_r) (V_r - V_{r+1}))),    V = log pi,

for even r in one round and odd r in the next. The deterministic alternation makes configurations travel the ladder in a
straight line instead of diffusing. One chain is one ladder; its position is the cold replica.

A ladder is carried as configurations and their untempered log pi. The kernels' own states hold beta log pi and are made
afresh every round, because both a swap and a move of the ladder in warm-up change beta.

The ladder is adapted in warm-up so that all pairs reject equally often: with rejection rates r_i the barrier
Lambda(beta_k) = sum_{i<k} r_i is interpolated and cut into equal parts.

References: Syed, Bouchard-Cote, Deligiannidis, Doucet (2022), Non-reversible parallel tempering, JRSS B 84.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import OptionError
from terrazzo.errors.arguments import options, shown
from terrazzo.samplers.kernels.gibbs import positive_int
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import (
    BoundSampler,
    SamplerSpec,
    SamplingAlgorithm,
    State,
    Tuning,
    as_float,
    starts_plainly,
)
from terrazzo.targets.target import Target, after

DEFAULT_KERNEL = "systematic_gibbs"
DEFAULT_TEMPERATURES = 16
FIRST_WINDOW = 8  # rounds before the ladder is first moved; each window is twice as long as the one before
LEAST_REJECTION = 1e-3


class TemperingState(NamedTuple):
    """A ladder. `positions` and `log_probs` (hot to cold) are the tempered draws for whoever can use them.

    Attributes:
        position: The cold configuration.
        log_prob: Its log pi.
        positions: All configurations, hottest first.
        log_probs: Their (untempered) log pi.
        parity: 0 if even pairs swap next, 1 if odd ones do.
    """

    position: Int[Array, " dim"]
    log_prob: Float[Array, ""]
    positions: Int[Array, "replica dim"]
    log_probs: Float[Array, " replica"]
    parity: Int[Array, ""]


class TemperingInfo(NamedTuple):
    """One round.

    Attributes:
        acceptance_rate: That of the cold kernel.
        is_accepted: Whether the cold kernel moved.
        num_evaluations: Of all replicas together.
        swap_rates: The swap probability of every pair, tried or not.
    """

    acceptance_rate: Float[Array, ""]
    is_accepted: Bool[Array, ""]
    num_evaluations: Int[Array, ""]
    swap_rates: Float[Array, " pair"]


def default_ladder(num_temperatures: int) -> np.ndarray:
    """0, then geometric to 1: a starting point for adaptation.

    >>> default_ladder(3).tolist()
    [0.0, 0.01, 1.0]
    """
    if num_temperatures == 1:
        return np.ones(1)
    return np.concatenate([[0.0], np.geomspace(0.01 if num_temperatures > 2 else 1.0, 1.0, num_temperatures - 1)])


def resolve_kernel(kernel: Any, kernel_options: Any = None) -> Callable[[Target], SamplingAlgorithm]:
    """A factory of the registry by name, or a callable, with its options bound."""
    if isinstance(kernel, str):
        from terrazzo.samplers import get

        spec = get(kernel, "kernel")
        if "transport" in spec.needs:
            raise OptionError("kernel", f"{kernel!r} needs a transport", "choose a discrete kernel such as gibbs")
        factory = spec.factory
    elif callable(kernel):
        factory = kernel
    else:
        raise OptionError("kernel", f"must be a sampler's name, got {shown(kernel)}", "e.g. kernel='gibbs'")
    return eqx.Partial(factory, **options("kernel_options", kernel_options))


def prepare(
    target: Target, *, kernel: Any = DEFAULT_KERNEL, kernel_options: Any = None, **others: Any
) -> dict[str, Any]:
    """Lets the kernel do its work on the host (colours, pairwise terms), once, before anything is compiled."""
    kernel, chosen = prepared_kernel(target, "kernel", kernel, kernel_options)
    return {**others, "kernel": kernel, "kernel_options": chosen}


def prepared_kernel(target: Target, field: str, kernel: Any, given: Any = None) -> tuple[Any, dict[str, Any]]:
    """A kernel inside another one, as its name and prepared options: an entry of the registry, bound or not, or a name.

    A callable `target -> SamplingAlgorithm` stays as it is.
    """
    from terrazzo.samplers import get

    chosen = options(f"{field}_options", given)
    if isinstance(kernel, SamplerSpec):
        kernel = kernel()
    if isinstance(kernel, BoundSampler):
        kernel, chosen = kernel.spec.name, {**kernel.options, **chosen}
    if isinstance(kernel, str):
        spec = get(kernel, field)
        if "transport" in spec.needs or spec.program is not None:
            raise OptionError(field, f"{kernel!r} is not a local kernel", "e.g. tz.samplers.gibbs")
        if spec.check is not None:
            spec.check(target)
        chosen = chosen if spec.prepare is None else spec.prepare(target, **chosen)
    try:
        resolve_kernel(kernel, chosen)(target)
    except TypeError as error:
        raise OptionError(f"{field}_options", str(error).split("() ")[-1], "see the kernel's arguments") from None
    return kernel, chosen


def checked_ladder(betas: Any) -> np.ndarray:
    """The ladder as an array; raises unless it rises strictly from 0 or more to exactly 1.

    A ladder that ends elsewhere has draws of another law, pi^beta, at its cold end.
    """
    try:
        values = np.asarray(betas, float)
    except (TypeError, ValueError):
        values = np.zeros((0,))
    is_ladder = values.ndim == 1 and len(values) > 0 and bool(np.isfinite(values).all())
    if not is_ladder or values[-1] != 1 or values[0] < 0 or (np.diff(values) <= 0).any():
        raise OptionError(
            "inverse_temperatures", f"must rise strictly from >= 0 to 1, got {shown(betas)}", "e.g. [0.0, 0.3, 1.0]"
        )
    return values


def _checked_ladder(betas: Any, num_temperatures: int) -> Array:
    if betas is None:
        return jnp.asarray(default_ladder(num_temperatures), jnp.result_type(float))
    if not isinstance(betas, jax.core.Tracer):
        checked_ladder(betas)
    return jnp.asarray(betas, jnp.result_type(float))


def tempered_log_prob(beta: Array, log_prob: Array) -> Array:
    """The log-probability beta * log pi; infinities stay (as `Target.tempered` has it)."""
    return jnp.where(jnp.isinf(log_prob), log_prob, beta * log_prob)


def untempered_log_prob(beta: Array, log_prob: Array) -> Array:
    """log pi from beta log pi, beta > 0."""
    return jnp.where(jnp.isinf(log_prob), log_prob, log_prob / beta)


def log_swap(betas: Float[Array, " replica"], log_probs: Float[Array, " replica"]) -> Float[Array, " pair"]:
    """The log swap probability of each pair of neighbours; a pair that is impossible both ways does not swap."""
    ratio = jnp.diff(betas) * (log_probs[:-1] - log_probs[1:])
    return jnp.where(jnp.isnan(ratio), -jnp.inf, jnp.minimum(ratio, 0.0))


def kept_possible(log_rates: Float[Array, " pair"], log_prob_below: Float[Array, ""]) -> Float[Array, " pair"]:
    """The log swap probabilities; what is impossible does not reach the cold end."""
    return log_rates.at[-1].set(jnp.where(log_prob_below > -jnp.inf, log_rates[-1], -jnp.inf))


def tried_pairs(num_pairs: int, parity: Int[Array, ""]) -> Bool[Array, " pair"]:
    """Every other pair: no replica is in two of them."""
    return jnp.arange(num_pairs, dtype=jnp.int32) % 2 == parity


def exchanged(
    is_swapped: Bool[Array, " pair"], positions: Int[Array, "replica dim"], log_probs: Float[Array, " replica"]
) -> tuple[Int[Array, "replica dim"], Float[Array, " replica"]]:
    """The configurations and their log pi after some disjoint pairs have swapped."""
    places = jnp.arange(is_swapped.shape[0] + 1, dtype=jnp.int32)
    no = jnp.zeros(1, bool)
    up, down = jnp.concatenate([is_swapped, no]), jnp.concatenate([no, is_swapped])
    order = places + up.astype(jnp.int32) - down.astype(jnp.int32)
    return positions[order], log_probs[order]


def parallel_tempering(
    target: Target,
    *,
    inverse_temperatures: Any = None,
    num_temperatures: int = DEFAULT_TEMPERATURES,
    kernel: Any = DEFAULT_KERNEL,
    kernel_options: Any = None,
    num_moves: int = 1,
) -> SamplingAlgorithm:
    """Parallel tempering over any registered kernel.

    Args:
        target: The target.
        inverse_temperatures: The ladder, rising to 1; tuned in warm-up. Begin at 0 to get log Z.
        num_temperatures: The length of the default ladder.
        kernel: The name of the kernel, or a factory `target -> SamplingAlgorithm`.
        kernel_options: Options of the kernel.
        num_moves: Kernel steps between swaps.

    Returns:
        The sampler. Its state holds all tempered draws.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda s: 9.0 * (s[0] == s[1]), tz.binary(2))
    >>> sampler = parallel_tempering(target, inverse_temperatures=[0.0, 0.5, 1.0], kernel="gibbs")
    >>> state, info = sampler.step(jax.random.key(0), sampler.init(jnp.zeros(2, jnp.int32)))
    >>> state.positions.shape, info.swap_rates.shape
    ((3, 2), (2,))
    """
    betas = _checked_ladder(inverse_temperatures, positive_int("num_temperatures", num_temperatures))
    num_moves = positive_int("num_moves", num_moves)
    factory = resolve_kernel(kernel, kernel_options)
    num_replicas = betas.shape[0]

    def kernel_at(beta: Array) -> SamplingAlgorithm:
        return factory(target.tempered(beta))

    def init(position: Int[Array, " dim"], rng_key: Any = None) -> TemperingState:
        log_prob = target.log_prob(position)
        positions = jnp.broadcast_to(position, (num_replicas, *position.shape))
        log_probs = jnp.broadcast_to(log_prob, (num_replicas,))
        return TemperingState(position, log_prob, positions, log_probs, jnp.zeros((), jnp.int32))

    def move(beta: Array, key: randomness.Key, replica: Any) -> tuple[Any, tuple]:
        algorithm = kernel_at(beta)

        def once(key: Any, _: Any, carry: tuple) -> tuple:
            replica, acceptance, is_accepted, num_evaluations = carry
            replica, info = algorithm.step(key, replica)
            acceptance = acceptance + as_float(info.acceptance_rate) / num_moves
            return replica, acceptance, is_accepted | info.is_accepted, num_evaluations + info.num_evaluations

        start = (replica, as_float(0.0), jnp.asarray(False), jnp.zeros((), jnp.int32))
        replica, *rest = randomness.loop(key, num_moves, once, start)
        return replica, tuple(rest)

    def kernel_states(positions: Array, log_probs: Array, key: Array) -> Any:
        def start(beta: Array, theta: Array, key: Array) -> Any:
            return kernel_at(beta).init(theta, key)

        if starts_plainly(kernel_at(betas[0]), positions[0], key):
            return State(positions, tempered_log_prob(betas, log_probs))  # all that it holds: no evaluation needed
        return jax.vmap(start)(betas, positions, jax.random.split(key, num_replicas))

    def step(rng_key: Array, state: TemperingState) -> tuple[TemperingState, TemperingInfo]:
        move_key, swap_key, start_key = jax.random.split(rng_key, 3)
        replicas = kernel_states(state.positions, state.log_probs, start_key)
        replicas, (rates, moved, counts) = jax.vmap(move)(betas, jax.random.split(move_key, num_replicas), replicas)
        positions = replicas.position
        is_hot = betas == 0  # there beta log pi says nothing: evaluate; only the first can be
        log_probs = untempered_log_prob(betas, replicas.log_prob)
        log_probs = jnp.where(is_hot, target.soft_log_prob(after(replicas.log_prob[0], positions[0])), log_probs)
        log_rates = log_swap(betas, log_probs)
        if target.soft_level is not None:
            log_rates = kept_possible(log_rates, target.log_prob(after(replicas.log_prob[0], positions[-2])))
        is_tried = tried_pairs(num_replicas - 1, state.parity)
        is_swapped = is_tried & randomness.bernoulli_rows(swap_key, log_rates)
        positions, log_probs = exchanged(is_swapped, positions, log_probs)
        num_evaluations = counts.sum() + 1 + (0 if isinstance(replicas, State) else num_replicas)
        num_evaluations = num_evaluations + (0 if target.soft_level is None else 1)
        new = TemperingState(positions[-1], log_probs[-1], positions, log_probs, 1 - state.parity)
        return new, TemperingInfo(rates[-1], moved[-1], num_evaluations.astype(jnp.int32), jnp.exp(log_rates))

    return SamplingAlgorithm(init, step)


def replicas(state: TemperingState) -> dict[str, Array]:
    """What is kept of a ladder with every draw: log pi of all replicas, which gives log Z."""
    return {"replica_log_probs": state.log_probs}


# ---- the ladder


class LadderState(NamedTuple):
    """The ladder under adaptation: rejections summed over the present window of rounds."""

    betas: Float[Array, " replica"]
    rejections: Float[Array, " pair"]
    num_rounds: Int[Array, ""]
    window: Int[Array, ""]


def equalised(betas: Float[Array, " replica"], rejections: Float[Array, " pair"]) -> Float[Array, " replica"]:
    """The ladder on which every pair would reject equally often, both ends kept.

    >>> equalised(jnp.array([0.0, 0.5, 1.0]), jnp.array([0.5, 0.25])).tolist()
    [0.0, 0.375, 1.0]
    """
    barrier = jnp.concatenate([jnp.zeros(1, betas.dtype), jnp.cumsum(jnp.maximum(rejections, LEAST_REJECTION))])
    levels = barrier[-1] * jnp.linspace(0.0, 1.0, betas.shape[0], dtype=betas.dtype)
    return jnp.interp(levels, barrier, betas).at[0].set(betas[0]).at[-1].set(betas[-1])


def tuning(
    target: Target, *, inverse_temperatures: Any = None, num_temperatures: int = DEFAULT_TEMPERATURES, **_: Any
) -> Tuning:
    """Adapts the ladder to equal swap rates, in windows of doubling length, from the pooled chains."""
    first = _checked_ladder(inverse_temperatures, num_temperatures)

    def init() -> LadderState:
        zero = jnp.zeros((), jnp.int32)
        return LadderState(first, jnp.zeros(len(first) - 1, first.dtype), zero, zero + FIRST_WINDOW)

    def update(state: LadderState, swap_rates: Float[Array, "chain pair"]) -> LadderState:
        rejections = state.rejections + 1.0 - swap_rates.mean(axis=0)
        count = state.num_rounds + 1
        is_full = count >= state.window
        return LadderState(
            jnp.where(is_full, equalised(state.betas, rejections / count.astype(rejections.dtype)), state.betas),
            jnp.where(is_full, 0.0, rejections),
            jnp.where(is_full, 0, count),
            jnp.where(is_full, 2 * state.window, state.window),
        )

    parameters = lambda state: {"inverse_temperatures": state.betas}
    return Tuning(init, parameters, lambda state, info: info.swap_rates, update, parameters)
