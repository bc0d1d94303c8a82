"""Learning a transport from what exploration found.

Two stages, both gradient-free in log pi. First maximum likelihood on the tempered draws, which places mass on every
mode they cover; then the score-function reverse KL, with a little of the first beside it:

    L = w KL(pi || q) + (1 - w) KL(q || pi),   w = 0.1.

The second stage corrects what a finite set of correlated draws cannot tell, and the forward part keeps it from letting
go of a mode (docs/theory.md, trap 4): log q of a mode that fades falls without bound. Both are judged on draws kept
apart, the later ones of each ladder; a stage ends by itself when it stops improving there. The second also ends when
its progress predicts that jumps will be worth less than moves without a transport (`forecast`).
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.auto.budget import Budget
from terrazzo.auto.context import Context
from terrazzo.auto.exploration import Explored
from terrazzo.auto.forecast import Rival, can_pay
from terrazzo.auto.policy import Policy
from terrazzo.errors import TrainingError
from terrazzo.training import Fitted, fit, forward_kl, reverse_kl
from terrazzo.transports import AbstractTransport

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


def default_training(num_dims: int, policy: Policy) -> dict[str, Any]:
    """Steps and batch that suit the device and the dimension: a step costs d network passes, one after the other."""
    steps = int(np.clip(policy.training_work // num_dims, policy.least_steps, policy.most_steps))
    return {
        "num_steps": steps, "batch_size": policy.batch_size, "patience": policy.patience,
        "learning_rate": policy.learning_rate, "start_beta": policy.start_beta,
    }  # fmt: skip


class _Stage(NamedTuple):
    """One stage of training.

    Attributes:
        name: What it is called.
        objective: What it minimises.
        checked: What is evaluated on the draws kept apart.
        num_steps: Its steps.
        rival: What ends it if it cannot pay; None if nothing does.
        options: Further options of `tz.fit`.
    """

    name: str
    objective: Any
    checked: Any
    num_steps: int
    rival: Rival | None
    options: dict[str, Any]


def _stages(explored: Explored, num_steps: int, rival: Rival | None, policy: Policy) -> tuple[_Stage, _Stage]:
    buffer = _flat(explored.theta[:, : -explored.num_apart], policy.most_buffered)
    apart = _flat(explored.theta[:, -explored.num_apart :], policy.most_buffered)
    reverse, first = reverse_kl("score_function"), max(1, int(policy.forward_share * num_steps))
    return (
        _Stage(
            name="learning from the draws", objective=forward_kl(buffer), checked=forward_kl(apart), num_steps=first,
            rival=None, options={"patience": policy.forward_patience},
        ),
        _Stage(
            name="learning from the target",
            objective=forward_kl(buffer, weight=policy.forward_weight, reverse=reverse),
            checked=forward_kl(apart, weight=0.5, reverse=reverse), num_steps=max(1, num_steps - first), rival=rival,
            options={"enough_is_ess": policy.enough_is_ess, "check_first": rival is not None},
        ),
    )  # fmt: skip


def learn(
    key: Array,
    transport: AbstractTransport,
    explored: Explored,
    context: Context,
    *,
    settings: Mapping[str, Any],
    rival: Rival | None = None,
) -> Learned:
    """Trains `transport` on the tempered draws, then on them and the target together.

    Args:
        key: A JAX key.
        transport: Where to start from.
        explored: The tempered draws.
        context: The run.
        settings: Options of `tz.fit`.
        rival: What the transport competes with: one that will not be worth more is given up. None trains whatever
            comes.
    """
    began, policy, budget = time.perf_counter(), context.policy, context.budget
    chosen = {**default_training(context.target.space.num_dims, policy), **settings}
    num_steps = int(chosen.pop("num_steps"))
    mean_log_prob = float(explored.log_prob[:, -explored.num_apart :].mean())
    fits: list[Fitted] = []
    summary: dict[str, Any] = {"stages": []}
    step_seconds = float("inf")
    for i, stage in enumerate(_stages(explored, num_steps, rival, policy)):
        if fits and budget.is_spent("training"):
            break
        context.progress.phase(stage.name, stage.num_steps, "steps")
        watch = _Watch(stage, mean_log_prob, int(chosen["batch_size"]), step_seconds, budget)
        check_every = max(1, min(policy.longest_check, stage.num_steps // policy.checks))
        try:
            fitted = fit(
                jax.random.fold_in(key, i), transport, context.target, objective=stage.objective,
                check_objective=stage.checked, num_steps=stage.num_steps, should_stop=watch,
                progress=context.progress, **{"check_every": check_every, **chosen, **stage.options},
            )  # fmt: skip
        except TrainingError as error:
            summary["stages"].append({"name": stage.name, "reason": str(error).splitlines()[0]})
            break
        budget.spend_evaluations("training", fitted.num_steps * int(chosen["batch_size"]) if i else 0)
        transport, step_seconds = fitted.transport, watch.step_seconds  # a step of the first stage takes no longer
        fits.append(fitted)
        reached = [(max(step, 1), value) for step, value in fitted.best_check]  # nothing is left to come
        reason = fitted.reason if watch.can_pay(reached, fitted.num_steps) else CANNOT_PAY
        summary["stages"].append(
            {"name": stage.name, "num_steps": fitted.num_steps, "reason": reason, "seconds": round(fitted.seconds, 2)}
        )
    summary["num_steps"] = sum(f.num_steps for f in fits)
    summary["seconds"] = time.perf_counter() - began
    names = fits[0].history if fits else {}
    history = {name: np.concatenate([f.history[name] for f in fits]) for name in names}
    return Learned(transport, history, summary)


class _Watch:
    """Ends a stage when its budget is spent, or when it cannot pay any more, and times its steps."""

    def __init__(self, stage: _Stage, mean_log_prob: float, batch_size: int, least_seconds: float, budget: Budget):
        self.stage, self.mean_log_prob, self.batch_size, self.budget = stage, mean_log_prob, batch_size, budget
        self.step_seconds = least_seconds  # of this stage once it is timed, before that what it takes at least
        self.first: tuple[float, int] | None = None
        self.num_checks = 0

    def __call__(self, checks: Sequence[tuple[int, float]], step: int) -> str | None:
        if self.budget.is_spent("training"):
            return "budget"
        now = time.perf_counter()
        if self.first is None and step > 0:  # the first steps compile
            self.first = (now, step)
        elif self.first is not None and step > self.first[1]:
            self.step_seconds = (now - self.first[0]) / (step - self.first[1])
        is_enough = step == 0 or len([c for c in checks if c[0] > 0]) >= self.budget.policy.fewest_checks
        if len(checks) == self.num_checks or not is_enough:
            return None
        self.num_checks = len(checks)
        last_step, left = self.stage.num_steps, self.budget.seconds_left("training")
        if left is not None and np.isfinite(self.step_seconds):
            last_step = min(last_step, step + int(left / self.step_seconds))
        return None if self.can_pay(checks, last_step) else CANNOT_PAY

    def can_pay(self, checks: Sequence[tuple[int, float]], last_step: int) -> bool:
        """Whether a transport with these checks could earn something if it were trained up to `last_step`."""
        if self.stage.rival is None or not checks or not np.isfinite(self.step_seconds):
            return True
        return can_pay(
            [(step, 2.0 * value + self.mean_log_prob) for step, value in checks], self.stage.rival,
            last_step=last_step, batch_size=self.batch_size, step_seconds=self.step_seconds,
            seconds_left=self.budget.total_seconds_left, policy=self.budget.policy,
        )  # fmt: skip


def _flat(theta: np.ndarray, most: int) -> np.ndarray:
    """Draws of all ladders as one list, evenly thinned to what a buffer holds."""
    rows = theta.reshape(-1, theta.shape[-1])
    return rows[np.linspace(0, len(rows) - 1, min(len(rows), most)).astype(int)].astype(np.int32)
