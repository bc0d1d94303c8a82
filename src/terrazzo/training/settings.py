"""How to train a transport, as users say it."""

import dataclasses
from dataclasses import dataclass
from typing import Any

import optax

from terrazzo.errors import OptionError, arguments
from terrazzo.training.objectives import ForwardKL, ReverseKL

OBJECTIVE, OPTIMIZER = "e.g. tz.reverse_kl()", "e.g. optax.adamw(1e-3)"


@dataclass(frozen=True)
class Training:
    """Options of `tz.fit`; those left at None keep the defaults of the run.

    Args:
        num_steps: The most steps to take.
        batch_size: Latent draws per step.
        learning_rate: Adam's learning rate.
        optimizer: Any optax transformation, instead of Adam.
        clip_norm: The largest norm of a gradient.
        start_beta: The inverse temperature that training begins at.
        anneal_steps: Steps over which it rises to 1.
        patience: Checks without improvement before training stops.
        check_every: Steps between checks of the held-out objective.
        num_groups: Into how many groups a batch is cut, for several devices.
        objective: `tz.reverse_kl()` or `tz.forward_kl(draws)`.

    >>> Training(num_steps=500).given
    {'num_steps': 500}
    """

    num_steps: int | None = None
    batch_size: int | None = None
    learning_rate: float | None = None
    optimizer: Any = None
    clip_norm: float | None = None
    start_beta: float | None = None
    anneal_steps: int | None = None
    patience: int | None = None
    check_every: int | None = None
    num_groups: int | None = None
    objective: Any = None

    def __post_init__(self) -> None:
        for name, low in (("num_steps", 1), ("batch_size", 2), ("anneal_steps", 0), ("patience", 1), ("check_every", 1),
                          ("num_groups", 1)):  # fmt: skip
            arguments.optional_count(name, getattr(self, name), low=low)
        for name in ("learning_rate", "clip_norm"):
            if getattr(self, name) is not None:
                arguments.number(name, getattr(self, name))
        if self.start_beta is not None:
            arguments.number("start_beta", self.start_beta, above=-1e-300, at_most=1.0)
        if self.optimizer is not None and not isinstance(self.optimizer, optax.GradientTransformation):
            raise OptionError("optimizer", f"must be one of optax, got {arguments.shown(self.optimizer)}", OPTIMIZER)
        if self.objective is not None and not isinstance(self.objective, ReverseKL | ForwardKL):
            raise OptionError("objective", f"must be an objective, got {arguments.shown(self.objective)}", OBJECTIVE)

    @property
    def given(self) -> dict[str, Any]:
        """The options that were set."""
        pairs = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        return {name: value for name, value in pairs if value is not None}
