"""Tempered: parallel tempering on a mixed space, from a proper reference.

Replica r follows pi_r, proportional to q0^(1 - beta_r) pi^beta_r with 0 = beta_0 < ... < beta_n = 1. The hottest one is
drawn from q0 afresh every round; the others take a sweep over the sites and a move of the reals. Neighbours swap with
probability min(1, exp((beta_{r+1} - beta_r) (w_r - w_{r+1}))), w = log pi - log q0, even pairs in one round and odd
ones in the next. Where theta can be summed out, the ladder runs on the reals alone, and theta is drawn at its cold end.

q0 is normalised, so the ladder gives log Z = log Z_1 - log Z_0 (`parts.ladder_evidence`).

References: Syed et al. (2022), Non-reversible parallel tempering; Surjanovic et al. (2022), with a variational
reference.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.runtime.compilation import jit
from terrazzo.samplers.kernels import blocked as _blocked
from terrazzo.samplers.kernels import collapsed as _collapsed
from terrazzo.samplers.kernels.tempering import log_swap, tried_pairs
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, Tuning
from terrazzo.samplers.parts.ladders import LadderState, default_ladder, equalised
from terrazzo.samplers.parts.real_moves import ACCEPTANCE, Moved, chosen_kernel, hamiltonian, move_reals
from terrazzo.samplers.parts.references import FittedReference, UserReference, fitted_reference
from terrazzo.samplers.parts.tuning import DualAveraging, dual_averaging_init, dual_averaging_update
from terrazzo.spaces import Configuration
from terrazzo.targets.mixed import interpolated, of_reference
from terrazzo.targets.target import Target

NUM_TEMPERATURES = 8
FIRST_WINDOW = 8  # rounds before the ladder is first moved
PILOT_CHAINS, PILOT_STEPS = 8, 200  # of the short chains that the reference is fitted to
LEAPFROGS = 8  # of a move: swaps carry replicas on, so that long trajectories do not pay
EVALUATIONS_A_ROUND = NUM_TEMPERATURES * (2 + 2 * LEAPFROGS)  # of the default ladder, of its moves of reals
# Values of terms in a sum over theta, beyond which replicas move one after the other on a CPU: side by side they leave
# its cache. A gradient of a replica took 1,190 microseconds against 137 at a change point (12,430 values), 135 against
# 102 with 8 indicators of a regression, 9.4 against 10 in a chain of 40 states (480 values).
SIDE_BY_SIDE = 2**12
FIRST_SCALE = 0.2  # of the moves of reals, in standard deviations of the reference


class TemperedState(NamedTuple):
    """A ladder.

    Attributes:
        position: The cold theta.
        reals: The cold reals.
        log_prob: Its log pi in the user's scale.
        is_divergent: Whether the last trajectory at the cold end diverged.
        thetas: All codes, hottest first.
        ys: All reals.
        log_weights: log pi - log q0 of all replicas, as densities of y.
        parity: 0 if even pairs swap next.
    """

    position: Int[Array, " dim"]
    reals: Float[Array, " real"]
    log_prob: Float[Array, ""]
    is_divergent: Bool[Array, ""]
    thetas: Int[Array, "replica dim"]
    ys: Float[Array, "replica real"]
    log_weights: Float[Array, " replica"]
    parity: Int[Array, ""]


def tempered(
    target: Target,
    *,
    reference: Any = None,
    inverse_temperatures: Any = None,
    num_temperatures: int = NUM_TEMPERATURES,
    scales: Any = None,
    summation: Any = None,
    conditionals: Any = None,
) -> SamplingAlgorithm:
    """Parallel tempering on a mixed space.

    Args:
        target: A target with real variables.
        reference: Where the ladder starts, as `prepare` makes it: the target's own, or one fitted to short chains.
        inverse_temperatures: The ladder, from 0 to 1; tuned in warm-up.
        num_temperatures: The length of the default ladder.
        scales: Step sizes, one a replica; tuned in warm-up.
        summation: How to sum out theta, as `prepare` finds it.
        conditionals: Of the sites by colour, as `prepare` reads them.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda x: jnp.logaddexp(-0.5 * (x - 9) ** 2, -0.5 * (x + 9) ** 2), tz.real())
    >>> sampler = tempered(target, reference=FittedReference(jnp.zeros(1), jnp.full(1, 9.0), jnp.zeros((0, 1))))
    >>> state = sampler.init(Configuration(jnp.zeros(0, jnp.int32), jnp.zeros(1)))
    >>> state, info = sampler.step(jax.random.key(0), state)
    >>> state.ys.shape
    (8, 1)
    """
    dtype = jnp.result_type(float)
    q0 = prepare(target)["reference"] if reference is None else reference
    betas = default_ladder(num_temperatures) if inverse_temperatures is None else inverse_temperatures
    betas = jnp.asarray(betas, dtype)
    count = betas.shape[0]
    steps = jnp.full(count, FIRST_SCALE, dtype) if scales is None else jnp.asarray(scales, dtype)
    kernel = "hmc" if target.has_real_gradient else "random_walk"
    num_reals = target.space.num_reals
    mass = q0.sd**2 if isinstance(q0, FittedReference) else jnp.ones(num_reals, dtype)

    def value(theta: Array, y: Array) -> Array:
        if summation is None:
            return target.log_density(theta, y)
        found = summation(y) + target.space.log_jacobian(y)
        return jnp.where(jnp.isnan(found), -jnp.inf, found)

    def log_weight(theta: Array, y: Array) -> Array:
        return weight_of(value(theta, y), q0.log_density(theta, y))

    def redrawn(key: Array, beta: Array, theta: Array, y: Array) -> Array:
        """A sweep over the sites at fixed reals."""
        if conditionals is not None and isinstance(q0, FittedReference):
            for one, part in zip(conditionals, jax.random.split(key, len(conditionals)), strict=True):
                here = eqx.tree_at(lambda c: c.data, one, y, is_leaf=lambda x: x is None)
                logits = interpolated(beta, q0.log_probs[one.sites], here.logits(theta))
                theta = theta.at[one.sites].set(jax.random.categorical(part, logits, axis=-1).astype(theta.dtype))
            return theta
        given = target.given(y)

        def update(i: Array, theta: Array) -> Array:
            logits = interpolated(beta, q0.site_logits(theta, y, i), given.site_logits(theta, i))
            return theta.at[i].set(jax.random.categorical(jax.random.fold_in(key, i), logits).astype(theta.dtype))

        return jax.lax.fori_loop(0, target.space.num_dims, update, theta)

    def move(key: Array, beta: Array, scale: Array, theta: Array, y: Array) -> tuple[Array, Moved, Array]:
        """theta, the move of the reals, and the log-weight after it."""
        theta_key, real_key, fresh_key = jax.random.split(key, 3)
        if target.space.num_dims and summation is None:
            theta = redrawn(theta_key, beta, theta, y)
        fresh_theta, fresh_y = q0.draw(fresh_key)
        y, scale = jnp.where(beta == 0, fresh_y, y), jnp.where(beta == 0, 0.0, scale)  # what is fresh is not moved
        if fresh_theta.shape == theta.shape:
            theta = jnp.where(beta == 0, fresh_theta, theta)

        def density(y: Array) -> tuple[Array, Array]:
            found, base = value(theta, y), q0.log_density(theta, y)
            return interpolated(beta, base, found), weight_of(found, base)

        if kernel == "hmc":
            moved, weight = hamiltonian(real_key, density, y, scale=scale, mass=mass, num_steps=LEAPFROGS)
            return theta, moved, weight
        moved = move_reals(
            real_key, lambda y: density(y)[0], y, kernel=kernel, scale=scale, inverse_mass_matrix=mass
        )  # fmt: skip
        return theta, moved, log_weight(theta, moved.reals)

    def as_state(key: Array, thetas: Array, ys: Array, weights: Array, is_divergent: Array, parity: Array) -> Any:
        theta, y = thetas[-1], ys[-1]
        if summation is not None:
            theta = summation.backward(key, summation.forward(y)[1])
        return TemperedState(theta, y, target.log_prob_of(theta, y), is_divergent, thetas, ys, weights, parity)

    def init(position: Configuration, rng_key: Any = None) -> TemperedState:
        theta, y = position.theta, jnp.asarray(position.reals, dtype)
        thetas, ys = jnp.broadcast_to(theta, (count, *theta.shape)), jnp.broadcast_to(y, (count, *y.shape))
        weights = jnp.broadcast_to(log_weight(theta, y), (count,))
        zero = jnp.zeros((), jnp.int32)
        return TemperedState(theta, y, target.log_prob_of(theta, y), jnp.asarray(False), thetas, ys, weights, zero)

    def step(rng_key: Array, state: TemperedState) -> tuple[TemperedState, Info]:
        move_key, swap_key, last_key = jax.random.split(rng_key, 3)
        keys = jax.random.split(move_key, count)
        thetas, moved, weights = _of_all(summation, move)(keys, betas, steps, state.thetas, state.ys)
        log_rates = log_swap(betas, weights)
        is_swapped = tried_pairs(count - 1, state.parity)
        is_swapped &= jnp.log(jax.random.uniform(swap_key, log_rates.shape, dtype)) < log_rates
        no = jnp.zeros(1, bool)
        up, down = jnp.concatenate([is_swapped, no]), jnp.concatenate([no, is_swapped])
        order = jnp.arange(count, dtype=jnp.int32) + up.astype(jnp.int32) - down.astype(jnp.int32)
        new = as_state(
            last_key, thetas[order], moved.reals[order], weights[order], moved.is_divergent[-1], 1 - state.parity,
        )  # fmt: skip
        is_accepted = jnp.any(new.reals != state.reals) | jnp.any(new.position != state.position)
        evaluations = (moved.num_evaluations.sum() + 2 * count + 1).astype(jnp.int32)
        details = {
            "is_divergent": moved.is_divergent[-1], "swap_rates": jnp.exp(log_rates), "rates": moved.acceptance_rate,
        }  # fmt: skip
        return new, Info(moved.acceptance_rate[-1], is_accepted, evaluations, details)

    return SamplingAlgorithm(init, step)


def _of_all(summation: Any, move: Callable) -> Callable:
    """A function of one replica as one of all of them, side by side or one after the other."""
    is_wide = summation is not None and summation.num_values > SIDE_BY_SIDE and jax.default_backend() == "cpu"
    return (lambda *args: jax.lax.map(lambda each: move(*each), args)) if is_wide else jax.vmap(move)


def weight_of(value: Array, base: Array) -> Array:
    """log pi - log q0; -inf where pi is 0."""
    return jnp.where(value == -jnp.inf, -jnp.inf, value - base)


def record(state: TemperedState) -> dict[str, Array]:
    """What is kept of a ladder with every draw: the log-weights of all replicas give log Z."""
    return {"diverging": state.is_divergent, "replica_log_probs": state.log_weights}


# ---- what is found before and in warm-up


@jit
def _pilot(target: Target, build: Callable, key: Array, start: Any, num_steps: int) -> tuple[Array, Array]:
    """theta and y of the second half of short chains, tuned as they go."""
    tuning = _blocked.tuning(target)
    sampler = lambda state: build(target, **tuning.parameters(state))
    states = jax.vmap(sampler(tuning.init()).init)(start)

    def body(carry: Any, key: Array) -> Any:
        states, tuned = carry
        states, info = jax.vmap(sampler(tuned).step)(jax.random.split(key, PILOT_CHAINS), states)
        tuned = tuning.update(tuned, jax.vmap(tuning.observe)(states, info))
        return (states, tuned), (states.position, states.reals)

    _, (theta, y) = jax.lax.scan(body, (states, tuning.init()), jax.random.split(key, num_steps))
    half = num_steps // 2
    return theta[half:].reshape(-1, theta.shape[-1]), y[half:].reshape(-1, y.shape[-1])


def prepare(target: Target, *, reference: Any = None, **others: Any) -> dict[str, Any]:
    """Finds how to move theta, and fits the reference to short chains where the target has none."""
    summation = others.pop("summation", None)
    if summation is None and not (isinstance(reference, FittedReference) and reference.log_probs.shape[0]):
        summation = _collapsed.affordable_summation(target) if target.has_real_gradient else None
    others.pop("conditionals", None)
    if reference is None and target.reference is not None:
        reference, summation = _users(target, summation)
    options = _blocked.prepare(target) if summation is None else {}
    found = {**others, "summation": summation, "conditionals": options.get("conditionals")}
    if reference is None:
        if summation is None:
            build = eqx.Partial(_blocked.blocked, **options, max_doublings=5)
        else:
            build = eqx.Partial(_collapsed.collapsed, summation=summation, max_doublings=5)
        start = target.possible_starts(jax.random.key(3), PILOT_CHAINS)
        theta, y = _pilot(target, build, jax.random.key(4), start, PILOT_STEPS)
        is_collapsed = summation is not None
        reference = fitted_reference(target, np.asarray(theta), np.asarray(y), is_collapsed=is_collapsed)
    return {**found, "reference": reference}


def _users(target: Target, summation: Any) -> tuple[UserReference, Any]:
    """The user's reference, and the sum over theta: both are summed, or none of them."""
    own = None if summation is None else _collapsed.affordable_summation(of_reference(target))
    return UserReference(target, own), None if own is None else summation


class _Search(NamedTuple):
    ladder: LadderState
    scales: DualAveraging


def tuning(
    target: Target, *, inverse_temperatures: Any = None, num_temperatures: int = NUM_TEMPERATURES, **_: Any
) -> Tuning:
    """Adapts the ladder to equal swap rates and the step size of every replica to its acceptance."""
    first = default_ladder(num_temperatures) if inverse_temperatures is None else np.asarray(inverse_temperatures)
    wanted = ACCEPTANCE["hmc" if chosen_kernel(target, "auto") == "nuts" else "random_walk"]

    def init() -> _Search:
        betas, zero = jnp.asarray(first, jnp.result_type(float)), jnp.zeros((), jnp.int32)
        ladder = LadderState(betas, jnp.zeros(len(first) - 1, betas.dtype), zero, zero + FIRST_WINDOW)
        line = jnp.full(len(first), np.log(FIRST_SCALE), betas.dtype)
        return _Search(ladder, dual_averaging_init(line)._replace(error_sum=jnp.zeros_like(line)))

    def update(state: _Search, seen: tuple[Array, Array]) -> _Search:
        swap_rates, rates = seen
        old = state.ladder
        rejections, count = old.rejections + 1.0 - swap_rates.mean(axis=0), old.num_rounds + 1
        is_full = count >= old.window
        betas = jnp.where(is_full, equalised(old.betas, rejections / count.astype(rejections.dtype)), old.betas)
        ladder = LadderState(
            betas, jnp.where(is_full, 0.0, rejections), jnp.where(is_full, 0, count),
            jnp.where(is_full, 2 * old.window, old.window),
        )  # fmt: skip
        scales = dual_averaging_update(state.scales, wanted - jnp.nanmean(rates, axis=0), bounds=(-12.0, 1.0))
        return _Search(ladder, scales)

    return Tuning(
        init=init,
        parameters=lambda s: {"inverse_temperatures": s.ladder.betas, "scales": jnp.exp(s.scales.value)},
        observe=lambda state, info: (info.details["swap_rates"], info.details["rates"]),
        update=update,
        final=lambda s: {"inverse_temperatures": s.ladder.betas, "scales": jnp.exp(s.scales.average)},
    )
