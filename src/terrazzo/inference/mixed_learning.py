"""Learning a transport on a space with real variables, from draws of tempered ladders.

Two stages, as on discrete spaces (`auto.learning`): maximum likelihood on the draws, which places mass on every mode
they cover; then the reverse KL with a tenth of the first beside it, which corrects what a finite set of correlated
draws cannot tell and does not let go of a mode. Both are judged on draws kept apart, the later ones of each ladder.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.auto import Context
from terrazzo.engine.kernels import Problem
from terrazzo.engine.loop import Chains
from terrazzo.inference.mixed import Explored, explore
from terrazzo.runtime.background import compile_in_background
from terrazzo.samplers import MIXED
from terrazzo.spaces import Configuration, Space
from terrazzo.training import Fitted, fit, forward_kl, reverse_kl
from terrazzo.training.settings import NUM_STEPS


def unconstrained(space: Space, theta: np.ndarray, values: np.ndarray) -> Configuration:
    """Draws as a result keeps them, (..., dim) and (..., value), as flat configurations; without those at a bound."""
    flat = jnp.asarray(values.reshape(-1, space.num_real_values), jnp.result_type(float))
    y = np.asarray(jax.vmap(space.unconstrain)(flat))
    usable = np.isfinite(y).all(axis=1)
    return Configuration(theta.reshape(len(y), space.num_dims)[usable].astype(np.int32), y[usable])


def explore_ahead(
    key: jax.Array, context: Context, options: Mapping[str, Any], keep: Any, is_over: Callable[[], bool]
) -> Explored | None:
    """Draws of tempered ladders whose reference is the user's, or fitted to pilots; None if there is no time for it."""
    if is_over():
        return None
    own = Chains(context.mesh, MIXED["blocked"], Problem(context.target, None, {}, keep), context.length)
    number = int(options.get("num_ladders", context.num_chains))
    mixed = context.policy.mixed
    rounds = mixed.tuning_rounds, int(options.get("max_rounds", mixed.kept_rounds))
    made = explore(key, own, None, context, number, rounds, is_over)
    return None if made is None else made.explored


def learn(
    key: jax.Array, transport: Any, context: Context, explored: Explored, *, settings: Mapping[str, Any],
    should_stop: Callable[..., str | None],
) -> Fitted:  # fmt: skip
    """Trains a transport on the draws of ladders, then on them and the target together: `learning` to its end."""
    *_, last = learning(key, transport, context, explored, settings=settings, should_stop=should_stop)
    return last


def learning(
    key: jax.Array, transport: Any, context: Context, explored: Explored, *, settings: Mapping[str, Any],
    should_stop: Callable[..., str | None], ahead: Iterator[Any] | None = None,
) -> Iterator[Fitted]:  # fmt: skip
    """What was learned by the end of each stage; the caller may stop after any.

    Args:
        key: A JAX key.
        transport: Where to start from; its reals are first placed where the draws are.
        context: The run.
        explored: The draws.
        settings: Options of `tz.fit`.
        should_stop: As `tz.fit` takes it.
        ahead: What to compile at the same time, or None.
    """
    target, progress, policy = context.target, context.progress, context.policy
    defaults = {"num_steps": NUM_STEPS, "learning_rate": policy.learning_rate, "start_beta": policy.start_beta}
    chosen = {**defaults, **settings}
    first = explored.theta.shape[1] - max(1, int(policy.held_out_share * explored.theta.shape[1]))
    part = lambda rows: unconstrained(target.space, explored.theta[:, rows], explored.reals[:, rows])
    buffer, apart = part(slice(None, first)), part(slice(first, None))
    sd = np.maximum(buffer.reals.std(axis=0), 1e-6)
    transport = transport.placed(buffer.reals.mean(axis=0), sd)
    reverse = reverse_kl("score_function")
    stages: tuple[tuple[str, Any, Any, dict[str, Any]], ...] = (
        ("learning from the draws", forward_kl(buffer), forward_kl(apart), {}),
        ("learning from the target", forward_kl(buffer, weight=policy.forward_weight, reverse=reverse),
         forward_kl(apart, weight=0.5, reverse=reverse), {"enough_is_ess": policy.enough_is_ess}),
    )  # fmt: skip
    steps, fits = max(1, int(chosen.pop("num_steps")) // 2), []
    for i, (name, objective, checked, own) in enumerate(stages):
        progress.phase(name, steps, "steps")
        with compile_in_background(iter(()) if ahead is None else ahead):
            fitted = fit(
                jax.random.fold_in(key, i), transport, target, objective=objective, check_objective=checked,
                num_steps=steps, should_stop=should_stop, progress=progress, **own, **chosen,
            )  # fmt: skip
        transport = fitted.transport
        fits.append(fitted)
        history = {name: np.concatenate([f.history[name] for f in fits]) for name in fitted.history}
        seconds, count = sum(f.seconds for f in fits), sum(f.num_steps for f in fits)
        yield Fitted(transport, history, count, fitted.reason, seconds)
