"""The four ways a row is made: the paper's recipe, a baseline, a tempered reference, and ours.

Each takes a target and a plan and returns a `Run`: the draws and the seconds of training, burn-in and sampling.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.diagnostics import ess
from terrazzo.errors.arguments import key_of_seed
from terrazzo.inference.call import sample
from terrazzo.paper.experiments.base import Method, Plan, Run
from terrazzo.results.result import Result
from terrazzo.runtime.progress import Progress
from terrazzo.samplers import BoundSampler, get, latent_random_walk, parallel_tempering
from terrazzo.targets.target import Target
from terrazzo.training import Fitted, fit, reverse_kl
from terrazzo.transports import AbstractTransport, flow_transport, sample_transport

LEARNING_RATE = 1e-3
CHECK_EVERY = 500  # steps: nothing stops the training, and every check waits for the device
SCALES = (0.1, 0.2, 0.3, 0.45, 0.7, 1.0)
FEWEST_DRAWS = 8
PARTS = {"warm-up": "burn_in", "sampling": "sample"}  # phases of `sample`; all others count as training


class Context(NamedTuple):
    """What a method needs besides the plan.

    Attributes:
        target: The target.
        seed: Random seed.
        precision: As in `tz.sample`.
        progress: As in `tz.sample`.
        max_seconds: When to stop drawing, or None.
    """

    target: Target
    seed: int
    precision: str | None
    progress: Any
    max_seconds: float | None = None


def lengths(method: Method, plan: Plan) -> dict[str, int]:
    """What of the plan a method uses, in steps."""
    if method.kind == "reference":
        rounds = plan.reference["rounds"]
        thin = max(1, rounds // plan.draws)
        return {"chains": plan.reference["chains"], "draws": rounds // thin, "thin": thin, "burn_in": rounds}
    out = {"chains": plan.chains, "draws": plan.draws, "thin": max(1, round(plan.thin * method.step_share))}
    if method.kind == "baseline":
        out["burn_in"] = round(plan.burn_in * method.burn_in_share * method.step_share)
    if method.kind == "flow":
        out |= {
            "iterations": max(1, round(plan.iterations * method.iterations_share)),
            "batch_size": plan.batch_size,
            "tuning_steps": plan.tuning_steps,
        }
    return out


def run_method(method: Method, plan: Plan, context: Context) -> Run:
    """Runs a row's method on a target."""
    return {"flow": run_flow, "baseline": run_baseline, "reference": run_reference, "ours": run_ours}[method.kind](
        method, plan, context
    )


def run_flow(method: Method, plan: Plan, context: Context) -> Run:
    """The paper's recipe: train a flow by reverse KL, start the chains in it, random walk in its latent space."""
    size = lengths(method, plan)
    began = time.perf_counter()
    fitted = train_flow(method, plan, context)
    starts = flow_draws(fitted.transport, context.target, context.seed, plan.chains)
    trained = time.perf_counter() - began
    if context.max_seconds is not None:
        context = context._replace(max_seconds=max(context.max_seconds - trained, 1.0))
    walk = partial(latent_random_walk, transport=fitted.transport, training=False)
    init = context.target.space.decode(starts)
    began = time.perf_counter()
    scale = best_scale(context, plan, walk, init)
    result = _sample(context, size, warmup=0, init=init, sampler=walk(**{**method.options, "scale": scale}))
    run = _timed(result)
    run.seconds["burn_in"] += time.perf_counter() - began - sum(result.provenance["seconds"].values())
    run.seconds["train"] += trained
    held_out = fitted.history["held_out"]
    training = {
        "iterations": fitted.num_steps,
        "reason": fitted.reason,
        "gradient": method.gradient,
        "held_out": float(held_out[-1]) if len(held_out) else None,
        "is_ess": float(fitted.history["is_ess"][-1]),
        "scale": float(scale),
    }
    return run._replace(training=training)


def best_scale(context: Context, plan: Plan, walk: Callable[..., BoundSampler], init: Any) -> Array:
    """The scale of the random walk, of a few, with the largest effective sample size in a short run of each.

    The paper does not say which scale it has. An acceptance of 0.3, right for a smooth density, is far too timid here:
    the density jumps at cell borders, so that small steps are rejected nearly as often as large ones.
    """
    draws = max(FEWEST_DRAWS, plan.tuning_steps // (len(SCALES) * plan.thin))
    pilot = {"chains": plan.chains, "draws": draws, "thin": plan.thin}
    unlimited = context._replace(max_seconds=None)
    found = []
    for scale in jnp.asarray(SCALES, jnp.result_type(float)):
        result = _sample(unlimited, pilot, warmup=0, init=init, sampler=walk(scale=scale))
        sizes = np.nan_to_num(ess(result.theta))  # a coordinate that never moved counts nothing
        found.append((float(sizes.mean()), scale))
    return max(found, key=lambda pair: pair[0])[1]


def train_flow(method: Method, plan: Plan, context: Context) -> Fitted:
    """The paper's flow, trained as the paper says: Adam 1e-3, no annealing, no early stop."""
    iterations = lengths(method, plan)["iterations"]
    build_key, train_key = jax.random.split(key_of_seed(context.seed))
    with Progress(context.progress) as progress:
        progress.phase("training", iterations, "iterations")
        transport = flow_transport(context.target.space, key=build_key, architecture="paper", **plan.flow)
        return fit(
            train_key, transport, context.target, objective=reverse_kl(method.gradient), num_steps=iterations,
            batch_size=plan.batch_size, learning_rate=LEARNING_RATE, start_beta=1.0, patience=None,
            check_every=CHECK_EVERY, progress=progress,
        )  # fmt: skip


def flow_draws(transport: AbstractTransport, target: Target, seed: int, count: int) -> np.ndarray:
    """Independent draws of a transport that the target allows, flat."""
    pushed = sample_transport(key_of_seed(seed + 1), transport, target, 4 * count)
    possible = np.flatnonzero(np.isfinite(np.asarray(pushed.log_prob)))
    return np.asarray(pushed.theta)[np.resize(possible, count)]


def run_baseline(method: Method, plan: Plan, context: Context) -> Run:
    """A sampler of the registry from random starts, tuned during its burn-in."""
    size = lengths(method, plan)
    sampler = get(method.sampler)(**method.options)
    return _timed(_sample(context, size, sampler=sampler, warmup=size["burn_in"]))


def run_reference(method: Method, plan: Plan, context: Context) -> Run:
    """Parallel tempering, as long again in warm-up as in sampling: what the posterior is."""
    size = lengths(method, plan)
    sampler = parallel_tempering(
        num_temperatures=plan.reference["temperatures"], num_moves=plan.reference["moves"],
        **{"kernel": method.sampler, **method.options},
    )  # fmt: skip
    return _timed(_sample(context, size, sampler=sampler, warmup=size["burn_in"]))


def run_ours(method: Method, plan: Plan, context: Context) -> Run:
    """The default pipeline of `tz.sample`, with the plan's options if it has any."""
    options = {name: value for name, value in plan.ours.items() if name != "max_seconds"}
    context = context._replace(max_seconds=seconds_allowed(method, plan, context.max_seconds))
    return _timed(_sample(context, lengths(method, plan), **options))


def seconds_allowed(method: Method, plan: Plan, asked: float | None) -> float | None:
    """When a piece keeps the draws it has: the user's limit, and for ours the plan's, if it has one."""
    own = plan.ours.get("max_seconds") if method.kind == "ours" else None
    return min((limit for limit in (own, asked) if limit is not None), default=None)


def _sample(context: Context, size: dict[str, int], **options: Any) -> Result:
    """`tz.sample`; an interruption (of a pilot run too) stops everything: a part of a piece is not a piece."""
    result = sample(
        context.target, seed=context.seed, chains=size["chains"], draws=size["draws"], thin=size["thin"],
        precision=context.precision, progress=context.progress, max_seconds=context.max_seconds, **options,
    )  # fmt: skip
    if not result.is_complete:
        raise KeyboardInterrupt
    return result


def _timed(result: Result) -> Run:
    seconds = {"train": 0.0, "burn_in": 0.0, "sample": 0.0}
    for phase, value in result.provenance["seconds"].items():
        seconds[PARTS.get(phase, "train")] += value
    return Run(result, seconds, result.provenance.get("training"))
