"""The default sampler on a mixed space, after the warm-up of its own chains: try, explore, learn, choose.

Own chains are tried for a hundred draws, and tempered ladders explore. Where a transport may pay (`mixed_choice`), one
is learned from the ladders' draws: of the reals alone where theta can be summed out, else of both kinds of variables.
Jumps through it are tried from draws of the ladders, heavy ones too, and the sampler that is worth most draws.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.auto import Context, may_hang
from terrazzo.auto.learning import default_training
from terrazzo.engine.loop import Chains, draws, joined, placed
from terrazzo.errors import TrainingError
from terrazzo.inference.mixed import (
    MAX_DIVERGENT,
    Explored,
    Ladders,
    explore,
    explored_rounds,
    fastest,
    ladders,
    restored_reference,
)
from terrazzo.inference.mixed_choice import TRIAL_DRAWS, Tried, can_pay, choose, needed_seconds, thinning, tried
from terrazzo.inference.mixed_learning import learn, unconstrained
from terrazzo.inference.mixed_weighing import log_weights_of, num_outside
from terrazzo.inference.requests import fitted_to, is_learnable
from terrazzo.runtime.background import compile_in_background
from terrazzo.samplers import MIXED_HYBRID
from terrazzo.samplers.kernels.mixed_hybrid import beside_jumps, marginal_target
from terrazzo.spaces import Configuration
from terrazzo.targets.target import Target
from terrazzo.training import Fitted
from terrazzo.transports import REGISTRY, AbstractTransport, sample_transport

HALVINGS = 3  # of a step size at which trajectories diverge: Stan's advice for acceptance 0.99 is about as small
HEAVIEST = 0.99  # of the ladders' draws by weight, up to which trials of jumps start: modes of 1 % count
WEIGHED_DRAWS = 8192  # of a transport, beside which the trial of the own chains is held


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


def _try(key: jax.Array, chains: Chains, states: Any) -> _Trial:
    rows, step_seconds = [], np.inf
    for chunk in draws(chains, key, states, TRIAL_DRAWS):
        states, step_seconds = chunk.out.states, fastest(step_seconds, chunk)
        rows.append(chunk.out.rows)
    kept = joined(rows)
    return _Trial(kept, states, tried(chains.spec.name, kept["theta"], kept["reals"], step_seconds))


def _calm(key: jax.Array, own: Chains, trial: _Trial) -> tuple[Chains, _Trial]:
    """Chains with a step size at which trajectories do not diverge, if halving it a few times finds one.

    Warm-up tunes one step size for all theta. Where some theta make the reals much stiffer than most do, trajectories
    diverge there, although the mean acceptance is right.
    """
    is_calm = lambda trial: float(np.mean(trial.kept["diverging"])) <= MAX_DIVERGENT
    chains, found = own, trial
    for i in range(HALVINGS):
        if is_calm(found):
            return chains, found
        chains = chains._replace(parameters={**chains.parameters, "scale": chains.parameters["scale"] / 2})
        found = _try(jax.random.fold_in(key, 2 + i), chains, trial.states)
    return (chains, found) if is_calm(found) else (own, trial)


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
    own, trial = _calm(keys.trial, own, _try(keys.trial, own, states))
    plain = Chosen(own, trial.states, _thin(context, trial.row), (trial.row,))
    rounds = explored_rounds(trial.kept, num_steps, is_apart=trial.row.is_apart)
    made = explore(keys.explore, own, trial.kept, context.progress, context.num_chains, rounds, is_over)
    if made is None:
        return plain
    explored, policy = made.explored, context.policy
    beside = tried("tempered", explored.theta, explored.reals, made.step_seconds)
    may_learn = training is not False and context.budget.evaluations is None and not is_over()
    may_learn = may_learn and can_pay(trial.row, context.num_draws, policy)
    learned = None
    if may_learn:
        learned = _learned(keys, context, own, made, trial, training=training, should_stop=should_stop)
    best = choose(trial.row, beside, None if learned is None else learned.row)
    rows: tuple[Tried, ...] = (trial.row, beside)
    if learned is not None:
        rows, explored = (*rows, learned.row), explored._replace(num_outside=np.asarray(learned.num_outside))
        plain = plain._replace(transport=learned.transport, fitted=learned.fitted, weighed=learned.weighed)
    plain = plain._replace(rows=rows, thin=_thin(context, best), explored=explored)
    if learned is not None and best is learned.row:
        return plain._replace(chains=learned.chains, states=learned.states)
    if best is beside:
        explored = explored._replace(is_chosen=np.ones((), bool))
        return plain._replace(chains=made.chains, states=made.states, explored=explored)
    return plain


def _thin(context: Context, row: Tried) -> int:
    """Steps a kept draw: to independence, in time; without a limit at least until enough draws are effective."""
    left, policy = context.budget.total_seconds_left, context.policy
    if context.budget.evaluations is not None:
        return 1
    if left is not None:
        return thinning(row, context.num_draws, policy.drawing_share * left)
    needed = min(needed_seconds(row, context.num_draws, policy), policy.phase_seconds)
    return thinning(row, context.num_draws, max(needed, policy.drawing_seconds))


class _Learned(NamedTuple):
    """A transport that was learned, and the trial of jumps through it."""

    transport: AbstractTransport
    fitted: Fitted
    chains: Chains
    states: Any
    weighed: Target
    row: Tried
    num_outside: float


def _learned(
    keys: Keys, context: Context, own: Chains, made: Ladders, trial: _Trial, *, training: Any,
    should_stop: Callable[..., str | None],
) -> _Learned | None:  # fmt: skip
    """Learns a transport from the ladders' draws and tries it; None where it is too large, or training fails."""
    weighed, space = weighed_target(own), context.target.space
    if not is_learnable(weighed.space, context.budget.seconds):
        return None
    first = placed(own.mesh, fitted_to(weighed, REGISTRY["autoregressive"]()))
    start = Configuration(made.states.position, made.states.reals)
    given = training if isinstance(training, Mapping) else {}
    settings = {**default_training(weighed.space.num_dims + weighed.space.num_reals, context.policy), **given}
    data = made.explored if weighed is context.target else of_reals(made.explored, space)
    try:
        ahead = iter(()) if may_hang(context.target) else _jumps_ahead(keys, own, first, weighed, start)
        with compile_in_background(ahead):
            fitted = learn(
                keys.learn, first, context._replace(target=weighed), data, settings=settings, should_stop=should_stop
            )
    except TrainingError:
        return None
    context.progress.phase("trying the transport")
    transport = placed(own.mesh, fitted.transport)
    chains = hybrid_chains(own, transport, weighed)
    drawn = sample_transport(jax.random.fold_in(keys.learn, 2), transport, weighed, WEIGHED_DRAWS)
    theta = np.concatenate([trial.kept["theta"], made.explored.theta], axis=1)
    reals = np.concatenate([trial.kept["reals"], made.explored.reals], axis=1)
    theirs = log_weights_of(jax.random.fold_in(keys.learn, 3), space, weighed, transport, theta, reals)
    if theirs is None:
        return None
    num_tried = trial.kept["theta"].shape[1]
    rows = spread_by_weight(theirs[:, num_tried:], context.num_chains)
    start = unconstrained(space, made.explored.theta[rows][None], made.explored.reals[rows][None])
    jumps = _try(jax.random.fold_in(keys.trial, 1), chains, chains.start(keys.trial, start))
    outside = num_outside(np.asarray(drawn.log_weights, float), theirs[:, :num_tried])
    return _Learned(transport, fitted, chains, jumps.states, weighed, jumps.row, outside)


def spread_by_weight(log_weights: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Draws, (chain, draw), evenly spaced by their weight up to the heaviest hundredth: their chains and places.

    Jumps seldom leave what is heavy. A mode that the transport has too little of is so rare that a trial would not
    meet it, and the run would: a chain that starts there shows in the trial whether it comes back.
    """
    order = np.argsort(log_weights, axis=None)
    places = np.linspace(0.0, HEAVIEST, number + 1)[1:] * (order.size - 1)
    return np.unravel_index(order[places.astype(int)], log_weights.shape)  # type: ignore[return-value]


def of_reals(explored: Explored, space: Any) -> Explored:
    """Draws of ladders as those of the unconstrained reals alone."""
    flat = jnp.asarray(explored.reals.reshape(-1, space.num_real_values), jnp.result_type(float))
    y = np.asarray(jax.vmap(space.unconstrain)(flat)).reshape(*explored.reals.shape[:2], space.num_reals)
    return explored._replace(theta=explored.theta[..., :0], reals=y)


def _jumps_ahead(keys: Keys, own: Chains, transport: Any, weighed: Target, start: Configuration) -> Iterator[Any]:
    """Makes no draws through the untrained transport: what the trained one needs is compiled then."""
    chains = hybrid_chains(own, transport, weighed)
    states = chains.start(keys.trial, start)
    yield states
    yield chains.draw(keys.trial, states, 0, 0, 1)
    yield sample_transport(keys.learn, transport, weighed, WEIGHED_DRAWS)
