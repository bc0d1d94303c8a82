"""Adaptation to a target acceptance over pooled chains, used by every sampler that has a scale to find.

The parameter lives on an unconstrained line (log for positive numbers, logit for probabilities). Nesterov's dual
averaging (Hoffman & Gelman 2014, section 3.2.1) moves it by the *pooled* mean of the statistic, so one warm-up step of
128 chains carries the information of 128 steps of one chain:

    x_{t+1} = mu - sqrt(t) / (gamma (t + t0)) * sum_{s <= t} (target - a_s),
    x_avg  <- t^-k x_{t+1} + (1 - t^-k) x_avg.

Adaptation only happens in warm-up: `final` freezes the average.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from terrazzo.samplers.parts.base import Tuning, as_float

FIRST_WINDOW = 50.0  # steps of all chains
GAMMA, T0, KAPPA = 0.1, 10.0, 0.75  # how strongly, how late and for how long a search reacts (Hoffman & Gelman 2014)


class Transform(NamedTuple):
    """A bijection between the parameter's range and the real line."""

    to_line: Callable[[Array], Array]
    from_line: Callable[[Array], Array]


TRANSFORMS: dict[str, Transform] = {
    "log": Transform(jnp.log, jnp.exp),
    "logit": Transform(lambda p: jnp.log(p) - jnp.log1p(-p), jax.nn.sigmoid),
}


class DualAveraging(NamedTuple):
    """The state of one dual-averaging search, on the line.

    Attributes:
        step: How many errors it has seen.
        value: What to try next.
        average: The answer so far: an average of the values tried, late ones counting most.
        error_sum: Of all errors seen.
        centre: Where the search began, towards which it is shrunk.
    """

    step: Float[Array, ""]
    value: Float[Array, ""]
    average: Float[Array, ""]
    error_sum: Float[Array, ""]
    centre: Float[Array, ""]


def dual_averaging_init(line_value: Any) -> DualAveraging:
    """Starts a search at a value on the line, towards which early steps are also shrunk."""
    value = as_float(line_value)
    return DualAveraging(as_float(0.0), value, value, as_float(0.0), value)


def dual_averaging_update(state: DualAveraging, error: Any, *, bounds: tuple[Any, Any]) -> DualAveraging:
    """One step of the search: a positive `error` lowers the value. NaN errors count as zero."""
    error = jnp.where(jnp.isnan(error), 0.0, as_float(error))
    step = state.step + 1.0
    error_sum = state.error_sum + error
    value = jnp.clip(state.centre - jnp.sqrt(step) / (GAMMA * (step + T0)) * error_sum, *bounds)
    weight = step**-KAPPA
    return DualAveraging(step, value, weight * value + (1.0 - weight) * state.average, error_sum, state.centre)


def dual_averaging_tuning(
    parameter_name: str,
    initial: Any,
    target_acceptance: float,
    *,
    transform: str = "log",
    bounds: tuple[float, float],
    statistic: Callable[[Any, Any], Array] = lambda state, info: info.acceptance_rate,
) -> Tuning:
    """Tunes one parameter of a factory so that the pooled acceptance rate meets a target.

    Args:
        parameter_name: The keyword argument of the factory.
        initial: Its first value, inside the range of the transform.
        target_acceptance: The acceptance rate (or other statistic) to reach.
        transform: "log" or "logit": where the search runs.
        bounds: Smallest and largest value of the parameter (both inside the range of the transform).
        statistic: `(state, info) -> scalar`: what is compared with the target; it falls as the parameter grows.

    >>> tuning = dual_averaging_tuning("step_size", 1.0, 0.5, bounds=(1e-3, 10.0))
    >>> state = tuning.init()
    >>> for _ in range(200):  # acceptance falls as exp(-step_size): 0.5 is met at log 2
    ...     state = tuning.update(state, jnp.exp(-tuning.parameters(state)["step_size"])[None])
    >>> round(float(tuning.final(state)["step_size"]), 1)
    0.7
    """
    line = TRANSFORMS[transform]

    def init() -> DualAveraging:
        return dual_averaging_init(line.to_line(jnp.clip(as_float(initial), *map(as_float, bounds))))

    def update(state: DualAveraging, observations: Array) -> DualAveraging:
        low, high = (line.to_line(as_float(bound)) for bound in bounds)
        return dual_averaging_update(state, target_acceptance - jnp.nanmean(observations), bounds=(low, high))

    return Tuning(
        init=init,
        parameters=lambda state: {parameter_name: line.from_line(state.value)},
        observe=lambda state, info: as_float(statistic(state, info)),
        update=update,
        final=lambda state: {parameter_name: line.from_line(state.average)},
    )


def for_any_target(tuning: Tuning) -> Callable[..., Tuning]:
    """The `tuning` of a sampler whose rule does not depend on the target, nor on its options."""
    return lambda target, **options: tuning


# ---- moments of the pooled chains


class Moments(NamedTuple):
    """Running means of two vectors u and x, and the sum of products of their deviations (Chan's update)."""

    number: Float[Array, ""]
    mean_u: Float[Array, " u"]
    mean_x: Float[Array, " x"]
    products: Float[Array, "u x"]


def moments_init(num_u: int, num_x: int) -> Moments:
    """No observations yet."""
    return Moments(as_float(0.0), jnp.zeros(num_u), jnp.zeros(num_x), jnp.zeros((num_u, num_x)))


def moments_update(moments: Moments, u: Float[Array, "chain u"], x: Float[Array, "chain x"]) -> Moments:
    """Adds one observation of every chain."""
    added = float(u.shape[0])
    number = moments.number + added
    batch_u, batch_x = jnp.mean(u, axis=0), jnp.mean(x, axis=0)
    shift_u, shift_x = batch_u - moments.mean_u, batch_x - moments.mean_x
    within = jnp.matmul((u - batch_u).T, x - batch_x, precision="highest")
    between = jnp.outer(shift_u, shift_x) * (moments.number * added / number)
    return Moments(
        number,
        moments.mean_u + shift_u * (added / number),
        moments.mean_x + shift_x * (added / number),
        moments.products + within + between,
    )


class WindowedSearch(NamedTuple):
    """What is learned in windows: the step, the search of the scale, the moments of this window, what was learned."""

    step: Float[Array, ""]
    scale: DualAveraging
    moments: Any
    learned: Any


def windowed_tuning(
    name: str,
    target_acceptance: float,
    *,
    first: Any,
    first_scale: float,
    no_moments: Callable[[], Any],
    add: Callable[..., Any],
    learn: Callable[[Any, Any], Any],
    observe: Callable[[Any, Any], tuple],
    scale_after: Callable[[Array], Array] = lambda line: line,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> Tuning:
    """Learns a parameter over doubling windows of the pooled chains, and tunes `scale` to an acceptance rate.

    Args:
        name: The parameter that is learned.
        target_acceptance: The acceptance rate to reach.
        first: The parameter before anything is learned.
        first_scale: The logarithm of the first scale.
        no_moments: The moments of an empty window.
        add: `(moments, *observed) -> moments`.
        learn: `(moments, parameter) -> parameter`, at the end of a window; the next one begins empty.
        observe: `(state, info) -> observed`, for one chain.
        scale_after: Where the search of the scale begins again, given the logarithm of the scale so far.
        bounds: Of the logarithm of the scale.
    """

    def next_window(search: WindowedSearch) -> WindowedSearch:
        scale = dual_averaging_init(scale_after(search.scale.average))
        return WindowedSearch(search.step, scale, no_moments(), learn(search.moments, search.learned))

    def update(search: WindowedSearch, observations: tuple[tuple, Array]) -> WindowedSearch:
        observed, acceptance = observations
        moments = add(search.moments, *observed)
        scale = dual_averaging_update(search.scale, target_acceptance - jnp.mean(acceptance), bounds=bounds)
        search = WindowedSearch(search.step + 1.0, scale, moments, search.learned)
        return jax.lax.cond(window_ends(search.step), next_window, lambda s: s, search)

    return Tuning(
        init=lambda: WindowedSearch(as_float(0.0), dual_averaging_init(first_scale), no_moments(), first),
        parameters=lambda search: {"scale": jnp.exp(search.scale.value), name: search.learned},
        observe=lambda state, info: (observe(state, info), info.acceptance_rate),
        update=update,
        final=lambda search: {"scale": jnp.exp(search.scale.average), name: search.learned},
    )


def window_ends(step: Float[Array, ""]) -> Array:
    """Whether a window of learning ends at this step; each is twice as long, so that old states are forgotten.

    >>> [step for step in range(1, 1000) if window_ends(as_float(step))]
    [50, 100, 200, 400, 800]
    """
    power = jnp.round(jnp.log2(jnp.maximum(step, FIRST_WINDOW) / FIRST_WINDOW))
    return step == FIRST_WINDOW * 2.0**power
