"""What to run: pure functions of a table of measurements and the policy. Nothing here runs a chain.

The worth of a candidate is effective draws a second. Candidates whose chains have met come first; then those whose
chains will meet, by the decay of what tells them apart; of the others, those that could bring chains together.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from terrazzo.auto.candidates import Local
from terrazzo.auto.forecast import Rival
from terrazzo.auto.policy import Policy

APART, WILL_MEET, MET = 0, 1, 2
TEMPERING = "parallel_tempering"


class Measured(NamedTuple):
    """One candidate and what it was worth.

    Attributes:
        label: What it is, for a person.
        sampler: Its name in the registry.
        options: Keyword arguments of its factory; of the hybrid, a step plays `num_rounds` rounds.
        ess: The effective sample size of its records.
        step_seconds: Seconds of one step of all chains.
        worth: Effective draws a second.
        gap: Steps between two independent draws of a chain.
        agreement: Of chains that began in different places: `MET`, `WILL_MEET` (by the decay of what tells them apart),
            or `APART`.
        acceptance: The mean acceptance of all its moves.
        uses_transport: Whether it moves through the transport.
        speed: Its worth where the chains already are; 0 if its trial was cut short.
        local: Its local kernel, tuned.
        num_local: How many of its moves a step makes.
    """

    label: str
    sampler: str
    options: dict[str, Any]
    ess: float
    step_seconds: float
    worth: float
    gap: float
    agreement: int
    acceptance: float = float("nan")
    uses_transport: bool = False
    speed: float = 0.0
    local: Local | None = None
    num_local: int = 1

    @property
    def rounds(self) -> int:
        """Rounds a step."""
        return int(self.options.get("num_rounds", 1))


class Table(NamedTuple):
    """Everything that was measured.

    Attributes:
        rows: The candidates.
        num_chains: Chains of each.
        num_draws: Kept draws a chain that are asked for.
        is_limited: Whether the time of the run is limited.
        passed_over: Labels of candidates that are taken only if nothing else is left.
        note: What became of a transport that was not tried.
        tempered_r_hat: R-hat of the ladders; infinite without an exploration.
    """

    rows: tuple[Measured, ...]
    num_chains: int
    num_draws: int
    is_limited: bool = False
    passed_over: frozenset[str] = frozenset()
    note: str = ""
    tempered_r_hat: float = float("inf")

    def with_row(self, row: Measured) -> "Table":
        """The table with one more row; a second, longer look replaces the first."""
        return self._replace(rows=(*(r for r in self.rows if r.label != row.label), row))

    def rank(self, row: Measured) -> tuple[int, float]:
        """The order of candidates."""
        if row.label in self.passed_over:
            return -1, row.worth
        if row.agreement != APART:
            return 1 + row.agreement, row.worth
        return int(row.uses_transport or row.sampler == TEMPERING), row.worth

    def needed_seconds(self, row: Measured, policy: Policy) -> float:
        """What the draws that are asked for take with a candidate; infinite if its chains have not met.

        In limited time until they are independent; without a limit until enough of them are effective.
        """
        return self.predicted_seconds(row, policy) if row.agreement == MET else float("inf")

    def predicted_seconds(self, row: Measured, policy: Policy) -> float:
        """The same by the worth of a candidate, whether its chains have met or not."""
        wanted = self.num_draws if self.is_limited else min(self.num_draws, policy.enough_ess)
        return max(wanted * self.num_chains / max(row.worth, 1e-9), self.num_draws * row.step_seconds)

    def least_seconds(self, policy: Policy) -> float:
        """The same with the fastest candidate."""
        return min((self.needed_seconds(row, policy) for row in self.rows), default=float("inf"))


class Choice(NamedTuple):
    """What was chosen, from what, and why."""

    row: Measured
    table: Table
    reason: str

    def describe(self) -> dict[str, Any]:
        """What a result keeps of the trial."""
        table = [
            {"candidate": r.label, "ess": round(r.ess, 1), "round_ms": round(1e3 * r.step_seconds / r.rounds, 4),
             "ess_per_second": round(r.worth, 2), "acceptance": round(r.acceptance, 4)}
            for r in self.table.rows
        ]  # fmt: skip
        return {"chosen": self.row.label, "reason": self.reason, "trial": table}


def choose(table: Table, policy: Policy) -> Choice:
    """The most worth; without a time limit, of those nearly as good the one whose draws are least correlated.

    Where the draws that are asked for take less time than one more candidate would, only what is compiled is looked at:
    tempering is compiled again for all chains.
    """
    quick = [row for row in table.rows if row.sampler != TEMPERING and row.label not in table.passed_over]
    quick = [row for row in quick if table.needed_seconds(row, policy) <= policy.trying_seconds]
    rows = quick or table.rows
    best = max(rows, key=table.rank)
    if not table.is_limited:
        least = (table.rank(best)[0], policy.nearly * best.worth)
        best = min((row for row in rows if table.rank(row) >= least), key=lambda row: row.gap * row.rounds)
    return Choice(best, table, "; ".join(filter(None, (reason(table, best), table.note))))


def choose_again(choice: Choice) -> Choice | None:
    """The best candidate besides the one that did not keep its promise, if its chains have met or will."""
    table = choice.table._replace(passed_over=choice.table.passed_over | {choice.row.label})
    left = [row for row in table.rows if row.label not in table.passed_over and row.agreement != APART]
    if not left:
        return None
    best = max(left, key=lambda row: row.worth)
    parts = (reason(table, best), table.note, "the first choice did not keep its promise")
    return Choice(best, table, "; ".join(filter(None, parts)))


def favourite(rows: Sequence[Measured], policy: Policy) -> Measured:
    """Of local kernels, in the order of what did best on such targets, the one to go on with.

    If chains have met, the one that is worth most. If not, what the trial says is mostly noise: the first whose speed
    where chains are is not far below the best.
    """
    met = [row for row in rows if row.agreement == MET]
    if met:
        return max(met, key=lambda row: row.worth)
    fastest = max(row.speed for row in rows)
    return next(row for row in rows if row.speed >= fastest / policy.far_slower)


def local_rows(table: Table) -> list[Measured]:
    """Local kernels that were tried alone, with all of their moves."""
    return [row for row in table.rows if row.local and not row.uses_transport and row.num_local == row.local.moves]


def passed_over(table: Table, best: Measured, policy: Policy) -> frozenset[str]:
    """Candidates whose figures are noise: other local kernels where no chains met, and ladders that are far apart."""
    if best.agreement == MET:
        names = set()
    else:
        names = {row.label for row in table.rows if row.sampler != TEMPERING} - {best.label}
    if table.tempered_r_hat > policy.far_apart_r_hat and best.speed > 0:  # 0: cut short
        names |= {row.label for row in table.rows if row.sampler == TEMPERING and row.agreement != MET}
    return frozenset(names)


def needs_longer_look(table: Table) -> bool:
    """Whether it is open if local moves are slow or trapped: something else could be taken, and nothing has met."""
    left = [row for row in table.rows if row.label not in table.passed_over]
    return len(left) > 1 and all(row.agreement == APART for row in left)


def is_worth_another(table: Table, policy: Policy) -> bool:
    """Whether one more candidate is tried: as long as trying has taken less time than halving the draws would save."""
    num_tried = sum(row.sampler != TEMPERING for row in table.rows)
    return table.least_seconds(policy) / 2 > policy.trying_seconds * max(1, num_tried)


def rival_of(table: Table, best: Measured, policy: Policy) -> Rival:
    """What a transport would have to beat."""
    ranked = [row for row in table.rows if row.agreement != APART and row.label not in table.passed_over]
    met = [row.worth for row in ranked if row.agreement == MET and row.sampler != TEMPERING]
    is_single = best.num_local == 1 and best.agreement == MET
    return Rival(
        worth=max((row.worth for row in ranked), default=0.0), least=policy.resolved_ess * table.num_chains,
        local_worth=max(met, default=0.0), gap=best.gap if is_single else float("inf"),
        seconds=table.least_seconds(policy),
    )  # fmt: skip


def next_pair(table: Table, counts: Sequence[int], tried: Sequence[Measured], policy: Policy) -> int | None:
    """How many local moves to try beside a jump next: the counts in turn, and on while the best is the largest."""
    if tried and not is_worth_another(table, policy):
        return None
    if len(tried) < len(counts):
        return counts[len(tried)]
    best = max(tried, key=table.rank)
    is_largest = best.num_local == max(row.num_local for row in tried)
    return policy.pair_growth * best.num_local if is_largest and len(tried) < policy.most_pairs else None


def thin_of(choice: Choice, policy: Policy) -> int:
    """Rounds a kept draw, such that draws are nearly independent, or drawing takes as long as it may.

    How far apart independent draws are is judged by the worth, which noise does not flatter, where chains have met.
    Local moves whose chains stay apart are not drawn for longer: that would not bring them together. Ladders are.
    """
    row, table = choice.row, choice.table
    gap, needed = row.gap, 0.0
    if row.agreement == MET:
        gap = table.num_chains / (row.worth * row.step_seconds)
    if row.agreement != APART or row.sampler == TEMPERING:
        needed = min(table.predicted_seconds(row, policy), policy.phase_seconds)
    steps = max(needed, policy.drawing_seconds) / max(table.num_draws * row.step_seconds, 1e-9)
    return row.rounds * max(1, round(min(gap, steps)))


def thin_again(choice: Choice, worth: float, step_seconds: float, policy: Policy) -> int:
    """The same by what chains that have met were worth after the trial, in effective draws a second."""
    row = choice.row._replace(worth=worth, step_seconds=step_seconds, agreement=MET)
    return thin_of(choice._replace(row=row), policy)


def reason(table: Table, best: Measured) -> str:
    """What the choice rests on, in one line."""

    def figure(rows: list[Measured]) -> str:
        return f"{max(row.worth for row in rows):.3g}" if rows else "untried"

    through = [row for row in table.rows if row.uses_transport]
    alone = [row for row in table.rows if row.sampler != TEMPERING and not row.uses_transport]
    tempered = [row for row in table.rows if row.sampler == TEMPERING]
    parts = [f"{figure(alone)} with local moves alone", f"{figure(tempered)} with tempering"]
    if not through:
        return f"effective draws a second: {', '.join(parts)}"
    off = "" if best.uses_transport else "; the transport is switched off"
    return f"effective draws a second: {figure(through)} with the transport, {', '.join(parts)}{off}"
