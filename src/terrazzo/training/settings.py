"""How to train a transport: the one set of defaults, and the options as users say them.

`tz.fit` and named samplers with a transport use these defaults. The default sampler has a budget of its own, in its
policy.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import optax

from terrazzo.errors import OptionError, arguments
from terrazzo.training.objectives import ForwardKL, ReverseKL

NUM_STEPS, BATCH_SIZE = 3000, 128
LEARNING_RATE, CLIP_NORM = 1e-3, 10.0
START_BETA, MAX_ANNEAL_STEPS = 0.1, 600
PATIENCE, CHECK_EVERY = 3, 100

OBJECTIVE, OPTIMIZER = "e.g. tz.reverse_kl()", "e.g. optax.adamw(1e-3)"


def default_anneal_steps(num_steps: int, start_beta: float) -> int:
    """Steps of annealing where none are asked for: 600, at most a third of all, and none if there is nothing to anneal.

    >>> default_anneal_steps(3000, 0.1), default_anneal_steps(300, 0.1), default_anneal_steps(3000, 1.0)
    (600, 100, 0)
    """
    return 0 if start_beta == 1.0 else min(MAX_ANNEAL_STEPS, num_steps // 3)


@dataclass(frozen=True)
class Training:
    """Options of `tz.fit`, for samplers that train a transport.

    Those left at None have the defaults of `tz.fit`, in parentheses; the default sampler chooses steps, batch,
    learning rate and patience by the dimension and the device instead, and does not anneal.

    Args:
        num_steps: The most steps to take (3000).
        batch_size: Latent draws per step (128).
        learning_rate: Adam's learning rate (1e-3).
        optimizer: Any optax transformation, instead of Adam.
        clip_norm: The largest norm of a gradient (10).
        start_beta: The inverse temperature that training begins at (0.1).
        anneal_steps: Steps over which it rises to 1 (600, or a third of the steps if that is less).
        patience: Checks without improvement before the learning rate is cut, and after two cuts training ends (3).
        check_every: Steps between checks of the held-out objective (100).
        num_groups: Into how many groups a batch is cut, for several devices.
        objective: `tz.reverse_kl()` (the default) or `tz.forward_kl(draws)`.

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
