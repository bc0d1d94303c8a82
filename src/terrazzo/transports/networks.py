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
    return _uniform(rng, (1, *shape), limit)[0]


def make_mlp(rng: np.random.Generator, in_size: int, out_size: int, width: int, depth: int) -> eqx.nn.MLP:
    """A ReLU network with weights uniform in +-1/sqrt(fan-in).

    Args:
        rng: Where the weights come from.
        in_size: Inputs.
        out_size: Outputs.
        width: Hidden width.
        depth: Hidden layers.
    """
    return make_mlps(rng, in_size, out_size, width, depth, num_copies=1)[0]


def make_mlps(
    rng: np.random.Generator,
    in_size: int,
    out_size: int,
    width: int,
    depth: int,
    *,
    num_copies: int,
    last_scale: float = 1.0,
) -> tuple[eqx.nn.MLP, ...]:
    """Networks of one shape; `last_scale` is a factor on their last layers: small starts near a constant function."""
    skeleton = eqx.filter_eval_shape(eqx.nn.MLP, in_size, out_size, width, depth, key=jax.random.key(0))
    last = skeleton.layers[-1]

    def fill(layer: Any) -> list[Any]:
        limit = (last_scale if layer is last else 1.0) / np.sqrt(layer.in_features)
        weights = _uniform(rng, (num_copies, *layer.weight.shape), limit)
        biases = _uniform(rng, (num_copies, *layer.bias.shape), limit)
        where = lambda m: (m.weight, m.bias)
        return [eqx.tree_at(where, layer, parts) for parts in zip(weights, biases, strict=True)]

    layers = zip(*(fill(layer) for layer in skeleton.layers), strict=True)
    return tuple(eqx.tree_at(lambda m: m.layers, skeleton, of_one) for of_one in layers)


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], limit: float) -> list[Array]:
    """Arrays of the shape but for its first axis, which counts them."""
    if isinstance(rng, _Shapes):
        return [jnp.zeros(shape[1:])] * shape[0]
    return [jnp.asarray(one, jnp.result_type(float)) for one in rng.uniform(-limit, limit, shape)]
