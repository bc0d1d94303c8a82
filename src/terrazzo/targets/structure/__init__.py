"""What a plain log-probability reveals about itself: terms, their graph, conditionals, exact answers.

    log pi(theta) = constant + sum_t f_t(theta at the sites of t)

`read` traces a function once and never fails on one that can be traced: at worst it says "one term on all sites".
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.structure.allowance import Allowance, OutOfTimeError
from terrazzo.targets.structure.conditionals import AbstractSiteLogits as AbstractSiteLogits
from terrazzo.targets.structure.conditionals import table_logits, term_logits
from terrazzo.targets.structure.dependence import Dependence
from terrazzo.targets.structure.elimination import Exact as Exact
from terrazzo.targets.structure.elimination import can_eliminate, eliminate, maximum
from terrazzo.targets.structure.explain import DenseTerm as DenseTerm
from terrazzo.targets.structure.explain import Explanation as Explanation
from terrazzo.targets.structure.explain import dense_terms, sweep_cost
from terrazzo.targets.structure.graph import FactorGraph as FactorGraph
from terrazzo.targets.structure.linear import MIN_DEGREE, running_field, running_products
from terrazzo.targets.structure.linear import RunningField as RunningField
from terrazzo.targets.structure.linear import RunningProducts as RunningProducts
from terrazzo.targets.structure.pairs import PairTables as PairTables
from terrazzo.targets.structure.pairs import PottsForm as PottsForm
from terrazzo.targets.structure.pairs import pair_tables, potts_form
from terrazzo.targets.structure.program import Program
from terrazzo.targets.structure.running_tables import RunningTables as RunningTables
from terrazzo.targets.structure.summation import Summation as Summation
from terrazzo.targets.structure.summation import plan_summation
from terrazzo.targets.structure.tables import Factors as Factors
from terrazzo.targets.structure.tables import factor_tables
from terrazzo.targets.structure.terms import Block, Terms, find_terms

__all__ = [
    "AbstractSiteLogits", "DenseTerm", "Exact", "Explanation", "FactorGraph", "Factors",
    "PairTables", "PottsForm", "RunningField", "RunningProducts", "RunningTables", "Structure", "Summation", "read",
]  # fmt: skip

MAX_SECONDS = 10.0  # for reading a function: a lattice of 65,536 sites takes one
MAX_SITE_ENTRIES = 2**12  # of tables a site, on average, up to which looking them up is preferred to linear products
MAX_ENTRIES = 2.0**24  # of all tables, once for each site, for the conditionals of single sites


@dataclass(frozen=True)
class Structure:
    """What was found in a function; everything beyond its terms is found when it is asked for.

    Attributes:
        terms: The terms.
        sizes: The number of values of each site.
        is_whole: Whether reading was given up: one term on all sites.
        allowance: The time for everything that is found later: tables, colours, an order of elimination.
    """

    terms: Terms
    sizes: np.ndarray
    is_whole: bool = False
    allowance: Allowance = field(default_factory=Allowance, compare=False)

    @cached_property
    def graph(self) -> FactorGraph:
        """Which sites share a term."""
        distinct = np.unique(self.terms.sets[self.terms.arities > 0])
        return FactorGraph(self.terms.dependence.pool.csr(distinct), self.sizes, self.allowance)

    @property
    def has_data(self) -> bool:
        """Whether the function has data that are not known yet: it has no tables of numbers then."""
        return self.terms.dependence.program.has_data

    @cached_property
    def summation(self) -> Summation | None:
        """The sum over all configurations as a function of data, if it can be compiled."""
        try:
            with self.allowance.stage():
                return plan_summation(self.terms, self.graph, self.allowance) if self.has_data else None
        except OutOfTimeError:
            return None

    @cached_property
    def factors(self) -> tuple[list[Factors], float] | None:
        """The terms as tables, and a constant; None if they are too large, take too long, or depend on data."""
        if self.has_data:
            return None
        try:
            with self.allowance.stage():
                return factor_tables(self.terms, self.sizes, self.allowance)
        except OutOfTimeError:
            return None

    @cached_property
    def pairs(self) -> PairTables | None:
        """Pair tables, if every term has at most two sites."""
        if self.graph.arity > 2 or self.factors is None:
            return None
        return pair_tables(self.factors[0], self.sizes, self.factors[1])

    @cached_property
    def potts(self) -> PottsForm | None:
        """Fields and couplings between equal values, if the model has that form."""
        return None if self.pairs is None else potts_form(self.pairs)

    def colour_logits(self) -> list[AbstractSiteLogits]:
        """The conditionals of the sites of each colour."""
        groups = [np.flatnonzero(self.graph.colours == c) for c in range(self.graph.num_colours)]
        if self.factors is not None:
            return table_logits(self.factors[0], self.sizes, groups)
        return term_logits(self.terms, self.sizes, groups)

    def all_logits(self) -> AbstractSiteLogits | None:
        """The conditionals of all sites from tables; None if these are too large."""
        if self.factors is None:
            return None
        return table_logits(self.factors[0], self.sizes, [np.arange(len(self.sizes))])[0]

    @cached_property
    def conditionals(self) -> AbstractRunningConditionals | None:
        """The conditionals of single sites, kept up while sites change; None if they cost as much as log pi.

        From tables where a site is in few of them, else from linear products, else from tables that are not too large.
        """
        if self.is_whole:
            return None
        entries, num_sites = self._table_entries, len(self.sizes)
        if entries <= MAX_SITE_ENTRIES * num_sites and self.graph.scopes.nnz <= MIN_DEGREE * num_sites:
            every = self.all_logits()
            if every is not None:
                return RunningTables(every)
        if self.running is not None:
            return self.running
        every = self.all_logits() if entries <= MAX_ENTRIES else None
        return None if every is None else RunningTables(every)

    @cached_property
    def _table_entries(self) -> float:
        """Entries of the tables of all terms, once for each site of a term."""
        with np.errstate(over="ignore"):
            each = np.exp2(self.graph.scopes.astype(float) @ np.log2(self.sizes))
        return float((each * np.diff(self.graph.scopes.indptr)).sum())

    @cached_property
    def running(self) -> RunningField | RunningProducts | None:
        """Running conditionals, if log pi looks at theta through linear products."""
        if self.has_data:
            return None
        if self.graph.arity <= 2:
            return None if self.pairs is None else running_field(self.pairs)
        try:
            with self.allowance.stage():
                self.allowance.check()
                return None if self.is_whole else running_products(self.terms, self.sizes)
        except OutOfTimeError:
            return None

    def explain(self) -> Explanation:
        """What was found, in words and numbers."""
        is_exact, running = self.is_exact, self.running
        by_tables = self.factors is not None and self.graph.num_colours < len(self.sizes)
        opens = {
            "exact answers by elimination": is_exact,
            "coloured Gibbs sweeps": self.graph.num_colours < len(self.sizes),
            "conditionals of all sites from tables": by_tables,
            "pair tables": self.pairs is not None,
            "redraws of whole trees": self.pairs is not None and self.graph.num_colours < len(self.sizes),
            "cluster moves (Potts form)": self.potts is not None,
            "running conditionals (linear products)": running is not None,
            "independent parts": self.graph.num_components > 1,
        }
        return Explanation(
            num_sites=len(self.sizes),
            num_terms=self.terms.num_terms,
            arity=self.graph.arity,
            num_colours=self.graph.num_colours,
            num_components=self.graph.num_components,
            treewidth=self.graph.treewidth if self.graph.order.sites else None,
            opens=tuple(name for name, is_open in opens.items() if is_open),
            plain_evaluations=int((self.sizes - 1).sum()),
            sweep_evaluations=sweep_cost(
                self.terms,
                self.sizes,
                by_tables=by_tables,
                is_running=running is not None,
                num_colours=self.graph.num_colours,
            ),
            dense=() if self.is_whole else dense_terms(self.terms),
            is_whole=self.is_whole,
            graph=self.graph,
        )

    @property
    def is_exact(self) -> bool:
        """Whether elimination answers everything within its limits."""
        return can_eliminate(self.graph) and self.factors is not None

    def exact(self) -> Exact:
        """log Z, marginals and independent draws, if `is_exact`."""
        if not self.is_exact or self.factors is None:
            raise ValueError(f"treewidth {self.graph.treewidth} is too large for elimination")
        return eliminate(*self.factors, self.graph)

    def maximum(self) -> tuple[np.ndarray, float]:
        """A configuration of the largest log pi, and that log pi, if `is_exact`."""
        if not self.is_exact or self.factors is None:
            raise ValueError(f"treewidth {self.graph.treewidth} is too large for elimination")
        return maximum(*self.factors, self.graph)


def read(
    log_prob: Callable,
    sizes: np.ndarray,
    *,
    max_seconds: float = MAX_SECONDS,
    num_data: int | None = None,
) -> Structure:
    """Reads a function.

    Args:
        log_prob: theta, int32 of shape (d,), to a number; traceable.
        sizes: The number of values of each of the d sites.
        max_seconds: Reading is given up after this time: one term on all sites. What is left of it is for tables,
            colours and an order of elimination, which are done without where it does not suffice.
        num_data: Reals that `log_prob` takes beside theta; what is read holds for all of them.

    >>> import jax.numpy as jnp
    >>> found = read(lambda theta: (theta[1:] == theta[:-1]).sum() * 0.5, np.full(5, 3))
    >>> found.terms.num_terms, found.graph.arity, found.graph.num_colours, found.graph.treewidth
    (4, 2, 2, 1)
    """
    sizes = np.asarray(sizes)
    allowance = Allowance(max_seconds)
    deadline = time.monotonic() + max_seconds
    whole = Program(
        log_prob, len(sizes), is_opaque=True, num_data=num_data
    )  # raises here if the function cannot be traced
    try:
        with allowance.stage():
            found = find_terms(Dependence(Program(log_prob, len(sizes), num_data=num_data), deadline), deadline)
        return Structure(found, sizes, allowance=allowance)
    except Exception:  # whatever is met in a user's function, reading may be blunt but must not fail
        return Structure(_whole(whole), sizes, is_whole=True)


def _whole(program: Program) -> Terms:
    """The result as one term on all sites (as many as it has elements)."""
    dependence = Dependence(program, is_blunt=True)
    size = program.size(program.output)
    block = Block(program.output, np.arange(size), np.ones(size))
    return Terms(dependence, (block,), dependence.of(program.output), 0.0)
