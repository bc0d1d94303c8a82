"""Warm-up: tempered exploration -> a trial of local moves -> a transport, if it can pay -> its trial -> a plan.

If chains of the plan that start elsewhere (`hunt`) stay in a mode that tempering did not find, a transport is learned
from the draws of both, and the choice is made again.

Nothing here touches exactness: whatever is chosen, the chains that follow leave pi invariant. The plan also carries
what the verdict needs from outside the transport: tempered draws, their weights, and a second estimate of log Z.
"""

from collections.abc import Mapping
from itertools import chain
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.auto.candidates import Local, alone, candidates, may_hang
from terrazzo.auto.context import Context
from terrazzo.auto.decisions import Choice, Measured, Table, choose, favourite, local_rows, rival_of
from terrazzo.auto.exploration import Explored, default_ladders, explore
from terrazzo.auto.forecast import Rival, has_nothing_to_bring
from terrazzo.auto.hunt import compile_ahead as hunting_ahead
from terrazzo.auto.learning import Learned, learn
from terrazzo.auto.plan import Plan, Weighed, set_apart
from terrazzo.auto.race import (
    Trial,
    compile_ahead,
    measure,
    tempering_ahead,
    trial_seconds,
    try_transport,
    try_without,
)
from terrazzo.auto.reach import cut_off
from terrazzo.diagnostics import importance_summary
from terrazzo.engine.loop import placed
from terrazzo.runtime.background import compile_in_background
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.parts.ladder_evidence import evidence_ahead
from terrazzo.transports import AbstractTransport, posterior_log_weights, sample_transport

NOT_BEGUN = "no transport was learned, because it would take longer than the draws, or could bring nothing"
GIVEN_UP = "a transport was given up in training, which predicted that it would be worth less"


class Request(NamedTuple):
    """What the user asked of warm-up.

    Attributes:
        key: A JAX key.
        transport: An untrained transport (or a trained one, with `training=False`), or None.
        training: Options of training; False leaves the transport as it is.
        exploration: Options of `explore`; None for none.
        fixed: A sampler's name and options that the user chose; None to choose by trial.
        may_give_up: Whether a transport that cannot pay is not learned to the end.
        starts: Where exploration starts, (start, dim), if the user said so.
    """

    key: Array
    transport: AbstractTransport | None
    training: Mapping[str, Any] | bool | None
    exploration: Mapping[str, Any] | None
    fixed: tuple[str, dict[str, Any]] | None
    may_give_up: bool
    starts: np.ndarray | None


def make_plan(context: Context, request: Request) -> Plan:
    """Explores, tries, learns, tries what was learned, and returns what to run."""
    target, policy = context.target, context.policy
    explore_key, learn_key, weigh_key, trial_key = jax.random.split(request.key, 4)
    anywhere = request.starts if request.starts is not None else _anywhere(context, request)
    num_tied = cut_off(np.random.default_rng(0), target, anywhere, policy, is_strict=True).num_sites
    locals_ = _local_kernels(context, num_tied) if request.fixed is None else []
    blank = np.zeros((context.num_chains, target.space.num_dims), np.int32)
    trial = Trial(context=context, key=trial_key, starts=blank, phase="local trial", seconds=trial_seconds(context))
    explored = None
    if request.exploration is not None:
        ahead = (
            chain(evidence_ahead(target), compile_ahead(trial, locals_[:1])),  # the other kernels may not be needed
            iter(()) if context.budget.is_short else hunting_ahead(target, context.num_chains, policy),
            tempering_ahead(trial, num_tied) if request.fixed is None else iter(()),
        )
        with compile_in_background(*(() if may_hang(target) else ahead)):
            explored = explore(explore_key, context, starts=anywhere, num_tied=num_tied, **request.exploration)
    if explored is None:
        starts, is_pushed = np.resize(anywhere, blank.shape), np.zeros(len(blank), bool)
    else:
        starts, is_pushed = spread_starts(context, explored, None)
    found = Plan(
        sampler="", options={}, uses_transport=False, starts=starts, is_from_transport=is_pushed, num_tied=num_tied,
        description={"tied_sites": num_tied}, explored=explored,
    )  # fmt: skip
    if explored is not None:
        found.description["exploration"] = explored.describe()
    transport = request.transport if explored is not None else None
    tried, rival = None, None
    if request.fixed is None:
        trial = trial._replace(starts=starts)
        table, best = try_without(trial, locals_, explored)
        if request.may_give_up:
            rival = rival_of(table, best, policy)
            if transport is not None and has_nothing_to_bring(rival, policy):
                transport, table = None, table._replace(note=NOT_BEGUN)
        tried = (table, best)
    found, note = _with_transport(context, request, found, transport, explored, rival, (learn_key, weigh_key))
    return _decided(context, request, trial, found, tried, note)


def plan_with_modes(context: Context, request: Request, plan: Plan, theta: np.ndarray, log_prob: np.ndarray) -> Plan:
    """The plan with a transport that is learned from the draws of further modes too, (mode, draw, dim).

    Some of the chains start in these modes: moves that cannot leave them are then seen to fail.
    """
    explored = plan.explored
    assert explored is not None
    _, learn_key, weigh_key, trial_key = jax.random.split(request.key, 4)
    places = np.arange(explored.theta.shape[1]) % theta.shape[1]
    both = explored._replace(
        theta=np.concatenate([explored.theta, theta[:, places].astype(explored.theta.dtype)]),
        log_prob=np.concatenate([explored.log_prob, log_prob[:, places].astype(explored.log_prob.dtype)]),
    )
    keys = (jax.random.fold_in(learn_key, 1), weigh_key)
    found, note = _with_transport(
        context, request, plan._replace(has_modes=True, others=None), request.transport, both, None, keys
    )
    num_there = max(1, int(context.policy.modes_share * context.num_chains))
    starts = np.concatenate([found.starts[:-num_there], np.resize(theta[:, -1], (num_there, theta.shape[-1]))])
    found = found._replace(starts=starts.astype(np.int32))
    trial = Trial(context=context, key=trial_key, starts=found.starts, phase="trial", seconds=trial_seconds(context))
    tried = None
    if plan.choice is not None:  # what was measured from starts that did not know all modes is forgotten
        context.progress.phase("trying local moves", None, "candidates")
        local = favourite(local_rows(plan.choice.table), context.policy).local
        assert local is not None
        best = measure(trial, alone(local, local.moves))
        tried = (plan.choice.table._replace(rows=(best,), passed_over=frozenset(), note=""), best)
    return _decided(context, request, trial, found, tried, note)


def _decided(
    context: Context, request: Request, trial: Trial, found: Plan, tried: tuple[Table, Measured] | None, note: str
) -> Plan:
    """Tries the transport, if there is one, and chooses; or takes the sampler that the user chose."""
    if tried is None:
        assert request.fixed is not None
        name, options = request.fixed
        return found._replace(sampler=name, options=options, uses_transport="transport" in REGISTRY[name].needs)
    table, best = tried
    table = table._replace(note=note or table.note)
    if found.transport is not None and found.weighed is not None:
        through = trial._replace(phase="trial", transport=found.transport)
        table = try_transport(through, table._replace(note=""), best, found.weighed.acceptance)
    choice: Choice = choose(table, context.policy)
    return found.chosen(choice, context.num_draws, context.policy)


def _with_transport(
    context: Context, request: Request, found: Plan, transport: AbstractTransport | None, explored: Explored | None,
    rival: Rival | None, keys: tuple[Array, Array],
) -> tuple[Plan, str]:  # fmt: skip
    """Learns a transport from the draws, if there is one, and weighs it; with what became of one that was given up."""
    if transport is None or explored is None:
        return found, ""
    description, history = dict(found.description), found.history
    if request.training is not False:
        settings = dict(request.training) if isinstance(request.training, Mapping) else {}
        learned: Learned = learn(keys[0], transport, explored, context, settings=settings, rival=rival)
        history, description["training"] = learned.history, learned.summary
        found = found._replace(history=history, description=description)
        if learned.is_given_up:
            return found, GIVEN_UP
        transport = learned.transport
    assert transport is not None
    context.progress.phase("weighing the transport")
    weighed = weigh(keys[1], transport, explored, context)
    description["transport"] = {
        "is_ess": weighed.evidence.ess / len(weighed.own_log_weights), "acceptance": weighed.acceptance,
        "pareto_k": weighed.evidence.pareto_k,
    }  # fmt: skip
    starts, is_pushed = spread_starts(context, explored, weighed)
    return found._replace(
        transport=placed(context.mesh, transport), weighed=weighed, starts=starts, is_from_transport=is_pushed,
        description=description,
    ), ""  # fmt: skip


def _anywhere(context: Context, request: Request) -> np.ndarray:
    """Possible configurations, as many as anything here starts from. They may be hard to find: one search for all."""
    policy, exploration = context.policy, request.exploration
    if exploration is None:
        num = context.num_chains
    else:
        num = exploration.get("num_ladders") or default_ladders(context.target, policy)
    key = jax.random.fold_in(request.key, 1)
    return np.asarray(context.target.possible_starts(key, max(num, policy.reach_draws)))


def _local_kernels(context: Context, num_tied: int) -> list[Local]:
    """The local kernels to try; in a short run one, that need not be tuned if there is such a one."""
    found = candidates(context.target, context.policy, num_tied)
    if context.budget.is_short:
        return [local for local in found if REGISTRY[local.name].tuning is None][:1] or found[:1]
    return found


def weigh(key: Array, transport: AbstractTransport, explored: Explored, context: Context) -> Weighed:
    """Draws from the transport, and weighs them and the tempered draws."""
    own_key, lift_key = jax.random.split(key)
    own = sample_transport(own_key, transport, context.target, context.policy.own_draws)
    weights = np.asarray(own.log_weights, float)
    apart = set_apart(explored, explored.theta, context.policy)
    tempered = np.asarray(posterior_log_weights(lift_key, transport, context.target, apart), float)
    pairs = np.random.default_rng(0).choice(weights, tempered.size)
    with np.errstate(invalid="ignore", over="ignore"):
        rates = np.exp(np.minimum(0.0, pairs - tempered.ravel()))
    possible = np.isfinite(np.asarray(own.log_prob))
    return Weighed(
        theta=np.asarray(own.theta)[possible], own_log_weights=weights, tempered_log_weights=tempered,
        evidence=importance_summary(weights), acceptance=float(np.nanmean(rates)),
    )  # fmt: skip


def spread_starts(
    context: Context, explored: Explored, weighed: Weighed | None
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Where the chains start, and which of them start from the transport.

    Half of them do, half start from the tempered draws (all, if there is no transport).
    """
    num, is_pushed = context.num_chains, np.zeros(context.num_chains, bool)
    ladders, kept, dim = explored.theta.shape
    places = np.linspace(kept - 1, kept // 2, -(-num // ladders)).astype(int)  # the latest first
    starts = explored.theta[:, places].swapaxes(0, 1).reshape(-1, dim)[:num].astype(np.int32)
    if weighed is not None and len(weighed.theta) >= num // 2:
        is_pushed[: num // 2] = True
        starts[is_pushed] = weighed.theta[: num // 2]
    return starts, is_pushed
