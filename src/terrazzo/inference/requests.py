"""What the user asked for as a sampler, checked as far as possible without the target, and its transport for one."""

import warnings
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from terrazzo.auto import SAFE_FLAG, may_hang
from terrazzo.auto.options import Auto, Exploration
from terrazzo.auto.policy import default_policy
from terrazzo.engine import kernels as running
from terrazzo.errors import OptionError, TransportError, arguments
from terrazzo.samplers import BoundSampler, SamplerSpec, get, is_kernel, own_sampler
from terrazzo.spaces import Space
from terrazzo.targets.target import Target
from terrazzo.training import Training
from terrazzo.transports import REGISTRY as TRANSPORTS
from terrazzo.transports import AbstractTransport, TransportRecipe, TransportSpec, coupling_order
from terrazzo.transports.clamped import clamp_transport, is_clampable

AUTO, HYBRID = "auto", "hybrid"


@dataclass(frozen=True)
class Request:
    """The sampler that was asked for.

    Attributes:
        name: Its name; "auto" for the default.
        spec: The registry's entry, or that of the user's own kernel; None for the default.
        options: Keyword arguments of its factory.
        transport: A recipe, a transport, False, or None.
        training: Options of training by name, False, or None.
        exploration: Options of the exploration by name, or None for none.
        keep_latent: Whether latent draws are kept.
        is_exploration_given: Whether the user said anything about exploring.
        keep: The function whose values are kept in place of configurations, or None.
    """

    name: str
    spec: SamplerSpec | None
    options: dict[str, Any]
    transport: Any
    training: Any
    exploration: dict[str, Any] | None
    keep_latent: bool
    is_exploration_given: bool
    keep: Any = None

    @property
    def is_planned(self) -> bool:
        """Whether the sampler explores by tempering unless asked not to."""
        return self.name in (AUTO, HYBRID)

    @property
    def needs_transport(self) -> bool:
        return self.spec is None or "transport" in self.spec.needs


def as_request(sampler: Any) -> Request:
    """Reads the argument `sampler` of `tz.sample`."""
    if isinstance(sampler, str) and sampler == AUTO:
        sampler = Auto()
    elif isinstance(sampler, type) and issubclass(sampler, Auto):
        sampler = sampler()
    if isinstance(sampler, Auto):
        name, spec, options, keep_latent = AUTO, None, {}, False
    else:
        bound = _bound(sampler)
        name, spec, options = bound.spec.name, bound.spec, dict(bound.options)
        keep_latent = arguments.flag("keep_latent", bound.keep_latent)
        sampler = bound
    training = _checked_training(sampler.training)
    exploration = _checked_exploration(sampler.exploration, name in (AUTO, HYBRID))
    if exploration is not None and isinstance(training, dict) and "objective" in training:
        raise OptionError("training", "its objective is set by the exploration's draws", "or say exploration=False")
    return Request(
        name=name, spec=spec, options=options, transport=_checked_transport(sampler.transport), training=training,
        exploration=exploration, keep_latent=keep_latent, is_exploration_given=sampler.exploration is not None,
        keep=_checked_keep(getattr(sampler, "keep", None), exploration),
    )  # fmt: skip


def _checked_keep(keep: Any, exploration: Any) -> Any:
    if keep is not None and not callable(keep):
        raise OptionError("keep", f"must be a function, got {arguments.shown(keep)}", "e.g. keep=lambda theta: ...")
    if keep is not None and exploration is not None:
        text = "is for samplers that do not explore: draws are compared with the exploration as configurations"
        raise OptionError("keep", text, "add exploration=False, or name a local sampler")
    return keep


def _bound(sampler: Any) -> BoundSampler:
    if isinstance(sampler, BoundSampler):
        return sampler
    if isinstance(sampler, SamplerSpec):
        return sampler()
    if is_kernel(sampler):
        return own_sampler(sampler)()
    return get(sampler)()


def _checked_exploration(value: Any, is_default: bool) -> dict[str, Any] | None:
    """Options of the exploration, or None for none."""
    if value is None or isinstance(value, bool):
        return {} if (is_default if value is None else value) else None
    remedy = "e.g. tz.Exploration(num_ladders=4), or False"
    arguments.instance("exploration", value, Exploration, remedy)
    given = {"num_ladders": value.num_ladders, "max_rounds": value.max_rounds}
    return {name: count for name, count in given.items() if count is not None}


def _checked_training(value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return None if value is True else value
    return arguments.instance("training", value, Training, "e.g. tz.Training(num_steps=2000), or False").given


def _checked_transport(value: Any) -> Any:
    """A recipe, a transport, False or None."""
    if value is None or value is False or isinstance(value, TransportRecipe | AbstractTransport):
        return value
    if isinstance(value, TransportSpec):
        return value()
    if isinstance(value, str):
        return TRANSPORTS[arguments.choice("transport", value, tuple(TRANSPORTS))]()
    shown = arguments.shown(value)
    raise TransportError("transport", f"must be a recipe or a transport, got {shown}", "e.g. tz.autoregressive()")


# ---- for a target


def choose_transport(request: Request, target: Target, seconds: float | None) -> AbstractTransport | None:
    """The transport of a run, untrained unless the user gave a trained one; None for none."""
    if not request.needs_transport:
        return None
    found = request.transport
    if found is None:
        found = _default_transport(request, target, seconds)
    if found is None or found is False:
        if request.spec is not None:
            raise TransportError("transport", f"cannot be {found!r} for {request.name!r}", "e.g. tz.autoregressive()")
        return None
    return fitted_to(target, found)


def fitted_to(target: Target, transport: Any) -> AbstractTransport:
    """A transport for the target's space: a recipe is built, one of the whole space of a conditional law is clamped."""
    space = target.space
    if isinstance(transport, TransportRecipe):
        options = dict(transport.options)
        is_ordered_here = space.num_reals and transport.spec.name == "autoregressive" and "order" not in options
        if is_ordered_here or (isinstance(options.get("order"), str) and options["order"] == "coupling"):
            options["order"] = coupling_order(target)  # with reals also unasked: which kind comes first matters
        return transport.spec.build(space, key=jax.random.key(0), **options)
    if transport.space == space:
        return transport
    whole = target.clamped
    if whole is not None and transport.space == whole.space and is_clampable(transport):
        return clamp_transport(transport, np.asarray(whole.codes), space)
    raise TransportError("transport", "was built for another space", "build it for the target's space")


def _default_transport(request: Request, target: Target, seconds: float | None) -> Any:
    """Autoregressive, unless it is too large to be learned here; the paper's flow for samplers in the latent space."""
    if request.spec is not None and not request.is_planned:
        return TRANSPORTS["flow"]()
    is_tried = request.spec is not None or is_learnable(target.space, seconds)
    return TRANSPORTS["autoregressive"]() if is_tried else False


def is_learnable(space: Space, seconds: float | None) -> bool:
    """Whether a transport onto a space is learned by default in a run of so many seconds (None: without a limit)."""
    policy = default_policy()
    is_long = seconds is None or seconds >= policy.learning_run_seconds
    return space.num_dims + space.num_reals <= policy.largest_learned and is_long


def check_sampler(spec: SamplerSpec, target: Target) -> None:
    """Raises where the sampler does not apply; warns where its gradients may hang."""
    if spec.check is not None:
        spec.check(target)
    if "gradient" in spec.needs and may_hang(target):
        warnings.warn(
            f"sampler {spec.name!r} takes gradients of linear algebra, which can make XLA wait forever on a CPU"
            f" with several cores\n  -> if the run stands still, start Python with XLA_FLAGS={SAFE_FLAG}",
            RuntimeWarning, stacklevel=6,
        )  # fmt: skip


def try_factory(spec: SamplerSpec, target: Target, transport: Any, options: dict[str, Any]) -> None:
    """Calls the factory once on the host, so that a wrong option is an error now and not inside compiled code."""
    try:
        running.build(spec, running.Problem(target, transport, options), {})
    except TypeError as error:
        text = str(error).split("() ")[-1]
        raise OptionError("sampler", f"{spec.name!r}: {text}", "see the sampler's arguments") from None
