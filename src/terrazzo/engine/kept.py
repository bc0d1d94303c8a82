"""Kept draws, and what the kernel said of its steps."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from terrazzo.runtime.pacing import Chunk


class Kept:
    """Kept draws, (chain, draw, ...), written in place as they come: no second copy is made of them."""

    def __init__(self, num_draws: int):
        self.num_draws, self.done, self.last_evaluations = num_draws, 0, 0.0
        self._arrays: dict[str, np.ndarray] = {}
        self._totals: dict[str, Any] = {}
        self._num_told = 0

    def add(self, rows: Mapping[str, np.ndarray]) -> None:
        """Takes rows in, (draw, chain, ...); what is beyond the draws asked for is left out."""
        count = min(len(rows["log_prob"]), self.num_draws - self.done)
        for name, values in rows.items():
            if name not in self._arrays:
                self._arrays[name] = np.empty((values.shape[1], self.num_draws, *values.shape[2:]), values.dtype)
            self._arrays[name][:, self.done : self.done + count] = np.moveaxis(values[:count], 0, 1)
        self.done += count
        self.last_evaluations = float(rows["num_evaluations"].sum(dtype=np.int64)) / len(rows["num_evaluations"])

    def add_chunk(self, chunk: Chunk) -> None:
        """Takes a chunk in, with the means of its `Info`."""
        self.add(chunk.out.rows)
        self._num_told += chunk.size
        for name, mean in chunk.out.info.items():
            self._totals[name] = self._totals.get(name, 0.0) + chunk.size * mean

    def arrays(self) -> dict[str, np.ndarray]:
        """Everything kept so far."""
        return {name: array[:, : self.done] for name, array in self._arrays.items()}

    def info(self) -> dict[str, np.ndarray]:
        """The mean of every field of the kernel's `Info`, over the steps of this process."""
        return {name: np.asarray(total / self._num_told) for name, total in self._totals.items()}
