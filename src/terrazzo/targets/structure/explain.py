"""What was found in a function, in words and numbers."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jax.extend import source_info_util

from terrazzo.targets.structure.graph import FactorGraph
from terrazzo.targets.structure.picture import draw
from terrazzo.targets.structure.program import Equation
from terrazzo.targets.structure.terms import Terms

LARGE_ARITY = 8  # sites of a term from which on the line that made it so is named
MOST_LINES = 3  # such lines that are named


@dataclass(frozen=True)
class DenseTerm:
    """Terms on many sites, and the line of code that brought the sites together."""

    num_terms: int
    arity: int
    operation: str
    line: str

    def __str__(self) -> str:
        return f"{_count(self.num_terms, 'term')} on up to {self.arity} sites, by {self.operation} at {self.line}"


@dataclass(frozen=True)
class Explanation:
    """What was found.

    Attributes:
        num_sites: d.
        num_terms: The number of terms.
        arity: The most sites of a term.
        num_colours: Sweeps redraw so many groups of sites, each together.
        num_components: Independent parts.
        treewidth: A bound of the treewidth; None if it is too large for elimination.
        opens: The methods that this opens.
        plain_evaluations: Evaluations of log pi for a sweep without structure.
        sweep_evaluations: What a sweep costs with it, in evaluations of log pi, roughly.
        dense: Where terms on many sites come from.
        is_whole: Whether reading was given up.
        graph: Which sites share a term.
    """

    num_sites: int
    num_terms: int
    arity: int
    num_colours: int
    num_components: int
    treewidth: int | None
    opens: tuple[str, ...]
    plain_evaluations: int
    sweep_evaluations: float
    dense: tuple[DenseTerm, ...]
    is_whole: bool
    graph: FactorGraph = field(repr=False, compare=False)

    def plot(self) -> Any:
        """A picture of the factor graph, as a matplotlib figure: `found.plot().savefig("graph.png")`.

        Sites are dots in the colours of a sweep, lines join sites that share a term, and terms of more than two sites
        are squares. Raises `MissingPackageError` without matplotlib.
        """
        return draw(self.graph, str(self).splitlines()[0])

    def __str__(self) -> str:
        width = "too large for elimination" if self.treewidth is None else f"at most {self.treewidth}"
        lines = [
            f"log pi of {_count(self.num_sites, 'site')} = constant + {_count(self.num_terms, 'term')} "
            f"on at most {_count(self.arity, 'site')}",
            f"independent parts: {self.num_components}; colours: {self.num_colours}; treewidth: {width}",
            f"a sweep costs about {self.sweep_evaluations:.3g} evaluations of log pi; one site at a time: "
            f"{self.plain_evaluations:,}",
            f"this opens: {', '.join(self.opens) or 'nothing beyond single sites'}",
        ]
        if self.is_whole:
            lines.append("reading took too long: log pi is treated as one term on all sites")
        return "\n".join(lines + [f"dense: {d}" for d in self.dense])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def line_of(equation: Equation) -> str:
    """The line of the user's code behind an equation."""
    return source_info_util.summarize(equation.source) if equation.source is not None else "an unknown line"


def dense_terms(terms: Terms) -> tuple[DenseTerm, ...]:
    """Where terms on many sites come from: the first equation that brings half of their sites together."""
    dependence, program = terms.dependence, terms.dependence.program
    found: dict[tuple[str, str], list[int]] = {}
    first = 0
    for block in terms.blocks:
        arities = terms.arities[first : first + len(block.places)]
        first += len(block.places)
        is_dense = arities > LARGE_ARITY
        if not is_dense.any():
            continue
        half = arities.max() / 2
        slots = [block.slot] + ([] if block.other is None else [block.other[0]])
        joins = [e for e in program.needed(slots) if max(dependence.arity(s) for s in e.outputs) > half]
        joined = [e for e in joins if max(dependence.arity(s) for s in e.inputs) <= half]
        equation = (joined or joins or [program.made_by[block.slot]])[0]
        counts = found.setdefault((equation.name, line_of(equation)), [0, 0])
        counts[0] += int(is_dense.sum())
        counts[1] = max(counts[1], int(arities.max()))
    out = [DenseTerm(number, arity, name, line) for (name, line), (number, arity) in found.items()]
    return tuple(sorted(out, key=lambda term: -term.arity)[:MOST_LINES])


def sweep_cost(terms: Terms, sizes: np.ndarray, *, by_tables: bool, is_running: bool, num_colours: int) -> float:
    """The cost of a sweep in evaluations of log pi, roughly: one evaluation looks at each term once."""
    size = float(np.max(sizes))
    if is_running:
        return size + 1.0
    if by_tables:
        return float(terms.arities.sum()) / max(terms.num_terms, 1) * (size if size > 2 else 1.0)
    return min(num_colours * size, float((np.asarray(sizes) - 1).sum()))
