"""Blocked: theta by any discrete kernel at fixed reals, then the reals by a gradient kernel at fixed theta.

    theta' ~ K_discrete(. | theta; pi(. | y)),    y' ~ K_real(. | y; pi(. | theta') |dx / dy|)

Both leave the joint law invariant, so their product does. On a space of reals alone it is the gradient kernel. The
discrete kernel works on `target.given(y)`, a plain discrete target that has y among its data. Structure is read once,
with y as data: sites that share no term are redrawn together at every y.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.errors.arguments import options, shown
from terrazzo.samplers.kernels.coloured_gibbs import MAX_COLOURS
from terrazzo.samplers.kernels.gibbs import positive_int
from terrazzo.samplers.parts.base import (
    BoundSampler,
    Info,
    SamplerSpec,
    SamplingAlgorithm,
    State,
    Tuning,
    starts_plainly,
)
from terrazzo.samplers.parts.real_moves import (
    MAX_DOUBLINGS,
    MixedState,
    chosen_kernel,
    move_reals,
    real_tuning,
    summed_info,
)
from terrazzo.spaces import Configuration
from terrazzo.targets.reading import adds_up, structure_of
from terrazzo.targets.structure.conditionals import TermLogits, term_logits
from terrazzo.targets.target import Target

FREE_KERNELS = ("gibbs", "systematic_gibbs", "locally_balanced", "zanella", "tabu")  # read structure only to be faster


def read_colours(target: Target) -> tuple[np.ndarray, list[TermLogits]] | None:
    """Colours of the discrete sites that hold at all reals, and their conditionals.

    None where most colours have a single site, and where the terms do not add up to log pi.
    """
    structure = structure_of(target)
    if structure is None or structure.is_whole or structure.graph.num_colours > MAX_COLOURS:
        return None
    if structure.graph.num_colours > max(1, target.space.num_dims // 2):
        return None
    if not adds_up(target, structure.terms):
        return None
    colours = np.asarray(structure.graph.colours)
    groups = [np.flatnonzero(colours == c) for c in range(structure.graph.num_colours)]
    found = [one for one in term_logits(structure.terms, target.space.sizes, groups) if isinstance(one, TermLogits)]
    return colours, found


def prepare(
    target: Target, *, discrete: Any = "auto", discrete_options: Any = None, real: Any = "auto", **others: Any
) -> dict[str, Any]:
    """Chooses the kernels, and reads the colours of the discrete sites, on the host."""
    from terrazzo.samplers import get

    real = chosen_kernel(target, real)
    if not target.space.num_dims:
        return {**others, "discrete": None, "real": real}
    chosen = options("discrete_options", discrete_options)
    if isinstance(discrete, SamplerSpec):
        discrete = discrete()
    if isinstance(discrete, BoundSampler):
        discrete, chosen = discrete.spec.name, {**discrete.options, **chosen}
    conditionals = others.pop("conditionals", None)
    if discrete in ("auto", "coloured_gibbs") and conditionals is None:
        found = read_colours(target)
        if found is not None:
            chosen, conditionals = {**chosen, "colours": tuple(found[0].tolist()), "verify": False}, found[1]
            discrete = "coloured_gibbs"
        elif discrete == "auto":
            discrete = "systematic_gibbs"
        else:
            raise UnsupportedError("discrete", "'coloured_gibbs' found no colours that hold at all reals", "'gibbs'")
    if not isinstance(discrete, str):
        raise OptionError("discrete", f"must be a sampler's name, got {shown(discrete)}", "e.g. discrete='gibbs'")
    spec = get(discrete, "discrete")
    if "transport" in spec.needs or spec.program is not None or "reals" in spec.needs:
        raise OptionError("discrete", f"{discrete!r} is not a local discrete kernel", "e.g. tz.samplers.gibbs")
    if spec.prepare is not None and discrete not in (*FREE_KERNELS, "coloured_gibbs"):
        raise UnsupportedError("discrete", f"{discrete!r} needs tables, which change with the reals", "e.g. 'gibbs'")
    example = target.given(jnp.zeros(target.space.num_reals, jnp.result_type(float)))
    if spec.check is not None:
        spec.check(example)
    return {**others, "discrete": discrete, "discrete_options": chosen, "real": real, "conditionals": conditionals}


def blocked(
    target: Target,
    *,
    discrete: Any = "auto",
    discrete_options: Any = None,
    real: Any = "auto",
    scale: Any = 0.1,
    inverse_mass_matrix: Any = None,
    num_sweeps: int = 1,
    max_doublings: int = MAX_DOUBLINGS,
    conditionals: Any = None,
) -> SamplingAlgorithm:
    """Alternates a discrete kernel at fixed reals with a kernel of the reals at fixed theta.

    Args:
        target: A target with real variables.
        discrete: The discrete kernel: a name, or an entry such as `tz.samplers.gibbs(num_updates=4)`. "auto" sweeps
            over colours where structure shows them, else over sites.
        discrete_options: Further options of it.
        real: "nuts", "hmc", "mala" or "random_walk"; "auto" is NUTS where there is a gradient.
        scale: The step size; tuned in warm-up.
        inverse_mass_matrix: The variances of the unconstrained reals; tuned in warm-up.
        num_sweeps: Steps of the discrete kernel before each move of the reals.
        max_doublings: The longest trajectory of NUTS, in doublings.
        conditionals: As `prepare` reads them.

    Returns:
        The sampler; its state has the unconstrained reals in `reals`.

    Reference: Gibbs sampling of blocks, Jensen et al. (1995); NUTS, Hoffman & Gelman (2014).

    >>> import terrazzo as tz
    >>> space = tz.Space(k=tz.binary(), x=tz.real())
    >>> target = tz.Target(lambda v: -0.5 * (v["x"] - 2.0 * v["k"]) ** 2, space)
    >>> sampler = blocked(target, discrete="gibbs", real="nuts")
    >>> state = sampler.init(Configuration(jnp.zeros(1, jnp.int32), jnp.zeros(1)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), state)
    >>> state.reals.shape
    (1,)
    """
    num_sweeps = positive_int("num_sweeps", num_sweeps)
    kernel = chosen_kernel(target, real)
    if discrete == "auto":
        discrete = "systematic_gibbs"

    def discrete_at(y: Array) -> SamplingAlgorithm:
        from terrazzo.samplers.kernels.tempering import resolve_kernel

        chosen = options("discrete_options", discrete_options)
        if conditionals is not None:
            here = [eqx.tree_at(lambda c: c.data, one, y, is_leaf=lambda x: x is None) for one in conditionals]
            chosen = {**chosen, "conditionals": here}
        return resolve_kernel(discrete, chosen)(target.given(y))

    def init(position: Configuration, rng_key: Any = None) -> MixedState:
        y = jnp.asarray(position.reals, jnp.result_type(float))
        return MixedState(position.theta, y, target.log_prob_of(position.theta, y), jnp.asarray(False))

    def redrawn(key: Array, state: MixedState) -> tuple[Array, Array]:
        """theta after the discrete kernel, and the evaluations that took."""
        algorithm = discrete_at(state.reals)
        start_key, *keys = jax.random.split(key, 1 + num_sweeps)
        is_plain = starts_plainly(algorithm, state.position, start_key)
        inner = State(state.position, state.log_prob) if is_plain else algorithm.init(state.position, start_key)
        count = jnp.asarray(0 if is_plain else 1, jnp.int32)
        for part in keys:
            inner, info = algorithm.step(part, inner)
            count = count + jnp.asarray(info.num_evaluations, jnp.int32)
        return inner.position, count

    def step(rng_key: Array, state: MixedState) -> tuple[MixedState, Info]:
        theta_key, real_key = jax.random.split(rng_key)
        theta, count = state.position, jnp.zeros((), jnp.int32)
        if target.space.num_dims:
            theta, count = redrawn(theta_key, state)
        moved = move_reals(
            real_key, lambda y: target.log_density(theta, y), state.reals, kernel=kernel, scale=scale,
            inverse_mass_matrix=inverse_mass_matrix, max_doublings=max_doublings,
        )  # fmt: skip
        new = MixedState(theta, moved.reals, target.log_prob_of(theta, moved.reals), moved.is_divergent)
        is_accepted = jnp.any(theta != state.position) | jnp.any(moved.reals != state.reals)
        return new, summed_info(moved, is_accepted, count + moved.num_evaluations + 1)

    return SamplingAlgorithm(init, step)


def tuning(target: Target, *, real: Any = "auto", **_: Any) -> Tuning:
    """Finds the step size and the variances of the reals in warm-up."""
    return real_tuning(chosen_kernel(target, real), target.space.num_reals)
