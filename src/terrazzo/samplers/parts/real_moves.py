"""Moves of real coordinates at fixed theta: BlackJAX kernels on a log-density, with one way to tune all of them.

Every kernel has a scale (its step size) and a diagonal inverse mass matrix, the variances of the coordinates; both are
found in warm-up over the pooled chains, in doubling windows, and then frozen.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import blackjax
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.errors.arguments import shown
from terrazzo.samplers.parts.base import Info, Tuning, as_float, select
from terrazzo.samplers.parts.tuning import windowed_tuning
from terrazzo.targets.target import Target

MAX_DOUBLINGS = 10  # of a trajectory of NUTS, as in Stan
STEPS = 16  # of a trajectory of HMC
PRIOR_DRAWS, PRIOR_VARIANCE = 5.0, 1e-3  # Stan's shrinkage of the variances of a window
ACCEPTANCE = {
    "nuts": 0.8,
    "hmc": 0.8,
    "mala": 0.574,
    "random_walk": 0.234,
}  # Stan's default; Roberts & Rosenthal (2001)
REAL_KERNELS = tuple(ACCEPTANCE)
DIVERGENT_ENERGY = 1000.0  # the change of energy of a trajectory that counts as divergent, as in Stan
SMALLEST, LARGEST = -16.0, 4.0  # bounds of the logarithm of the scale


class MixedState(NamedTuple):
    """The state of a sampler on a mixed space.

    Attributes:
        position: theta, the codes of the discrete variables.
        reals: y, the unconstrained coordinates of the real ones.
        log_prob: log pi in the user's scale.
        is_divergent: Whether the last trajectory diverged.
    """

    position: Int[Array, " dim"]
    reals: Float[Array, " real"]
    log_prob: Float[Array, ""]
    is_divergent: Bool[Array, ""]


class Moved(NamedTuple):
    """Reals after a move, and what it took."""

    reals: Float[Array, " real"]
    acceptance_rate: Float[Array, ""]
    is_divergent: Bool[Array, ""]
    num_leapfrogs: Int[Array, ""]
    num_evaluations: Int[Array, ""]


def chosen_kernel(target: Target, name: Any) -> str:
    """The kernel of a name; "auto" is NUTS, or a random walk where there is no gradient."""
    if name == "auto":
        return "nuts" if target.has_real_gradient else "random_walk"
    if not isinstance(name, str) or name not in REAL_KERNELS:
        raise OptionError("real", f"{shown(name)} is unknown", f"one of auto, {', '.join(REAL_KERNELS)}")
    if name != "random_walk" and not target.has_real_gradient:
        raise UnsupportedError("real", f"{name!r} needs a gradient, and this target has none", "real='random_walk'")
    return name


def move_reals(
    key: Array,
    log_density: Callable[[Array], Array],
    y: Float[Array, " real"],
    *,
    kernel: str,
    scale: Any,
    inverse_mass_matrix: Any,
    max_doublings: int = MAX_DOUBLINGS,
    num_steps: int = STEPS,
) -> Moved:
    """One move of a kernel that leaves exp(log_density) invariant.

    Args:
        key: A JAX key.
        log_density: Of y.
        y: Where to start.
        kernel: One of `REAL_KERNELS`.
        scale: Its step size.
        inverse_mass_matrix: The variances of the coordinates, about; None for ones.
        max_doublings: The longest trajectory of NUTS, in doublings.
        num_steps: The trajectory of HMC.
    """
    mass = jnp.ones_like(y) if inverse_mass_matrix is None else jnp.asarray(inverse_mass_matrix, y.dtype)
    zero, no = jnp.zeros((), jnp.int32), jnp.asarray(False)
    if kernel == "nuts":
        algorithm = blackjax.nuts(log_density, scale, mass, max_num_doublings=max_doublings)
    elif kernel == "hmc":
        return hamiltonian(key, lambda y: (log_density(y), None), y, scale=scale, mass=mass, num_steps=num_steps)[0]
    else:  # in coordinates of variance one
        root = jnp.sqrt(mass)
        scaled = lambda x: log_density(root * x)
        if kernel == "mala":
            algorithm = blackjax.mala(scaled, scale)
        else:
            algorithm = blackjax.normal_random_walk(scaled, scale * jnp.eye(y.shape[0], dtype=y.dtype))
        state, info = algorithm.step(key, algorithm.init(y / root))
        count = jnp.asarray(4 if kernel == "mala" else 2, jnp.int32)
        return Moved(root * state.position, as_float(info.acceptance_rate), no, zero, count)
    state, info = algorithm.step(key, algorithm.init(y))
    leapfrogs = jnp.asarray(info.num_integration_steps, jnp.int32)
    is_divergent = jnp.asarray(info.is_divergent)
    return Moved(state.position, as_float(info.acceptance_rate), is_divergent, leapfrogs, 2 + 2 * leapfrogs)


def hamiltonian(
    key: Array, log_density: Callable[[Array], tuple[Array, Any]], y: Array, *, scale: Any, mass: Array, num_steps: int
) -> tuple[Moved, Any]:
    """One trajectory of HMC, and what else the density returned where it ended.

    The loop evaluates the gradient at its first and last point too, so that the density is compiled once: compilation
    is most of the time of short runs.

    Args:
        key: A JAX key.
        log_density: Of y, with anything beside it.
        y: Where to start.
        scale: The step size.
        mass: The inverse mass matrix, its diagonal.
        num_steps: Leapfrogs.
    """
    momentum_key, accept_key = jax.random.split(key)
    start = jax.random.normal(momentum_key, y.shape, y.dtype) / jnp.sqrt(mass)
    evaluate = jax.value_and_grad(log_density, has_aux=True)
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(lambda y: log_density(y), y))

    def body(i: Array, carry: tuple) -> tuple:
        y, momentum, first, _ = carry
        found, slope = evaluate(y)
        is_end = (i == 0) | (i == num_steps)
        momentum = momentum + jnp.where(is_end, 0.5, 1.0) * scale * slope
        moved = jnp.where(i == num_steps, y, y + scale * mass * momentum)
        return moved, momentum, select(i == 0, found, first), found

    new, momentum, before, after = jax.lax.fori_loop(0, num_steps + 1, body, (y, start, nothing, nothing))
    energy = lambda value, momentum: 0.5 * jnp.sum(mass * momentum**2) - value
    change = energy(after[0], momentum) - energy(before[0], start)
    change = jnp.where(jnp.isnan(change), jnp.inf, change)
    rate = jnp.exp(jnp.minimum(-change, 0.0))
    is_accepted = jax.random.uniform(accept_key, (), y.dtype) < rate
    count = jnp.asarray(2 + 2 * num_steps, jnp.int32)
    is_divergent = change > DIVERGENT_ENERGY
    moved = Moved(jnp.where(is_accepted, new, y), rate, is_divergent, jnp.asarray(num_steps, jnp.int32), count)
    return moved, select(is_accepted, after[1], before[1])


class Variances(NamedTuple):
    """Running means and sums of squared deviations of the pooled chains."""

    number: Float[Array, ""]
    mean: Float[Array, " real"]
    squares: Float[Array, " real"]


def _added(moments: Variances, y: Float[Array, "chain real"]) -> Variances:
    added = float(y.shape[0])
    number, batch = moments.number + added, jnp.mean(y, axis=0)
    shift = batch - moments.mean
    squares = moments.squares + jnp.sum((y - batch) ** 2, axis=0) + shift**2 * (moments.number * added / number)
    return Variances(number, moments.mean + shift * (added / number), squares)


def _learned(moments: Variances, _: Any) -> Array:
    variance = moments.squares / jnp.maximum(moments.number - 1.0, 1.0)
    weight = moments.number / (moments.number + PRIOR_DRAWS)
    return weight * variance + (1.0 - weight) * PRIOR_VARIANCE


def real_tuning(kernel: str, num_reals: int) -> Tuning:
    """Tunes `scale` to the kernel's acceptance and `inverse_mass_matrix` to the variances of the pooled chains."""
    zeros = lambda: jnp.zeros(num_reals, jnp.result_type(float))
    first = 2.4 / np.sqrt(num_reals) if kernel == "random_walk" else 0.5 * num_reals**-0.25
    return windowed_tuning(
        "inverse_mass_matrix", ACCEPTANCE[kernel], first=jnp.ones(num_reals, jnp.result_type(float)),
        first_scale=float(np.log(first)), no_moments=lambda: Variances(as_float(0.0), zeros(), zeros()), add=_added,
        learn=_learned, observe=lambda state, info: (state.reals,), bounds=(SMALLEST, LARGEST),
    )  # fmt: skip


def mixed_record(state: MixedState) -> dict[str, Array]:
    """What is kept with every draw."""
    return {"diverging": state.is_divergent}


def check_mixed(target: Target) -> None:
    """Raises where a target has no real variables."""
    if not target.space.num_reals:
        raise UnsupportedError("sampler", "is for spaces with real variables", "e.g. sampler='gibbs'")


def summed_info(moved: Moved, is_accepted: Array, num_evaluations: Any) -> Info:
    """The info of a step, from that of its move of the reals."""
    details = {"is_divergent": moved.is_divergent, "num_leapfrogs": moved.num_leapfrogs}
    return Info(moved.acceptance_rate, is_accepted, jnp.asarray(num_evaluations, jnp.int32), details)
