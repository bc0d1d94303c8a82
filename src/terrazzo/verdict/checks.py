"""Checks and the verdict they make: thresholds in one place, each with its reason.

A check is data (name, value, threshold, passed, advice, grade), so that others can add their own: whoever knows more
than the draws (tempered chains, other starts, a second estimate of log Z) hands further checks to the `Result`.

A verdict has one of four grades:

- **exact**: no Monte-Carlo doubt, because all configurations were summed: each of them, or site by site;
- **trusted**: the chains agree, and every independent check was made and passed;
- **unchecked**: the chains agree, but something that could have contradicted them was not looked at;
- **not trusted**: a check failed.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from terrazzo.diagnostics import LogZ
from terrazzo.verdict.summaries import Summary

MAX_R_HAT = 1.01  # Vehtari et al. (2021)
MIN_ESS = 400.0  # in all chains together; below it R-hat and the errors are themselves unreliable (same reference)
MIN_CHAINS = 2  # one chain cannot be compared with another; four are better
MIN_ACCEPTANCE = 1e-3  # below it a chain of a thousand steps is likely never to move
MAX_PARETO_K = 0.7  # Vehtari et al. (2024)
INTERRUPTED = "the run was interrupted"
MOVED = "coordinates that moved"
POINT_MASS = "tempered draws at the same configuration"
ENUMERATED = "configurations evaluated"
ELIMINATED = "eliminated exactly, treewidth"
SUMMED = (ENUMERATED, ELIMINATED)  # ways to sum all configurations: nothing is left to chance
INDEPENDENT = "independent checks"
DRAWS = "draws a chain"
STORED = "checkpoints written"
MENTIONED = (DRAWS, STORED)  # what the verdict says even where it costs no grade
HEADLINES = ("worst R-hat", "least ESS", *SUMMED)

EXACT, TRUSTED, UNCHECKED, NOT_TRUSTED = GRADES = ("exact", "trusted", "unchecked", "not trusted")
NOTE = ""  # the grade of a check that is information alone


class Check(NamedTuple):
    """One question asked of a result.

    Attributes:
        name: What is checked.
        value: What was found.
        threshold: What it is compared with.
        passed: Whether it is fine.
        advice: What to do if it is not.
        grade: The best grade of a result that fails it: "not trusted", "unchecked", or "" if it is information.
        is_independent: Whether it rests on something other than the chains and their own starts.
    """

    name: str
    value: float
    threshold: float
    passed: bool
    advice: str
    grade: str = NOT_TRUSTED
    is_independent: bool = False

    @classmethod
    def at_most(
        cls, name: str, value: float, threshold: float, advice: str, *, grade: str = NOT_TRUSTED,
        is_independent: bool = False,
    ) -> "Check":  # fmt: skip
        """A check that a large value fails, and NaN."""
        return cls(name, value, threshold, bool(value <= threshold), advice, grade, is_independent)

    @classmethod
    def at_least(
        cls, name: str, value: float, threshold: float, advice: str, *, grade: str = NOT_TRUSTED,
        is_independent: bool = False,
    ) -> "Check":  # fmt: skip
        """A check that a small value fails, and NaN."""
        return cls(name, value, threshold, bool(value >= threshold), advice, grade, is_independent)


class Verdict(NamedTuple):
    """Whether the draws can be trusted: a grade, and the reason in one line.

    Attributes:
        grade: "exact", "trusted", "unchecked" or "not trusted".
        reason: Why.

    >>> str(Verdict("unchecked", "chains agree")), Verdict("exact", "all seen").is_trusted
    ('unchecked: chains agree', True)
    """

    grade: str
    reason: str

    @property
    def is_trusted(self) -> bool:
        """Whether the grade is "exact" or "trusted"."""
        return self.grade in (EXACT, TRUSTED)

    def __str__(self) -> str:
        return f"{self.grade}: {self.reason}"


class Diagnosis(NamedTuple):
    """All checks of a result; it prints as a table with what to do about those that failed.

    Attributes:
        verdict: The verdict they make.
        checks: Every check.
        evidence: Estimates of log Z, by the way they were made.
        choice: Why the default sampler moves as it does, if it chose.
        log_z: The verdict on the headline estimate of log Z.

    >>> print(Diagnosis(Verdict("trusted", "fine"), (Check("chains", 4.0, 2.0, True, "run more"),), {}, None))
    ok   chains  4 (threshold 2)
    verdict: trusted: fine
    """

    verdict: Verdict
    checks: tuple[Check, ...]
    evidence: dict[str, LogZ]
    choice: str | None
    log_z: Verdict | None = None

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = []
        for check in self.checks:
            mark = "ok  " if check.passed else {NOT_TRUSTED: "NOT ", UNCHECKED: "open"}.get(check.grade, "note")
            lines.append(f"{mark} {check.name:<{width}}  {figure(check.value)} (threshold {figure(check.threshold)})")
            if not check.passed:
                lines.append(f"       -> {check.advice}")
        for name, value in self.evidence.items():
            lines.append(f"     {f'log Z, {name}':<{width}}  {value.log_z:.4f} +- {value.standard_error:.2g}")
        if self.log_z is not None:
            lines.append(f"log Z: {self.log_z}")
        if self.choice is not None:
            lines.append(f"sampler: {self.choice}")
        return "\n".join([*lines, f"verdict: {self.verdict}"])

    def __repr__(self) -> str:
        return str(self)


def chain_checks(
    summary: Summary,
    *,
    num_chains: int,
    num_constant: int,
    acceptance_rate: Any,
    evidence: LogZ | None,
    is_complete: bool,
    num_draws: int,
    num_asked: int,
    is_explored: bool,
    log_weights: Any = None,
) -> list[Check]:
    """The checks that need only what a result holds.

    Args:
        summary: The statistics of all coordinates.
        num_chains: Chains.
        num_constant: Coordinates that never changed.
        acceptance_rate: Acceptance rates, (chain, draw), if they are known.
        evidence: The headline estimate of log Z.
        is_complete: Whether the run was not interrupted.
        num_draws: Draws a chain.
        num_asked: Draws a chain that were asked for.
        is_explored: Whether the run explored by tempering already, so that this is no advice.
        log_weights: Importance weights of the draws, if they have any.
    """
    checks = []
    if not is_complete:
        checks.append(Check.at_least(INTERRUPTED, 0.0, 1.0, "let the run finish, or continue it from its checkpoint"))
    elif num_draws < num_asked:
        advice = "the time or the evaluations were used up: allow more, or ask for fewer draws"
        checks.append(Check.at_least(DRAWS, float(num_draws), float(num_asked), advice, grade=NOTE))
    checks.append(Check.at_least("chains", float(num_chains), float(MIN_CHAINS), "run at least 4 chains"))
    moved = float(summary.num_dims - num_constant)
    checks.append(Check.at_least(MOVED, moved, 1.0, "check the starts and the log-probability"))
    rows = [row for row in summary.rows if not row.is_constant]
    longer = "run longer: more draws, or a larger thin"
    if moved:
        worst = max((row.r_hat for row in rows if not np.isnan(row.r_hat)), default=float("inf"))
        advice = f"the chains disagree: {longer if is_explored else 'let the default sampler explore'}"
        checks.append(Check.at_most("worst R-hat", worst, MAX_R_HAT, advice))
        least = min((row.ess_bulk for row in rows if not np.isnan(row.ess_bulk)), default=0.0)
        checks.append(Check.at_least("least ESS", least, MIN_ESS, longer))
    if acceptance_rate is not None and acceptance_rate.size:
        lowest = float(np.mean(acceptance_rate, axis=1).min())
        advice = "a chain hardly moves: unless pi sits on few configurations, lower the step size or warm up longer"
        is_decisive = lowest == 0 or not rows  # otherwise R-hat and ESS judge what the moves achieved
        grade = NOT_TRUSTED if is_decisive else NOTE
        checks.append(Check.at_least("lowest acceptance", lowest, MIN_ACCEPTANCE, advice, grade=grade))
    if evidence is not None and not np.isnan(evidence.pareto_k):
        k = float(evidence.pareto_k)
        advice = "log Z and its error are unreliable: train the transport longer"
        grade = NOTE if log_weights is None else NOT_TRUSTED  # weighted draws are as good as their weights
        checks.append(Check.at_most("Pareto k", k, MAX_PARETO_K, advice, grade=grade))
    return checks


def settled(own: Sequence[Check], others: Sequence[Check]) -> list[Check]:
    """All checks: those of the chains, and those of whoever knows more, which may overrule or be missing.

    Where all configurations were summed the draws are independent, and what the chains say of themselves is not
    asked. An exploration that ended in one configuration overrules the alarm that nothing moved. Where nothing
    independent was looked at, that is a check of its own, and it fails.
    """
    if any(check.name in SUMMED and check.passed for check in others):
        return [*(c for c in own if c.name in (INTERRUPTED, DRAWS)), *others]
    is_point = any(check.name == POINT_MASS and check.passed for check in others)
    checks = [check for check in (*own, *others) if not (is_point and check.name == MOVED)]
    count = float(sum(check.is_independent for check in checks))
    advice = "chains that agree can all have missed a mode: let the default sampler explore (sampler='auto')"
    return [*checks, Check.at_least(INDEPENDENT, count, 1.0, advice, grade=UNCHECKED)]


def figure(value: float) -> str:
    """A number for a person: four digits, whole numbers whole."""
    return f"{value:.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.4g}"


def judge(checks: Sequence[Check], num_chains: int, num_constant: int, num_dims: int) -> Verdict:
    """The verdict: the worst grade of the checks that failed; if none did, "exact" or "trusted".

    >>> judge([Check("chains", 4.0, 2.0, True, ""), Check("rounds", 9.0, 100.0, False, "more", "unchecked")], 4, 0, 3)
    Verdict(grade='unchecked', reason='rounds 9 (wanted 100) (more)')
    """
    notes = "".join(
        f", {c.name} {figure(c.value)} of {figure(c.threshold)}" for c in checks if c.name in MENTIONED and not c.passed
    )
    for grade in (NOT_TRUSTED, UNCHECKED):
        failed = [c for c in checks if c.grade == grade and not c.passed]
        if failed:
            reasons = "; ".join(
                c.name if c.name == INTERRUPTED else f"{c.name} {figure(c.value)} (wanted {figure(c.threshold)})"
                for c in failed
            )
            return Verdict(grade, f"{reasons} ({failed[0].advice}){notes}")
    parts = [f"{c.name} {figure(c.value)}" for c in checks if c.name in HEADLINES]
    text = ", ".join([*parts, f"{num_chains} chains"]) + notes
    if num_constant:
        text += f", {num_constant} of {num_dims} coordinates constant"
    return Verdict(EXACT if any(c.name in SUMMED for c in checks) else TRUSTED, text)
