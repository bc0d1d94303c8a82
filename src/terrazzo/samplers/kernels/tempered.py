"""Tempered: parallel tempering on a mixed space, from a proper reference.

Replica r follows pi_r, proportional to q0^(1 - beta_r) pi^beta_r with 0 = beta_0 < ... < beta_n = 1. The hottest one is
redrawn from q0 every round; the others take a sweep over the sites and a move of the reals. Neighbours swap with
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
from terrazzo.samplers.kernels.tempering import log_swap, swap_order, tried_pairs
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm, Tuning
from terrazzo.samplers.parts.ladders import LadderState, adapted, as_ladder, first_state
from terrazzo.samplers.parts.real_moves import ACCEPTANCE, Moved, chosen_kernel, hamiltonian, move_reals
from terrazzo.samplers.parts.references import AbstractReference, UserReference, fitted_reference
from terrazzo.samplers.parts.tuning import DualAveraging, dual_averaging_init, dual_averaging_update
from terrazzo.spaces import Configuration
from terrazzo.targets.mixed import interpolated, of_reference
from terrazzo.targets.target import Target

NUM_TEMPERATURES = 8
PILOT_CHAINS, PILOT_STEPS = 8, 200  # of the short chains that the reference is fitted to
LEAPFROGS = 8  # of a move: swaps carry replicas on, so that long trajectories do not pay
EVALUATIONS_A_ROUND = NUM_TEMPERATURES * (2 + 2 * LEAPFROGS)  # of the default ladder, of its moves of reals
# Values of terms in a sum over theta, beyond which replicas move one after the other on a CPU: side by side they leave
# its cache. A gradient of a replica took 1,190 microseconds against 137 at a change point (12,430 values), 135 against
# 102 with 8 indicators of a regression, 9.4 against 10 in a chain of 40 states (480 values).
SIDE_BY_SIDE = 2**12
FIRST_SCALE = 0.2  # of the moves of reals, in standard deviations of the reference


class _Moves(NamedTuple):
    """Moves of one replica, between the reference and the target.

    Attributes:
        target: The target.
        reference: q0.
        summation: How to sum out theta, or None.
        conditionals: Of the sites by colour, or None.
    """

    target: Target
    reference: AbstractReference
    summation: Any
    conditionals: Any

    def value(self, theta: Array, y: Array) -> Array:
        """log pi as a density of y, with theta summed out where that is possible."""
        if self.summation is None:
            return self.target.log_density(theta, y)
        found = self.summation(y) + self.target.space.log_jacobian(y)
        return jnp.where(jnp.isnan(found), -jnp.inf, found)

    def log_weight(self, theta: Array, y: Array) -> Array:
        """log pi - log q0."""
        return weight_of(self.value(theta, y), self.reference.log_density(theta, y))

    def redrawn(self, key: Array, beta: Array, theta: Array, y: Array) -> Array:
        """A sweep over the sites at fixed reals."""
        q0 = self.reference
        if self.conditionals is not None and q0.has_independent_sites:
            for one, part in zip(self.conditionals, jax.random.split(key, len(self.conditionals)), strict=True):
                here = eqx.tree_at(lambda c: c.data, one, y, is_leaf=lambda x: x is None)
                base = q0.site_logits(theta, y, one.sites)
                logits = interpolated(beta, base, here.logits(theta))
                theta = theta.at[one.sites].set(jax.random.categorical(part, logits, axis=-1).astype(theta.dtype))
            return theta
        given = self.target.given(y)

        def update(i: Array, theta: Array) -> Array:
            logits = interpolated(beta, q0.site_logits(theta, y, i), given.site_logits(theta, i))
            return theta.at[i].set(jax.random.categorical(jax.random.fold_in(key, i), logits).astype(theta.dtype))

        return jax.lax.fori_loop(0, self.target.space.num_dims, update, theta)

    def __call__(self, key: Array, beta: Array, scale: Array, theta: Array, y: Array) -> tuple[Array, Moved, Array]:
        """theta, the move of the reals, and the log-weight after it; the hottest replica is redrawn from q0."""
        theta_key, real_key, fresh_key = jax.random.split(key, 3)
        if self.target.space.num_dims and self.summation is None:
            theta = self.redrawn(theta_key, beta, theta, y)
        fresh_theta, fresh_y = self.reference.draw(fresh_key)
        y, scale = jnp.where(beta == 0, fresh_y, y), jnp.where(beta == 0, 0.0, scale)  # what is fresh is not moved
        if fresh_theta.shape == theta.shape:
            theta = jnp.where(beta == 0, fresh_theta, theta)

        def density(y: Array) -> tuple[Array, Array]:
            found, base = self.value(theta, y), self.reference.log_density(theta, y)
            return interpolated(beta, base, found), weight_of(found, base)

        mass = self.reference.variances
        if self.target.has_real_gradient:
            moved, weight = hamiltonian(real_key, density, y, scale=scale, mass=mass, num_steps=LEAPFROGS)
            return theta, moved, weight
        moved = move_reals(
            real_key, lambda y: density(y)[0], y, kernel="random_walk", scale=scale, inverse_mass_matrix=mass
        )
        return theta, moved, self.log_weight(theta, moved.reals)

    def of_all(self, *replicas: Array) -> tuple[Array, Moved, Array]:
        """The moves of all replicas, side by side or one after the other."""
        sums = self.summation
        is_wide = sums is not None and sums.num_values > SIDE_BY_SIDE and jax.default_backend() == "cpu"
        return jax.lax.map(lambda each: self(*each), replicas) if is_wide else jax.vmap(self.__call__)(*replicas)


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
    >>> from terrazzo.samplers.parts.references import FittedReference
    >>> target = tz.Target(lambda x: jnp.logaddexp(-0.5 * (x - 9) ** 2, -0.5 * (x + 9) ** 2), tz.real())
    >>> sampler = tempered(target, reference=FittedReference(jnp.zeros(1), jnp.full(1, 9.0), jnp.zeros((0, 1))))
    >>> state = sampler.init(Configuration(jnp.zeros(0, jnp.int32), jnp.zeros(1)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), state)
    >>> state.ys.shape
    (8, 1)
    """
    dtype = jnp.result_type(float)
    q0 = prepare(target)["reference"] if reference is None else reference
    betas = as_ladder(inverse_temperatures, num_temperatures)
    count = betas.shape[0]
    steps = jnp.full(count, FIRST_SCALE, dtype) if scales is None else jnp.asarray(scales, dtype)
    moves = _Moves(target, q0, summation, conditionals)

    def cold_end(key: Array, theta: Array, y: Array) -> dict[str, Array]:
        """What a ladder shows of itself; a theta that was summed out is drawn here."""
        if summation is not None:
            theta = summation.backward(key, summation.forward(y)[1])
        return {"position": theta, "reals": y, "log_prob": target.log_prob_of(theta, y)}

    def init(position: Configuration, rng_key: Any = None) -> TemperedState:
        theta, y = position.theta, jnp.asarray(position.reals, dtype)
        thetas, ys = jnp.broadcast_to(theta, (count, *theta.shape)), jnp.broadcast_to(y, (count, *y.shape))
        weights = jnp.broadcast_to(moves.log_weight(theta, y), (count,))
        return TemperedState(
            position=theta, reals=y, log_prob=target.log_prob_of(theta, y), is_divergent=jnp.asarray(False),
            thetas=thetas, ys=ys, log_weights=weights, parity=jnp.zeros((), jnp.int32),
        )  # fmt: skip

    def step(rng_key: Array, state: TemperedState) -> tuple[TemperedState, Info]:
        move_key, swap_key, last_key = jax.random.split(rng_key, 3)
        keys = jax.random.split(move_key, count)
        thetas, moved, weights = moves.of_all(keys, betas, steps, state.thetas, state.ys)
        log_rates = log_swap(betas, weights)
        is_swapped = tried_pairs(count - 1, state.parity)
        is_swapped &= jnp.log(jax.random.uniform(swap_key, log_rates.shape, dtype)) < log_rates
        order = swap_order(is_swapped)
        thetas, ys, is_divergent = thetas[order], moved.reals[order], moved.is_divergent[-1]
        new = TemperedState(
            **cold_end(last_key, thetas[-1], ys[-1]), is_divergent=is_divergent, thetas=thetas, ys=ys,
            log_weights=weights[order], parity=1 - state.parity,
        )  # fmt: skip
        is_accepted = jnp.any(new.reals != state.reals) | jnp.any(new.position != state.position)
        evaluations = (moved.num_evaluations.sum() + 2 * count + 1).astype(jnp.int32)
        details = {"is_divergent": is_divergent, "swap_rates": jnp.exp(log_rates), "rates": moved.acceptance_rate}
        return new, Info(moved.acceptance_rate[-1], is_accepted, evaluations, details)

    return SamplingAlgorithm(init, step)


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
    if summation is None and not (reference is not None and reference.is_over_sites):
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
    first = as_ladder(inverse_temperatures, num_temperatures)
    wanted = ACCEPTANCE["hmc" if chosen_kernel(target, "auto") == "nuts" else "random_walk"]

    def init() -> _Search:
        line = jnp.full(len(first), np.log(FIRST_SCALE), first.dtype)
        return _Search(first_state(first), dual_averaging_init(line)._replace(error_sum=jnp.zeros_like(line)))

    def update(state: _Search, seen: tuple[Array, Array]) -> _Search:
        swap_rates, rates = seen
        scales = dual_averaging_update(state.scales, wanted - jnp.nanmean(rates, axis=0), bounds=(-12.0, 1.0))
        return _Search(adapted(state.ladder, swap_rates), scales)

    return Tuning(
        init=init,
        parameters=lambda s: {"inverse_temperatures": s.ladder.betas, "scales": jnp.exp(s.scales.value)},
        observe=lambda state, info: (info.details["swap_rates"], info.details["rates"]),
        update=update,
        final=lambda s: {"inverse_temperatures": s.ladder.betas, "scales": jnp.exp(s.scales.average)},
    )
