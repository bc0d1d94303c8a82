"""What a run on a space with real variables does otherwise: its sampler, its starts, what is watched and checked."""

import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import OptionError, SpaceError, UnsupportedError
from terrazzo.inference.requests import AUTO, Request
from terrazzo.samplers import MIXED
from terrazzo.samplers.kernels.collapsed import find_summation
from terrazzo.spaces import Configuration
from terrazzo.targets.mixed import non_finite_error
from terrazzo.targets.target import Target
from terrazzo.verdict.checks import NOT_TRUSTED, Check

DIVERGENT = "share of divergent trajectories"
MAX_DIVERGENT = 0.001  # one in a thousand: fewer are met by chance where step sizes are tuned to accept 80 %


def mixed_request(request: Request, target: Target) -> Request:
    """The request with a sampler that moves reals; raises where the one that was named cannot."""
    if not target.has_real_gradient and not target.is_blackbox:
        warnings.warn("log_prob does not change with the reals: they are moved by a random walk", RuntimeWarning, 6)
    if target.is_blackbox:
        warnings.warn(
            "a black box has no gradient: its reals are moved by a random walk, which takes many more steps than NUTS\n"
            "  -> write log_prob with jax.numpy if it can be", RuntimeWarning, stacklevel=6,
        )  # fmt: skip
    if request.transport:
        raise UnsupportedError("transport", "is for spaces without real variables", "leave it out")
    if request.name == AUTO:
        can_sum = target.has_real_gradient and find_summation(target) is not None
        chosen = MIXED["collapsed" if can_sum else "blocked"]
        return replace(request, spec=chosen, options={}, exploration=None, training=None)
    spec = request.spec
    assert spec is not None
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


def watched(rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """The coordinates whose R-hat is shown while a run goes on, (chain, draw, coordinate)."""
    if "reals" not in rows:
        return np.moveaxis(rows["theta"], 0, 1)
    return np.moveaxis(np.concatenate([rows["theta"].astype(float), rows["reals"]], axis=-1), 0, 1)


def divergence_check(info: Mapping[str, np.ndarray]) -> Check:
    """Whether trajectories of the reals diverged: where they do, draws miss a part of the distribution."""
    share = float(info.get("is_divergent", 0.0))
    advice = "trajectories diverge: rescale or reparametrise the reals (a non-centred form), or tighten their priors"
    return Check(DIVERGENT, share, MAX_DIVERGENT, share <= MAX_DIVERGENT, advice, NOT_TRUSTED)
