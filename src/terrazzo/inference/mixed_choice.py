"""Which sampler draws on a mixed space: decisions over a table of what short trials measured.

The run's own chains are `collapsed` where the discrete variables can be summed out, else `blocked`. Tempered ladders
run beside them in any case, to check them. A transport is learned from the ladders' draws where the own chains are
apart, or so slow that it can pay; jumps through it (`hybrid`) are tried too, and the sampler that is worth most draws.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from terrazzo.auto import Policy
from terrazzo.diagnostics import ess, rhat

TRIAL_DRAWS, TRIAL_R_HAT = 100, 1.1  # chains that disagree, by the rule of Gelman & Rubin (1992)
STUCK_ESS = 3.0  # effective draws a chain: of 100 draws in two modes 4 to 12 standard deviations apart, 1.6 to 3.0
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
    def is_apart(self) -> bool:
        """Whether chains disagree as separate modes make them.

        Chains that only mix slowly disagree too, and have more effective draws: they need more steps.
        """
        return self.r_hat > TRIAL_R_HAT and self.ess <= STUCK_ESS * self.num_chains

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


def needed_seconds(row: Tried, num_draws: int, policy: Policy) -> float:
    """What the draws take that are asked for, or until enough of them are effective."""
    wanted = min(float(num_draws), policy.enough_ess) * row.num_chains
    return max(wanted / max(row.worth, 1e-9), num_draws * row.step_seconds)


def can_pay(own: Tried, num_draws: int, policy: Policy) -> bool:
    """Whether a transport may be worth its learning: chains are apart, or need longer than learning takes."""
    return own.is_apart or needed_seconds(own, num_draws, policy) > policy.learning_seconds


def choose(own: Tried, ladders: Tried, hybrid: Tried | None) -> Tried:
    """The sampler that draws.

    Without a transport that was tried, ladders draw only where the own chains are apart and ladders agree better:
    else they are the one source that the draws can be checked by. With one, what is worth most of all that met.
    """
    if hybrid is None:
        return ladders if own.is_apart and ladders.r_hat < own.r_hat else own
    rows = (own, hybrid, ladders)
    met = [row for row in rows if not row.is_apart]
    return max(met, key=lambda row: row.worth) if met else min(rows, key=lambda row: row.r_hat)


def thinning(row: Tried, num_draws: int, seconds: float) -> int:
    """Steps a kept draw: until draws are nearly independent, as far as the seconds for drawing reach."""
    return max(1, round(min(row.gap, seconds / max(num_draws * row.step_seconds, 1e-9))))


def described(name: str, rows: Sequence[dict[str, Any]], *, is_explored: bool) -> dict[str, Any]:
    """What the default chose, why, and from what, as a result writes it down."""
    found = {"choice": {"chosen": name, "reason": REASONS[name], "trial": list(rows)}}
    return {"chosen": name, **({"warm-up": found} if is_explored else {})}
