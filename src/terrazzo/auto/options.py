"""What a user may say to the default sampler."""

from dataclasses import dataclass
from typing import Any

from terrazzo.errors import arguments


@dataclass(frozen=True)
class Exploration:
    """How to explore by parallel tempering before anything is drawn.

    Args:
        num_ladders: Independent ladders; at least 2, so that they can be compared. By default as many as suit the run.
        max_rounds: The most rounds. By default as many as a minute allows.

    >>> Exploration(num_ladders=4)
    Exploration(num_ladders=4, max_rounds=None)
    """

    num_ladders: int | None = None
    max_rounds: int | None = None

    def __post_init__(self) -> None:
        arguments.optional_count("num_ladders", self.num_ladders, low=2)
        arguments.optional_count("max_rounds", self.max_rounds)


@dataclass(frozen=True)
class Auto:
    """The default sampler: it explores, learns, compares what the moves are worth, and takes the best.

    Args:
        exploration: False explores nothing (the verdict is then "unchecked" at best); or how to (`tz.Exploration`).
        transport: False learns none; or a recipe such as `tz.autoregressive(width=128)`, its name, or a transport.
            By default an autoregressive one, where it is predicted to save time.
        training: How to train it (`tz.Training`); False uses it as it is.

    >>> Auto(transport=False)
    Auto(exploration=None, transport=False, training=None)
    """

    exploration: Any = None
    transport: Any = None
    training: Any = None
