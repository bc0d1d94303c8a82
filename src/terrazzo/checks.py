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
    yield Check("complete run", float(is_complete), 1.0, is_complete, "let the run finish")
    chains = float(num_chains)
    yield Check("chains", chains, float(MIN_CHAINS), chains >= MIN_CHAINS, "run at least 4 chains")
    moved = float(summary.num_dims - num_constant)
    yield Check("coordinates that moved", moved, 1.0, moved >= 1, "check the starts and the log-probability")
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
        advice = "a chain hardly moves: lower the step size or warm up longer"
        yield Check("lowest acceptance", lowest, MIN_ACCEPTANCE, lowest >= MIN_ACCEPTANCE, advice)
    if evidence is not None and not np.isnan(evidence.pareto_k):
        k = float(evidence.pareto_k)
        advice = "log Z and its error are unreliable: train the transport longer"
        yield Check("Pareto k", k, MAX_PARETO_K, k <= MAX_PARETO_K, advice, False)


def _figure(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.4g}"


def judge(checks: Sequence[Check], num_chains: int, num_constant: int, num_dims: int) -> Verdict:
    """The verdict: trusted if every decisive check passed."""
    failed = [c for c in checks if c.is_decisive and not c.passed]
    if failed:
        reasons = "; ".join(f"{c.name} {_figure(c.value)} (wanted {_figure(c.threshold)})" for c in failed)
        return Verdict(False, f"{reasons} ({failed[0].advice})")
    parts = [f"{c.name} {_figure(c.value)}" for c in checks if c.name in HEADLINES]
    text = f"{', '.join(parts)}, {num_chains} chains"
    if num_constant:
        text += f", {num_constant} of {num_dims} coordinates constant"
    return Verdict(True, text)
