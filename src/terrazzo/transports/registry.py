"""The transports, by name. Adding one is one file and one line here; the laws of DESIGN section 5 then apply."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from terrazzo.spaces import Space
from terrazzo.transports.autoregressive import AutoregressiveTransport, autoregressive_transport
from terrazzo.transports.base import AbstractTransport
from terrazzo.transports.flow import FlowTransport, flow_transport
from terrazzo.transports.product import ProductTransport, product_transport


class TransportSpec(NamedTuple):
    """A line of the registry.

    Attributes:
        name: The name used in `tz.sample(..., transport=name)`.
        kind: Its class.
        build: `build(space, *, key, **options) -> transport`, untrained.
        describe: `transport -> options`, so that `build` makes a skeleton of the same shapes.
        summary: One line.
        tests: Options of small variants that the laws are checked on.
    """

    name: str
    kind: type
    build: Callable[..., AbstractTransport]
    describe: Callable[[Any], dict[str, Any]]
    summary: str
    tests: tuple[dict[str, Any], ...] = ({},)


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
            FlowTransport.describe,
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
            AutoregressiveTransport,
            autoregressive_transport,
            AutoregressiveTransport.describe,
            "a causal network of conditional categoricals, decoded coordinate by coordinate",
            ({"width": 8}, {"width": 8, "num_blocks": 0}),
        ),
        TransportSpec(
            "product", ProductTransport, _build_product, lambda t: {}, "independent categoricals", ({"scale": 2.0},)
        ),
    )
}
