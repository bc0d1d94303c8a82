"""A ladder of inverse temperatures: its beginning, its checks, its adaptation.

It is adapted in warm-up so that all pairs of neighbours reject equally often: with rejection rates r_i the barrier
Lambda(beta_k) = sum_{i<k} r_i is interpolated and cut into equal parts (Syed et al. 2022).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import OptionError
from terrazzo.errors.arguments import shown
from terrazzo.samplers.parts.base import Tuning

DEFAULT_TEMPERATURES = 16
FIRST_WINDOW = 8  # rounds before the ladder is first moved; each window is twice as long as the one before
LEAST_REJECTION = 1e-3


def default_ladder(num_temperatures: int, *, has_reference: bool = False) -> np.ndarray:
    """0, then geometric to 1: a starting point for adaptation. From a reference near the target it is even.

    >>> default_ladder(3).tolist(), default_ladder(3, has_reference=True).tolist()
    ([0.0, 0.01, 1.0], [0.0, 0.5, 1.0])
    """
    if num_temperatures == 1:
        return np.ones(1)
    if has_reference:
        return np.linspace(0.0, 1.0, num_temperatures)
    return np.concatenate([[0.0], np.geomspace(0.01 if num_temperatures > 2 else 1.0, 1.0, num_temperatures - 1)])


def checked_ladder(betas: Any) -> np.ndarray:
    """The ladder as an array; raises unless it rises strictly from 0 or more to exactly 1.

    A ladder that ends elsewhere has draws of another law, pi^beta, at its cold end.
    """
    try:
        values = np.asarray(betas, float)
    except (TypeError, ValueError):
        values = np.zeros((0,))
    is_ladder = values.ndim == 1 and len(values) > 0 and bool(np.isfinite(values).all())
    if not is_ladder or values[-1] != 1 or values[0] < 0 or (np.diff(values) <= 0).any():
        raise OptionError(
            "inverse_temperatures", f"must rise strictly from >= 0 to 1, got {shown(betas)}", "e.g. [0.0, 0.3, 1.0]"
        )
    return values


def as_ladder(betas: Any, num_temperatures: int, *, has_reference: bool = False) -> Array:
    """The ladder as a JAX array, checked unless it is traced; the default one where none is given."""
    if betas is None:
        default = default_ladder(num_temperatures, has_reference=has_reference)
        return jnp.asarray(default, jnp.result_type(float))
    if not isinstance(betas, jax.core.Tracer):
        checked_ladder(betas)
    return jnp.asarray(betas, jnp.result_type(float))


class LadderState(NamedTuple):
    """The ladder under adaptation: rejections summed over the present window of rounds."""

    betas: Float[Array, " replica"]
    rejections: Float[Array, " pair"]
    num_rounds: Int[Array, ""]
    window: Int[Array, ""]


def equalised(betas: Float[Array, " replica"], rejections: Float[Array, " pair"]) -> Float[Array, " replica"]:
    """The ladder on which every pair would reject equally often, both ends kept.

    >>> equalised(jnp.array([0.0, 0.5, 1.0]), jnp.array([0.5, 0.25])).tolist()
    [0.0, 0.375, 1.0]
    """
    barrier = jnp.concatenate([jnp.zeros(1, betas.dtype), jnp.cumsum(jnp.maximum(rejections, LEAST_REJECTION))])
    levels = barrier[-1] * jnp.linspace(0.0, 1.0, betas.shape[0], dtype=betas.dtype)
    return jnp.interp(levels, barrier, betas).at[0].set(betas[0]).at[-1].set(betas[-1])


def first_state(betas: Float[Array, " replica"]) -> LadderState:
    """A ladder before its adaptation."""
    zero = jnp.zeros((), jnp.int32)
    return LadderState(betas, jnp.zeros(len(betas) - 1, betas.dtype), zero, zero + FIRST_WINDOW)


def adapted(state: LadderState, swap_rates: Float[Array, "chain pair"]) -> LadderState:
    """The ladder after one more round; it moves where a window ends."""
    rejections = state.rejections + 1.0 - swap_rates.mean(axis=0)
    count = state.num_rounds + 1
    is_full = count >= state.window
    return LadderState(
        jnp.where(is_full, equalised(state.betas, rejections / count.astype(rejections.dtype)), state.betas),
        jnp.where(is_full, 0.0, rejections),
        jnp.where(is_full, 0, count),
        jnp.where(is_full, 2 * state.window, state.window),
    )


def tuning(first: Float[Array, " replica"]) -> Tuning:
    """Adapts a ladder to equal swap rates, in windows of doubling length, from the pooled chains."""
    parameters = lambda state: {"inverse_temperatures": state.betas}
    return Tuning(
        init=lambda: first_state(first),
        parameters=parameters,
        observe=lambda state, info: info.details["swap_rates"],
        update=adapted,
        final=parameters,
    )
