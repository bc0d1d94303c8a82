"""Terrazzo: exact, diagnosed draws from any unnormalised distribution over integers."""

from terrazzo import diagnostics, errors, problems, samplers, transports
from terrazzo.auto.options import Auto, Exploration
from terrazzo.inference.call import sample
from terrazzo.inference.explaining import explain
from terrazzo.inference.optimisation import maximize
from terrazzo.models.entry import from_numpyro, from_pymc
from terrazzo.results.result import Result
from terrazzo.runtime.devices import use_devices
from terrazzo.spaces import Space, binary, categorical, integers, ordered, real, simplex
from terrazzo.targets.black_boxes import blackbox
from terrazzo.targets.conditioning import condition
from terrazzo.targets.mixed import Reference
from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.target import Target
from terrazzo.training import Training, fit, forward_kl, reverse_kl
from terrazzo.transports.registry import REGISTRY as _TRANSPORTS

__version__ = "0.1.0"

autoregressive, flow, product = _TRANSPORTS["autoregressive"], _TRANSPORTS["flow"], _TRANSPORTS["product"]

__all__ = [
    "AbstractRunningConditionals", "Auto", "Exploration", "Reference", "Result", "Space", "Target", "Training",
    "autoregressive", "binary", "blackbox", "categorical", "condition", "diagnostics", "errors", "explain", "fit",
    "flow", "forward_kl", "from_numpyro", "from_pymc", "integers", "maximize", "ordered", "problems", "product",
    "real", "reverse_kl", "sample", "samplers", "simplex", "transports", "use_devices",
]  # fmt: skip


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
