"""What a run on a space with real variables does otherwise: its sampler, its starts, what is watched and checked.

The default sums out the discrete variables where it can (`collapsed`), else alternates (`blocked`). Before it draws, it
explores by tempering from a reference, with moves and starts of their own. What draws in the end is chosen by trials
(`mixed_choice`); where the ladders do not, they are what the draws are compared with.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.auto import CPU, Context, Policy
from terrazzo.diagnostics import LogZ, describe
from terrazzo.engine.loop import Chains, draws, joined, tune
from terrazzo.errors import OptionError, SpaceError, UnsupportedError
from terrazzo.inference.mixed_choice import tried
from terrazzo.inference.mixed_hunt import Modes, mode_checks, no_modes
from terrazzo.inference.requests import AUTO, HYBRID, Request
from terrazzo.runtime.pacing import Chunk
from terrazzo.samplers import MIXED, MIXED_HYBRID
from terrazzo.samplers.kernels.collapsed import affordable_summation
from terrazzo.samplers.kernels.tempered import EVALUATIONS_A_ROUND
from terrazzo.samplers.parts.ladder_evidence import stepping_stones
from terrazzo.samplers.parts.references import FittedReference, fitted_reference
from terrazzo.spaces import Configuration, Space
from terrazzo.targets.improper import check_proper
from terrazzo.targets.mixed import non_finite_error
from terrazzo.targets.target import Target
from terrazzo.verdict.checks import NOT_TRUSTED, UNCHECKED, Check

DIVERGENT = "share of divergent trajectories"
REFERENCE = "a reference that the chains did not make"
OUTSIDE = "chains of local moves outside of the transport"


def mixed_request(request: Request, target: Target) -> Request:
    """The request with a sampler that moves reals; raises where the one that was named cannot."""
    if not target.has_real_gradient and not target.is_blackbox:
        warnings.warn("log_prob does not change with the reals: they are moved by a random walk", RuntimeWarning, 6)
    if target.is_blackbox:
        warnings.warn(
            "a black box has no gradient: its reals are moved by a random walk, which takes many more steps than NUTS\n"
            "  -> write log_prob with jax.numpy if it can be", RuntimeWarning, stacklevel=6,
        )  # fmt: skip
    check_proper(target)
    if request.name == AUTO:
        if request.transport:
            text = "is not learned by the default on spaces with real variables"
            raise UnsupportedError("transport", text, "tz.samplers.hybrid(transport=...) jumps through it")
        can_sum = target.has_real_gradient and affordable_summation(target) is not None
        chosen = MIXED["collapsed" if can_sum else "blocked"]
        explores = None if request.is_exploration_given and request.exploration is None else request.exploration
        training = False if request.transport is False else request.training
        return replace(request, spec=chosen, options={}, exploration=explores, training=training)
    spec = request.spec
    assert spec is not None
    if spec.name == HYBRID:
        return replace(request, spec=MIXED_HYBRID)
    if "reals" in spec.needs:
        if request.is_exploration_given:
            raise UnsupportedError("exploration", f"is not an option of {request.name!r}", "leave it out")
        return replace(request, exploration=None)
    if spec.name not in MIXED and spec.program is None and "transport" not in spec.needs:
        remedy = f"tz.samplers.blocked(discrete={spec.name!r})"
    else:
        remedy = "leave the sampler out, or use tz.samplers.blocked()"
    raise UnsupportedError("sampler", f"{spec.name!r} does not move real variables", remedy)


def mixed_starts(init: Any, target: Target, chains: int) -> Configuration:
    """Starts in the user's values as configurations, one a chain; errors name `init`."""
    space = target.space
    try:
        theta = space.encode(init) if space.num_dims else None
        y = space.encode_reals(init)
    except SpaceError as error:
        raise SpaceError(f"init: {error.field}", error.problem, error.remedy) from None
    if y.ndim == 1:
        y = np.tile(y, (chains, 1))
        theta = None if theta is None else np.tile(theta, (chains, 1))
    theta = np.zeros((len(y), 0), np.int32) if theta is None else theta
    if theta.shape[:-1] != (chains,) or y.shape[:-1] != (chains,):
        raise OptionError("init", f"has leading shape {y.shape[:-1]} for {chains} chains", "one start per chain")
    start = Configuration(theta.astype(np.int32), y)
    values = np.asarray(jax.vmap(target.log_density)(jnp.asarray(start.theta), jnp.asarray(y, jnp.result_type(float))))
    if (values == np.inf).any():
        k = int((values == np.inf).argmax())
        raise non_finite_error(target, start.theta[k], y[k])
    if not np.isfinite(values).all():
        raise OptionError("init", "holds a configuration with log_prob = -inf", "start where pi is positive")
    return start


def divergence_check(info: Mapping[str, np.ndarray], policy: Policy = CPU) -> Check:
    """Whether trajectories of the reals diverged: where they do, draws miss a part of the distribution."""
    share = float(info.get("is_divergent", 0.0))
    advice = "trajectories diverge: rescale or reparametrise the reals (a non-centred form), or tighten their priors"
    return Check.at_most(DIVERGENT, share, policy.mixed.most_divergent, advice, grade=NOT_TRUSTED)


# ---- exploring


class Explored(NamedTuple):
    """Draws of tempered ladders.

    Attributes:
        theta: Codes, (chain, draw, dim).
        reals: Real values, (chain, draw, value).
        log_weights: log pi - log q0 of all replicas, (chain, draw, replica).
        inverse_temperatures: The ladder.
        is_chosen: Whether the ladders make the draws of the run too.
        mean: Of the reference, as `FittedReference` has it; empty for the user's own.
        sd: The same.
        log_probs: The same.
        num_outside: Short chains of local moves that stood outside of a transport learned from these draws; NaN
            without one.
        is_incomplete: Whether these draws are known to lack a mode.
        num_tops: Tops of the density at which chains were started that had to come back; NaN if nobody looked.
        places: Where they did not, as `mixed_hunt.Modes` has it.
        roots: The same.
        shares: The same.
        errors: The same.
    """

    theta: np.ndarray
    reals: np.ndarray
    log_weights: np.ndarray
    inverse_temperatures: np.ndarray
    is_chosen: np.ndarray
    mean: np.ndarray
    sd: np.ndarray
    log_probs: np.ndarray
    num_outside: np.ndarray
    is_incomplete: np.ndarray
    num_tops: np.ndarray
    places: np.ndarray
    roots: np.ndarray
    shares: np.ndarray
    errors: np.ndarray

    @property
    def modes(self) -> Modes:
        """Modes that chains did not come back from."""
        return Modes(self.places, self.roots, self.shares, self.errors)

    @property
    def evidence(self) -> LogZ:
        """log Z by the ladder."""
        return stepping_stones(self.log_weights, self.inverse_temperatures, 0.0)


class Ladders(NamedTuple):
    """Tempered ladders that have explored: their draws, themselves, where they are, and the seconds of a round."""

    explored: Explored
    chains: Chains
    states: Any
    step_seconds: float


def ladders(own: Chains, reference: Any) -> Chains:
    """Tempered ladders from a reference, for the target of some chains."""
    spec = MIXED["tempered"]
    assert spec.prepare is not None
    summation = own.problem.options.get("summation")
    options = spec.prepare(own.problem.target, summation=summation, reference=reference)
    return own._replace(spec=spec, problem=own.problem._replace(options=options), parameters={}, is_brief=True)


def reference_of(target: Target, own: Chains, trial: Mapping[str, np.ndarray]) -> FittedReference | None:
    """One that fits the trial's draws; None where the user gave one."""
    if target.reference is not None:
        return None
    values = trial["reals"].reshape(-1, target.space.num_real_values)
    y = np.asarray(jax.vmap(target.space.unconstrain)(jnp.asarray(values)))
    usable = np.isfinite(y).all(axis=1)
    theta = trial["theta"].reshape(len(y), -1)
    is_collapsed = own.problem.options.get("summation") is not None
    return fitted_reference(target, theta[usable], y[usable], is_collapsed=is_collapsed)


def restored_reference(explored: Explored) -> FittedReference | None:
    """The reference of a stored run; None for the user's."""
    if not explored.mean.size:
        return None
    return FittedReference(*(jnp.asarray(x) for x in (explored.mean, explored.sd, explored.log_probs)))


def ladders_ahead(own: Chains, num_chains: int) -> Iterator[None]:
    """Runs ladders for no rounds, from any reference: they are compiled then."""
    target, dtype = own.problem.target, jnp.result_type(float)
    space, is_collapsed = target.space, own.problem.options.get("summation") is not None
    any_reference = None
    if target.reference is None:
        sites = jnp.zeros((0 if is_collapsed else space.num_dims, space.max_size), dtype)
        any_reference = FittedReference(jnp.zeros(space.num_reals, dtype), jnp.ones(space.num_reals, dtype), sites)
    chains, key = ladders(own, any_reference), jax.random.key(0)
    yield
    assert chains.spec.tuning is not None
    tuning = chains.spec.tuning(target)
    chains = chains._replace(parameters=tuning.parameters(tuning.init()))
    zeros = np.zeros((num_chains, space.num_dims), np.int32), np.zeros((num_chains, space.num_reals))
    states = chains.start(key, Configuration(*zeros))
    yield
    chains.draw(key, states, 0, 0, 1)


def hot_starts(chains: Chains, key: jax.Array, states: Any, anywhere: Configuration) -> Configuration:
    """Where ladders from the user's reference start: at its draws, where these are possible, else anywhere.

    The hot end is redrawn from the reference in every round, so that one round makes them.
    """
    hot = chains.draw(key, states, 0, 1, 1)[0]
    is_possible = jnp.isfinite(hot.log_weights[:, 0])[:, None]
    theta = jnp.where(is_possible, hot.thetas[:, 0], anywhere.theta)
    return Configuration(theta, jnp.where(is_possible, hot.ys[:, 0], anywhere.reals))


def explored_rounds(
    trial: Mapping[str, np.ndarray], num_steps: int, policy: Policy, *, is_apart: bool
) -> tuple[int, int]:
    """Rounds that tune ladders, and rounds that are kept: together no more evaluations than the run itself takes.

    Args:
        trial: Short draws of the run's own chains.
        num_steps: The run's steps a chain.
        policy: The most rounds, and the fewest.
        is_apart: Whether these chains stay apart, so that ladders will have to do: then all rounds.
    """
    each, mixed = float(np.mean(trial["num_evaluations"])), policy.mixed
    share = each * num_steps / (EVALUATIONS_A_ROUND * (mixed.tuning_rounds + mixed.kept_rounds))
    share = 1.0 if is_apart else float(np.clip(share, mixed.least_share, 1.0))
    return int(share * mixed.tuning_rounds), int(share * mixed.kept_rounds)


def explore(
    key: jax.Array, own: Chains, trial: Mapping[str, np.ndarray] | None, context: Context, num_chains: int,
    rounds: tuple[int, int], is_over: Callable[[], bool],
) -> Ladders | None:  # fmt: skip
    """Tempered ladders from a reference.

    Without a trial of other chains the reference is fitted to pilots. None if the time for it is over before the
    ladders are tuned and have a few draws.
    """
    target, spec, progress = own.problem.target, MIXED["tempered"], context.progress
    num_tuned, num_kept = rounds
    progress.phase("exploring", num_tuned + num_kept, "rounds")
    reference = None if trial is None else reference_of(target, own, trial)
    chains = ladders(own, reference)
    start_key, init_key, tune_key, draw_key = jax.random.split(key, 4)
    assert spec.tuning is not None
    tuning = spec.tuning(target)
    start: Any = target.possible_starts(start_key, num_chains)
    first = chains._replace(parameters=tuning.parameters(tuning.init()))
    states = first.start(init_key, start)
    if target.reference is not None:
        states = first.start(init_key, hot_starts(first, init_key, states, start))
    found: dict[str, Any] = {}
    for chunk in tune(chains, tuning, tune_key, states, num_tuned):
        states, found, _ = chunk.out
        progress.update(chunk.first + chunk.size)
        if is_over():
            return None
    chains = chains._replace(parameters=found)
    kept, states, step_seconds = _kept_rounds(draw_key, chains, states, rounds, context, is_over)
    if kept["log_prob"].shape[1] < context.policy.fewest_kept:
        return None
    betas = np.asarray(found["inverse_temperatures"])
    names, is_fitted = ("mean", "sd", "log_probs"), isinstance(reference, FittedReference)
    parts = {name: np.asarray(getattr(reference, name)) if is_fitted else np.zeros(0) for name in names}
    draws_of_all = Explored(
        theta=kept["theta"], reals=kept["reals"], log_weights=kept["replica_log_probs"], inverse_temperatures=betas,
        is_chosen=np.zeros((), bool), num_outside=np.full((), np.nan), num_tops=np.full((), np.nan),
        is_incomplete=np.zeros((), bool),
        **no_modes(target.space.num_reals)._asdict(), **parts,
    )  # fmt: skip
    return Ladders(draws_of_all, chains, states, step_seconds)


def _kept_rounds(
    key: jax.Array, chains: Chains, states: Any, rounds: tuple[int, int], context: Context, is_over: Callable[[], bool]
) -> tuple[dict[str, np.ndarray], Any, float]:
    """Rounds of tuned ladders, and some times as many where too few are effective to contradict anything."""
    rows: list[dict[str, np.ndarray]] = []
    step_seconds, done, (num_tuned, count), policy = np.inf, 0, rounds, context.policy.mixed
    for i in range(policy.patience):
        for chunk in draws(chains, key, states, count, first=done, is_compiled=i > 0):
            states, step_seconds = chunk.out.states, fastest(step_seconds, chunk)
            rows.append(chunk.out.rows)
            context.progress.update(num_tuned + min(count, done + chunk.first + chunk.size))
            if is_over():
                return joined(rows), states, step_seconds
        kept, done = joined(rows), done + count
        if tried("tempered", kept["theta"], kept["reals"], step_seconds).ess >= policy.least_ess:
            break
    return kept, states, step_seconds


def fastest(step_seconds: float, chunk: Chunk) -> float:
    """Seconds of a step, by the fastest chunk so far: small ones are mostly overhead, and the first may compile."""
    return step_seconds if chunk.is_first else min(step_seconds, chunk.seconds / chunk.size)


def exploration_checks(
    target: Target, explored: Explored, theta: np.ndarray, reals: np.ndarray, policy: Policy = CPU
) -> tuple[Check, ...]:
    """The draws against those of tempered ladders: the means of all values and categories, in standard errors.

    Ladders that start from the user's reference are independent of the chains. Those whose reference was fitted to the
    chains see a part of what the chains missed, not all of it.
    """
    space, mixed = target.space, policy.mixed
    joint = lambda theta, reals: np.concatenate([scalars(space, theta, policy), reals], axis=-1)
    ours, theirs = describe(joint(theta, reals)), describe(joint(explored.theta, explored.reals))
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.sqrt(np.nan_to_num(ours.mcse) ** 2 + np.nan_to_num(theirs.mcse) ** 2)
        z = np.abs(ours.mean - theirs.mean) / error
    worst = float(z[~np.isnan(z)].max(initial=0.0))  # 0 / 0 is the same constant in both; two constants are inf apart
    moving = theirs.ess_bulk[np.isfinite(theirs.ess_bulk)]
    least = float(moving.min(initial=np.inf)) if len(moving) else 0.0
    agreed = "the draws differ from those of tempered ladders: run longer, or sampler='tempered'"
    enough = "the exploration has too few effective draws to contradict anything: let it run longer"
    outside = "chains of local moves stand where neither the ladders nor the transport go: explore longer, or set init="
    num_outside, is_looked = float(explored.num_outside), not np.isnan(explored.num_outside)
    is_other, has_reference = not bool(explored.is_chosen), target.reference is not None
    given = "ladders were fitted to the chains themselves: give the prior, tz.Target(..., reference=tz.Reference(...))"
    return (
        Check(REFERENCE, float(has_reference), 1.0, has_reference, given, UNCHECKED),
        Check("difference from the exploration (standard errors)", worst, mixed.most_errors,
              worst <= mixed.most_errors, agreed, UNCHECKED if explored.is_incomplete else NOT_TRUSTED,
              is_other and least >= mixed.least_ess),
        Check.at_least("least ESS of the exploration", least, mixed.least_ess, enough, grade=UNCHECKED),
        *((Check(OUTSIDE, num_outside, 0.0, num_outside == 0, outside, UNCHECKED),) if is_looked else ()),
        *mode_checks(space, float(explored.num_tops), explored.modes, reals, policy),
    )  # fmt: skip


def scalars(space: Space, theta: np.ndarray, policy: Policy = CPU) -> np.ndarray:
    """Ordered coordinates as they are, unordered ones as an indicator a category."""
    parts, start = [np.zeros((*theta.shape[:2], 0))], 0
    for _, v in space.discrete_variables:
        block = theta[..., start : start + v.num_elements]
        start += v.num_elements
        if v.is_ordered:
            parts.append(block.astype(float))
        else:
            hot = block[..., None] == np.arange(min(v.size, policy.mixed.most_categories))
            parts.append(hot.reshape(*block.shape[:2], -1).astype(float))
    return np.concatenate(parts, axis=-1)
