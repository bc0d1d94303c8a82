"""Which sampler draws on a mixed space: decisions over a table of what short trials measured.

The run's own chains are `collapsed` where the discrete variables can be summed out, else `blocked`. Tempered ladders
run beside them in any case, to check them. A transport is learned from the ladders' draws where the own chains are
apart, or so slow that it can pay; jumps through it (`hybrid`) are tried too, and the sampler that is worth most draws.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from terrazzo.auto import CPU, Policy
from terrazzo.diagnostics import ess, rhat

REASONS = {
    "collapsed": "the discrete variables can be summed out at all reals",
    "blocked": "summing out the discrete variables is impossible or expensive: they and the reals are moved in turn",
    "tempered": "short trials of other chains disagreed, or were worth less",
    "hybrid": "short trials of local moves disagreed, or were worth less than jumps through a learned transport",
}


class Tried(NamedTuple):
    """What a trial measured.

    Attributes:
        name: The sampler.
        ess: The fewest effective draws of a coordinate, in all chains together.
        r_hat: The worst R-hat.
        num_chains: Chains.
        num_draws: Draws a chain.
        step_seconds: Seconds of one draw of all chains.
    """

    name: str
    ess: float
    r_hat: float
    num_chains: int
    num_draws: int
    step_seconds: float

    @property
    def worth(self) -> float:
        """Effective draws a second."""
        return self.ess / (self.num_draws * self.step_seconds)

    @property
    def gap(self) -> float:
        """Steps between draws that are nearly independent."""
        return max(1.0, self.num_chains * self.num_draws / max(self.ess, 1.0))

    def describe(self) -> dict[str, Any]:
        """What a result keeps of it."""
        return {
            "candidate": self.name, "ess": round(self.ess, 1), "round_ms": round(1e3 * self.step_seconds, 4),
            "ess_per_second": round(self.worth, 2), "r_hat": round(self.r_hat, 3),
        }  # fmt: skip


def tried(name: str, theta: np.ndarray, reals: np.ndarray, step_seconds: float) -> Tried:
    """What draws, (chain, draw, ...), say of their sampler."""
    both = np.concatenate([theta.astype(float), reals], axis=-1)
    least = float(np.nanmin([float(both.shape[0] * both.shape[1]), *np.ravel(ess(both))]))
    worst = float(np.nanmax([1.0, *np.ravel(rhat(both))]))
    return Tried(name, least, worst, both.shape[0], both.shape[1], step_seconds)


def is_apart(row: Tried, policy: Policy = CPU) -> bool:
    """Whether chains disagree as separate modes make them.

    Chains that only mix slowly disagree too, and have more effective draws: they need more steps.
    """
    return row.r_hat > policy.mixed.apart_r_hat and row.ess <= policy.mixed.stuck_ess * row.num_chains


def needed_seconds(row: Tried, num_draws: int, policy: Policy = CPU) -> float:
    """What the draws take that are asked for, or until enough of them are effective."""
    wanted = min(float(num_draws), policy.enough_ess) * row.num_chains
    return max(wanted / max(row.worth, 1e-9), num_draws * row.step_seconds)


def can_pay(own: Tried, num_draws: int, policy: Policy = CPU) -> bool:
    """Whether a transport may be worth its learning: chains are apart, or need longer than learning takes."""
    return is_apart(own, policy) or needed_seconds(own, num_draws, policy) > policy.learning_seconds


def choose(own: Tried, ladders: Tried, hybrid: Tried | None, policy: Policy = CPU) -> Tried:
    """The sampler that draws.

    Without a transport that was tried, ladders draw only where the own chains are apart and ladders agree better:
    else they are the one source that the draws can be checked by. With one, what is worth most of all that met.
    """
    if hybrid is None:
        return ladders if is_apart(own, policy) and ladders.r_hat < own.r_hat else own
    rows = (own, hybrid, ladders)
    met = [row for row in rows if not is_apart(row, policy)]
    return max(met, key=lambda row: row.worth) if met else min(rows, key=lambda row: row.r_hat)


def thinning(row: Tried, num_draws: int, seconds: float, before: float) -> int:
    """Steps a kept draw: the most effective draws a second of the whole run, as far as the seconds for drawing reach.

    Draws with autocorrelations r^t have (1 + r) / (1 - r) = `gap`, so that with k steps between them
    (1 - r^k) / (1 + r^k) of them are effective. More steps pay for as long as what came before took longer.

    Args:
        row: What a trial measured.
        num_draws: Kept draws a chain.
        seconds: What drawing may take.
        before: What the run took until now.
    """
    each = max(num_draws * row.step_seconds, 1e-9)
    most = max(1, int(min(seconds / each, 4 * row.gap)))  # at four gaps all but one in a thousand are effective
    steps = np.arange(1, most + 1)
    left = ((row.gap - 1.0) / (row.gap + 1.0)) ** steps
    return int(steps[np.argmax((1.0 - left) / (1.0 + left) / (before + steps * each))])


def described(name: str, rows: Sequence[dict[str, Any]], *, is_explored: bool) -> dict[str, Any]:
    """What the default chose, why, and from what, as a result writes it down."""
    found = {"choice": {"chosen": name, "reason": REASONS[name], "trial": list(rows)}}
    return {"chosen": name, **({"warm-up": found} if is_explored else {})}
