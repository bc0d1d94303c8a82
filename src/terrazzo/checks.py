"""Checks and the verdict they make: thresholds in one place, each with its reason.

A check is data (name, value, threshold, passed, advice), so that others can add their own: whoever knows more than the
draws (tempered chains, a second estimate of log Z) hands further checks to the `Result`.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from terrazzo.diagnostics import LogZ
from terrazzo.summaries import Summary

MAX_R_HAT = 1.01  # Vehtari et al. (2021)
MIN_ESS = 400.0  # in all chains together; below it R-hat and the errors are themselves unreliable (same reference)
MIN_CHAINS = 2  # one chain cannot be compared with another; four are better
MIN_ACCEPTANCE = 1e-3
MAX_PARETO_K = 0.7  # Vehtari et al. (2024)
INTERRUPTED = "the run was interrupted"
MOVED = "coordinates that moved"
POINT_MASS = "tempered draws at the same configuration"
HEADLINES = ("worst R-hat", "least ESS")


class Check(NamedTuple):
    """One question asked of a result.

    Attributes:
        name: What is checked.
        value: What was found.
        threshold: What it is compared with.
        passed: Whether it is fine.
        advice: What to do if it is not.
        is_decisive: Whether failing it costs the trust; otherwise it is information.
    """

    name: str
    value: float
    threshold: float
    passed: bool
    advice: str
    is_decisive: bool = True


class Verdict(NamedTuple):
    """Whether the draws can be trusted, in one line."""

    is_trusted: bool
    reason: str

    def __str__(self) -> str:
        return f"{'trusted' if self.is_trusted else 'not trusted'}: {self.reason}"


class Diagnosis(NamedTuple):
    """All checks of a result; it prints as a table with what to do about those that failed.

    Attributes:
        verdict: The verdict they make.
        checks: Every check.
        evidence: Estimates of log Z, by the way they were made.
        choice: Why the default sampler moves as it does, if it chose.

    >>> print(Diagnosis(Verdict(True, "fine"), (Check("chains", 4.0, 2.0, True, "run more"),), {}, None))
    ok   chains  4 (threshold 2)
    verdict: trusted: fine
    """

    verdict: Verdict
    checks: tuple[Check, ...]
    evidence: dict[str, LogZ]
    choice: str | None

    def __str__(self) -> str:
        width = max((len(check.name) for check in self.checks), default=0)
        lines = []
        for check in self.checks:
            mark = "ok  " if check.passed else "NOT " if check.is_decisive else "note"
            lines.append(f"{mark} {check.name:<{width}}  {figure(check.value)} (threshold {figure(check.threshold)})")
            if not check.passed:
                lines.append(f"       -> {check.advice}")
        for name, value in self.evidence.items():
            lines.append(f"     {f'log Z, {name}':<{width}}  {value.log_z:.4f} +- {value.standard_error:.2g}")
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
    acceptance_rate: np.ndarray | None,
    evidence: LogZ | None,
    is_complete: bool,
) -> list[Check]:
    """The checks that need only what a result holds."""
    return list(_chain_checks(summary, num_chains, num_constant, acceptance_rate, evidence, is_complete))


def _chain_checks(
    summary: Summary,
    num_chains: int,
    num_constant: int,
    acceptance_rate: np.ndarray | None,
    evidence: LogZ | None,
    is_complete: bool,
) -> Iterator[Check]:
    if not is_complete:
        yield Check(INTERRUPTED, 0.0, 1.0, False, "let the run finish, or continue it from its checkpoint")
    chains = float(num_chains)
    yield Check("chains", chains, float(MIN_CHAINS), chains >= MIN_CHAINS, "run at least 4 chains")
    moved = float(summary.num_dims - num_constant)
    yield Check(MOVED, moved, 1.0, moved >= 1, "check the starts and the log-probability")
    rows = [row for row in summary.rows if not row.is_constant]
    if moved:
        values = [row.r_hat for row in rows if not np.isnan(row.r_hat)]
        worst = max(values, default=float("inf"))
        advice = "the chains disagree: run longer, or explore by tempering"
        yield Check("worst R-hat", worst, MAX_R_HAT, worst <= MAX_R_HAT, advice)
        values = [row.ess_bulk for row in rows if not np.isnan(row.ess_bulk)]
        least = min(values, default=0.0)
        yield Check("least ESS", least, MIN_ESS, least >= MIN_ESS, "run longer, or try another sampler")
    if acceptance_rate is not None and acceptance_rate.size:
        lowest = float(np.mean(acceptance_rate, axis=1).min())
        advice = "a chain hardly moves: unless pi sits on few configurations, lower the step size or warm up longer"
        is_decisive = lowest == 0 or not rows  # otherwise R-hat and ESS judge what the moves achieved
        yield Check("lowest acceptance", lowest, MIN_ACCEPTANCE, lowest >= MIN_ACCEPTANCE, advice, is_decisive)
    if evidence is not None and not np.isnan(evidence.pareto_k):
        k = float(evidence.pareto_k)
        advice = "log Z and its error are unreliable: train the transport longer"
        yield Check("Pareto k", k, MAX_PARETO_K, k <= MAX_PARETO_K, advice, False)


def without_false_alarms(checks: Sequence[Check]) -> list[Check]:
    """The checks, less the alarm that nothing moved if an independent exploration ended in the same configuration."""
    is_point = any(check.name == POINT_MASS and check.passed for check in checks)
    return [check for check in checks if not (is_point and check.name == MOVED)]


def figure(value: float) -> str:
    """A number for a person: four digits, whole numbers whole."""
    return f"{value:.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.4g}"


def judge(checks: Sequence[Check], num_chains: int, num_constant: int, num_dims: int) -> Verdict:
    """The verdict: trusted if every decisive check passed."""
    failed = [c for c in checks if c.is_decisive and not c.passed]
    if failed:
        reasons = "; ".join(
            c.name if c.name == INTERRUPTED else f"{c.name} {figure(c.value)} (wanted {figure(c.threshold)})"
            for c in failed
        )
        return Verdict(False, f"{reasons} ({failed[0].advice})")
    parts = [f"{c.name} {figure(c.value)}" for c in checks if c.name in HEADLINES]
    text = ", ".join([*parts, f"{num_chains} chains"])
    if num_constant:
        text += f", {num_constant} of {num_dims} coordinates constant"
    return Verdict(True, text)
