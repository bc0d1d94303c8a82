"""Parallel tempering over any kernel: non-reversible even/odd swaps on an adapted ladder.

Replica r follows a kernel on pi^beta_r, 0 <= beta_0 < ... < beta_n = 1. After each round of moves neighbours (r, r + 1)
swap configurations with probability

    min(1, exp((beta_{r+1} - beta_r) (V_r - V_{r+1}))),    V = log pi,

for even r in one round and odd r in the next. The deterministic alternation makes configurations travel the ladder in a
straight line instead of diffusing. One chain is one ladder; its position is the cold replica.

A ladder is carried as configurations and their untempered log pi. The kernels' own states hold beta log pi and are made
again every round, because both a swap and a move of the ladder in warm-up change beta.

Configurations stay where they are: a swap exchanges their temperatures. So the replicas of one ladder may be
distributed over devices, which then tell each other their log pi and nothing else.

A ladder may start from a reference q0 in place of the uniform law (`parts.pair_references`): replica r then follows
q0^(1 - beta_r) pi^beta_r. A q0 that is fitted to the chains may have missed a mode, so it has a second leg of replicas
beside the first, uniform one; the two meet at beta = 1:

    uniform -> pi,  pi <- q0.

With g_r = 1 - beta_r on a leg that starts from q0, else 0, neighbours swap with probability

    min(1, exp((beta_{r+1} - beta_r) (V_r - V_{r+1}) + (g_{r+1} - g_r) (A_r - A_{r+1}))),    A = log q0.

References: Syed, Bouchard-Cote, Deligiannidis, Doucet (2022), Non-reversible parallel tempering, JRSS B 84; Surjanovic,
Syed, Bouchard-Cote, Campbell (2022), Parallel tempering with a variational reference.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import OptionError
from terrazzo.errors.arguments import options, shown
from terrazzo.runtime.devices import AXIS, REPLICAS, num_parts
from terrazzo.samplers.kernels.default_gibbs import default_gibbs
from terrazzo.samplers.kernels.gibbs import positive_int
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.base import (
    BoundSampler,
    Distribution,
    Info,
    SamplerSpec,
    SamplingAlgorithm,
    State,
    as_float,
    starts_plainly,
)
from terrazzo.samplers.parts.ladders import DEFAULT_TEMPERATURES
from terrazzo.samplers.parts.paths import PRODUCT, UNIFORM, found_reference, path_of
from terrazzo.targets.pair_models import PairReference
from terrazzo.targets.target import Target, after


class TemperingState(NamedTuple):
    """A ladder. Where one device holds it, `positions[places]` are the configurations, hottest first.

    Attributes:
        position: The cold configuration; zeros on a device that does not hold it.
        log_prob: Its log pi.
        positions: The configurations that this device holds, by place.
        places: The place of each temperature's configuration, hottest first.
        log_probs: Their (untempered) log pi, hottest first.
        parity: 0 if even pairs swap next, 1 if odd ones do.
        log_bases: log q0 of each, and 0 on a leg that starts from the uniform law; None without a reference.
    """

    position: Int[Array, " dim"]
    log_prob: Float[Array, ""]
    positions: Int[Array, "held dim"]
    places: Int[Array, " replica"]
    log_probs: Float[Array, " replica"]
    parity: Int[Array, ""]
    log_bases: Any = None


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
    target: Target, *, kernel: Any = None, kernel_options: Any = None, reference: Any = None, **others: Any
) -> dict[str, Any]:
    """Finds what the ladder starts from, and lets the kernel do its work on the host, before anything is compiled."""
    base, inner = found_reference(target, reference), prepared_inner(target, kernel, kernel_options)
    terms, is_tied = inner["kernel_options"].get("terms"), isinstance(base, PairReference) and base.has_edges
    if is_tied and terms is not None and not np.array_equal(base.terms.edges, terms.edges):
        # Couplings of both are added edge by edge.
        raise OptionError("terms", "are not those that the reference was made of", "leave them out")
    return {**others, **inner, "reference": UNIFORM if base is None else base}


def prepared_inner(target: Target, kernel: Any, kernel_options: Any = None) -> dict[str, Any]:
    """`kernel` and `kernel_options` of tempered chains, with what the kernel finds on the host (colours, terms)."""
    if kernel is None:
        kernel, found = default_gibbs(target)
        kernel_options = {**found, **options("kernel_options", kernel_options)}
    kernel, chosen = prepared_kernel(target, "kernel", kernel, kernel_options)
    return {"kernel": kernel, "kernel_options": chosen}


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
        if chosen.get("shard_sites"):
            raise OptionError("shard_sites", "is not possible inside another sampler", "leave it out")
        if spec.check is not None:
            spec.check(target)
        chosen = chosen if spec.prepare is None else spec.prepare(target, **chosen)
    try:
        resolve_kernel(kernel, chosen)(target)
    except TypeError as error:
        raise OptionError(f"{field}_options", str(error).split("() ")[-1], "see the kernel's arguments") from None
    return kernel, chosen


def tempered_log_prob(beta: Array, log_prob: Array, of_base: Any = None) -> Array:
    """The log-probability beta * log pi + `of_base`; infinities stay (as `Target.tempered` has it)."""
    tempered = beta * log_prob
    return jnp.where(jnp.isinf(log_prob), log_prob, tempered if of_base is None else tempered + of_base)


def untempered_log_prob(beta: Array, log_prob: Array, of_base: Any = None) -> Array:
    """log pi from beta log pi + `of_base`, beta > 0."""
    return jnp.where(jnp.isinf(log_prob), log_prob, (log_prob if of_base is None else log_prob - of_base) / beta)


def log_swap(
    betas: Float[Array, " replica"], log_probs: Float[Array, " replica"], shares: Any = None, log_bases: Any = None
) -> Float[Array, " pair"]:
    """The log swap probability of each pair of neighbours; a pair that is impossible both ways does not swap.

    Args:
        betas: The ladder.
        log_probs: log pi of each replica.
        shares: The power of q0 in the law of each replica, if there is a reference.
        log_bases: log q0 of each.
    """
    ratio = jnp.diff(betas) * (log_probs[:-1] - log_probs[1:])
    if shares is not None:
        ratio = ratio + jnp.diff(shares) * (log_bases[:-1] - log_bases[1:])
    return jnp.where(jnp.isnan(ratio), -jnp.inf, jnp.minimum(ratio, 0.0))


def kept_possible(log_rates: Float[Array, " pair"], log_prob_below: Float[Array, ""]) -> Float[Array, " pair"]:
    """The log swap probabilities; what is impossible does not reach the cold end."""
    return log_rates.at[-1].set(jnp.where(log_prob_below > -jnp.inf, log_rates[-1], -jnp.inf))


def tried_pairs(num_pairs: int, parity: Int[Array, ""]) -> Bool[Array, " pair"]:
    """Every other pair: no replica is in two of them."""
    return jnp.arange(num_pairs, dtype=jnp.int32) % 2 == parity


def swap_order(is_swapped: Bool[Array, " pair"]) -> Int[Array, " replica"]:
    """Which replica each temperature has after some disjoint pairs have swapped."""
    rungs = jnp.arange(is_swapped.shape[0] + 1, dtype=jnp.int32)
    no = jnp.zeros(1, bool)
    up, down = jnp.concatenate([is_swapped, no]), jnp.concatenate([no, is_swapped])
    return rungs + up.astype(jnp.int32) - down.astype(jnp.int32)


def exchanged(is_swapped: Bool[Array, " pair"], *rows: Any) -> tuple:
    """The places of the configurations, their log pi and log q0 after some disjoint pairs have swapped."""
    order = swap_order(is_swapped)
    return tuple(None if row is None else row[order] for row in rows)


class _Held(NamedTuple):
    """The places of a ladder that this device holds.

    Attributes:
        first: The first of them.
        size: How many.
    """

    first: Any
    size: int

    def local(self, place: Array) -> tuple[Array, Array]:
        """A place as an index into what is held, and whether it is held at all."""
        index = place - self.first
        return jnp.clip(index, 0, self.size - 1), (index >= 0) & (index < self.size)

    def rows(self, values: Array) -> Array:
        """Of values by place, those that are held."""
        return jax.lax.dynamic_slice_in_dim(values, self.first, self.size)

    def all(self, values: Array) -> Array:
        """The values of all places, from those of the held ones."""
        return values if num_parts(REPLICAS) == 1 else jax.lax.all_gather(values, REPLICAS, tiled=True)

    def of(self, place: Array, fn: Callable[[Array], Array], positions: Array) -> Array:
        """A function of the configuration at a place, which one device holds."""
        index, is_held = self.local(place)
        value = fn(positions[index])
        return value if num_parts(REPLICAS) == 1 else jax.lax.psum(jnp.where(is_held, value, 0), REPLICAS)


def _held(num_replicas: int) -> _Held:
    """What this device holds of a ladder: all of it, or an equal part where replicas are distributed."""
    parts = num_parts(REPLICAS)
    count = num_replicas // parts
    return _Held(jnp.zeros((), jnp.int32) if parts == 1 else jax.lax.axis_index(REPLICAS) * count, count)


def has_cold(state: TemperingState) -> Bool[Array, ""]:
    """Whether this device holds the cold configuration of a ladder."""
    return _held(state.places.shape[0]).local(state.places[-1])[1]


def _moved(key: randomness.Key, algorithm: SamplingAlgorithm, num_moves: int, replica: Any) -> tuple[Any, tuple]:
    """A replica after some moves: its mean acceptance, whether it moved, and its evaluations."""

    def once(key: Any, _: Any, carry: tuple) -> tuple:
        replica, acceptance, is_accepted, num_evaluations = carry
        replica, info = algorithm.step(key, replica)
        acceptance = acceptance + as_float(info.acceptance_rate) / num_moves
        return replica, acceptance, is_accepted | info.is_accepted, num_evaluations + info.num_evaluations

    start = (replica, as_float(0.0), jnp.asarray(False), jnp.zeros((), jnp.int32))
    replica, *rest = randomness.loop(key, num_moves, once, start)
    return replica, tuple(rest)


def _started(
    kernel_at: Callable[..., SamplingAlgorithm], positions: Array, log_probs: Array, law: tuple, keys: Array,
    of_base: Any,
) -> Any:  # fmt: skip
    """The states of the kernels of all replicas, from their configurations and untempered log pi."""
    if starts_plainly(kernel_at(*(x[0] for x in law)), positions[0], keys[0]):
        return State(positions, tempered_log_prob(law[0], log_probs, of_base))  # all that it holds: nothing evaluated
    return jax.vmap(lambda theta, key, *law: kernel_at(*law).init(theta, key))(positions, keys, *law)


def parallel_tempering(
    target: Target,
    *,
    inverse_temperatures: Any = None,
    num_temperatures: int = DEFAULT_TEMPERATURES,
    reference: Any = None,
    second_leg: Any = None,
    product: Any = None,
    kernel: Any = None,
    kernel_options: Any = None,
    num_moves: int = 1,
) -> SamplingAlgorithm:
    """Parallel tempering over any registered kernel.

    Args:
        target: The target.
        inverse_temperatures: The ladder, rising to 1; tuned in warm-up. Begin at 0 to get log Z.
        num_temperatures: The length of the default ladder, and of each leg.
        reference: What the ladder starts from: "uniform"; "product" for a product of sites that is fitted in warm-up,
            on a second leg beside the uniform one; "parts" for a pair model without the couplings between parts that
            can be summed out. None is the target's own reference where that is a product of sites, else the uniform
            law.
        second_leg: The ladder of the leg that starts from the product; tuned in warm-up.
        product: Log-probabilities of its sites, (site, value); fitted in warm-up.
        kernel: The name of the kernel, or a factory `target -> SamplingAlgorithm`; by default a Gibbs sweep in the form
            that suits the target.
        kernel_options: Options of the kernel.
        num_moves: Kernel steps between swaps.

    Returns:
        The sampler. Its state holds all tempered draws.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda s: 9.0 * (s[0] == s[1]), tz.binary(2))
    >>> sampler = parallel_tempering(target, inverse_temperatures=[0.0, 0.5, 1.0], kernel="gibbs")
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(2, jnp.int32)))
    >>> state.positions[state.places].shape, info.details["swap_rates"].shape
    ((3, 2), (2,))
    """
    path = path_of(target, inverse_temperatures, num_temperatures, reference, second_leg, product)
    num_moves = positive_int("num_moves", num_moves)
    if kernel is None:
        kernel, kernel_options = default_gibbs(target)
    factory = resolve_kernel(kernel, kernel_options)
    betas, base, num_replicas = path.betas, path.base, len(path.betas)

    def kernel_at(beta: Array, share: Any = None) -> SamplingAlgorithm:
        return factory(target.tempered(beta, None if base is None else base.scaled(share)))

    def of_base(thetas: Array) -> Any:
        return None if base is None else jax.vmap(base.log_density)(thetas)

    def init(position: Int[Array, " dim"], rng_key: Any = None) -> TemperingState:
        log_prob, places = target.log_prob(position), jnp.arange(num_replicas, dtype=jnp.int32)
        positions = jnp.broadcast_to(position, (_held(num_replicas).size, *position.shape))
        log_probs = jnp.broadcast_to(log_prob, (num_replicas,))
        return TemperingState(
            position=position, log_prob=log_prob, positions=positions, places=places, log_probs=log_probs,
            parity=jnp.zeros((), jnp.int32), log_bases=None if base is None else path.legs * base.log_density(position),
        )  # fmt: skip

    def move(key: randomness.Key, replica: Any, *law: Array) -> tuple[Any, tuple]:
        return _moved(key, kernel_at(*law), num_moves, replica)

    def step(rng_key: Array, state: TemperingState) -> tuple[TemperingState, Info]:
        move_key, swap_key, start_key = jax.random.split(rng_key, 3)
        held, places = _held(num_replicas), state.places
        rungs = held.rows(jnp.argsort(places))  # the temperatures of the configurations that are held
        start_keys, move_keys = (jax.random.split(key, num_replicas)[rungs] for key in (start_key, move_key))
        law = tuple(x[rungs] for x in (betas, path.legs) if x is not None)
        before = None if base is None else path.shares[rungs] * of_base(state.positions)
        replicas = _started(kernel_at, state.positions, state.log_probs[rungs], law, start_keys, before)
        replicas, seen = jax.vmap(move)(move_keys, replicas, *law)
        positions, here = replicas.position, replicas.log_prob
        rates, moved, counts, log_probs = (held.all(x)[places] for x in (*seen, here))
        log_bases = None if base is None else held.all(of_base(positions))[places]
        log_probs = untempered_log_prob(betas, log_probs, None if base is None else path.shares * log_bases)
        for end in path.ends:  # at beta = 0 log pi is not in the law: evaluate
            hot = held.of(places[end], lambda theta: target.soft_log_prob(after(here[0], theta)), positions)
            log_probs = log_probs.at[end].set(jnp.where(betas[end] == 0, hot, log_probs[end]))
        log_rates = log_swap(betas, log_probs, path.shares, log_bases)
        if target.soft_level is not None:
            below = held.of(places[-2], lambda theta: target.log_prob(after(here[0], theta)), positions)
            log_rates = kept_possible(log_rates, below)
        is_tried = tried_pairs(num_replicas - 1, state.parity)
        is_swapped = is_tried & randomness.bernoulli_rows(swap_key, log_rates)
        places, log_probs, log_bases = exchanged(is_swapped, places, log_probs, log_bases)
        num_evaluations = counts.sum() + len(path.ends) + (0 if isinstance(replicas, State) else num_replicas)
        num_evaluations = num_evaluations + (0 if target.soft_level is None else 1)
        index, is_here = held.local(places[path.cold])
        cold = positions[index] if num_parts(REPLICAS) == 1 else jnp.where(is_here, positions[index], 0)
        new = TemperingState(
            position=cold, log_prob=log_probs[path.cold], positions=positions, places=places, log_probs=log_probs,
            parity=1 - state.parity, log_bases=None if log_bases is None else path.legs * log_bases,
        )  # fmt: skip
        details = {"swap_rates": jnp.exp(log_rates)}  # of every pair, tried or not
        return new, Info(rates[path.cold], moved[path.cold], num_evaluations.astype(jnp.int32), details)

    return SamplingAlgorithm(init, step)


def replicas(state: TemperingState) -> dict[str, Array]:
    """What is kept of a ladder with every draw: log pi - log q0 of all replicas, which gives log Z."""
    return {"replica_log_probs": state.log_probs if state.log_bases is None else state.log_probs - state.log_bases}


def num_replicas(problem: Any, parameters: Mapping[str, Any]) -> int:
    """How many replicas a ladder of these options and tuned parameters has."""
    given = {**parameters, **problem.options}
    if isinstance(given.get("reference"), str) and given["reference"] == PRODUCT:
        return 1  # two legs are not distributed
    betas = given.get("inverse_temperatures")
    return given.get("num_temperatures", DEFAULT_TEMPERATURES) if betas is None else len(betas)


_WHOLE, _CUT = PartitionSpec(AXIS), PartitionSpec(AXIS, REPLICAS)
_AXES = TemperingState._make(_CUT if name == "positions" else _WHOLE for name in TemperingState._fields)
DISTRIBUTION = Distribution(num_parts=num_replicas, axes=_AXES, has_position=has_cold)
