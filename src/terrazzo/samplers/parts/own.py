"""A user's own kernel, in BlackJAX's shape, as a sampler of ours.

Anything with `init(position, rng_key) -> state` and `step(rng_key, state) -> (state, info)` will do, where
`state.position` is a configuration: the flat vector of inner integers, int32. We evaluate log pi at it once a step.
Nothing is known about its invariance, so its draws are "unchecked" at best unless they are held against an exploration.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from terrazzo.errors import OptionError
from terrazzo.samplers.parts.base import Info, SamplerSpec, SamplingAlgorithm, as_float
from terrazzo.targets.target import Target
from terrazzo.targets.tracing import untraced

REMEDY = "init(position, rng_key) -> state, step(rng_key, state) -> (state, info), with state.position int32[d]"


class OwnState(NamedTuple):
    """The user's state, beside what every sampler shows of itself."""

    position: Int[Array, " dim"]
    log_prob: Float[Array, ""]
    inner: Any


def is_kernel(value: Any) -> bool:
    """Whether a value has the shape of a kernel."""
    return callable(getattr(value, "init", None)) and callable(getattr(value, "step", None))


class _Factory:
    """`target -> SamplingAlgorithm` around the user's functions; compiled code is kept for as long as it lives."""

    def __init__(self, kernel: Any):
        self.kernel = kernel

    def __call__(self, target: Target) -> SamplingAlgorithm:
        def wrapped(inner: Any) -> OwnState:
            position = jnp.asarray(inner.position, jnp.int32)
            return OwnState(position, target.log_prob(position), inner)

        def init(position: Int[Array, " dim"], rng_key: Array) -> OwnState:
            return wrapped(self.kernel.init(position, rng_key))

        def step(rng_key: Array, state: OwnState) -> tuple[OwnState, Info]:
            inner, info = self.kernel.step(rng_key, state.inner)
            new = wrapped(inner)
            has_moved = jnp.any(new.position != state.position)
            rate = as_float(getattr(info, "acceptance_rate", jnp.where(has_moved, 1.0, 0.0)))
            return new, Info(rate, jnp.asarray(getattr(info, "is_accepted", has_moved)), jnp.asarray(1, jnp.int32))

        return SamplingAlgorithm(init, step)


def own_sampler(kernel: Any) -> SamplerSpec:
    """The registry entry that a user's kernel would have."""
    name = getattr(kernel, "__name__", type(kernel).__name__)
    return SamplerSpec(name, _Factory(kernel), "a kernel of your own", "", check=lambda target: _check(kernel, target))


def _check(kernel: Any, target: Target) -> None:
    """Traces the kernel once; raises unless it keeps a flat configuration as its position."""
    theta, key = jnp.zeros(target.space.num_dims, jnp.int32), jax.random.key(0)
    try:
        state = jax.eval_shape(untraced(kernel.init), theta, key)
        after, _ = jax.eval_shape(untraced(kernel.step), key, state)
        shape, dtype = after.position.shape, after.position.dtype
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise OptionError("sampler", f"a kernel of your own failed: {type(error).__name__}: {text}", REMEDY) from None
    if shape != theta.shape or not jnp.issubdtype(dtype, jnp.integer):
        raise OptionError("sampler", f"its position is {dtype}{list(shape)}, not integers [{len(theta)}]", REMEDY)
