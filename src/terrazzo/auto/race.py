"""The trial: what each way of moving is worth, in effective draws a second, measured on the chains themselves.

All candidates start from the tempered draws, so that one which cannot travel between modes is seen to fail: its chains
keep disagreeing, and the effective sample size over all chains collapses. The worth of a candidate is

    least ESS of log pi and of (all but 5 % of) the coordinates / seconds,

or, where the trial was too short for the chains to agree but what tells them apart was seen to decay, what that decay
(`relaxation`) promises. Candidates run on all chains of the coming run, so that what is compiled here is what runs
later. What is measured goes into a `Table`; what to make of it is decided in `decisions`.
"""

import time
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.auto.candidates import Candidate, Local, alone, paired
from terrazzo.auto.context import Context
from terrazzo.auto.decisions import (
    APART,
    MET,
    TEMPERING,
    WILL_MEET,
    Measured,
    Table,
    favourite,
    is_worth_another,
    local_rows,
    needs_longer_look,
    next_pair,
    passed_over,
)
from terrazzo.auto.exploration import Explored, prepared_tempering
from terrazzo.auto.mixing import cautious_ess, least_ess, relaxation
from terrazzo.auto.policy import Policy
from terrazzo.engine import kernels
from terrazzo.engine.loop import Chains, draws, joined, tune
from terrazzo.runtime import devices
from terrazzo.runtime.background import compile_in_background
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.parts.base import Tuning
from terrazzo.samplers.parts.ladders import default_ladder
from terrazzo.samplers.parts.paths import UNIFORM
from terrazzo.transports import AbstractTransport


class Trial(NamedTuple):
    """How candidates are measured.

    Attributes:
        context: The run.
        key: A JAX key.
        starts: Where the chains start, (chain, dim).
        phase: Whose budget it is.
        seconds: Of one candidate.
        transport: What jumps go through, or None.
    """

    context: Context
    key: Array
    starts: np.ndarray
    phase: str
    seconds: float
    transport: AbstractTransport | None = None

    @property
    def is_spent(self) -> bool:
        """Whether the time of the trial is over."""
        return self.context.budget.is_spent(self.phase)


def trial_seconds(context: Context) -> float:
    """Seconds of one candidate."""
    return max(context.policy.trial_seconds, context.policy.trial_share * (context.budget.seconds or 0.0))


def rounds_a_step(context: Context) -> int:
    """Rounds of the hybrid that one step plays: several on an accelerator, a divisor of the thinning asked for.

    Their proposals are then drawn side by side, which costs hardly more than one.
    """
    policy, thin = context.policy, context.thin
    if thin is None:
        return policy.rounds_a_step
    return max(r for r in range(1, policy.most_rounds_a_step + 1) if thin % r == 0)


def _chains(trial: Trial, candidate: Candidate) -> Chains:
    return _brief(trial, "hybrid", candidate.options, trial.transport if candidate.uses_transport else None)


def _brief(trial: Trial, name: str, options: dict[str, Any], transport: AbstractTransport | None = None) -> Chains:
    """Chains of a sampler, for loops that run not much longer than they compile."""
    context = trial.context
    problem = kernels.Problem(context.target, transport, options)
    return Chains(mesh=context.mesh, spec=REGISTRY[name], problem=problem, length=context.length, is_brief=True)


def _untuned(trial: Trial, local: Local, rule: Callable[..., Tuning]) -> tuple[Chains, Tuning]:
    """Chains of a kernel with its first parameters, and the rule that finds better ones."""
    tuning = rule(trial.context.target, **local.options)
    first = tuning.parameters(tuning.init())
    return _brief(trial, local.name, local.options)._replace(length=1, parameters=first), tuning


# ---- what is measured


def compile_ahead(trial: Trial, locals_: list[Local]) -> Iterator[None]:
    """Compiles the loops of the trial one by one, without a step: while ladders run, say."""
    for local in locals_:
        spec, options = REGISTRY[local.name], local.options
        if spec.tuning is not None:
            chains, tuning = _untuned(trial, local, spec.tuning)
            state = chains.tuned(trial.key, _blank(trial, chains), tuning.init(), 0, 0)[2]
            yield
            options = {**options, **tuning.final(state)}
        chains = _chains(trial, alone(local._replace(options=options), 1))
        chains.draw(trial.key, _blank(trial, chains), 0, 0, 1)
        yield


def tempering_ahead(trial: Trial, num_tied: int) -> Iterator[None]:
    """Compiles tempering of all chains with a ladder as long as the first one, where other cores are free for it."""
    policy, target = trial.context.policy, trial.context.target
    if policy.compiles_while_timing:
        prepared = prepared_tempering(target, policy, num_tied)
        yield from _compiled_tempering(trial, tempering_options(default_ladder(policy.first_rungs), **prepared))


def _compiled_tempering(trial: Trial, options: dict[str, Any]) -> Iterator[None]:
    chains = _brief(trial, TEMPERING, options)
    chains.draw(trial.key, _blank(trial, chains), 0, 0, 1)
    yield


def tempering_options(betas: np.ndarray, **prepared: Any) -> dict[str, Any]:
    """Options of parallel tempering on a ladder, as `prepared_tempering` has the others."""
    return {"inverse_temperatures": jnp.asarray(betas, jnp.result_type(float)), **prepared}


def _blank(trial: Trial, chains: Chains) -> Any:
    """States of the right shapes, that no step may be taken from."""
    theta = jnp.asarray(trial.starts, jnp.int32)
    given = (chains.mesh, chains.spec, chains.problem, chains.parameters, trial.key, theta)
    like = eqx.filter_eval_shape(kernels.start.plain, *given)
    return devices.distribute(chains.mesh, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like))


def try_without(trial: Trial, locals_: list[Local], explored: Explored | None) -> tuple[Table, Measured]:
    """Measures local kernels and tempering; the table, and the local kernel to go on with."""
    context, policy = trial.context, trial.context.policy
    context.progress.phase("trying local moves", None, "candidates")
    table = Table(
        rows=(), num_chains=context.num_chains, num_draws=context.num_draws,
        is_limited=context.budget.seconds is not None, tempered_r_hat=np.inf if explored is None else explored.r_hat,
    )  # fmt: skip
    if explored is not None:
        table = table.with_row(measured_tempering(explored, context.num_chains, policy))
    likely = [row.options for row in table.rows if row.agreement == MET and policy.compiles_while_timing]
    with compile_in_background(chain.from_iterable(_compiled_tempering(trial, options) for options in likely)):
        for i, local in enumerate(locals_):
            if i == 0 or (is_worth_another(table, policy) and not trial.is_spent):
                tuned = _shortened(trial, _tuned(trial, local))
                table = table.with_row(measure(trial, alone(tuned, tuned.moves)))
    best = favourite(local_rows(table), policy)
    table = table._replace(passed_over=passed_over(table, best, policy))
    assert best.local is not None
    if needs_longer_look(table):  # in training's time
        longer = trial._replace(seconds=policy.longer_look * trial.seconds, phase="training")
        table = table.with_row(measure(longer, alone(best.local, best.local.moves)))
    quarter = best.local.moves // policy.pair_growth
    if quarter and is_worth_another(table, policy) and not trial.is_spent:
        table = table.with_row(measure(trial, alone(best.local, quarter)))
    return table, best


def try_transport(trial: Trial, table: Table, best: Measured, acceptance: float) -> Table:
    """Measures jumps through a learned transport, whose independence move would have this acceptance.

    What moves best alone need not be the best partner of a jump: every local kernel has one look beside it, and the
    best partner then a few numbers of moves, more of them while the best is the largest tried.
    """
    policy, rounds = trial.context.policy, rounds_a_step(trial.context)
    trial.context.progress.phase("trying the transport", None, "candidates")
    assert best.local is not None
    others = {row.local.name: row.local for row in table.rows if row.local is not None}
    partners = [best.local, *(local for name, local in others.items() if name != best.local.name)]
    looks: list[Measured] = []
    for local in partners if len(partners) > 1 else ():
        if not looks or (is_worth_another(table, policy) and not trial.is_spent):
            looks.append(measure(trial, paired(local, max(1, local.moves // policy.pair_growth), rounds)))
            table = table.with_row(looks[-1])
    partner = max(looks, key=table.rank).local if looks else best.local
    assert partner is not None
    counts = sorted({1, max(1, partner.moves // policy.pair_growth), partner.moves})
    tried: list[Measured] = []
    while (count := next_pair(table, counts, tried, policy)) is not None and not (tried and trial.is_spent):
        candidate = paired(partner, count, rounds)
        known = next((row for row in table.rows if row.label == candidate.label), None)
        tried.append(measure(trial, candidate) if known is None else known)
        table = table.with_row(tried[-1])
    if acceptance < policy.low_acceptance:
        num_local = max(tried or looks, key=table.rank).num_local
        for scale in policy.pcn_scales:
            if not trial.is_spent:
                table = table.with_row(measure(trial, paired(partner, num_local, rounds, scale)))
    return table


def _tuned(trial: Trial, local: Local) -> Local:
    """The kernel with its tuned parameters, found on the chains from the tempered draws."""
    spec, context = REGISTRY[local.name], trial.context
    if spec.tuning is None:
        return local
    chains, tuning = _untuned(trial, local, spec.tuning)
    init_key, tune_key = jax.random.split(jax.random.fold_in(trial.key, 1))
    found: dict[str, Any] = tuning.final(tuning.init())
    policy = context.policy
    num_steps = policy.brief_tuning_steps if local.has_brief_tuning else policy.tuning_steps
    for chunk in tune(chains, tuning, tune_key, chains.start(init_key, trial.starts), num_steps):
        _, found, rate = chunk.out
        if chunk.is_first:
            context.budget.add_compilation(chunk.seconds)
        context.progress.update(0, tuning=local.name, acceptance=rate)
        if trial.is_spent:
            break
    return local._replace(options={**local.options, **found})


def _shortened(trial: Trial, local: Local) -> Local:
    """The kernel with so few moves a step that enough steps fit into its trial."""
    if local.moves == 1:
        return local
    chains = _chains(trial, alone(local, 1))
    seconds = _step_seconds(trial, chains, _first_step(trial, chains, local.name))
    most = trial.seconds / (2 * trial.context.policy.fewest_records * seconds)
    return local._replace(moves=int(np.clip(most, 1, local.moves)))


def measure(trial: Trial, candidate: Candidate) -> Measured:
    """Runs a candidate until its chains have clearly met, or its time is used up.

    A stretch too short for the chains to meet says nothing, and one so long that all records are independent says
    little: stretches grow, by thinning, until chains have clearly met or the time of a candidate is used up; if the
    first is long enough for all records to be independent, they shrink until they are not.
    """
    context, policy = trial.context, trial.context.policy
    chains = _chains(trial, candidate)
    states = _first_step(trial, chains, candidate.label)
    seconds = _step_seconds(trial, chains, states)
    count = int(np.clip(trial.seconds / seconds, policy.fewest_records, policy.records))
    most, settling = max(1, int(trial.seconds / (count * seconds))), int(policy.settling_share * count)
    thin, first, factor = -(-most // policy.records), 1, 1.0  # rounded up: the longest stretch comes third, not fourth
    while True:
        states, _, _ = _stretch(trial, chains, states, first, settling, thin, candidate.label)
        states, rows, fastest = _stretch(trial, chains, states, first + settling, count, thin, candidate.label)
        if fastest < seconds:  # what is compiled beside it makes short timings slow
            seconds, most = fastest, max(1, int(trial.seconds / (count * fastest)))
        ess, plain = (f(rows["theta"], rows["log_prob"], policy) for f in (cautious_ess, least_ess))
        if factor != policy.longer_stretch and thin > 1 and plain >= policy.saturated_share * rows["log_prob"].size:
            factor = policy.shorter_stretch
        elif factor == policy.shorter_stretch or thin == most or ess >= policy.clear_ess * context.num_chains:
            break
        else:  # chains that hardly met
            factor = policy.longer_stretch
        if trial.is_spent:
            break
        thin, first = int(np.clip(thin * factor, 1, most)), first + 2 * count
    is_whole = count * thin * seconds >= trial.seconds / 2
    left = context.budget.total_seconds_left
    found = judged(
        rows, thin, seconds, policy, is_whole=is_whole, seconds_left=policy.phase_seconds if left is None else left
    )
    row = Measured(
        label=candidate.label, sampler="hybrid", options=candidate.options, step_seconds=seconds, local=candidate.local,
        num_local=candidate.num_local, uses_transport=candidate.uses_transport,
        acceptance=float(rows["acceptance_rate"].mean()), **found,
    )  # fmt: skip
    context.progress.update(0, candidate=row.label, ess_per_second=row.worth)
    return row


def judged(
    rows: dict[str, np.ndarray], thin: int, step_seconds: float, policy: Policy, *, is_whole: bool, seconds_left: float
) -> dict[str, Any]:
    """What a stretch of records (chain, record, ...) says: ess, gap, worth, agreement, speed.

    Args:
        rows: Its records.
        thin: Steps a record.
        step_seconds: Seconds a step.
        policy: What counts as met.
        is_whole: Whether the stretch had its time; one cut short shows the fast part of the decay only.
        seconds_left: In which chains that decay would have to meet.
    """
    draws = (rows["theta"], rows["log_prob"], policy)
    ess, num_chains, seconds = cautious_ess(*draws), len(rows["theta"]), rows["log_prob"].shape[1] * thin * step_seconds
    speed = least_ess(*draws, is_centred=True) / seconds
    if ess >= policy.resolved_ess * num_chains:
        gap = rows["log_prob"].size * thin / max(least_ess(*draws), 1.0)
        return {"ess": ess, "gap": gap, "worth": ess / seconds, "agreement": MET, "speed": speed}
    gap = 2 * thin * relaxation(*draws)
    is_soon = seconds_left >= policy.resolved_ess * gap * step_seconds
    agreement = WILL_MEET if is_soon and is_whole else APART
    worth = num_chains / (gap * step_seconds) if agreement == WILL_MEET else ess / seconds
    return {"ess": ess, "gap": gap, "worth": worth, "agreement": agreement, "speed": speed if is_whole else 0.0}


def measured_tempering(found: Explored, num_chains: int, policy: Policy) -> Measured:
    """Parallel tempering, from what the exploration already measured."""
    ladders = found.theta.shape[0]
    value = min(cautious_ess(found.theta, found.log_prob, policy), float(found.log_prob.size))
    options = tempering_options(
        found.inverse_temperatures, kernel=found.kernel, kernel_options=found.kernel_options, num_moves=found.num_moves,
        reference=UNIFORM if found.reference is None else found.reference,
    )  # fmt: skip
    ess = value * num_chains / ladders
    width = found.theta.shape[2] * len(found.inverse_temperatures)
    seconds = found.round_seconds * max(num_chains * width, policy.filling) / max(ladders * width, policy.filling)
    is_long = found.log_prob.shape[1] >= policy.fewest_kept  # fewer draws than that can look independent by chance
    has_met = is_long and ess >= policy.resolved_ess * num_chains
    return Measured(
        label=f"tempering, {len(found.inverse_temperatures)} x {found.kernel}", sampler=TEMPERING, options=options,
        ess=ess, step_seconds=seconds, worth=ess / (found.kept_rounds * seconds),
        gap=num_chains * found.kept_rounds / max(ess, 1.0), agreement=MET if has_met else APART,
    )  # fmt: skip


def _first_step(trial: Trial, chains: Chains, label: str) -> Any:
    """The chains after one step, which compiles: seconds that are not the trial's own."""
    init_key = jax.random.fold_in(trial.key, 2)
    tick = time.perf_counter()
    states, _, _ = _stretch(trial, chains, chains.start(init_key, trial.starts), 0, 1, 1, label)
    trial.context.budget.add_compilation(time.perf_counter() - tick)
    return states


def _stretch(
    trial: Trial, chains: Chains, states: Any, first: int, count: int, thin: int, label: str
) -> tuple[Any, dict[str, np.ndarray], float]:
    """The chains after `count` records, the records, (chain, record, ...), and the least seconds of a step."""
    rows, fastest = [], np.inf
    for chunk in draws(chains, jax.random.fold_in(trial.key, 3), states, count, first=first, thin=thin):
        states = chunk.out.states
        rows.append(chunk.out.rows)
        fastest = min(fastest, chunk.seconds / (chunk.size * thin))
        trial.context.progress.update(0, candidate=label)
    whole = joined(rows)
    trial.context.budget.spend_evaluations(trial.phase, whole["num_evaluations"])
    return states, whole, fastest


def _step_seconds(trial: Trial, chains: Chains, states: Any) -> float:
    """Seconds of one step of all chains: the best of a few stretches, each long enough to time.

    Stretches grow while they hardly take longer than the one before: what they take is the call, then, which is slow
    while another thread compiles.
    """
    policy, best, thin, spent, last = trial.context.policy, np.inf, 1, 0.0, 0.0
    while True:
        tick = time.perf_counter()
        jax.block_until_ready(chains.draw(trial.key, states, 0, 1, thin))
        elapsed = time.perf_counter() - tick
        spent += elapsed
        best = min(best, elapsed / thin)
        is_call = elapsed < policy.timing_share * policy.timing_growth * last and thin < policy.most_timed
        if spent >= policy.timing_seconds and not is_call:
            return best
        if is_call or elapsed < policy.timing_share * policy.timing_seconds:
            thin, last = min(policy.timing_growth * thin, policy.most_timed), elapsed
