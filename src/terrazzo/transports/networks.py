"""Networks with weights drawn by NumPy from a JAX key: building them compiles nothing."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array


class _Shapes(np.random.Generator):
    """Stands for any generator while only the shapes of a network are asked for: no weights are drawn."""


def generator(key: Array) -> np.random.Generator:
    """A NumPy generator seeded by a typed key; under `jax.eval_shape` one that draws no weights."""
    if isinstance(key, jax.core.Tracer):
        return _Shapes(np.random.PCG64(0))
    return np.random.default_rng(np.asarray(jax.random.key_data(key)).ravel().astype(np.uint32).tolist())


def uniform(rng: np.random.Generator, shape: tuple[int, ...], limit: float) -> Array:
    if isinstance(rng, _Shapes):
        return jnp.zeros(shape)
    return jnp.asarray(rng.uniform(-limit, limit, shape), jnp.result_type(float))


def make_mlp(
    rng: np.random.Generator,
    in_size: int,
    out_size: int,
    width: int,
    depth: int,
    *,
    num_copies: int | None = None,
    last_scale: float = 1.0,
) -> eqx.nn.MLP:
    """A ReLU network with weights uniform in +-1/sqrt(fan-in), or a stack of them with a leading axis.

    Args:
        rng: Where the weights come from.
        in_size: Inputs.
        out_size: Outputs.
        width: Hidden width.
        depth: Hidden layers.
        num_copies: If given, every array gets a leading axis of this length (for `lax.scan` over layers).
        last_scale: Factor on the last layer's weights; small starts near a constant function.
    """
    skeleton = eqx.filter_eval_shape(eqx.nn.MLP, in_size, out_size, width, depth, key=jax.random.key(0))
    lead = () if num_copies is None else (num_copies,)
    last = skeleton.layers[-1]

    def fill(layer: Any) -> Any:
        limit = (last_scale if layer is last else 1.0) / np.sqrt(layer.in_features)
        weight = uniform(rng, (*lead, *layer.weight.shape), limit)
        bias = uniform(rng, (*lead, *layer.bias.shape), limit)
        return eqx.tree_at(lambda m: (m.weight, m.bias), layer, (weight, bias))

    return eqx.tree_at(lambda m: m.layers, skeleton, tuple(fill(layer) for layer in skeleton.layers))
