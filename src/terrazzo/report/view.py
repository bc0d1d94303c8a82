"""What the sections of a page look at: a result, its draws flattened, their weights, and its table by coordinate."""

from collections.abc import Iterable
from functools import cached_property
from typing import Generic, NamedTuple, TypeVar

import numpy as np

from terrazzo.results.result import Result
from terrazzo.spaces import RealVariable, Variable
from terrazzo.verdict.summaries import Summary, SummaryRow, label_of

V = TypeVar("V", Variable, RealVariable)

BLOCK = 256  # coordinates that are looked at together: draws are bytes, and sums of them are not


class Quantity(NamedTuple):
    """A scalar that has a row in the summary: an ordered coordinate, a category of an unordered one, or log pi.

    Attributes:
        row: Its statistics.
        coordinate: Its place among the flat coordinates, reals after all others; None for log pi.
        code: The category; None where the value itself is meant.
        variable: Its variable; None for reals and log pi.
    """

    row: SummaryRow
    coordinate: int | None
    code: int | None
    variable: Variable | None


class Block(NamedTuple, Generic[V]):
    """A variable with its place among the flat coordinates, or among the flat real values."""

    name: str
    variable: V
    start: int

    @property
    def stop(self) -> int:
        """The first place after it."""
        return self.start + self.variable.num_elements


def _placed(variables: Iterable[tuple[str, V]]) -> list[Block[V]]:
    """Variables one behind the other."""
    found, start = [], 0
    for name, variable in variables:
        found.append(Block(name, variable, start))
        start = found[-1].stop
    return found


class View:
    """A result as a page looks at it.

    Attributes:
        result: The result.
        codes: Inner integers, (chain x draw, d).
        reals: Real values, (chain x draw, value).
        weights: A weight a draw, of sum one.
    """

    def __init__(self, result: Result):
        self.result = result
        self.codes = result.codes.reshape(result.num_chains * result.num_draws, result.space.num_dims)
        reals = np.zeros((len(self.codes), 0)) if result.reals is None else np.asarray(result.reals, float)
        self.reals = reals.reshape(len(self.codes), result.space.num_real_values)
        log_weights = result.log_weights
        raw = np.ones(len(self.codes)) if log_weights is None else np.exp(log_weights - log_weights.max()).ravel()
        self.weights = raw / max(raw.sum(), np.finfo(float).tiny)

    @property
    def has_draws(self) -> bool:
        """Whether there is anything to look at."""
        return len(self.codes) > 0

    @cached_property
    def summary(self) -> Summary:
        """The statistics of all coordinates."""
        return self.result._summary

    @cached_property
    def names(self) -> list[str]:
        """A name per flat coordinate."""
        return self.result.space.discrete.coordinate_names()

    @cached_property
    def real_names(self) -> list[str]:
        """A name per real value."""
        return self.result.space.real_coordinate_names()

    @property
    def num_coordinates(self) -> int:
        """Coordinates of all kinds, as the summary counts them."""
        return self.result.space.num_dims + self.result.space.num_real_values

    @cached_property
    def real_blocks(self) -> list[Block[RealVariable]]:
        """The real variables with their places."""
        return _placed(self.result.space.real_variables)

    @cached_property
    def blocks(self) -> list[Block[Variable]]:
        """The variables with their places."""
        return _placed(self.result.space.discrete_variables)

    @cached_property
    def quantities(self) -> list[Quantity]:
        """The rows of the summary, each with the coordinate that it speaks of; they come in the same order."""
        rows, found = list(self.summary.rows), []
        for block in self.blocks:
            v = block.variable
            for coordinate in range(block.start, block.stop) if rows else ():
                if v.is_ordered:
                    found.append(Quantity(rows.pop(0), coordinate, None, v))
                    continue
                for code in np.unique(self.codes[:, coordinate]):
                    if rows and rows[0].name == f"{self.names[coordinate]} = {label_of(v, int(code))}":
                        found.append(Quantity(rows.pop(0), coordinate, int(code), v))
        for place in range(self.result.space.num_real_values if rows else 0):
            found.append(Quantity(rows.pop(0), self.result.space.num_dims + place, None, None))
        return found + [Quantity(row, None, None, None) for row in rows]

    def values(self, quantity: Quantity) -> np.ndarray:
        """The quantity of every draw, (chain, draw), in the user's values."""
        shape = self.result.codes.shape[:2]
        if quantity.coordinate is None:
            log_prob = self.result.log_prob
            return np.zeros(shape) if log_prob is None else np.asarray(log_prob, float)
        if quantity.coordinate >= self.result.space.num_dims:
            assert self.result.reals is not None
            return np.asarray(self.result.reals[..., quantity.coordinate - self.result.space.num_dims], float)
        codes = self.result.codes[..., quantity.coordinate]
        if quantity.code is not None:
            return (codes == quantity.code).astype(float)
        assert quantity.variable is not None
        return codes.astype(float) + quantity.variable.low

    def probabilities(self, coordinate: int, size: int) -> np.ndarray:
        """The share of every value of a coordinate."""
        return np.bincount(self.codes[:, coordinate], self.weights, minlength=size)

    def moments(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every coordinate of a variable, as inner integers."""
        means, sds = [], []
        for first in range(block.start, block.stop, BLOCK):
            part = self.codes[:, first : min(first + BLOCK, block.stop)].astype(float)
            mean = self.weights @ part
            means.append(mean)
            sds.append(np.sqrt(np.maximum(self.weights @ (part - mean) ** 2, 0.0)))
        return np.concatenate(means), np.concatenate(sds)

    def intervals(self, block: Block, shares: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
        """The quantiles of every coordinate of a variable, as inner integers."""
        found = [
            _quantiles(self.codes[:, i].astype(float), self.weights, shares) for i in range(block.start, block.stop)
        ]
        low, high = np.array(found).T
        return low, high

    def real_moments(self, block: Block[RealVariable]) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of every number of a real variable."""
        own = self.reals[:, block.start : block.stop]
        mean = self.weights @ own
        return mean, np.sqrt(np.maximum(self.weights @ (own - mean) ** 2, 0.0))

    def real_intervals(self, block: Block[RealVariable], shares: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
        """The quantiles of every number of a real variable."""
        found = [_quantiles(self.reals[:, i], self.weights, shares) for i in range(block.start, block.stop)]
        low, high = np.array(found).T
        return low, high

    def likeliest(self, block: Block) -> tuple[np.ndarray, np.ndarray]:
        """The most probable category of every coordinate of a variable, and its probability."""
        shares = [self.probabilities(i, block.variable.size) for i in range(block.start, block.stop)]
        return np.array([s.argmax() for s in shares]), np.array([s.max() for s in shares])

    @cached_property
    def worst(self) -> list[Quantity]:
        """Quantities that moved, the worst mixed first: largest R-hat, then least effective sample size."""
        moved = [q for q in self.quantities if q.coordinate is not None and not q.row.is_constant]
        high = lambda x: np.inf if np.isnan(x) else x
        return sorted(moved, key=lambda q: (-round(high(q.row.r_hat), 2), high(q.row.ess_bulk)))


def _quantiles(values: np.ndarray, weights: np.ndarray, shares: tuple[float, float]) -> list[float]:
    order = np.argsort(values, kind="stable")
    places = np.searchsorted(np.cumsum(weights[order]), shares)
    return [float(value) for value in values[order[np.minimum(places, len(values) - 1)]]]
