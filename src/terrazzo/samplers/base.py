"""What a sampler is: a `blackjax.SamplingAlgorithm` whose position is theta, and a line in the registry.

A *factory* is called with a target and parameters, and returns `SamplingAlgorithm(init, step)`:

- `init(position, rng_key) -> state`: the state has at least `.position` (theta, int32[d]) and `.log_prob`;
- `step(rng_key, state) -> (state, info)`: the info has at least the fields of `Info`.

Tuned parameters are plain keyword arguments of the factory (they may be traced arrays), so a frozen sampler is
the factory called with frozen numbers. How to find good numbers is a `Tuning`: pure functions that the warm-up of
`inference.sample` runs over the pooled chains and then throws away.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from blackjax.base import SamplingAlgorithm as SamplingAlgorithm
from jaxtyping import Array, Bool, Float, Int

from terrazzo.targets import Target


class State(NamedTuple):
    """The least a sampler carries from step to step."""

    position: Int[Array, " dim"]
    log_prob: Float[Array, ""]


class Info(NamedTuple):
    """What a person wants to plot about one step.

    Attributes:
        acceptance_rate: The acceptance probability of the step (1 for rejection-free kernels).
        is_accepted: Whether the state moved by an accepted proposal.
        num_evaluations: Evaluations of the target's log-probability this step needed (a gradient counts as one more).
    """

    acceptance_rate: Float[Array, ""]
    is_accepted: Bool[Array, ""]
    num_evaluations: Int[Array, ""]


class Tuning(NamedTuple):
    """How warm-up finds the tuned parameters of a sampler, from all chains pooled.

    Attributes:
        init: `() -> tuning_state`.
        parameters: `tuning_state -> dict` of factory keyword arguments to use in the next warm-up step.
        observe: `(state, info) -> pytree`: what one chain reports after a step (kept small: it is gathered).
        update: `(tuning_state, observations) -> tuning_state`, observations with a leading chain axis.
        final: `tuning_state -> dict`: the frozen parameters.
    """

    init: Callable[[], Any]
    parameters: Callable[[Any], dict[str, Any]]
    observe: Callable[[Any, Any], Any]
    update: Callable[[Any, Any], Any]
    final: Callable[[Any], dict[str, Any]]


class SamplerSpec(NamedTuple):
    """A line of the registry.

    Attributes:
        name: The name used in `tz.sample(..., sampler=name)`.
        factory: `factory(target, **parameters)`, or `factory(target, transport, **parameters)` if it needs one.
        summary: One line for `terrazzo samplers`.
        reference: Author (year).
        needs: What it needs of the target: any of "transport", "gradient", "binary", "ordered", "pairwise".
        tuning: `tuning(target, **options) -> Tuning`, or None if there is nothing to tune.
        check: `check(target) -> None`: raises `UnsupportedError` early if the method does not apply.
        prepare: `prepare(target, **options) -> options`: finds on the host what the factory cannot find inside
            compiled code (a colouring, say). Called once, with the concrete target and the user's options.
    """

    name: str
    factory: Callable[..., SamplingAlgorithm]
    summary: str
    reference: str
    needs: frozenset[str] = frozenset()
    tuning: Callable[..., Tuning] | None = None
    check: Callable[[Target], None] | None = None
    prepare: Callable[..., dict[str, Any]] | None = None


def starts_plainly(algorithm: SamplingAlgorithm, position: Array, rng_key: Any) -> bool:
    """Whether the sampler's state is theta and log pi alone: where these are known, it starts without an evaluation."""
    return isinstance(jax.eval_shape(algorithm.init, position, rng_key), State)


def as_float(value: Any) -> Array:
    """A scalar of the default float type."""
    return jnp.asarray(value, jnp.result_type(float))


def select(condition: Array, if_true: Any, if_false: Any) -> Any:
    """`jnp.where` over two pytrees of the same structure."""
    return jax.tree.map(lambda a, b: jnp.where(condition, a, b), if_true, if_false)
