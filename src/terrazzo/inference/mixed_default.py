"""The default sampler on a mixed space, after the warm-up of its own chains: try, explore, learn, choose.

Own chains are tried for a hundred draws, and tempered ladders explore. Where a transport may pay (`mixed_choice`), one
is learned from the ladders' draws and those of the own chains: of the reals alone where theta can be summed out, else
of both kinds of variables. It is given up where an own chain stands outside of it: jumps would not bring that chain
back, and weights would confirm nothing. And learning ends where jumps through what is learned already draw in less time
than more of it would take. Jumps are tried from draws of the ladders, heavy ones too,
and the sampler that is worth most draws.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.auto import Context, Policy, may_hang
from terrazzo.auto.learning import default_training
from terrazzo.engine.loop import Chains, draws, joined, placed
from terrazzo.errors import TrainingError
from terrazzo.inference import mixed_hunt
from terrazzo.inference.mixed import (
    Explored,
    Ladders,
    explore,
    explored_rounds,
    fastest,
    ladders,
    restored_reference,
)
from terrazzo.inference.mixed_choice import Tried, can_pay, choose, is_apart, needed_seconds, thinning, tried
from terrazzo.inference.mixed_hunt import Modes
from terrazzo.inference.mixed_learning import learning, unconstrained
from terrazzo.inference.mixed_weighing import log_weights_of, num_outside
from terrazzo.inference.requests import fitted_to, is_learnable
from terrazzo.runtime.background import compile_in_background
from terrazzo.samplers import MIXED_HYBRID
from terrazzo.samplers.kernels.mixed_hybrid import beside_jumps, marginal_target
from terrazzo.spaces import Configuration, Space
from terrazzo.targets.target import Target
from terrazzo.training import Fitted
from terrazzo.transports import REGISTRY, AbstractTransport, sample_transport


class Keys(NamedTuple):
    """JAX keys: of the trials, of the exploration, of learning."""

    trial: jax.Array
    explore: jax.Array
    learn: jax.Array


class Chosen(NamedTuple):
    """What draws, and what was found on the way.

    Attributes:
        chains: The frozen kernel and its chains.
        states: Where they are.
        thin: Steps a kept draw, unless the user chose them.
        rows: What was tried.
        explored: Draws of tempered ladders, or None.
        transport: One that was learned, whether it is moved through or not.
        weighed: What it is a transport of: the target, or its density of the reals alone.
        fitted: How it was trained.
    """

    chains: Chains
    states: Any
    thin: int = 1
    rows: tuple[Tried, ...] = ()
    explored: Explored | None = None
    transport: AbstractTransport | None = None
    weighed: Target | None = None
    fitted: Fitted | None = None


def weighed_target(own: Chains) -> Target:
    """What a transport of a run is for: the target, or its density of the reals where theta can be summed out."""
    target, summation = own.problem.target, own.problem.options.get("summation")
    return target if summation is None else marginal_target(target, summation)


def hybrid_chains(own: Chains, transport: AbstractTransport, weighed: Target) -> Chains:
    """Chains that jump through a transport and make the moves of others beside it."""
    marginal = None if weighed is own.problem.target else weighed
    options, parameters = beside_jumps(own.problem.options, own.parameters, marginal)
    problem = own.problem._replace(transport=placed(own.mesh, transport), options=options)
    return own._replace(
        spec=MIXED_HYBRID, problem=problem, parameters=parameters, is_one_program=False, is_brief=True
    )  # fmt: skip


def restored_chains(name: str, own: Chains, explored: Explored, transport: Any, weighed: Target | None) -> Chains:
    """The chains of a stored run; their parameters are still to be restored."""
    if name == MIXED_HYBRID.name:
        assert weighed is not None
        return hybrid_chains(own, transport, weighed)
    return ladders(own, restored_reference(explored)) if explored.is_chosen else own


class _Trial(NamedTuple):
    """A trial of chains: its rows, where they are now, and what it measured."""

    kept: dict[str, np.ndarray]
    states: Any
    row: Tried


def _try(key: jax.Array, chains: Chains, states: Any, count: int) -> _Trial:
    rows, step_seconds = [], np.inf
    for chunk in draws(chains, key, states, count):
        states, step_seconds = chunk.out.states, fastest(step_seconds, chunk)
        rows.append(chunk.out.rows)
    kept = joined(rows)
    return _Trial(kept, states, tried(chains.spec.name, kept["theta"], kept["reals"], step_seconds))


def _calm(key: jax.Array, own: Chains, states: Any, policy: Policy) -> tuple[Chains, _Trial]:
    """Chains and their trial, with a step size at which trajectories do not diverge if halving finds one.

    Warm-up tunes one step size for all theta. Where some theta make the reals much stiffer than most do, trajectories
    diverge there, although the mean acceptance is right. The trial goes on until it can exclude too many divergences,
    where that takes no longer than a trial may.
    """
    mixed, chains = policy.mixed, own
    found = _try(key, own, states, mixed.trial_draws)
    num_chains = found.row.num_chains
    longest = int(policy.trial_seconds / max(found.row.step_seconds, 1e-9))
    count = min(int(np.ceil(mixed.sure_count / mixed.most_divergent / num_chains)), longest)
    count = max(count, mixed.trial_draws)
    divergent = lambda trial: float(np.mean(trial.kept["diverging"]))
    tries = []
    for i in range(1 + mixed.halvings):
        if i:
            chains = chains._replace(parameters={**chains.parameters, "scale": chains.parameters["scale"] / 2})
        if i or count > mixed.trial_draws:
            found = _try(jax.random.fold_in(key, 1 + i), chains, found.states, count)
        tries.append((chains, found))
        if divergent(found) == 0:
            return chains, found
    fine = [one for one in tries if divergent(one[1]) <= mixed.most_divergent]
    return fine[0] if fine else min(tries, key=lambda one: divergent(one[1]))


def chosen(
    keys: Keys, context: Context, own: Chains, states: Any, *, num_steps: int, training: Any,
    should_stop: Callable[..., str | None],
) -> Chosen:  # fmt: skip
    """Tries, explores, learns where it may pay, and chooses; in at most half of the time there is.

    Args:
        keys: JAX keys.
        context: The run.
        own: Its own chains, tuned.
        states: Where they are.
        num_steps: The steps that the run takes without exploration, which takes no more evaluations.
        training: Options of `tz.fit` by name, None, or False for no transport.
        should_stop: As `tz.fit` takes it.
    """
    is_over = lambda: context.budget.is_half_gone
    if is_over():
        return Chosen(own, states)
    context.progress.phase("trying")
    policy = context.policy
    own, trial = _calm(keys.trial, own, states, policy)
    plain = Chosen(own, trial.states, _thin(context, trial.row), (trial.row,))
    rounds = explored_rounds(trial.kept, num_steps, policy, is_apart=is_apart(trial.row, policy))
    hunt = _hunt(jax.random.fold_in(keys.explore, 2**31), context, own, trial)
    search = iter(()) if hunt is None else hunt.steps()
    with compile_in_background(iter(()) if may_hang(context.target) else search):
        made = explore(keys.explore, own, trial.kept, context, context.num_chains, rounds, is_over)
    if made is None:
        return plain
    beside = tried("tempered", made.explored.theta, made.explored.reals, made.step_seconds)
    if hunt is not None and not is_over():
        context.progress.phase("looking elsewhere")
        hunt.is_waited_for = not may_hang(context.target)
        for i, _ in enumerate(search):  # what the thread has left
            context.progress.update(i)
        made = _hunted(jax.random.fold_in(keys.explore, 2**31 + 1), context, own, made, trial, hunt)
    explored = made.explored
    is_missing = mixed_hunt.lacking(context.target.space, explored.modes, trial.kept["reals"], policy) > 0
    may_learn = training is not False and context.budget.evaluations is None and not is_over()
    may_learn = may_learn and (is_missing or can_pay(trial.row, context.num_draws, policy))
    learned = None
    if may_learn:
        learned = _learned(keys, context, own, made, trial, training=training, should_stop=should_stop)
    best = choose(trial.row, beside, None if learned is None else learned.row, policy)
    if is_missing:  # the run's own chains do not know what they miss
        others = [*([] if learned is None else [learned.row]), *([] if explored.is_incomplete else [beside])]
        met = [row for row in others if not is_apart(row, policy)]
        best = max(met, key=lambda row: row.worth) if met else best
    rows: tuple[Tried, ...] = (trial.row, beside)
    if learned is not None:
        rows, explored = (*rows, learned.row), explored._replace(num_outside=np.zeros(()))
        plain = plain._replace(transport=learned.transport, fitted=learned.fitted, weighed=learned.weighed)
    plain = plain._replace(rows=rows, thin=_thin(context, best), explored=explored)
    if learned is not None and best is learned.row:
        return plain._replace(chains=learned.chains, states=learned.states)
    if best is beside:
        explored = explored._replace(is_chosen=np.ones((), bool))
        return plain._replace(chains=made.chains, states=made.states, explored=explored)
    return plain


def _hunt(key: jax.Array, context: Context, own: Chains, trial: _Trial) -> mixed_hunt.Hunt | None:
    """A search for tops of the density around the draws of a trial, and of the reference; None if nothing slopes."""
    weighed = weighed_target(own)
    found = unconstrained(context.target.space, trial.kept["theta"], trial.kept["reals"])
    if not context.target.has_real_gradient or not len(found.reals):
        return None
    draws_ = Configuration(found.theta[:, : weighed.space.num_dims], found.reals)
    seconds = context.budget.seconds
    return mixed_hunt.Hunt(key, context.target, weighed, draws_, context.num_chains, context.policy, seconds)


def _hunted(
    key: jax.Array, context: Context, own: Chains, made: Ladders, trial: _Trial, hunt: mixed_hunt.Hunt
) -> Ladders:
    """Ladders that know of the modes from which chains of the run's own kernel do not come back."""
    target, policy, explored = context.target, context.policy, made.explored
    found = hunt.found
    if found is None:  # the thread that took its steps met an error: again, where it is shown
        for _ in hunt.steps():
            pass
        found = hunt.found
    assert found is not None
    matters = hunt.can_matter(explored.evidence.log_z)
    found = Configuration(found.theta[matters], found.reals[matters])
    num, modes = len(found.reals), mixed_hunt.no_modes(target.space.num_reals)
    if num:
        at, (start_key, step_key, weigh_key) = np.arange(context.num_chains) % num, jax.random.split(key, 3)
        codes = found.theta if hunt.weighed is target else np.zeros((num, target.space.num_dims), np.int32)
        states = own.start(start_key, Configuration(jnp.asarray(codes[at]), jnp.asarray(found.reals[at])))
        there = _try(step_key, own, states, policy.mixed.trial_draws).kept
        stays = mixed_hunt.who_stays(_features(trial.kept), _features(there)[:num], policy)
        if stays.any() and not hunt.weighed.space.num_dims:
            modes = mixed_hunt.weighed_modes(weigh_key, hunt.weighed, found.reals[stays], explored.evidence, policy)
        elif stays.any():
            modes = mixed_hunt.unweighed_modes(found.reals[stays])
    is_incomplete = np.asarray(mixed_hunt.lacking(target.space, modes, explored.reals, policy) > 0)
    found_ = {"num_tops": np.full((), float(num)), "is_incomplete": is_incomplete, **modes._asdict()}
    return made._replace(explored=explored._replace(**found_))


def _features(kept: Mapping[str, np.ndarray]) -> np.ndarray:
    """Codes, reals and log pi, (chain, draw, feature); a chain far out must not overflow squares of them."""
    found = np.concatenate([kept["theta"].astype(float), kept["reals"], kept["log_prob"][..., None]], axis=-1)
    far = np.finfo(float).max ** 0.25
    return np.clip(np.nan_to_num(found), -far, far)


def _thin(context: Context, row: Tried) -> int:
    """Steps a kept draw: what is worth most, in time; without a limit in as many seconds as came before.

    So the run takes at most twice as long, or as long as enough effective draws need.
    """
    budget, policy = context.budget, context.policy
    if budget.evaluations is not None:
        return 1
    left, before = budget.total_seconds_left, budget.elapsed
    if left is not None:
        return thinning(row, context.num_draws, policy.drawing_share * left, before)
    needed = min(needed_seconds(row, context.num_draws, policy), policy.phase_seconds)
    return thinning(row, context.num_draws, max(needed, before), before)


def _with_modes(key: jax.Array, beside: Explored, space: Space, policy: Policy) -> Explored:
    """Draws of chains and ladders, and more chains at the modes that they miss, by the share of these."""
    is_missed = beside.shares > policy.negligible
    if not is_missed.any():
        return beside
    modes = Modes(*(x[is_missed] for x in beside.modes))
    num_chains, num_draws = beside.theta.shape[:2]
    share = float(np.clip(modes.shares.sum(), policy.mixed.least_learned, 0.5))
    more = int(np.ceil(num_chains * share / (1.0 - share)))
    y = mixed_hunt.drawn_from(mixed_hunt.generator(key), modes, more * num_draws)
    values = np.asarray(jax.vmap(space.real_values)(jnp.asarray(y))).reshape(more, num_draws, -1)
    codes = np.zeros((more, num_draws, space.num_dims), beside.theta.dtype)
    return beside._replace(theta=np.concatenate([beside.theta, codes]), reals=np.concatenate([beside.reals, values]))


class _Learned(NamedTuple):
    """A transport that was learned, and the trial of jumps through it."""

    transport: AbstractTransport
    fitted: Fitted
    chains: Chains
    states: Any
    weighed: Target
    row: Tried


def _learned(
    keys: Keys, context: Context, own: Chains, made: Ladders, trial: _Trial, *, training: Any,
    should_stop: Callable[..., str | None],
) -> _Learned | None:  # fmt: skip
    """Learns a transport, and goes on while more of it can pay; None where nothing is learned that covers the chains.

    The draws of the own chains are learned from too: where these are apart, the ladders have few draws of rare modes.
    """
    weighed, policy = weighed_target(own), context.policy
    if not is_learnable(weighed.space, context.budget.seconds):
        return None
    first = placed(own.mesh, fitted_to(weighed, REGISTRY["autoregressive"]()))
    given = training if isinstance(training, Mapping) else {}
    settings = {**default_training(weighed.space.num_dims + weighed.space.num_reals, policy), **given}
    num_tried = policy.mixed.trial_draws
    beside = made.explored._replace(
        theta=np.concatenate([trial.kept["theta"][:, -num_tried:], made.explored.theta], axis=1),
        reals=np.concatenate([trial.kept["reals"][:, -num_tried:], made.explored.reals], axis=1),
    )
    beside = _with_modes(keys.learn, beside, context.target.space, policy)
    data = beside if weighed is context.target else of_reals(beside, context.target.space)
    start = Configuration(made.states.position, made.states.reals)
    stages = learning(
        keys.learn, first, context._replace(target=weighed), data, settings=settings, should_stop=should_stop,
        ahead=None if may_hang(context.target) else _jumps_ahead(keys, own, first, weighed, start, policy),
    )  # fmt: skip
    found = None
    try:
        for i, fitted in enumerate(stages):
            key, there = jax.random.fold_in(keys.learn, 2 + i), placed(own.mesh, fitted.transport)
            jumps = _jumps(key, context, own, beside, fitted._replace(transport=there))
            if jumps is None:
                break
            found = jumps if found is None or jumps.row.worth > found.row.worth else found
            if not can_pay(found.row, context.num_draws, policy):
                break
    except TrainingError:
        pass
    return found


def _jumps(key: jax.Array, context: Context, own: Chains, beside: Explored, fitted: Fitted) -> _Learned | None:
    """The trial of jumps through a transport; None where an own chain stands outside of it.

    Args:
        key: A JAX key.
        context: The run.
        own: Its own chains.
        beside: Draws of the own chains, then of the ladders.
        fitted: The transport, as it was trained.
    """
    weighed, policy, space, transport = weighed_target(own), context.policy, context.target.space, fitted.transport
    context.progress.phase("trying the transport")
    draw_key, lift_key, start_key, step_key = jax.random.split(key, 4)
    drawn = sample_transport(draw_key, transport, weighed, policy.own_draws)
    theirs = log_weights_of(lift_key, space, weighed, transport, beside.theta, beside.reals)
    num_tried = policy.mixed.trial_draws
    if theirs is None or num_outside(np.asarray(drawn.log_weights, float), theirs[:, :num_tried]) > 0:
        return None
    chains = hybrid_chains(own, transport, weighed)
    rows = spread_by_weight(theirs[:, num_tried:], context.num_chains, policy.mixed.heaviest)
    start = unconstrained(space, beside.theta[:, num_tried:][rows][None], beside.reals[:, num_tried:][rows][None])
    tried_jumps = _try(step_key, chains, chains.start(start_key, start), num_tried)
    return _Learned(transport, fitted, chains, tried_jumps.states, weighed, tried_jumps.row)


def spread_by_weight(log_weights: np.ndarray, number: int, heaviest: float) -> tuple[np.ndarray, np.ndarray]:
    """Draws, (chain, draw), evenly spaced by their weight up to the heaviest hundredth: their chains and places.

    Jumps seldom leave what is heavy. A mode that the transport has too little of is so rare that a trial would not
    meet it, and the run would: a chain that starts there shows in the trial whether it comes back.
    """
    order = np.argsort(log_weights, axis=None)
    places = np.linspace(0.0, heaviest, number + 1)[1:] * (order.size - 1)
    return np.unravel_index(order[places.astype(int)], log_weights.shape)  # type: ignore[return-value]


def of_reals(explored: Explored, space: Any) -> Explored:
    """Draws of ladders as those of the unconstrained reals alone."""
    flat = jnp.asarray(explored.reals.reshape(-1, space.num_real_values), jnp.result_type(float))
    y = np.asarray(jax.vmap(space.unconstrain)(flat)).reshape(*explored.reals.shape[:2], space.num_reals)
    return explored._replace(theta=explored.theta[..., :0], reals=y)


def _jumps_ahead(
    keys: Keys, own: Chains, transport: Any, weighed: Target, start: Configuration, policy: Policy
) -> Iterator[Any]:
    """Makes no draws through the untrained transport: what the trained one needs is compiled then."""
    chains = hybrid_chains(own, transport, weighed)
    states = chains.start(keys.trial, start)
    yield states
    yield chains.draw(keys.trial, states, 0, 0, 1)
    yield sample_transport(keys.learn, transport, weighed, policy.own_draws)
