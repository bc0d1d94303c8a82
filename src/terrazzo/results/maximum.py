"""What `maximize` found."""

from typing import Any, NamedTuple

import numpy as np


class Maximum(NamedTuple):
    """The best configuration found.

    Attributes:
        theta: In the user's values: a dict by name, or an array for a single unnamed variable.
        log_prob: log pi there.
        flat: The same configuration as flat inner integers.
        is_local_maximum: Whether every single-site change was tried and none is better (beyond 2^16 values: every
            change by a power of two).
        is_proven: Whether all configurations were compared, one by one or site by site, so that this is the maximum.
        is_complete: Whether the search reached its end (Ctrl-C still gives the best so far).
        num_evaluations: Of log pi, all in all (calls of `site_logits` are not counted).
        num_rounds: Of tempering.
        history: By name, one entry a chunk: `num_rounds`, `num_evaluations`, `seconds`, `log_prob` (the best so far).
        inverse_temperatures: The adapted ladder.
    """

    theta: Any
    log_prob: float
    flat: np.ndarray
    is_local_maximum: bool
    is_proven: bool
    is_complete: bool
    num_evaluations: int
    num_rounds: int
    history: dict[str, np.ndarray]
    inverse_temperatures: np.ndarray

    def __repr__(self) -> str:
        """One line; the history is in `history`."""
        shown = " ".join(np.array2string(self.flat, threshold=12).split())
        words = ["proven" if self.is_proven else "a local maximum" if self.is_local_maximum else "not a local maximum"]
        words += [] if self.is_complete else ["interrupted"]
        spent = f"{self.num_evaluations} evaluations, {self.num_rounds} rounds"
        return f"Maximum(log_prob {self.log_prob:.6g} at {shown}: {', '.join(words)}; {spent})"
