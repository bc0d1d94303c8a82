"""What is kept of a draw in place of its configuration: values of a function of it, by name.

A configuration of a million sites takes a megabyte. What is asked of it is often a few numbers: `keep` computes them
where the chains run, and only they are kept, summarised and stored.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array

from terrazzo.errors import OptionError, TerrazzoError, arguments
from terrazzo.spaces import Space
from terrazzo.targets.target import Target

ALONE = "kept"  # what values are called that have no name
RESERVED = ("theta", "log_prob", "acceptance_rate", "num_evaluations", "latent", "log_weight", "replica_log_probs")
EXAMPLE = "e.g. keep=lambda theta: {'magnetisation': theta.mean()}"


class Keep(eqx.Module):
    """A function of the user's values, called with flat configurations.

    Attributes:
        function: The user's function.
        space: The space of the configurations.
        shapes: The shape of each of its values, by name.
        num_bytes: What they take together.
    """

    function: Any = eqx.field(static=True)
    space: Space = eqx.field(static=True)
    shapes: tuple[tuple[str, tuple[int, ...]], ...] = eqx.field(static=True)
    num_bytes: int = eqx.field(static=True)

    def __call__(self, theta: Array) -> dict[str, Array]:
        return _named(self.function(self.space.unflatten(theta)))


def _named(values: Any) -> dict[str, Array]:
    found = values if isinstance(values, dict) else {ALONE: values}
    return {str(name): jnp.asarray(value) for name, value in found.items()}


def checked_keep(function: Any, target: Target) -> Keep | None:
    """The function, called once without a value, so that a mistake in it is an error now."""
    if function is None:
        return None
    theta = jax.ShapeDtypeStruct((target.space.num_dims,), jnp.int32)
    try:
        found = jax.eval_shape(lambda t: _named(function(target.space.unflatten(t))), theta)
    except TerrazzoError:
        raise
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        raise OptionError("keep", f"raised {type(error).__name__}: {text}", EXAMPLE) from None
    for name, value in found.items():
        if name in RESERVED or not name.isidentifier():
            raise OptionError("keep", f"returns {arguments.shown(name)}, which is no free name", EXAMPLE)
        if value.dtype.kind not in "biuf":
            raise OptionError("keep", f"returns {name} of type {value.dtype}", EXAMPLE)
    if not found:
        raise OptionError("keep", "returns nothing", EXAMPLE)
    size = sum(value.size * value.dtype.itemsize for value in found.values())
    return Keep(function, target.space, tuple((name, value.shape) for name, value in found.items()), size)
