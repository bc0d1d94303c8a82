"""The transports, by name. Adding one is one file and one line here; the laws of docs/theory.md then apply."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax

from terrazzo.errors import OptionError
from terrazzo.spaces import Space, as_space
from terrazzo.transports.autoregressive import AutoregressiveTransport, autoregressive_transport
from terrazzo.transports.base import AbstractTransport
from terrazzo.transports.flow import FlowTransport, flow_transport
from terrazzo.transports.mixed_autoregressive import MixedAutoregressiveTransport
from terrazzo.transports.product import ProductTransport, product_transport


@dataclass(frozen=True)
class TransportSpec:
    """A family of transports. Calling it binds options: `tz.autoregressive(width=128)`.

    Attributes:
        name: The name used in `transport=name`.
        kind: Its class, or its classes on discrete and on mixed spaces.
        build: `build(space, *, key, **options) -> transport`, untrained.
        summary: One line.
        tests: Options of small variants that the laws are checked on.

    >>> import jax, terrazzo as tz
    >>> recipe = tz.autoregressive(width=16)
    >>> recipe, recipe.build(jax.random.key(0), tz.binary(3)).num_dims
    (autoregressive(width=16), 3)
    """

    name: str
    kind: type | tuple[type, ...]
    build: Callable[..., AbstractTransport]
    summary: str
    tests: tuple[dict[str, Any], ...] = ({},)

    def __call__(self, **options: Any) -> "TransportRecipe":
        """A recipe: this family with options, to be built for the space of a target."""
        known = [name for name in inspect.signature(self.build).parameters if name not in ("space", "key")]
        for name in options:
            if name not in known:
                raise OptionError(name, f"is not an option of {self.name!r}", f"one of {', '.join(known)}")
        return TransportRecipe(self, options)

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True)
class TransportRecipe:
    """A family of transports with its options."""

    spec: TransportSpec
    options: Mapping[str, Any]

    def build(self, key: jax.Array, space: Any) -> AbstractTransport:
        """An untrained transport onto a space."""
        return self.spec.build(as_space(space), key=key, **self.options)

    def __repr__(self) -> str:
        return f"{self.spec.name}({', '.join(f'{k}={v!r}' for k, v in self.options.items())})"


def _build_product(space: Space, *, key: jax.Array, scale: float = 0.0) -> ProductTransport:
    shape = (space.num_dims, space.max_size)
    return product_transport(space, logits=scale * jax.random.normal(key, shape))


_SMALL = {"num_layers": 2, "width": 8, "context_width": 4}

REGISTRY: dict[str, TransportSpec] = {
    spec.name: spec
    for spec in (
        TransportSpec(
            "flow",
            FlowTransport,
            flow_transport,
            "the paper's: couplings, sigmoid, floor, learned dequantizer",
            (
                {"architecture": "spline", **_SMALL},
                {"architecture": "affine", **_SMALL},
                {"architecture": "paper", **_SMALL},
                {"architecture": "spline", "dequantizer": "uniform", **_SMALL},
            ),
        ),
        TransportSpec(
            "autoregressive",
            (AutoregressiveTransport, MixedAutoregressiveTransport),
            autoregressive_transport,
            "a causal network of conditional categoricals (splines for reals), decoded coordinate by coordinate",
            ({"width": 8}, {"width": 8, "num_blocks": 0}),
        ),
        TransportSpec("product", ProductTransport, _build_product, "independent categoricals", ({"scale": 2.0},)),
    )
}
