"""Kept draws, and what the kernel said of its steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from terrazzo.runtime.pacing import Chunk
from terrazzo.spaces import Space

STORED_BYTES = 2**27  # draws of a run with a checkpoint that take more than this stay on disk
BYTES_OF_FIGURES = 24  # of a draw: its log-probability, acceptance and evaluations


def bytes_a_draw(space: Space, *, keep_latent: bool) -> int:
    """Memory of one kept draw of one chain, with its figures."""
    discrete = space.num_dims * (space.dtype.itemsize + (4 if keep_latent else 0))
    return discrete + 8 * space.num_real_values + BYTES_OF_FIGURES


class Kept:
    """Kept draws, (chain, draw, ...), written in place as they come: no second copy is made of them.

    Args:
        num_draws: Draws a chain that are wanted.
        part: The chains that are kept here.
        is_stored: Whether the draws lie on disk, so that only their number and figures are kept.
    """

    def __init__(self, num_draws: int, part: range, *, is_stored: bool = False):
        self.num_draws, self.part, self.is_stored, self.last_evaluations = num_draws, part, is_stored, 0.0
        self._done = np.zeros(len(part), int)
        self._arrays: dict[str, np.ndarray] = {}
        self._given: tuple[dict[str, Any], int] | None = None
        self._totals: dict[str, Any] = {}
        self._num_told = 0

    @property
    def done(self) -> int:
        """Draws that all chains have."""
        return int(self._done.min()) if self._given is None else self._given[1]

    def add(self, rows: Mapping[str, np.ndarray], chains: range, first: int) -> None:
        """Takes rows in, (draw, chain, ...), of some chains; what is beyond the draws asked for is left out."""
        count = max(0, min(len(rows["log_prob"]), self.num_draws - first))
        here = slice(chains.start - self.part.start, chains.stop - self.part.start)
        for name, values in {} if self.is_stored else rows.items():
            if name not in self._arrays:
                self._arrays[name] = np.empty((len(self.part), self.num_draws, *values.shape[2:]), values.dtype)
            self._arrays[name][here, first : first + count] = np.moveaxis(values[:count], 0, 1)
        self._done[here] = np.maximum(self._done[here], first + count)
        self.last_evaluations = float(rows["num_evaluations"].sum(dtype=np.int64)) / len(rows["num_evaluations"])

    def add_chunk(self, chunk: Chunk, chains: range, first: int) -> None:
        """Takes a chunk in, with the means of its `Info`."""
        self.add(chunk.out.rows, chains, first)
        self._num_told += chunk.size
        for name, mean in chunk.out.info.items():
            self._totals[name] = self._totals.get(name, 0.0) + chunk.size * mean

    def arrays(self) -> dict[str, Any]:
        """Everything kept so far."""
        if self._given is not None:
            return dict(self._given[0])
        return {name: array[:, : self.done] for name, array in self._arrays.items()}

    def with_arrays(self, arrays: dict[str, Any], done: int) -> "Kept":
        """The same with the draws of all chains, (chain, draw, ...), as they were gathered elsewhere."""
        self._given = (arrays, done)
        return self

    def info(self) -> dict[str, np.ndarray]:
        """The mean of every field of the kernel's `Info`, over the steps of this process."""
        return {name: np.asarray(total / self._num_told) for name, total in self._totals.items()}
