"""A run held in memory as a checkpoint holds it on disk: what `Result.extend` goes on from."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.storage.pieces import Piece, Segment
from terrazzo.storage.setups import Setup


class Memory:
    """The set-up of a run, its draws so far and the states of its chains, with the interface of a `Checkpoint`."""

    error: Exception | None = None
    folder: Path | None = None
    is_lasting = False
    is_only_copy = False

    def __init__(self, setup: Setup | None = None, rows: Mapping[str, np.ndarray] | None = None, leaves: Any = None):
        self.setup, self.rows, self.leaves = setup, rows, leaves

    def load_setup(self) -> Setup | None:
        """What warm-up left, or None."""
        return self.setup

    def save_setup(self, setup: Setup) -> None:
        """Keeps what warm-up left."""
        self.setup = setup

    def segments(self, part: range) -> list[Segment]:
        """Where the chains stand: all at one place."""
        done, leaves = (0, None) if self.rows is None else (len(self.rows["log_prob"]), self.leaves)
        return [Segment(part, done, leaves)]

    def stored_rows(self, part: range) -> Iterator[tuple[range, int, Mapping[str, np.ndarray]]]:
        """The draws so far as one piece, (draw, chain, ...)."""
        if self.rows is not None:
            yield part, 0, self.rows

    def save_draws(self, rows: Mapping[str, np.ndarray], leaves: Any, **_: Any) -> None:
        """Keeps the states; the draws are in the result."""
        self.leaves = leaves

    def find_pieces(self, num_chains: int | None = None) -> list[Piece]:
        """No draws are stored in files."""
        return []

    def forget_result(self) -> None:
        """There is none."""

    def save_result(self, save: Callable[[Path], Any]) -> None:
        """It is what the run returns."""

    def described(self) -> None:
        """No folder to tell other processes of."""

    def join(self, described: Any, num_chains: int) -> None:
        """No folder to go on in."""
