"""What a run may spend, and how warm-up divides it.

A phase may use what earlier phases left over, and drawing gets the rest; how much of the whole is spent at the end of
each phase stands in the policy. What comes before exploration, and the time in which it and the trials compile, are not
counted as theirs. Budgets in evaluations keep a run reproducible; budgets in seconds do not, because what fits into a
second differs from run to run, and the result says what was done.
"""

import time
from typing import Any

from terrazzo.auto.policy import Policy, default_policy
from terrazzo.errors import OptionError

PHASES = ("adaptation", "exploration", "local trial", "training", "trial", "sampling")


class Budget:
    """Seconds or evaluations for a whole run; None is without a limit.

    >>> budget = Budget(evaluations=1000)
    >>> budget.spend_evaluations("exploration", 200)
    >>> budget.is_spent("exploration"), budget.is_spent("training")
    (True, False)
    """

    def __init__(self, *, seconds: Any = None, evaluations: Any = None, policy: Policy | None = None):
        for name, value in (("max_seconds", seconds), ("max_evaluations", evaluations)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise OptionError(name, f"must be a positive number, got {value!r}", "leave it out for no limit")
        self.began, self.policy = time.perf_counter(), policy or default_policy()
        self.seconds = None if seconds is None else float(seconds)
        self.evaluations = None if evaluations is None else float(evaluations)
        self.compiling = 0.0
        self.spent: dict[str, int] = dict.fromkeys(PHASES, 0)

    def spend_evaluations(self, phase: str, count: Any) -> None:
        """Notes that a phase evaluated the target `count` times, or by an array of counts."""
        self.spent[phase] += int(count if isinstance(count, int) else count.sum(dtype="int64"))

    def add_compilation(self, seconds: float) -> None:
        """Moves the ends of all phases back by seconds that were not theirs, up to a share of the run in all."""
        self.compiling = min(self.compiling + seconds, self.policy.compiling_share * (self.seconds or 0.0))

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began

    @property
    def is_short(self) -> bool:
        """Whether there is no time to compile an exploration: one local kernel draws, and nothing checks it."""
        return self.seconds is not None and self.seconds < self.policy.short_seconds

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no limit at all."""
        return self.seconds is None and self.evaluations is None

    @property
    def is_over(self) -> bool:
        """Whether drawing must end; what is left of the seconds is for comparing."""
        is_late = self.seconds is not None and self.elapsed >= (1.0 - self.policy.comparing_share) * self.seconds
        return is_late or self.total_left <= 0.0

    @property
    def is_half_gone(self) -> bool:
        """Whether burn-in must end so that drawing gets its part."""
        return self.seconds is not None and self.elapsed > self.policy.burn_in_until * self.seconds

    @property
    def total_left(self) -> float:
        """Evaluations left to the whole run."""
        return float("inf") if self.evaluations is None else max(self.evaluations - sum(self.spent.values()), 0.0)

    @property
    def total_seconds_left(self) -> float | None:
        """Seconds left to the whole run."""
        return None if self.seconds is None else max(self.seconds - self.elapsed, 0.0)

    def _share(self, phase: str) -> float:
        p = self.policy
        return {
            "adaptation": p.adapting_until, "exploration": p.exploring_until, "local trial": p.trying_until,
            "training": p.training_until, "trial": p.trial_until,
        }[phase]  # fmt: skip

    def seconds_left(self, phase: str) -> float | None:
        """Seconds until this phase must end."""
        if self.seconds is None:
            return None
        p, exploring = self.policy, self._share("exploration") * self.seconds
        spared = exploring - min(exploring, max(p.exploring_least_seconds, p.exploring_least_share * self.seconds))
        given_back = {"adaptation": 0.5 * spared, "exploration": spared, "local trial": spared}.get(phase, 0.0)
        return max(self._share(phase) * self.seconds - given_back + self.compiling - self.elapsed, 0.0)

    def evaluations_left(self, phase: str) -> float | None:
        """Evaluations this phase may still use."""
        if self.evaluations is None:
            return None
        return max(self._share(phase) * self.evaluations - sum(self.spent.values()), 0.0)

    def is_spent(self, phase: str) -> bool:
        """Whether this phase must end."""
        return self.seconds_left(phase) == 0.0 or self.evaluations_left(phase) == 0.0
