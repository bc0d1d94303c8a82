"""A cheap split R-hat that follows a running sampler, for the progress line.

Only sums and sums of squares of each block of draws are kept, at most `MAX_BLOCKS` blocks: neighbours are merged when
there are more. No ranks: the figure is the classical split R-hat (Gelman et al. 2013), a quick look, not the verdict.
"""

from typing import Any

import numpy as np

from terrazzo.diagnostics.chains import _checked

MAX_BLOCKS = 32


class RunningRhat:
    """Split R-hat of all coordinates from chunks of draws as they come.

    >>> running = RunningRhat()
    >>> rng = np.random.default_rng(0)
    >>> for _ in range(10):
    ...     running.update(rng.integers(0, 2, (4, 100, 3)))
    >>> bool(running.worst() < 1.02)
    True
    """

    def __init__(self) -> None:
        self._blocks: list[tuple[int, np.ndarray, np.ndarray]] = []
        self._low: np.ndarray | None = None
        self._high: np.ndarray | None = None
        self._origin: np.ndarray | None = None

    @property
    def num_draws(self) -> int:
        return sum(count for count, _, _ in self._blocks)

    def update(self, chunk: Any) -> None:
        """Takes in a chunk of shape (chain, draw, *shape)."""
        array = _checked(chunk)
        flat = array.reshape(*array.shape[:2], -1)
        if self._origin is None or self._low is None or self._high is None:
            self._origin = flat[0, 0].astype(float)  # sums of squares about a nearby point lose no digits
            self._low, self._high = flat[0, 0], flat[0, 0]
        sums, squares = np.empty((2, flat.shape[0], flat.shape[2]))
        for c, chain in enumerate(flat):
            x = chain - self._origin
            sums[c], squares[c] = x.sum(axis=0), np.einsum("ni,ni->i", x, x)
        self._low = np.minimum(self._low, flat.min(axis=(0, 1)))
        self._high = np.maximum(self._high, flat.max(axis=(0, 1)))
        self._blocks.append((flat.shape[1], sums, squares))
        if len(self._blocks) > MAX_BLOCKS:
            self._blocks = [self._merged(self._blocks[i : i + 2]) for i in range(0, len(self._blocks), 2)]

    @staticmethod
    def _merged(blocks: list[tuple[int, np.ndarray, np.ndarray]]) -> tuple[int, np.ndarray, np.ndarray]:
        return sum(b[0] for b in blocks), np.sum([b[1] for b in blocks], axis=0), np.sum([b[2] for b in blocks], axis=0)

    def r_hat(self) -> np.ndarray:
        """Split R-hat of each coordinate; NaN for constants, infinite for chains that are stuck apart."""
        if self._low is None or self._high is None:
            return np.full(1, np.nan)
        ends = np.cumsum([count for count, _, _ in self._blocks])
        cut = int(np.argmin(np.abs(ends - ends[-1] / 2))) + 1
        halves = [self._merged(part) for part in (self._blocks[:cut], self._blocks[cut:]) if part]
        if min(count for count, _, _ in halves) < 2 or sum(len(h[1]) for h in halves) < 2:
            return np.full(self._low.shape, np.nan)
        means = np.concatenate([total / count for count, total, _ in halves])
        variances = np.concatenate(
            [np.maximum(square - total**2 / count, 0) / (count - 1) for count, total, square in halves]
        )
        within, between = variances.mean(axis=0), means.var(axis=0, ddof=1)
        num_draws = ends[-1] / len(halves)
        with np.errstate(divide="ignore", invalid="ignore"):
            out = np.sqrt(between / within + (num_draws - 1) / num_draws)
        return np.where(self._low == self._high, np.nan, out)

    def worst(self) -> float:
        """The largest R-hat over coordinates that moved; NaN if none did or too little was seen."""
        values = self.r_hat()
        return float(np.nanmax(values)) if not np.isnan(values).all() else float("nan")
