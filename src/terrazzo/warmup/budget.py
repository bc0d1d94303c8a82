"""What a run may spend, and how warm-up deals it out.

Warm-up takes at most 0.4 of the whole: exploration 0.12 (its adaptation the first half), the trial of local moves 0.05,
training 0.18, the trial of the transport 0.05. In longer runs exploration takes less: 8 seconds, or 0.03, on a CPU, 20
seconds, or 0.08, on an accelerator. What comes before it, and the time in which it and the trials compile, are not
counted as theirs. A phase may use what earlier phases left over, and drawing gets the rest. Budgets in evaluations keep
a run reproducible; budgets in seconds do not, because what fits into a second differs from run to run, and the result
says what was done.
"""

import time
from typing import Any

import jax

from terrazzo.errors import OptionError

# cumulative: what of a whole run may be spent at the end of each phase
SHARES = {"adaptation": 0.06, "exploration": 0.12, "local trial": 0.17, "training": 0.35, "trial": 0.4}
ENOUGH = {"cpu": (8.0, 0.03), "accelerator": (20.0, 0.08)}  # seconds or share of exploration, whichever is more
MOST_EXCUSED = 0.3
HALF = 0.5
COMPARING = 0.05  # of the seconds, kept for the comparison of the draws with what was found in other ways
SHORT = 12.0  # seconds: an exploration, its trial and their checks take 10 to 12 to compile on two cores


class Budget:
    """Seconds or evaluations for a whole run; None is without a limit.

    >>> budget = Budget(evaluations=1000)
    >>> budget.spend_evaluations("exploration", 200)
    >>> budget.is_spent("exploration"), budget.is_spent("training")
    (True, False)
    """

    def __init__(self, *, seconds: Any = None, evaluations: Any = None):
        for name, value in (("max_seconds", seconds), ("max_evaluations", evaluations)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not value > 0):
                raise OptionError(name, f"must be a positive number, got {value!r}", "leave it out for no limit")
        self.began = time.perf_counter()
        self.seconds = None if seconds is None else float(seconds)
        self.evaluations = None if evaluations is None else float(evaluations)
        self.excused = 0.0
        self.spent: dict[str, int] = dict.fromkeys((*SHARES, "sampling"), 0)

    def spend_evaluations(self, phase: str, count: int) -> None:
        """Notes that a phase evaluated the target `count` times."""
        self.spent[phase] += count

    def excuse(self, seconds: float) -> None:
        """Moves the ends of all phases back by seconds that were not theirs, up to 0.3 of the run in all."""
        self.excused = min(self.excused + seconds, MOST_EXCUSED * (self.seconds or 0.0))

    @property
    def elapsed(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self.began

    @property
    def is_short(self) -> bool:
        """Whether there is no time to compile an exploration: one local kernel draws, and nothing checks it."""
        return self.seconds is not None and self.seconds < SHORT

    @property
    def is_unlimited(self) -> bool:
        """Whether there is no limit at all."""
        return self.seconds is None and self.evaluations is None

    @property
    def is_over(self) -> bool:
        """Whether drawing must end; what is left of the seconds is for comparing."""
        is_late = self.seconds is not None and self.elapsed >= (1.0 - COMPARING) * self.seconds
        return is_late or (self.evaluations is not None and sum(self.spent.values()) >= self.evaluations)

    @property
    def is_half_gone(self) -> bool:
        """Whether burn-in must end so that drawing gets its part."""
        return self.seconds is not None and self.elapsed > HALF * self.seconds

    @property
    def total_left(self) -> float:
        """Evaluations left to the whole run."""
        return float("inf") if self.evaluations is None else max(self.evaluations - sum(self.spent.values()), 0.0)

    @property
    def total_seconds_left(self) -> float | None:
        """Seconds left to the whole run."""
        return None if self.seconds is None else max(self.seconds - self.elapsed, 0.0)

    def seconds_left(self, phase: str) -> float | None:
        """Seconds until this phase must end."""
        if self.seconds is None:
            return None
        exploring = SHARES["exploration"] * self.seconds
        seconds, share = ENOUGH["cpu" if jax.default_backend() == "cpu" else "accelerator"]
        spared = exploring - min(exploring, max(seconds, share * self.seconds))
        given_back = {"adaptation": 0.5 * spared, "exploration": spared, "local trial": spared}.get(phase, 0.0)
        return max(SHARES[phase] * self.seconds - given_back + self.excused - self.elapsed, 0.0)

    def evaluations_left(self, phase: str) -> float | None:
        """Evaluations this phase may still use."""
        if self.evaluations is None:
            return None
        return max(SHARES[phase] * self.evaluations - sum(self.spent.values()), 0.0)

    def is_spent(self, phase: str) -> bool:
        """Whether this phase must end."""
        return self.seconds_left(phase) == 0.0 or self.evaluations_left(phase) == 0.0
