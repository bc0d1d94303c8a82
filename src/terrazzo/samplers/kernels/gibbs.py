"""Gibbs sampling: each site is redrawn from its exact conditional pi(theta_i | theta_-i).

    theta_i ~ softmax_k log pi(theta_i = k, theta_-i)

Random scan and systematic scan are here, with Liu's metropolised variant, which never proposes the current value and
dominates random-scan Gibbs in Peskun's order. Blocks, colours and slices have their own files.
All K candidates of a site are one batched evaluation, unless the target offers cheap conditionals (`site_logits`);
then a step costs a single full evaluation, for log pi itself. (Calls of `site_logits` are not counted as evaluations.)
With running conditionals, the target's own or read from a plain function, a step of many updates costs as much as the
sites that change, or a site its own terms (`running_sweeps`).
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from terrazzo.errors import OptionError
from terrazzo.errors.arguments import count
from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.acceptance import log_acceptance
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, State, as_float
from terrazzo.samplers.parts.ratios import site_log_probs
from terrazzo.samplers.parts.reading import read_running, with_conditionals
from terrazzo.samplers.parts.running_sweeps import redraw_sites
from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.target import Target

SCANS = ("random", "systematic")


def positive_int(name: str, value: Any) -> int:
    """An option that must be a positive integer."""
    return count(name, value, remedy=f"e.g. {name}=1")


def redraw_site(key: randomness.Key, target: Target, state: State, site: Int[Array, ""]) -> State:
    """One site redrawn from its conditional; `log_prob` follows only if the candidates were evaluated."""
    logits = site_log_probs(target, state.position, state.log_prob, site)
    value = randomness.categorical(key, logits, _is_value(target, site))
    position = state.position.at[site].set(value)
    return State(position, state.log_prob if target.site_logits_fn is not None else logits[value])


def _is_value(target: Target, site: Int[Array, ""]) -> Array:
    return jnp.arange(target.space.max_size, dtype=jnp.int32) < jnp.asarray(target.space.sizes)[site]


def settled(target: Target, state: State) -> State:
    """The state with its true `log_prob`: evaluated if cheap conditionals moved it."""
    if target.site_logits_fn is None:
        return state
    return State(state.position, target.log_prob(state.position))


def num_site_evaluations(target: Target, num_updates: int) -> int:
    """Evaluations of `num_updates` site updates and the final `settled`."""
    return 1 if target.site_logits_fn is not None else num_updates * (target.space.max_size - 1)


def moved_info(old: State, new: State, num_evaluations: Any) -> Info:
    """The info of a rejection-free kernel."""
    is_moved = jnp.any(old.position != new.position)
    return Info(as_float(1.0), is_moved, jnp.asarray(num_evaluations, jnp.int32))


def start(target: Target) -> Any:
    """The `init` of all samplers that carry nothing but theta and log pi."""

    def init(position: Int[Array, " dim"], rng_key: Any = None) -> State:
        return State(position, target.log_prob(position))

    return init


def prepare(target: Target, *, conditionals: Any = None, **options: Any) -> dict[str, Any]:
    """Reads the conditionals of a plain function on the host, for steps of several updates."""
    num_updates = options.get("num_updates")
    is_long = options.get("scan") == "systematic" or (isinstance(num_updates, int) and num_updates > 1)
    found = read_running(target) if conditionals is None and is_long and target.space.num_dims > 1 else conditionals
    return options if found is None or not found.is_sequential else {**options, "conditionals": found}


def prepare_systematic(target: Target, **options: Any) -> dict[str, Any]:
    """`prepare` of `systematic_gibbs`."""
    found = prepare(target, scan="systematic", **options)
    del found["scan"]
    return found


def gibbs(
    target: Target,
    *,
    scan: str = "random",
    num_updates: int | None = None,
    conditionals: AbstractRunningConditionals | None = None,
) -> SamplingAlgorithm:
    """Gibbs sampling, one site after the other.

    Args:
        target: The target.
        scan: "random" (each update picks a site uniformly) or "systematic" (sites in order; a step is a whole sweep).
        num_updates: Site updates per step of the random scan (default 1), or sweeps per step of the systematic one.
        conditionals: Running conditionals, untempered, as `prepare` reads them from a plain function.

    Returns:
        The sampler. K_max - 1 evaluations per site update, or one per step if the target has `site_logits`, or has
        running conditionals and a step several updates.

    Reference: Geman & Geman (1984).

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> sampler = gibbs(target, scan="systematic")
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> int(info.num_evaluations)
    3
    """
    if scan not in SCANS:
        raise OptionError("scan", f"{scan!r} is unknown", f"one of {', '.join(SCANS)}")
    num_rounds = positive_int("num_updates", 1 if num_updates is None else num_updates)
    num_dims = target.space.num_dims
    num_sites = num_rounds * (num_dims if scan == "systematic" else 1)
    target = with_conditionals(target, conditionals)

    def pick(key: randomness.Key, i: Int[Array, ""]) -> tuple[Array, randomness.Key]:
        if scan == "systematic":
            return i % num_dims, key
        site_key, value_key = randomness.split(key, 2)
        return randomness.uniform_index(site_key, num_dims), value_key

    def update(key: randomness.Key, i: Int[Array, ""], state: State) -> State:
        site, value_key = pick(key, i)
        return redraw_site(value_key, target, state, site)

    def step(rng_key: randomness.Key, state: State) -> tuple[State, Info]:
        if target.running is not None and num_sites > 1:
            position = redraw_sites(rng_key, target, state.position, num_sites, pick)
            new = State(position, target.log_prob(position))
            return new, moved_info(state, new, 1)
        new = settled(target, randomness.loop(rng_key, num_sites, update, state))
        return new, moved_info(state, new, num_site_evaluations(target, num_sites))

    return SamplingAlgorithm(start(target), step)


def systematic_gibbs(
    target: Target, *, num_sweeps: int = 1, conditionals: AbstractRunningConditionals | None = None
) -> SamplingAlgorithm:
    """Gibbs sampling, all sites in order: one step is `num_sweeps` sweeps. See `gibbs`.

    >>> import terrazzo as tz
    >>> sampler = systematic_gibbs(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    num_updates = positive_int("num_sweeps", num_sweeps)
    return gibbs(target, scan="systematic", num_updates=num_updates, conditionals=conditionals)


# ---- metropolised


def log_sum_without(logits: Float[Array, " n"], index: Int[Array, ""]) -> Float[Array, ""]:
    """The log-sum-exp of all entries but one."""
    return jax.nn.logsumexp(logits.at[index].set(-jnp.inf))


def metropolised_gibbs(target: Target, *, num_updates: int = 1) -> SamplingAlgorithm:
    """Metropolised Gibbs: propose *another* value k by its conditional, then accept.

        q(k) = pi_k / (1 - pi_x) for k != x,    a = min(1, (1 - pi_x) / (1 - pi_k))

    Args:
        target: The target.
        num_updates: Site updates per step, at sites picked uniformly.

    Returns:
        The sampler; the same cost as Gibbs and never a larger asymptotic variance.

    Reference: Liu (1996), Peskun's theorem and a modified discrete-state Gibbs sampler.

    >>> import terrazzo as tz
    >>> sampler = metropolised_gibbs(tz.Target(lambda theta: -0.5 * theta.sum(), tz.integers(0, 3, 3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> int(info.num_evaluations)  # as Gibbs: the other values of one site
    3
    """
    num_updates = positive_int("num_updates", num_updates)

    def update(key: randomness.Key, _: Any, carry: tuple[State, Array]) -> tuple[State, Array]:
        state, total = carry
        site_key, value_key, accept_key = randomness.split(key, 3)
        site = randomness.uniform_index(site_key, target.space.num_dims)
        logits = site_log_probs(target, state.position, state.log_prob, site)
        current = state.position[site]
        is_other = _is_value(target, site) & (jnp.arange(target.space.max_size, dtype=jnp.int32) != current)
        value = randomness.categorical(value_key, jnp.where(is_other, logits, -jnp.inf), is_other)
        # pi_k q(x) / (pi_x q(k)) is the ratio of the two sums: no cancellation where pi_x is almost 1
        log_hastings = log_sum_without(logits, current) - log_sum_without(logits, value)
        log_hastings = log_hastings - (logits[value] - logits[current])
        log_prob = log_acceptance(logits[current], logits[value], log_hastings)
        is_accepted = randomness.bernoulli(accept_key, log_prob)
        position = state.position.at[site].set(jnp.where(is_accepted, value, current))
        if target.site_logits_fn is None:
            state = State(position, jnp.where(is_accepted, logits[value], state.log_prob))
        else:
            state = State(position, state.log_prob)
        return state, total + jnp.exp(log_prob)

    def step(rng_key: randomness.Key, state: State) -> tuple[State, Info]:
        new, total = randomness.loop(rng_key, num_updates, update, (state, as_float(0.0)))
        new = settled(target, new)
        info = moved_info(state, new, num_site_evaluations(target, num_updates))
        return new, info._replace(acceptance_rate=total / num_updates)

    return SamplingAlgorithm(start(target), step)
