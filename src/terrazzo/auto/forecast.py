"""Whether a transport, or more training of it, can pay: predictions from a few numbers.

Held-out draws of both sides give the Jeffreys divergence of the transport q from pi, in which log Z cancels:

    J = KL(pi || q) + KL(q || pi) = E_pi[log pi - log q] + E_q[log q - log pi].

If log weights were normal with variance s^2, each part would be s^2 / 2, so J = s^2, and an independence move would be
accepted with probability erfc(sqrt(J) / 2). In truth a few draws far out make about half of J (on Iris, at J = 7.1,
0.157 of the moves were accepted, where normal weights have 0.059), so that J / 2 describes the bulk: 0.62 at J = 1,
0.26 at 5, 0.012 at 25, 6e-7 at 100. Along training J falls about as a power of the steps. So a few checks predict, with
some optimism, the acceptance that the last step would reach, and with the cost of a draw the effective draws a second
that jumps could be worth: at most

    acceptance * batch size / seconds of a training step,

because a training step draws a batch too. Where that is below what moves without a transport were measured to be worth,
and the acceptance too low for the transport to be of use for anything else (evidence, checks), training ends. In
limited time it also ends where local moves, whose chains have met, are worth more: such use is then not paid for.

Some transports need no check. Where the draws that were asked for take less time than learning would, there is nothing
to save. And a step of the hybrid is a jump and at least one local move: it costs more than that move, and where that
move alone already draws independently, it brings nothing.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from terrazzo.auto.policy import CPU, Policy


class Rival(NamedTuple):
    """What a transport competes with.

    Attributes:
        worth: Effective draws a second of moves without a transport; 0 if no chains have met without one.
        least: Effective draws that jumps must bring in all, or chains cannot meet by them either.
        local_worth: The same as `worth`, of local moves alone.
        gap: Steps between independent draws by one move of the local kernel that jumps would be added to; infinite
            if it was not tried alone, or its chains have not met.
        seconds: What the draws that were asked for take without a transport; infinite if no chains have met.
    """

    worth: float
    least: float
    local_worth: float = 0.0
    gap: float = float("inf")
    seconds: float = float("inf")


def expected_acceptance(divergence: float, policy: Policy = CPU) -> float:
    """The acceptance of an independence move at a Jeffreys divergence, half of which is a few draws' alone.

    >>> [round(expected_acceptance(j), 3) for j in (0.0, 1.0, 5.0)]
    [1.0, 0.617, 0.264]
    """
    return math.erfc(math.sqrt(max(policy.bulk * divergence, 0.0)) / 2)


def predicted_divergence(checks: Sequence[tuple[int, float]], last_step: int, policy: Policy = CPU) -> float:
    """The divergence at `last_step`, continued as a power of the steps from the checks (step, divergence).

    Of several checks the best one so far counts, since each has its noise. The power is twice that between the last
    check and the one nearest half its steps; the divergence never grows. From a check before the first step alone, it
    is what the first steps were seen to do.

    >>> predicted_divergence([(100, 40.0), (200, 20.0)], 400), round(predicted_divergence([(0, 120.0)], 160), 1)
    (5.0, 26.4)
    >>> predicted_divergence([(100, 40.0), (190, 20.0), (200, 21.0)], 400)
    5.0
    """
    step, now = checks[-1]
    if step == 0:
        steps = max(last_step / policy.first_steps, 1.0)
        return 0.0 if last_step >= policy.many_steps else max(now, 0.0) / policy.first_fall * steps**-policy.first_power
    steps_taken = [check[0] for check in checks if check[0] > 0]
    best = np.minimum.accumulate([check[1] for check in checks if check[0] > 0])
    checks = list(zip(steps_taken, best.tolist(), strict=True))
    step, now = checks[-1]
    if now <= 0.0 or len(checks) == 1 or last_step <= step:
        return max(now, 0.0)
    before = min(checks[:-1], key=lambda check: abs(check[0] - step / 2))
    power = max(math.log(max(before[1], now) / now) / math.log(step / before[0]), 0.0)
    return now * (last_step / step) ** -(policy.optimism * power)


def has_nothing_to_bring(rival: Rival, policy: Policy = CPU) -> bool:
    """Whether a transport would only cost.

    >>> has_nothing_to_bring(Rival(4000.0, 64.0, 4000.0, gap=1.0)), has_nothing_to_bring(Rival(9.0, 64.0, seconds=2.0))
    (True, True)
    >>> has_nothing_to_bring(Rival(9.0, 64.0, 9.0, gap=30.0, seconds=400.0))
    False
    """
    return rival.gap <= policy.independent_gap or rival.seconds <= policy.learning_seconds


def can_pay(
    checks: Sequence[tuple[int, float]],
    rival: Rival,
    *,
    last_step: int,
    batch_size: int,
    step_seconds: float,
    seconds_left: float | None,
    policy: Policy = CPU,
) -> bool:
    """Whether training up to `last_step` could leave more effective draws than stopping now.

    Args:
        checks: (step, Jeffreys divergence).
        rival: What the transport competes with.
        last_step: The step at which training ends by itself or by its budget.
        batch_size: Draws a step.
        step_seconds: Seconds a step.
        seconds_left: Seconds that drawing has if training ends now; None without a limit, and then a minute of drawing
            is looked at, and training costs nothing.
        policy: The numbers that decide.

    >>> costs = {"last_step": 800, "batch_size": 128, "step_seconds": 0.1, "seconds_left": 100.0}
    >>> can_pay([(50, 150.0), (100, 140.0), (200, 130.0)], Rival(worth=10.0, least=32.0), **costs)
    False
    >>> can_pay([(50, 60.0), (100, 40.0), (200, 20.0)], Rival(worth=10.0, least=32.0), **costs)
    True
    >>> can_pay([(50, 3.0), (100, 2.0), (200, 1.0)], Rival(2000.0, least=32.0, local_worth=2000.0), **costs)
    False
    """
    acceptance = expected_acceptance(predicted_divergence(checks, last_step, policy), policy)
    now = policy.phase_seconds if seconds_left is None else seconds_left
    after = now if seconds_left is None else max(now - (last_step - checks[-1][0]) * step_seconds, 0.0)
    draws = acceptance * batch_size / step_seconds * after
    if acceptance >= policy.low_acceptance:
        return seconds_left is None or draws > rival.local_worth * now
    return draws > max(rival.worth * now, rival.least)
