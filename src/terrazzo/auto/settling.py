"""Between the plan and the draws: burn-in, which holds the choice to its promise, and chains that start elsewhere."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.auto.context import Context
from terrazzo.auto.decisions import Choice, choose_again, thin_again
from terrazzo.auto.hunt import OtherStarts, features, hunt, modes_apart, pick_starts, stirred
from terrazzo.auto.mixing import cautious_ess, least_ess
from terrazzo.auto.plan import Plan, compared
from terrazzo.auto.planning import Request, plan_with_modes
from terrazzo.auto.policy import Policy
from terrazzo.auto.reach import cut_off
from terrazzo.diagnostics.autocorrelation import MIN_DRAWS
from terrazzo.engine.loop import draws, joined
from terrazzo.verdict.coverage import moments_of


class Keys(NamedTuple):
    """The keys of this part of a run: of starts, of steps, and of whatever looks elsewhere."""

    init: Array
    step: Array
    look: Array


class Settled(NamedTuple):
    """A plan whose chains are burnt in.

    Attributes:
        plan: The plan, with the chains that started elsewhere.
        states: The states of its chains.
        step_seconds: Seconds of a step of all chains; infinite if it was not timed.
    """

    plan: Plan
    states: Any
    step_seconds: float


def settle(
    keys: Keys, context: Context, request: Request, plan: Plan, *, warmup: int, seed: int, check: Callable[[], None]
) -> Settled:
    """Burns in and starts chains elsewhere; chooses again where a promise is not kept or a mode was missed.

    Args:
        keys: JAX keys.
        context: The run.
        request: What the user asked of warm-up.
        plan: What warm-up decided.
        warmup: Rounds of burn-in.
        seed: Of the changes that look for what single sites do not reach.
        check: Called between long parts: a place to stop at.
    """

    def once(plan: Plan) -> Settled:
        found = burn_in(keys, context, request, plan, warmup)
        others = other_starts(keys, context, found, seed, check)
        return found._replace(plan=found.plan._replace(others=others))

    settled = once(plan)
    modes = new_modes(keys.look, context, settled.plan)
    others = settled.plan.others
    if not len(modes) or others is None or request.transport is None or context.budget.is_spent("training"):
        return settled
    key, last = jax.random.fold_in(keys.look, 9), others.theta[modes, -1]
    theta, log_prob = stirred(key, context.target, last, context.policy, copies=context.policy.mode_copies)
    return once(plan_with_modes(context, request, settled.plan, theta, log_prob))


def next_choice(plan: Plan, speed: float | None, policy: Policy) -> Choice | None:
    """The choice that takes over from one that fell far below its promise; None if it did not, or nothing is better.

    Args:
        plan: The plan, with its choice and the promise of its trial.
        speed: Effective draws a second of burn-in, or None if they were not measured.
        policy: How far below is far.
    """
    if plan.choice is None or plan.promise is None or speed is None or speed * policy.broken_promise >= plan.promise:
        return None
    other = choose_again(plan.choice)
    return None if other is None or other.row.worth <= speed else other


def burn_in(keys: Keys, context: Context, request: Request, plan: Plan, warmup: int) -> Settled:
    """The chains after burn-in, by the loop that draws; if a choice breaks its promise, the next best follows."""
    policy, budget = context.policy, context.budget
    while True:
        chains = plan.chains(context.target, context.mesh, context.length)
        states = chains.start(keys.init, plan.starts if request.starts is None else request.starts)
        settled = Settled(plan, states, plan.step_seconds)
        total = -(-warmup // plan.rounds)
        watched = int(policy.watched_share * context.num_draws) if total and plan.promise is not None else 0
        thin = max(1, thin_in_time(context, plan, plan.step_seconds) // plan.rounds)
        context.progress.phase("burn-in", total + watched * thin, "steps")
        settled, _, _ = _unkept(keys.step, context, settled, 0, total, 1)
        speed = None
        if watched and not budget.is_half_gone:
            settled, rows, seconds = _unkept(keys.step, context, settled, total, watched, thin)
            if rows["log_prob"].shape[1] >= policy.fewest_watched and seconds > 0:
                speed = least_ess(rows["theta"], rows["log_prob"], policy) / seconds
                plan = _thinned(context, settled, cautious_ess(rows["theta"], rows["log_prob"], policy), seconds)
        other = None if budget.is_half_gone else next_choice(plan, speed, policy)
        if other is None:
            return settled._replace(plan=plan)
        plan = plan.chosen(other, context.num_draws, policy)


def _thinned(context: Context, settled: Settled, ess: float, seconds: float) -> Plan:
    """The plan with the thinning that burn-in asks for: it saw more draws than the trial did."""
    plan, policy = settled.plan, context.policy
    if plan.choice is None or ess < policy.resolved_ess * context.num_chains:
        return plan
    return plan._replace(thin=thin_again(plan.choice, ess / seconds, settled.step_seconds, policy))


def _unkept(
    key: Array, context: Context, settled: Settled, first: int, count: int, thin: int
) -> tuple[Settled, dict[str, np.ndarray], float]:
    """Draws that are not kept, until half of the time is gone; rows are (chain, draw, ...), with their seconds."""
    chains = settled.plan.chains(context.target, context.mesh, context.length)
    rows, seconds = [], 0.0
    for chunk in draws(chains, key, settled.states, count, first=first, thin=thin, is_compiled=first > 0):
        rows.append(chunk.out.rows)
        settled = settled._replace(states=chunk.out.states)
        if not chunk.is_first:
            fastest = min(settled.step_seconds, chunk.seconds / (chunk.size * thin))
            settled, seconds = settled._replace(step_seconds=fastest), seconds + chunk.seconds
        done = chunk.first + chunk.size
        context.progress.update(first + done * thin, acceptance=float(chunk.out.info["acceptance_rate"]))
        if done > 1 and context.budget.is_half_gone:  # the first step compiles
            break
    return settled, joined(rows) if rows else {}, seconds


def other_starts(
    keys: Keys, context: Context, settled: Settled, seed: int, check: Callable[[], None]
) -> OtherStarts | None:
    """Chains of the sampler from hunted configurations, by the loop that draws; None if there is no time."""
    plan, policy, budget, target = settled.plan, context.policy, context.budget, context.target
    if budget.is_short or (plan.explored is None and budget.is_half_gone):
        return None
    context.progress.phase("looking elsewhere", None, "records")
    position = np.asarray(settled.states.position)
    known = position[:, None] if plan.explored is None else plan.explored.theta
    optima = hunt(jax.random.fold_in(keys.look, 7), target, known, policy, seconds=budget.seconds)
    check()
    cut = cut_off(np.random.default_rng(seed % 2**63), target, position, policy)
    starts = pick_starts(optima, cut.theta, context.num_chains)
    if not len(starts):
        return None
    starts = stirred(jax.random.fold_in(keys.look, 8), target, starts, policy)[0][:, 0]
    check()
    count = int(np.clip(policy.watched_share * context.num_draws, policy.fewest_watched, policy.most_watched_records))
    thin = max(1, thin_in_time(context, plan, settled.step_seconds) // plan.rounds)
    if budget.seconds is not None and np.isfinite(settled.step_seconds):
        seconds = policy.others_share * (budget.total_seconds_left or 0.0)
        thin = max(1, min(thin, int(seconds / (2 * count * settled.step_seconds))))
    chains = plan.chains(target, context.mesh, context.length)
    states, rows = chains.start(jax.random.fold_in(keys.init, 1), starts), []
    for chunk in draws(chains, jax.random.fold_in(keys.step, 1), states, 2 * count, thin=thin):
        rows.append({name: chunk.out.rows[name] for name in ("theta", "log_prob")})
        context.progress.update(chunk.first + chunk.size)
        if budget.is_over:
            break
    whole = joined(rows)
    half = whole["log_prob"].shape[1] // 2
    if half < policy.fewest_watched // 2:
        return None
    return OtherStarts(starts, whole["theta"][:, half:], whole["log_prob"][:, half:])


def new_modes(key: Array, context: Context, plan: Plan) -> np.ndarray:
    """Which of the chains that began elsewhere stayed in a mode of some weight that tempering did not find."""
    explored = plan.explored
    if plan.others is None or explored is None or explored.log_prob.shape[1] < MIN_DRAWS:
        return np.zeros(0, int)
    tempered = moments_of(features(*compared(explored.theta, explored.log_prob, context.policy)))
    found = modes_apart(key, context.target, plan.others, tempered, explored.evidence, context.policy)
    return np.array([mode.chain for mode in found if not mode.is_negligible], int)


def thin_in_time(context: Context, plan: Plan | None, step_seconds: float) -> int:
    """The user's thinning; or what makes draws nearly independent, by the trial, within the seconds left; or 1."""
    if context.thin is not None:
        return context.thin
    if plan is None or plan.thin is None:
        return 1
    left = context.budget.total_seconds_left
    if left is None or not np.isfinite(step_seconds):
        return plan.thin
    affordable = context.policy.drawing_share * left / (step_seconds * context.num_draws)
    return min(plan.thin, plan.rounds * max(1, int(affordable)))
