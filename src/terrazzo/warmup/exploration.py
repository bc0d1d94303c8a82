"""Tempered exploration: parallel tempering from overdispersed starts, before anything is learned.

What it finds is used three times: as the draws a transport is trained on, as the starts of half of the chains, and as
evidence from outside the transport against which the final draws are checked (DESIGN section 3, traps 4 and 11).

The ladder's length follows the problem. With rejection rates r_i of neighbours the barrier Lambda = sum_i r_i hardly
depends on the ladder, and configurations travel it fastest with about 2 Lambda + 1 rungs; the first rounds measure
Lambda, and if the first ladder is far off, the rungs are dealt out anew.

Reference: Syed, Bouchard-Cote, Deligiannidis, Doucet (2022), Non-reversible parallel tempering, JRSS B 84.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo import devices, running
from terrazzo.diagnostics import LogZ, ess, rhat
from terrazzo.progress import Progress
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.tempered_runs import ladder_evidence
from terrazzo.samplers.tempering import LEAST_REJECTION, TemperingState, default_ladder
from terrazzo.targets import Target, non_finite_error
from terrazzo.warmup.budget import Budget
from terrazzo.warmup.locals import exploring_kernel

FIRST_RUNGS, MOST_RUNGS = 12, 96
WINDOWS = (8, 16, 32, 64, 64)  # rounds after which the ladder moves; the last ones measure it
BLOCK = 100  # kept rounds between two looks at the ladders
FEWEST = 8  # kept rounds, however little time there is
FEWEST_KEPT = 32  # draws a ladder: with fewer, neither agreement nor log Z can be told
EVEN_BLOCKS = 4  # blocks in which every round is kept; then the thinning doubles with every second block
HELD_OUT_SHARE = 0.2  # of the draws
GOOD_R_HAT = 1.02
GOOD_ESS = 400.0
EXPLORING_SECONDS = 60.0
ROUNDS = {"cpu": (200, 2000), "accelerator": (1000, 12_000)}  # at least, at most
MOST_WATCHED = 128  # coordinates whose agreement is followed while exploring


class Explored(NamedTuple):
    """What exploration found.

    Attributes:
        theta: Cold draws, (ladder, draw, dim).
        log_prob: Their log pi, (ladder, draw).
        log_probs: log pi of every replica, (ladder, draw, replica), hottest first.
        inverse_temperatures: The frozen ladder.
        barrier: The global barrier Lambda.
        evidence: log Z from all replicas; None if there are too few draws, or no rung at infinite temperature.
        kernel: The kernel inside the ladder.
        kernel_options: Its options.
        num_moves: Its steps between swaps.
        num_rounds: Rounds, adaptation included.
        kept_rounds: Rounds that the kept draws stand for (they are thinned).
        num_evaluations: Evaluations of the target by all ladders.
        r_hat: The worst R-hat between ladders.
        seconds: Wall time, compilation included.
        round_seconds: Wall time of one round of all ladders, compiled.
    """

    theta: np.ndarray
    log_prob: np.ndarray
    log_probs: np.ndarray
    inverse_temperatures: np.ndarray
    barrier: float
    evidence: LogZ | None
    kernel: str
    kernel_options: dict[str, Any]
    num_moves: int
    num_rounds: int
    kept_rounds: int
    num_evaluations: int
    r_hat: float
    seconds: float
    round_seconds: float

    @property
    def num_apart(self) -> int:
        """How many draws of each ladder, the latest, are kept from training: what judges a transport."""
        return max(1, round(HELD_OUT_SHARE * self.theta.shape[1]))

    def describe(self) -> dict[str, Any]:
        """What a result keeps of it."""
        return {
            "ladders": self.theta.shape[0], "temperatures": len(self.inverse_temperatures),
            "barrier": round(self.barrier, 2), "kernel": self.kernel, "rounds": self.num_rounds,
            "kept": int(self.theta.shape[1]), "evaluations": self.num_evaluations, "r_hat": self.r_hat,
            "mean_log_prob": float(self.log_prob.mean()), "seconds": round(self.seconds, 2),
            "log_z": None if self.evidence is None else [self.evidence.log_z, self.evidence.standard_error],
        }  # fmt: skip


def default_num_ladders(target: Target) -> int:
    """Independent ladders: few on a CPU, more where they run side by side."""
    if jax.default_backend() == "cpu":
        return 8
    return 32 if target.space.num_dims <= 128 else 16


def deal_rungs(betas: np.ndarray, rejections: np.ndarray, num_rungs: int) -> np.ndarray:
    """A ladder of `num_rungs` on which all pairs would reject equally often.

    >>> deal_rungs(np.array([0.0, 0.5, 1.0]), np.array([0.6, 0.2]), 5).round(3).tolist()
    [0.0, 0.167, 0.333, 0.5, 1.0]
    """
    barrier = np.concatenate([[0.0], np.cumsum(np.maximum(rejections, LEAST_REJECTION))])
    dealt = np.interp(np.linspace(0.0, barrier[-1], num_rungs), barrier, betas)
    return np.concatenate([betas[:1], dealt[1:-1], betas[-1:]])


def mean_rejections(betas: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
    """How often each pair of neighbours would not swap, from log pi of all replicas, (ladder, round, replica).

    >>> mean_rejections(np.array([0.0, 1.0]), np.array([[[1.0, 1.0], [0.0, np.log(2.0)]]])).round(3).tolist()
    [0.25]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = np.diff(betas) * (log_probs[..., :-1] - log_probs[..., 1:])
        rates = np.where(np.isnan(ratio), 0.0, np.exp(np.minimum(ratio, 0.0)))
    return 1.0 - rates.mean(axis=(0, 1))


class _Ladders:
    """The ladders and their loops, in chunks that show progress."""

    def __init__(self, key: Array, target: Target, num_ladders: int, progress: Progress, budget: Budget, num_tied: int):
        self.target, self.progress, self.budget = target, progress, budget
        self.kernel, options, self.num_moves = exploring_kernel(target, num_tied)
        self.spec = REGISTRY["parallel_tempering"]
        chosen = {"kernel": self.kernel, "kernel_options": options, "num_moves": self.num_moves}
        assert self.spec.prepare is not None
        self.options = self.spec.prepare(target, **chosen)
        self.mesh = devices.make_mesh(num_ladders)
        self.start_key, self.init_key, self.adapt_key, self.draw_key = jax.random.split(key, 4)
        self.num_ladders, self.num_rounds, self.num_evaluations, self.round_seconds = num_ladders, 0, 0, np.inf
        self.chunk, self.compiled = 1, 0  # `compiled`: the length of the ladder whose loop is compiled
        self.betas, self.rejections, self.barrier = np.zeros(0), np.zeros(0), 0.0
        self.states: Any = None
        self.best = -np.inf  # log pi of the cold replicas, ever
        self.began, self.compiling = time.perf_counter(), 0.0

    def problem(self, options: dict[str, Any]) -> running.Problem:
        return running.Problem(self.target, None, {**self.options, **options})

    def begin(self, starts: np.ndarray | None) -> None:
        theta = self.target.possible_starts(self.start_key, self.num_ladders) if starts is None else starts
        theta = np.resize(np.asarray(theta), (self.num_ladders, self.target.space.num_dims))
        theta = devices.deal(self.mesh, jnp.asarray(theta, jnp.int32))
        options = {"num_temperatures": FIRST_RUNGS}
        self.states = running.start(self.mesh, self.spec, self.problem(options), {}, self.init_key, theta)

    def adapt(self, betas: np.ndarray) -> None:
        """Moves the ladder, in windows of rounds, until all pairs would reject equally often."""
        for i, window in enumerate(WINDOWS):
            rows = self._rounds(self.adapt_key, betas, self.num_rounds, window, 1, "adaptation", fewest=1)
            self.budget.spend_evaluations("adaptation", int(rows["num_evaluations"].sum(dtype=np.int64)))
            self.rejections = mean_rejections(betas, rows["replica_log_probs"])
            self.barrier = float(self.rejections.sum())
            self.betas = betas
            if i == len(WINDOWS) - 1 or self.budget.is_spent("adaptation"):
                break
            betas = deal_rungs(betas, self.rejections, len(betas))

    def redeal(self) -> bool:
        """Gives a ladder that is too short the length its barrier asks for; every rung starts from the nearest one."""
        wanted = min(int(np.ceil(2 * self.barrier)) + 1, MOST_RUNGS)
        if wanted <= 1.3 * len(self.betas):  # a ladder that is too long costs less than compiling a shorter one
            return False
        betas = deal_rungs(self.betas, self.rejections, wanted)
        nearest = np.abs(betas[:, None] - self.betas[None]).argmin(axis=1)
        old = self.states
        positions, log_probs = old.positions[:, nearest], old.log_probs[:, nearest]
        states = TemperingState(old.position, old.log_prob, positions, log_probs, jnp.zeros_like(old.parity))
        self.states, self.betas = devices.deal(self.mesh, states), betas
        return True

    def _best(self) -> float:
        """The best log pi of the cold replicas; a replica that met NaN or +inf is an error with its configuration."""
        log_probs = np.asarray(self.states.log_probs)
        bad = np.isnan(log_probs) | (log_probs == np.inf)
        if bad.any():
            raise non_finite_error(self.target, np.asarray(self.states.positions)[bad][0])
        self.best = max(self.best, float(log_probs[:, -1].max()))
        return self.best

    def affordable_rounds(self) -> int:
        """As many rounds as a minute holds, within limits; the fewest while none has been timed."""
        low, high = ROUNDS["cpu" if jax.default_backend() == "cpu" else "accelerator"]
        return int(np.clip(EXPLORING_SECONDS / self.round_seconds, low, high))

    def is_over(self, phase: str) -> bool:
        """Whether the budget of a phase is spent, or a minute of exploring where there is no limit."""
        own = time.perf_counter() - self.began - self.compiling
        return self.budget.is_spent(phase) or (self.budget.is_unlimited and own > EXPLORING_SECONDS)

    def draw(self, first: int, count: int, thin: int) -> dict[str, np.ndarray]:
        """`count` kept rounds of the frozen ladder, the first of them the `first`, `thin` rounds each.

        Fewer, but at least `FEWEST`, if the seconds of the exploration are used up.
        """
        key = jax.random.fold_in(self.draw_key, thin)  # steps are counted anew when the thinning changes
        return self._rounds(key, self.betas, first, count, thin, "exploration", fewest=FEWEST - first)

    def _rounds(
        self, key: Array, betas: np.ndarray, first: int, count: int, thin: int, phase: str, *, fewest: int
    ) -> dict[str, np.ndarray]:
        """Kept rounds on a ladder, from number `first` on, in chunks of about a second; at least `fewest`."""
        parameters = {"inverse_temperatures": jnp.asarray(betas, jnp.result_type(float))}
        rows: list[dict[str, np.ndarray]] = []
        done = 0
        # With a budget in evaluations, spent between calls alone, the number of rounds does not depend on chunks.
        while done < (wanted := max(1, fewest) if self.is_over(phase) else count):
            is_first = len(betas) != self.compiled
            size = 1 if is_first else min(self.chunk, wanted - done)
            tick = time.perf_counter()
            self.states, out = running.draw.briefly(
                self.mesh, self.spec, self.problem({}), BLOCK, False, parameters, key,
                jnp.asarray(first + done, jnp.int32), jnp.asarray(size, jnp.int32), jnp.asarray(thin, jnp.int32),
                self.states,
            )  # fmt: skip
            rows.append({name: np.asarray(x[:size]) for name, x in out.items()})
            elapsed = time.perf_counter() - tick
            self.chunk = running.next_chunk(size, elapsed, is_first=is_first)
            self.compiled = len(betas)
            if is_first:
                self.budget.excuse(elapsed)
                self.compiling += elapsed
            else:
                self.round_seconds = min(self.round_seconds, elapsed / (size * thin))
            done += size
            self.num_rounds += size * thin
            self.progress.update(self.num_rounds, best_log_prob=self._best(), temperatures=len(betas))
        joined = {name: np.moveaxis(np.concatenate([r[name] for r in rows]), 0, 1) for name in rows[0]}
        self.num_evaluations += int(joined["num_evaluations"].sum(dtype=np.int64))
        return joined


def worst_agreement(theta: np.ndarray, log_prob: np.ndarray) -> tuple[float, float]:
    """The worst R-hat and the least ESS of log pi and of coordinates that moved, at most 128 of them."""
    some = np.linspace(0, theta.shape[-1] - 1, min(theta.shape[-1], MOST_WATCHED)).astype(int)
    series = np.concatenate([theta[..., some].astype(float), log_prob[..., None]], axis=-1)
    series = series[..., np.ptp(series, axis=(0, 1)) > 0]
    if not series.shape[-1]:
        return 1.0, float(log_prob.size)
    return float(np.nanmax(rhat(series))), float(np.nanmin(ess(series)))


def explore(
    key: Array,
    target: Target,
    *,
    budget: Budget,
    progress: Progress,
    num_ladders: int | None = None,
    max_rounds: int | None = None,
    starts: np.ndarray | None = None,
    num_tied: int = 0,
) -> Explored:
    """Parallel tempering until the ladders agree, or the rounds or the budget are spent.

    Args:
        key: A JAX key.
        target: The target.
        budget: What warm-up may spend.
        progress: Its current phase is updated.
        num_ladders: Independent ladders; 8 on a CPU, more on an accelerator.
        max_rounds: The most rounds after adaptation; by default what a minute holds, within limits.
        starts: Where the ladders start, (start, dim), by turns; uniform over the possible configurations if None.
        num_tied: How many sites must change together, if single sites are cut off.

    Returns:
        An `Explored`. The number of rounds depends on the draws and the budget alone, not on timings, unless the
        budget is in seconds.
    """
    began = time.perf_counter()
    ladders = _Ladders(key, target, num_ladders or default_num_ladders(target), progress, budget, num_tied)
    budget.excuse(budget.elapsed)
    phase = progress.phase("exploring", None, "rounds")
    ladders.begin(starts)
    ladders.adapt(default_ladder(FIRST_RUNGS))
    if ladders.redeal() and not budget.is_spent("adaptation"):
        ladders.adapt(ladders.betas)
    most = ladders.affordable_rounds() if max_rounds is None else max_rounds
    phase.total = ladders.num_rounds + most
    blocks: list[dict[str, np.ndarray]] = []
    r_hat = np.inf
    thins: list[int] = []
    while sum(thins) * BLOCK < most:
        thins.append(2 ** (max(0, len(blocks) - EVEN_BLOCKS + 2) // 2))
        left = most - sum(thins[:-1]) * BLOCK
        blocks.append(ladders.draw(len(blocks) * BLOCK, min(BLOCK, -(-left // thins[-1])), thins[-1]))
        budget.spend_evaluations("exploration", int(blocks[-1]["num_evaluations"].sum(dtype=np.int64)))
        kept = blocks[len(blocks) // 3 :]  # the first third may still carry the starts
        joined = {name: np.concatenate([b[name] for b in kept], axis=1) for name in kept[0]}
        if len(blocks) < 3:  # the same, within a block
            first = joined["log_prob"].shape[1] // 3
            joined = {name: values[:, first:] for name, values in joined.items()}
        r_hat, least = worst_agreement(joined["theta"], joined["log_prob"])
        progress.update(ladders.num_rounds, worst_r_hat=r_hat)
        if (r_hat < GOOD_R_HAT and least > GOOD_ESS) or ladders.is_over("exploration"):
            break
    kept_rounds = sum(t * b["log_prob"].shape[1] for t, b in zip(thins[-len(kept) :], kept, strict=True))
    kept_rounds = min(kept_rounds, max(thins) * joined["log_prob"].shape[1])
    evidence = None
    if joined["log_prob"].shape[1] >= FEWEST_KEPT:
        evidence = ladder_evidence(jax.random.fold_in(key, 1), target, joined["replica_log_probs"], ladders.betas)
    return Explored(
        joined["theta"], joined["log_prob"], joined["replica_log_probs"], ladders.betas, ladders.barrier, evidence,
        ladders.kernel, ladders.options["kernel_options"], ladders.num_moves, ladders.num_rounds,
        kept_rounds, ladders.num_evaluations, r_hat,
        time.perf_counter() - began, ladders.round_seconds,
    )  # fmt: skip
