"""Records to rows: the folds of a table's cell averaged, and the paper's printed numbers beside them."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrazzo.paper.experiments.paper_numbers import PaperRow, paper_row
from terrazzo.paper.experiments.presets import EXPERIMENTS
from terrazzo.paper.experiments.records import load_arrays


class Row(NamedTuple):
    """One row: all folds of one sampler on one setting.

    Attributes:
        experiment: Its name.
        setting: Which target.
        sampler: The method's key.
        label: The method's name for people.
        records: The records, one a fold.
        paths: Their files.
        paper: What the paper prints.
    """

    experiment: str
    setting: str
    sampler: str
    label: str
    records: tuple[dict[str, Any], ...]
    paths: tuple[Path, ...]
    paper: PaperRow | None

    def values(self, *names: str) -> list[float]:
        """A figure of every fold by its path in the record; folds that lack it are left out."""
        out = []
        for record in self.records:
            value: Any = record
            for name in names:
                value = value.get(name) if isinstance(value, dict) else None
            if isinstance(value, int | float):
                out.append(float(value))
        return out

    def mean(self, *names: str) -> float:
        """The mean of a figure over folds; NaN if none has it."""
        values = self.values(*names)
        return float(np.mean(values)) if values else math.nan

    def standard_error(self, *names: str) -> float:
        """The standard error of a mean over folds from the folds' own standard errors."""
        values = self.values(*names)
        return math.sqrt(sum(v**2 for v in values)) / len(values) if values else math.nan

    def worst(self, *names: str) -> float:
        """The largest of a figure over folds; NaN if none has it."""
        return max(self.values(*names), default=math.nan)

    def arrays(self) -> dict[str, np.ndarray]:
        """The arrays of the first fold."""
        return load_arrays(self.paths[0])

    @property
    def num_trusted(self) -> int:
        """How many folds the library's own checks trust."""
        return sum(bool(record["verdict"].get("is_trusted")) for record in self.records)

    @property
    def is_complete(self) -> bool:
        """Whether no fold was cut short."""
        return all(record.get("is_complete", True) for record in self.records)


def collect_rows(found: Iterable[tuple[Path, dict[str, Any]]]) -> list[Row]:
    """Rows in the order of the paper's tables: experiments, settings, samplers as they are declared."""
    groups: dict[tuple[str, str, str], list[tuple[Path, dict[str, Any]]]] = {}
    for path, record in found:
        piece = record["piece"]
        groups.setdefault((piece["experiment"], piece["setting"], piece["sampler"]), []).append((path, record))
    rows = [
        Row(*key, str(parts[0][1].get("label", key[2])), tuple(r for _, r in parts), tuple(p for p, _ in parts),
            paper_row(*key))
        for key, parts in groups.items()
    ]  # fmt: skip
    return sorted((row for row in rows if row.experiment in EXPERIMENTS), key=_place)


def _place(row: Row) -> tuple[int, int, int]:
    experiment = EXPERIMENTS[row.experiment]
    index = lambda names, name: names.index(name) if name in names else len(names)
    return (
        list(EXPERIMENTS).index(row.experiment),
        index(experiment.settings, row.setting),
        index(list(experiment.methods), row.sampler),
    )


def largest_inclusion_gap(row: Row, rows: Sequence[Row]) -> float:
    """max_i |P(feature i) - P_tempering(feature i)| against the tempering run of the same setting; NaN without one."""
    reference = next((r for r in rows if r[:3] == (row.experiment, row.setting, "tempering")), None)
    if reference is None or reference is row:
        return math.nan
    mine, theirs = row.arrays().get("inclusion"), reference.arrays().get("inclusion")
    if mine is None or theirs is None or mine.shape != theirs.shape:
        return math.nan
    return float(np.abs(mine - theirs).max())
