"""Transports: a latent Gaussian, a surjection onto the space, and its exact stochastic inverse."""

from terrazzo.transports.autoregressive import AutoregressiveTransport as AutoregressiveTransport
from terrazzo.transports.autoregressive import autoregressive_transport as autoregressive_transport
from terrazzo.transports.base import AbstractTransport as AbstractTransport
from terrazzo.transports.base import log_weight as log_weight
from terrazzo.transports.base import posterior_log_weights as posterior_log_weights
from terrazzo.transports.base import sample_transport as sample_transport
from terrazzo.transports.flow import FlowTransport as FlowTransport
from terrazzo.transports.flow import flow_transport as flow_transport
from terrazzo.transports.mixed_autoregressive import MixedAutoregressiveTransport as MixedAutoregressiveTransport
from terrazzo.transports.ordering import coupling_order as coupling_order
from terrazzo.transports.product import ProductTransport as ProductTransport
from terrazzo.transports.product import product_transport as product_transport
from terrazzo.transports.registry import REGISTRY as REGISTRY
from terrazzo.transports.registry import TransportRecipe as TransportRecipe
from terrazzo.transports.registry import TransportSpec as TransportSpec
from terrazzo.transports.serialisation import deserialise as deserialise
from terrazzo.transports.serialisation import is_storable as is_storable
from terrazzo.transports.serialisation import serialise as serialise

__all__ = [
    "REGISTRY", "AbstractTransport", "AutoregressiveTransport", "FlowTransport", "ProductTransport",
    "TransportRecipe", "TransportSpec", "autoregressive_transport", "coupling_order", "deserialise",
    "flow_transport", "is_storable", "log_weight", "posterior_log_weights", "product_transport", "sample_transport",
    "serialise",
]  # fmt: skip
