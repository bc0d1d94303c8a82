"""A stack of coupling layers with shuffles, as one bijection.

Layer l: the first half of the coordinates drives a network whose output is the raw parameters of elementwise monotone
maps of the second half; then a fixed shuffle. All leaves are arrays: flows of one shape share compiled code, can be
built under `jit`, and can be stored.

The weights of all layers are stacked, since a training step takes time by the array. A loop that only draws has them
`unstacked` beforehand: cut out inside, they would be copied at every step. What a condition adds to the first hidden
layers is one product for all of them.
"""

from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.transports import networks
from terrazzo.transports.splines import Transformer, affine, rational_quadratic_spline

TRANSFORMERS: dict[str, Transformer] = {"affine": affine, "spline": rational_quadratic_spline}


def _permute(x: Array, order: Array, inverse: Array) -> Array:
    """x[order], with a derivative that gathers by the inverse order: the transpose of a plain gather is a slow scatter.

    A permutation solves a linear system, and JAX lets one say how to solve the transposed system. Unlike a custom
    derivative rule, this keeps forward mode, reverse mode and batching.
    """
    solve, transpose_solve = (lambda _, b: b[order]), (lambda _, b: b[inverse])
    return jax.lax.custom_linear_solve(lambda y: y[inverse], x, solve, transpose_solve)


@runtime_checkable
class Bijection(Protocol):
    """A smooth invertible map of R^d, with the log-determinants of its Jacobians.

    Bijections of other libraries fit (flowjax's, say), provided that they hold plain arrays and no wrapped parameters.
    """

    def transform_and_log_det(self, x: Array, condition: Array | None = None) -> tuple[Array, Array]:
        """y = T(x) and log |det T'(x)|."""

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        """x = T^-1(y) and log |det (T^-1)'(y)|."""


class CouplingStack(eqx.Module):
    """num_layers couplings: x -> shuffle_l(x_a, f(x_b; net_l(x_a, condition))).

    Forward (`transform`): one pass of the networks. Inverse: one pass as well.

    Args:
        key: Random key.
        num_dims: d.
        transformer: "affine" or "spline".
        num_layers: Number of couplings.
        width: Hidden width of the conditioner networks.
        depth: Their number of hidden layers.
        cond_dim: Size of the condition, if there is one.
    """

    shape: tuple[int, ...] = eqx.field(static=True)
    cond_shape: tuple[int, ...] | None = eqx.field(static=True)
    transformer: str = eqx.field(static=True)
    nets: eqx.nn.MLP | tuple[eqx.nn.MLP, ...]
    conditioning: Float[Array, "hidden condition"] | None
    shuffles: Int[Array, "layers dim"]
    unshuffles: Int[Array, "layers dim"]

    def __init__(
        self,
        key: Array,
        *,
        num_dims: int,
        transformer: str = "spline",
        num_layers: int,
        width: int,
        depth: int = 1,
        cond_dim: int | None = None,
    ):
        self.shape = (num_dims,)
        self.cond_shape = None if cond_dim is None else (cond_dim,)
        self.transformer = transformer
        num_kept = num_dims // 2
        in_size = max(1, num_kept + (cond_dim or 0))
        out_size = (num_dims - num_kept) * TRANSFORMERS[transformer].num_parameters

        rng = networks.generator(key)
        # The small last layer starts training near the identity.
        self.nets = networks.make_mlp(rng, in_size, out_size, width, depth, num_copies=num_layers, last_scale=0.01)
        self.conditioning = None
        if cond_dim is not None:
            first = lambda net: net.layers[0].weight
            weight = first(self.nets)
            self.conditioning = weight[:, :, num_kept:].reshape(-1, cond_dim)
            self.nets = eqx.tree_at(first, self.nets, weight[:, :, :num_kept])
        if num_dims <= 2:  # a random shuffle of two might never swap them
            shuffles = np.tile(np.arange(num_dims)[::-1], (num_layers, 1))
        else:
            shuffles = np.stack([rng.permutation(num_dims) for _ in range(num_layers)])
        self.shuffles = jnp.asarray(shuffles, jnp.int32)
        self.unshuffles = jnp.asarray(np.argsort(shuffles, axis=1), jnp.int32)

    def unstacked(self) -> "CouplingStack":
        """The same with arrays of its own for each layer."""
        return eqx.tree_at(lambda stack: stack.nets, self, self._layers())

    def describe(self) -> dict[str, Any]:
        """The options that build the same shapes, but for the numbers of coordinates."""
        layers = (self.nets[0] if isinstance(self.nets, tuple) else self.nets).layers
        width = layers[0].weight.shape[-2]
        return {"num_layers": self.shuffles.shape[0], "width": width, "depth": len(layers) - 1}

    def _layers(self) -> tuple[eqx.nn.MLP, ...]:
        """The networks of all layers, one by one."""
        if isinstance(self.nets, tuple):
            return self.nets
        arrays, static = eqx.partition(self.nets, eqx.is_array)
        cut = lambda k: jax.tree.map(lambda x: x[k], arrays)
        return tuple(eqx.combine(cut(k), static) for k in range(self.shuffles.shape[0]))

    def _raw(self, net: eqx.nn.MLP, kept: Array, shift: Array | None) -> Float[Array, "dim parameters"]:
        """What a network says of the other coordinates; `shift` is what the condition adds to its first layer."""
        num_changed = self.shape[0] - kept.size
        if kept.size == 0 and shift is None:  # one coordinate and no condition: the network is a learned constant
            kept = jnp.ones(1, kept.dtype)
        first, *others = net.layers
        hidden = first(kept) if shift is None else first(kept) + shift
        for layer in others:
            hidden = layer(net.activation(hidden))
        return hidden.reshape(num_changed, -1)

    def _through(self, x: Array, condition: Array | None, *, is_inverse: bool) -> tuple[Array, Array]:
        """Through all layers; back through them they come in reverse, each undone before its shuffle."""
        transformer = TRANSFORMERS[self.transformer]
        change = transformer.inverse if is_inverse else transformer.transform
        num_kept, log_det, nets = self.shape[0] // 2, jnp.zeros((), x.dtype), self._layers()
        shifts: Any = [None] * len(nets)
        if condition is not None and self.conditioning is not None:
            shifts = (self.conditioning @ condition).reshape(len(nets), -1)
        layers = list(zip(nets, shifts, self.shuffles, self.unshuffles, strict=True))
        for net, shift, shuffle, unshuffle in reversed(layers) if is_inverse else layers:
            if is_inverse:
                x = _permute(x, unshuffle, shuffle)
            kept, changed = x[:num_kept], x[num_kept:]
            changed, logs = jax.vmap(change)(changed, self._raw(net, kept, shift))
            x, log_det = jnp.concatenate([kept, changed]), log_det + jnp.sum(logs)
            if not is_inverse:
                x = _permute(x, shuffle, unshuffle)
        return x, log_det

    def transform_and_log_det(self, x: Array, condition: Array | None = None) -> tuple[Array, Array]:
        return self._through(x, condition, is_inverse=False)

    def inverse_and_log_det(self, y: Array, condition: Array | None = None) -> tuple[Array, Array]:
        return self._through(y, condition, is_inverse=True)
