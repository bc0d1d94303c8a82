"""What the weights of a transport say of a mixed run: log Z by a bridge, and whether they contradict the draws.

A transport has a known density, so that its own draws, weighted by pi / q, are a second sample of pi. Where tempered
ladders make the draws of a run, it is the source that they are checked by. It was learned from the ladders, and cannot
show what they missed: chains of local moves from other starts do that (`num_outside`).
"""

from collections.abc import Mapping

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.auto import Policy
from terrazzo.diagnostics import LogZ, bridge_log_z, describe, importance_summary
from terrazzo.diagnostics.autocorrelation import MIN_DRAWS
from terrazzo.inference.mixed import scalars
from terrazzo.inference.mixed_learning import unconstrained
from terrazzo.spaces import Configuration, Space
from terrazzo.targets.target import Target
from terrazzo.transports import AbstractTransport, posterior_log_weights
from terrazzo.transports.base import TransportDraws
from terrazzo.verdict.checks import NOT_TRUSTED, NOTE, Check
from terrazzo.verdict.coverage import evidence_gap, is_beyond

WEIGHTED = "difference from weighted draws of the transport (standard errors)"


def log_weights_of(
    key: jax.Array, space: Space, weighed: Target, transport: AbstractTransport, theta: np.ndarray, reals: np.ndarray
) -> np.ndarray | None:
    """The weights of draws as a result keeps them, (chain, draw, ...); None where one lies at a bound, or has none.

    Args:
        key: A JAX key.
        space: The space of the draws.
        weighed: What the transport's weights are of: the target, or its density of the reals alone.
        transport: The transport.
        theta: Codes.
        reals: Real values.
    """
    found = unconstrained(space, theta, reals)
    if len(found.theta) < theta.shape[0] * theta.shape[1]:
        return None
    found = found if weighed.space.num_dims == space.num_dims else Configuration(found.theta[:, :0], found.reals)
    weights = np.asarray(posterior_log_weights(key, transport, weighed, found), float).reshape(theta.shape[:2])
    return None if np.isnan(weights).any() or (weights == -np.inf).any() else weights


def bridge(
    key: jax.Array, space: Space, weighed: Target, transport: AbstractTransport, own: np.ndarray, theta: np.ndarray,
    reals: np.ndarray, policy: Policy,
) -> LogZ | None:  # fmt: skip
    """log Z by the optimal bridge between the transport, with log-weights `own`, and draws; None if that is impossible.

    The other arguments are those of `log_weights_of`.
    """
    thin = max(1, -(-theta.shape[0] * theta.shape[1] // policy.most_weighed))
    theta, reals = theta[:, ::thin], reals[:, ::thin]
    if theta.shape[1] < MIN_DRAWS or np.isnan(own).any() or (own == np.inf).any():
        return None
    theirs = log_weights_of(key, space, weighed, transport, theta, reals)
    made = None if theirs is None else bridge_log_z(own, theirs)
    return made if made is not None and np.isfinite(made.log_z) else None


def num_outside(own: np.ndarray, theirs: np.ndarray | None) -> float:
    """Chains that spend more than half of their draws where these are heavier than any of the transport's own.

    Args:
        own: log-weights of draws of the transport.
        theirs: Those of draws of chains, (chain, draw); None where they are unknown, which counts as all outside.
    """
    if theirs is None:
        return float("inf")
    return float((2 * is_beyond(own, theirs).mean(axis=1) > 1).sum())


def weighted_check(
    space: Space, drawn: TransportDraws, theta: np.ndarray, reals: np.ndarray, policy: Policy, *, is_other: bool
) -> tuple[Check, ...]:
    """The means of all values and categories by weighted draws of the transport, against those of the run's draws.

    Args:
        space: The space of the run.
        drawn: Draws of the transport, of the space or of its unconstrained reals.
        theta: The run's codes, (chain, draw, dim).
        reals: Its real values, (chain, draw, value).
        policy: When weights have an error.
        is_other: Whether the run's draws were made without the transport, so that this is an independent check.
    """
    log_weights = np.asarray(drawn.log_weights, float)
    quality = importance_summary(log_weights)
    if not quality.pareto_k <= policy.pareto_k or quality.ess < policy.mixed.least_ess:
        return ()
    codes, y = np.asarray(drawn.theta.theta), np.asarray(drawn.theta.reals)
    values = np.asarray(jax.vmap(space.real_values)(jnp.asarray(y)))
    is_whole = codes.shape[1] == space.num_dims  # else theta is drawn given the reals, exactly
    mine = np.concatenate([scalars(space, theta, policy), reals], axis=-1) if is_whole else reals
    other = np.concatenate([scalars(space, codes[None], policy)[0], values], axis=-1) if is_whole else values
    weights = np.exp(log_weights - log_weights.max())
    weights /= weights.sum()
    mean = weights @ other
    variance, ours = weights @ (other - mean) ** 2, describe(mine)
    # A coordinate that never changed says as much as so many draws of the weighted law as the run has effective ones.
    least = np.nanmin(ours.ess_bulk, initial=float(theta.shape[0] * theta.shape[1]))
    with np.errstate(invalid="ignore", divide="ignore"):
        own = np.where(ours.is_constant, variance / least, ours.mcse**2)
        error = np.sqrt(own + weights**2 @ (other - mean) ** 2)
        z = np.abs(ours.mean - mean) / error
    worst = float(z[~np.isnan(z)].max(initial=0.0))
    advice = "the draws differ from weighted draws of the transport: run longer, or explore longer"
    return (
        Check.at_most(WEIGHTED, worst, policy.mixed.most_errors, advice, grade=NOT_TRUSTED, is_independent=is_other),
    )


def evidence_checks(found: Mapping[str, LogZ], policy: Policy, *, uses_transport: bool) -> tuple[Check, ...]:
    """log Z by the transport against that of tempered ladders."""
    ladders = found.get("tempering", found.get("exploration"))
    checks = []
    for name in ("importance", "bridge"):
        if ladders is None or name not in found:
            continue
        gap = evidence_gap(found[name], ladders)
        if np.isnan(gap):
            continue
        is_close = abs(found[name].log_z - ladders.log_z) < policy.small_gap
        is_sound = uses_transport if name == "bridge" else found[name].pareto_k <= policy.pareto_k
        advice = "log Z by the transport and by tempering contradict each other: explore longer, or train longer"
        checks.append(
            Check(f"log Z, {name} against tempering (s.e.)", gap, policy.evidence_gap,
                  gap <= policy.evidence_gap or is_close, advice, NOT_TRUSTED if is_sound else NOTE)
        )  # fmt: skip
    return tuple(checks)
