"""Learning a transport from what exploration found.

Two stages, both gradient-free in log pi. First maximum likelihood on the tempered draws, which places mass on every
mode they cover; then the score-function reverse KL, with a little of the first beside it:

    L = w KL(pi || q) + (1 - w) KL(q || pi),   w = 0.1.

The second stage corrects what a finite set of correlated draws cannot tell, and the forward part keeps it from letting
go of a mode (DESIGN section 3, trap 4): log q of a mode that fades falls without bound. Both are judged on draws kept
apart, the later ones of each ladder; a stage ends by itself when it stops improving there. The second also ends when
its progress foretells that jumps will be worth less than moves without a transport (`prospect`).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.errors import TrainingError
from terrazzo.progress import Progress
from terrazzo.targets import Target
from terrazzo.training import Fitted, fit, forward_kl, reverse_kl
from terrazzo.transports import AbstractTransport
from terrazzo.warmup.budget import Budget
from terrazzo.warmup.exploration import Explored
from terrazzo.warmup.prospect import Rival, can_pay

FORWARD_SHARE = 0.2  # of the steps
FORWARD_PATIENCE = 1  # checks: on a finite set of draws the held-out likelihood soon turns, and then only falls
ENOUGH_IS_ESS = 0.95  # a transport this good gains nothing from more training
FORWARD_WEIGHT = 0.1
MAX_BUFFER = 2**17
NUM_CHECKS = 32  # of a stage, at least
FEWEST_CHECKS = 3  # that foretell anything
CANNOT_PAY = "cannot pay"


class Learned(NamedTuple):
    """A trained transport, the curves of both stages one after the other, and why each stage ended."""

    transport: Any
    history: dict[str, np.ndarray]
    summary: dict[str, Any]

    @property
    def is_given_up(self) -> bool:
        """Whether training ended because the transport would not have paid."""
        return any(stage["reason"] == CANNOT_PAY for stage in self.summary["stages"])


def default_training(num_dims: int) -> dict[str, Any]:
    """Steps and batch that suit the device and the dimension: a step costs d network passes, one after the other."""
    if jax.default_backend() == "cpu":
        steps = int(np.clip(64_000 // num_dims, 600, 2000))
        return {"num_steps": steps, "batch_size": 128, "patience": 3, "learning_rate": 2e-3}
    steps = int(np.clip(768_000 // num_dims, 3000, 12_000))
    return {"num_steps": steps, "batch_size": 4096, "patience": 6, "learning_rate": 2e-3}


def learn(
    key: Array,
    transport: AbstractTransport,
    target: Target,
    explored: Explored,
    *,
    budget: Budget,
    progress: Progress,
    settings: Mapping[str, Any],
    rival: Rival | None = None,
) -> Learned:
    """Trains `transport` on the tempered draws, then on them and the target together.

    Args:
        key: A JAX key.
        transport: Where to start from.
        target: The target.
        explored: The tempered draws.
        budget: What warm-up may spend.
        progress: Where the stages show.
        settings: Options of `tz.fit`.
        rival: What the transport competes with: one that will not be worth more is given up. None trains whatever
            comes.
    """
    began = time.perf_counter()
    chosen = {**default_training(target.space.num_dims), **settings}
    num_steps = int(chosen.pop("num_steps"))
    buffer, apart = _flat(explored.theta[:, : -explored.num_apart]), _flat(explored.theta[:, -explored.num_apart :])
    reverse = reverse_kl("score_function")
    first_steps = max(1, int(FORWARD_SHARE * num_steps))
    stages = [
        ("learning from the draws", forward_kl(buffer), forward_kl(apart), first_steps),
        ("learning from the target", forward_kl(buffer, weight=FORWARD_WEIGHT, reverse=reverse),
         forward_kl(apart, weight=0.5, reverse=reverse), max(1, num_steps - first_steps)),
    ]  # fmt: skip
    fits: list[Fitted] = []
    summary: dict[str, Any] = {"stages": []}
    step_seconds = float("inf")
    for i, (name, objective, checked, steps) in enumerate(stages):
        if fits and budget.is_spent("training"):
            break
        progress.phase(name, steps, "steps")
        check_every = max(1, min(100, steps // NUM_CHECKS))
        watch = _Watch(
            explored, budget, steps, int(chosen["batch_size"]), rival if i else None, step_seconds,
        )  # fmt: skip
        try:
            fitted = fit(
                jax.random.fold_in(key, i), transport, target, objective=objective, check_objective=checked,
                num_steps=steps, enough_is_ess=ENOUGH_IS_ESS if i else None,
                check_first=watch.rival is not None, should_stop=watch, progress=progress,
                **{"check_every": check_every, **chosen, **({} if i else {"patience": FORWARD_PATIENCE})},
            )  # fmt: skip
        except TrainingError as error:
            summary["stages"].append({"name": name, "reason": str(error).splitlines()[0]})
            break
        budget.spend_evaluations("training", fitted.num_steps * chosen["batch_size"] if i else 0)
        transport = fitted.transport
        fits.append(fitted)
        step_seconds = watch.step_seconds  # a step of the first stage takes no longer than one of the second
        reached = [(max(step, 1), value) for step, value in fitted.best_check]  # nothing is left to come
        reason = fitted.reason if watch.can_pay(reached, fitted.num_steps) else CANNOT_PAY
        summary["stages"].append(
            {"name": name, "num_steps": fitted.num_steps, "reason": reason, "seconds": round(fitted.seconds, 2)}
        )
    summary["num_steps"] = sum(f.num_steps for f in fits)
    summary["seconds"] = time.perf_counter() - began
    names = fits[0].history if fits else {}
    history = {name: np.concatenate([f.history[name] for f in fits]) for name in names}
    return Learned(transport, history, summary)


class _Watch:
    """Ends a stage when its budget is spent, or when it cannot pay any more."""

    def __init__(
        self, explored: Explored, budget: Budget, num_steps: int, batch_size: int, rival: Rival | None,
        least_seconds: float,
    ):  # fmt: skip
        self.budget, self.num_steps, self.batch_size, self.rival = budget, num_steps, batch_size, rival
        self.mean_log_prob = float(explored.log_prob[:, -explored.num_apart :].mean())
        self.least_seconds = least_seconds
        self.first: tuple[float, int] | None = None
        self.num_checks, self.measured = 0, float("inf")

    def __call__(self, checks: Sequence[tuple[int, float]], step: int) -> str | None:
        if self.budget.is_spent("training"):
            return "budget"
        now = time.perf_counter()
        if self.first is None and step > 0:  # the first steps compile
            self.first = (now, step)
        elif self.first is not None and step > self.first[1]:
            self.measured = (now - self.first[0]) / (step - self.first[1])
        is_enough = step == 0 or len([check for check in checks if check[0] > 0]) >= FEWEST_CHECKS
        if len(checks) == self.num_checks or not is_enough:
            return None
        self.num_checks = len(checks)
        last_step, left = self.num_steps, self.budget.seconds_left("training")
        if left is not None and np.isfinite(self.step_seconds):
            last_step = min(last_step, step + int(left / self.step_seconds))
        return None if self.can_pay(checks, last_step) else CANNOT_PAY

    @property
    def step_seconds(self) -> float:
        """Seconds of a step of this stage, or what it takes at least while none has been timed."""
        return self.measured if np.isfinite(self.measured) else self.least_seconds

    def can_pay(self, checks: Sequence[tuple[int, float]], last_step: int) -> bool:
        """Whether a transport with these checks could earn something if it were trained up to `last_step`."""
        if self.rival is None or not checks or not np.isfinite(self.step_seconds):
            return True
        return can_pay(
            [(step, 2.0 * value + self.mean_log_prob) for step, value in checks], self.rival, last_step=last_step,
            batch_size=self.batch_size, step_seconds=self.step_seconds, seconds_left=self.budget.total_seconds_left,
        )  # fmt: skip


def _flat(theta: np.ndarray) -> np.ndarray:
    """Draws of all ladders as one list, evenly thinned to what a buffer holds."""
    rows = theta.reshape(-1, theta.shape[-1])
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), MAX_BUFFER)).astype(int)].astype(np.int32)
