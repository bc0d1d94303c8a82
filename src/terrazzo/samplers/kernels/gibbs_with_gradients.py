"""Gibbs-with-Gradients: a locally balanced proposal whose ratios come from one gradient (Grathwohl et al. 2021).

q(x -> y) ~ g(exp D_m) over the single-site moves m,    D_m = first-order expansion of log pi(y) - log pi(x)

One gradient stands in for all the evaluations of the exact method; MH corrects what the expansion misses.
"""

from jaxtyping import Array, Bool, Float

from terrazzo.samplers.parts import randomness
from terrazzo.samplers.parts.acceptance import metropolis_hastings
from terrazzo.samplers.parts.base import Info, SamplingAlgorithm
from terrazzo.samplers.parts.informed import (
    GradientState,
    balanced_log_weights,
    evaluate,
    gradient_start,
    num_evaluations,
)
from terrazzo.samplers.parts.ratios import offsets_of
from terrazzo.targets.target import Target


def gibbs_with_gradients(target: Target, *, balancing: str = "sqrt", reach: int | None = 1) -> SamplingAlgorithm:
    """Gibbs-with-Gradients: one site a step, chosen by the gradient.

    Args:
        target: A target with a gradient (and `one_hot_log_prob` for unordered variables).
        balancing: "sqrt", "barker", "min" or "max".
        reach: The largest change of an ordered coordinate (the expansion is poor far away); None allows all values.

    Returns:
        The sampler. One evaluation and one gradient a step, whatever d and K.

    Reference: Grathwohl, Swersky, Hashemi, Duvenaud & Maddison (2021), Oops I took a gradient.

    >>> import jax, jax.numpy as jnp, terrazzo as tz
    >>> sampler = gibbs_with_gradients(tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3)))
    >>> state, info = jax.jit(sampler.step)(jax.random.key(0), sampler.init(jnp.zeros(3, jnp.int32)))
    >>> state.position.shape
    (3,)
    """
    init = gradient_start(target)
    offsets, num_dims = offsets_of(target.space, reach), target.space.num_dims
    balanced = balanced_log_weights(target, offsets, balancing, reach)

    def log_weights(state: GradientState) -> tuple[Float[Array, " move"], Bool[Array, " move"]]:
        """The log-weights of all moves, line after line of the grid, and which of them exist."""
        return balanced(state).reshape(-1), offsets.is_allowed(state.position).reshape(-1)

    def step(rng_key: randomness.Key, state: GradientState) -> tuple[GradientState, Info]:
        move_key, accept_key = randomness.split(rng_key, 2)
        forward = log_weights(state)
        move = randomness.categorical(move_key, *forward)
        site, choice = move[None] % num_dims, 1 + move[None] // num_dims
        value = offsets.apply(state.position[site], choice, site)
        proposed = evaluate(target, state.position.at[site].set(value))
        back = (offsets.undone(choice, site) - 1) * num_dims + site
        log_backward = randomness.log_normalised(*log_weights(proposed))[back[0]]
        log_hastings = log_backward - randomness.log_normalised(*forward)[move]
        return metropolis_hastings(accept_key, state, proposed, log_hastings, num_evaluations=num_evaluations(target))

    return SamplingAlgorithm(init, step)
