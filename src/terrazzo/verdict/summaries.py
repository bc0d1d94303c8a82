"""The table of a result: one row a coordinate, or a category of an unordered one, and what the rows say together."""

import html
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from terrazzo.diagnostics import ChainStatistics, describe
from terrazzo.errors.arguments import available_memory
from terrazzo.spaces import Space, Variable

COLUMNS = ("mean", "sd", "mcse", "ess_bulk", "ess_tail", "r_hat")
MAX_CATEGORIES = 20  # of an unordered coordinate, the most probable ones are listed
MAX_PRINTED_ROWS = 60
BLOCK_BYTES, BLOCK_SHARE = 2**25, 0.125  # at least, and of the memory left: draws on disk that are described at a time


class SummaryRow(NamedTuple):
    """A row of a summary. For a category, `mean` is its probability and the rest is of its indicator."""

    name: str
    mean: float
    sd: float
    mcse: float
    ess_bulk: float
    ess_tail: float
    r_hat: float
    is_constant: bool


def _format(column: str, value: float) -> str:
    if not math.isfinite(value):
        return "-" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if column.startswith("ess"):
        return f"{value:.0f}"
    if column == "r_hat":
        return f"{value:.3f}" if value < 100 else f"{value:.3g}"
    return f"{value:.4g}"


@dataclass(frozen=True)
class Summary:
    """Rows of statistics that print as a table; `rows`, `to_dict()` and `to_pandas()` give the numbers.

    Attributes:
        rows: One `SummaryRow` per ordered coordinate, per listed category of an unordered one, and `log_prob`.
        num_constant: How many coordinates never changed.
    """

    rows: tuple[SummaryRow, ...]
    num_constant: int
    num_dims: int
    notes: tuple[str, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, name: str) -> SummaryRow:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(name)

    def to_dict(self) -> dict[str, dict[str, float]]:
        """The numbers by row name and column."""
        return {row.name: {column: getattr(row, column) for column in COLUMNS} for row in self.rows}

    def to_pandas(self) -> Any:
        """The numbers as a pandas DataFrame, one line a row, which prints as this summary does (needs pandas)."""
        return summary_frame(self)

    def last_line(self) -> str:
        """The count of constants, in words."""
        text = f"{self.num_constant} of {self.num_dims} coordinates constant"
        return text + (": no effective sample size, left out of every check" if self.num_constant else "")

    def to_string(self, max_rows: int | None = MAX_PRINTED_ROWS) -> str:
        """The aligned table; with `max_rows`, the first and last rows only."""
        rows = list(self.rows)
        limit = len(rows) if max_rows is None else max_rows
        num_hidden = max(0, len(rows) - limit)
        cut = limit // 2 if num_hidden else len(rows)
        shown = rows[:cut] + rows[cut + num_hidden :]
        cells = [["", *COLUMNS]] + [[r.name, *(_format(c, getattr(r, c)) for c in COLUMNS)] for r in shown]
        widths = [max(len(line[i]) for line in cells) for i in range(len(COLUMNS) + 1)]
        lines = [
            "  ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
            for line in cells
        ]
        if num_hidden:
            lines.insert(cut + 1, f"... {num_hidden} more rows")
        return "\n".join([*lines, *self.notes, self.last_line()])

    def __str__(self) -> str:
        return self.to_string()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{html.escape(column)}</th>" for column in COLUMNS)
        body = "".join(
            f"<tr><th>{html.escape(row.name)}</th>"
            + "".join(f"<td>{_format(c, getattr(row, c))}</td>" for c in COLUMNS)
            + "</tr>"
            for row in self.rows
        )
        notes = "".join(f"<p>{html.escape(note)}</p>" for note in (*self.notes, self.last_line()))
        return f"<table><thead><tr><th></th>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def summary_frame(summary: Summary) -> Any:
    """A DataFrame of a summary that prints its notes and its verdict too (needs pandas)."""
    import pandas as pd

    class SummaryFrame(pd.DataFrame):
        """The statistics of a run by coordinate; what is computed from it is a plain DataFrame."""

        _metadata = ("_text", "_html")

        def __repr__(self) -> str:
            return self._text

        def _repr_html_(self) -> str:
            return self._html

    frame = SummaryFrame.from_dict(summary.to_dict(), orient="index", columns=list(COLUMNS))
    object.__setattr__(frame, "_text", summary.to_string())
    object.__setattr__(frame, "_html", summary._repr_html_())
    return frame


def label_of(variable: Variable, code: int) -> str:
    """How a category is called: its label, or its number."""
    return str(variable.labels[code]) if variable.labels is not None else str(variable.low + code)


def _row(name: str, s: ChainStatistics) -> SummaryRow:
    """The row of one scalar quantity."""
    return SummaryRow(
        name,
        mean=float(s.mean),
        sd=float(s.sd),
        mcse=float(s.mcse),
        ess_bulk=float(s.ess_bulk),
        ess_tail=float(s.ess_tail),
        r_hat=float(s.r_hat),
        is_constant=bool(s.is_constant),
    )


def _category_rows(
    names: list[str], variable: Variable, codes: np.ndarray, weights: np.ndarray | None, notes: list[str]
) -> list[list[SummaryRow]]:
    """The rows of each site of (chain, draw, site), one for each listed category, in the order of the codes."""
    sites = np.arange(codes.shape[2])
    places = codes.astype(np.intp) + variable.size * sites
    counts = np.bincount(places.ravel(), minlength=variable.size * len(sites)).reshape(len(sites), -1)
    most = np.argsort(-counts, axis=1, kind="stable")[:, :MAX_CATEGORIES]
    is_listed = np.zeros(counts.shape, bool)
    np.put_along_axis(is_listed, most, True, axis=1)
    is_listed &= counts > 0
    for name, own, listed in zip(names, counts, is_listed, strict=True):
        num_hidden = int(np.count_nonzero(own) - listed.sum())
        if num_hidden:
            rest = 1 - own[listed].sum() / own.sum()
            notes.append(f"{name}: {num_hidden} less likely categories not listed (probability {rest:.2g})")
    rows: list[list[SummaryRow]] = [[] for _ in names]
    for code in np.flatnonzero(is_listed.any(axis=0)):
        where = np.flatnonzero(is_listed[:, code])
        s, label = describe(codes[:, :, where] == code, weights), label_of(variable, int(code))
        for i, site in enumerate(where):
            rows[site].append(_row(f"{names[site]} = {label}", ChainStatistics(*(column[i] for column in s))))
    return rows


def _value_rows(name: str, values: np.ndarray, weights: np.ndarray | None) -> tuple[list[SummaryRow], int]:
    """The rows of values (chain, draw, ...), one for each element, and how many never changed."""
    s, places = describe(values, weights), list(np.ndindex(values.shape[2:]))
    text = lambda place: name + (f"[{', '.join(map(str, place))}]" if place else "")
    rows = [_row(text(place), ChainStatistics(*(np.asarray(column)[place] for column in s))) for place in places]
    return rows, int(np.sum(s.is_constant))


def _blocks(theta: Any, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """Coordinates that are described together: all, or, where draws lie on disk, as many as are read at a time."""
    if isinstance(theta, np.ndarray):
        yield start, stop
        return
    room = int(max(BLOCK_BYTES, BLOCK_SHARE * available_memory()))
    width = max(1, room // (theta.shape[0] * theta.shape[1] * theta.itemsize))
    for first in range(start, stop, width):
        yield first, min(first + width, stop)


def summarise(
    space: Space,
    theta: Any,
    log_prob: Any = None,
    weights: np.ndarray | None = None,
    values: Mapping[str, Any] | None = None,
    reals: Any = None,
) -> Summary:
    """The summary of flat draws (chain, draw, d): ordered coordinates in the user's values, unordered by category.

    Values that were kept in place of configurations count as coordinates. Real values, (chain, draw, value), follow the
    discrete coordinates.
    """
    num_dims = theta.shape[2] + (0 if reals is None else reals.shape[2])
    if 0 in theta.shape[:2]:
        return Summary((), 0, num_dims, ("no draws",))
    names = space.discrete.coordinate_names()
    rows: list[SummaryRow] = []
    notes: list[str] = []
    start, num_constant = 0, 0
    for name, kept in (values or {}).items():
        some, added = _value_rows(name, np.asarray(kept), weights)
        rows, num_constant, num_dims = rows + some, num_constant + added, num_dims + len(some)
    for _, variable in space.discrete_variables if theta.shape[2] else ():
        stop = start + variable.num_elements
        if variable.is_ordered:
            for first, last in _blocks(theta, start, stop):
                s = describe(theta[:, :, first:last], weights)
                num_constant += int(s.is_constant.sum())
                for i, name in enumerate(names[first:last]):
                    row = _row(name, ChainStatistics(*(column[i] for column in s)))
                    rows.append(row._replace(mean=row.mean + variable.low))
        else:
            for first, last in _blocks(theta, start, stop):
                block = np.asarray(theta[:, :, first:last])
                for own in _category_rows(names[first:last], variable, block, weights, notes):
                    num_constant += len(own) == 1
                    rows += own
        start = stop
    if reals is not None and reals.shape[2]:
        s = describe(reals, weights)
        num_constant += int(s.is_constant.sum())
        real_names = space.real_coordinate_names()
        rows += [_row(name, ChainStatistics(*(column[i] for column in s))) for i, name in enumerate(real_names)]
    if log_prob is not None:
        rows.append(_row("log_prob", describe(log_prob, weights)))
    return Summary(tuple(rows), num_constant, num_dims, tuple(notes))
