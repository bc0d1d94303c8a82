"""The trial: what each way of moving is worth, in effective draws a second, measured on the chains themselves.

All candidates start from the tempered draws, so that one which cannot travel between modes is seen to fail: its chains
keep disagreeing, and the effective sample size over all chains collapses. The worth of a candidate is

    least ESS of log pi and of (all but 5 % of) the coordinates / seconds,

and the best one is frozen: the hybrid sampler with some number of local moves, local moves alone (then the transport
is switched off), or parallel tempering as in the exploration.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from terrazzo import devices, running
from terrazzo.diagnostics import ess
from terrazzo.progress import Progress
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.base import SamplerSpec
from terrazzo.targets import Target
from terrazzo.transports import AbstractTransport
from terrazzo.warmup.budget import Budget
from terrazzo.warmup.costs import cost_key, remembered
from terrazzo.warmup.exploration import Explored
from terrazzo.warmup.locals import Local, candidates

NUM_RECORDS, FEWEST_RECORDS = 64, 8  # the fewest where a step takes seconds
TRIAL_SECONDS, TRIAL_SHARE = 1.5, 0.02  # for each candidate: at least, and of the seconds of a whole run
TIMING_SECONDS = 0.2
MOST_SECONDS, MOST_THIN = 60.0, 100
CLEAR = 8.0  # effective draws a chain that end a candidate's trial
RESOLVED = 2.0  # effective draws a chain, below which chains that never met cannot be told from slow ones
NEARLY = 0.9  # of the best worth: closer than trials this short can tell
LOW_QUANTILE = 0.05
LOW_ACCEPTANCE = 0.05  # of the independence move: below it, moves that keep part of z may do better
PCN_SCALES = (0.25, 0.6)


class Row(NamedTuple):
    """One candidate and what it was worth.

    Attributes:
        label: What it is, for a person.
        sampler: Its name in the registry.
        options: Keyword arguments of its factory; of the hybrid, a step plays `num_rounds` rounds.
        uses_transport: Whether it moves through the transport.
        ess: The effective sample size of its records.
        step_seconds: Seconds of one step of all chains.
        worth: Effective draws a second.
        gap: Steps between two independent draws of a chain.
        acceptance: The mean acceptance of all its moves.
    """

    label: str
    sampler: str
    options: dict[str, Any]
    uses_transport: bool
    ess: float
    step_seconds: float
    worth: float
    gap: float
    acceptance: float

    @property
    def rounds(self) -> int:
        """Rounds a step."""
        return int(self.options.get("num_rounds", 1))


class Choice(NamedTuple):
    """What was chosen, from what, and why."""

    row: Row
    rows: list[Row]
    reason: str

    def thin(self, num_draws: int) -> int:
        """Rounds a kept draw such that draws are nearly independent, while that takes no more than a minute."""
        affordable = MOST_SECONDS / max(num_draws * self.row.step_seconds, 1e-9)
        return self.row.rounds * max(1, round(min(self.row.gap, MOST_THIN / self.row.rounds, affordable)))

    def describe(self) -> dict[str, Any]:
        """What a result keeps of the trial."""
        table = [
            {"candidate": r.label, "ess": round(r.ess, 1), "round_ms": round(1e3 * r.step_seconds / r.rounds, 4),
             "ess_per_second": round(r.worth, 2), "acceptance": round(r.acceptance, 4)}
            for r in self.rows
        ]  # fmt: skip
        return {"chosen": self.row.label, "reason": self.reason, "trial": table}


def least_ess(theta: np.ndarray, log_prob: np.ndarray, *, is_centred: bool = False) -> float:
    """The least ESS of log pi and of the coordinates that moved, but for the worst 5 % of them; (chain, draw, ...).

    Args:
        theta: Draws, (chain, draw, dim).
        log_prob: Their log pi, (chain, draw).
        is_centred: Whether each chain's own mean is taken off first: how fast chains move where they are.
    """
    series = np.concatenate([theta.astype(float), log_prob[..., None].astype(float)], axis=-1)
    if is_centred:
        series = series - series.mean(axis=1, keepdims=True)
    moving = np.ptp(series, axis=(0, 1)) > 0
    if not moving.any():
        return 0.0
    values = np.asarray(ess(series[..., moving]))
    own = values[-1] if moving[-1] else np.inf
    return float(min(np.nanquantile(values, LOW_QUANTILE, method="lower"), own))


class Trial:
    """Runs candidates on all chains of the coming run, so that what is compiled here is what runs later."""

    def __init__(
        self, key: Array, target: Target, transport: AbstractTransport | None, explored: Explored, starts: np.ndarray,
        *, mesh: Mesh, length: int, rounds: int, global_acceptance: float, budget: Budget, progress: Progress,
    ):  # fmt: skip
        self.target, self.transport, self.explored, self.mesh = target, transport, explored, mesh
        self.length, self.rounds, self.budget, self.progress = length, rounds, budget, progress
        self.global_acceptance = global_acceptance
        self.init_key, self.tune_key, self.run_key = jax.random.split(key, 3)
        self.starts = devices.deal(mesh, jnp.asarray(starts, jnp.int32))
        self.seconds = max(TRIAL_SECONDS, TRIAL_SHARE * (budget.seconds or 0.0))
        self.rows: list[Row] = []
        self.done = 0

    @property
    def num_chains(self) -> int:
        return self.starts.shape[0]

    def run(self) -> Choice:
        """Tries everything that the budget allows, and chooses."""
        self.progress.phase("trying", None, "candidates")
        speeds: list[tuple[float, Local]] = []
        for local in candidates(self.target):
            if speeds and self.budget.is_spent("trial"):
                break
            tuned = self._tuned(local)
            _, speed = self._local_alone(tuned, tuned.moves)
            speeds.append((speed, tuned))
        local = max(speeds, key=lambda pair: pair[0])[1]
        if local.moves >= 4 and not self.budget.is_spent("trial"):
            self._local_alone(local, local.moves // 4)
        if self.transport is not None:
            self._hybrids(local)
        self._tempering()
        best = self._best()
        return Choice(best, self.rows, self._reason(best))

    def _best(self) -> Row:
        """The most worth; among those nearly as good, the one whose kept draws are least correlated."""
        first = max(self.rows, key=self._rank)
        nearly = [r for r in self.rows if self._rank(r) >= (self._rank(first)[0], NEARLY * first.worth)]
        return min(nearly, key=lambda r: r.gap * r.rounds)

    def _rank(self, row: Row) -> tuple[int, float]:
        """Candidates whose chains have met come first; among the others, those that could bring them together."""
        if row.ess >= RESOLVED * self.num_chains:
            return 2, row.worth
        return int(row.uses_transport or row.sampler == "parallel_tempering"), row.worth

    # ---- candidates

    def _tuned(self, local: Local) -> Local:
        """The kernel with its tuned parameters, found on the chains from the tempered draws."""
        spec = REGISTRY[local.name]
        if spec.tuning is None:
            return local
        problem = running.Problem(self.target, None, local.options)
        state = devices.replicate(self.mesh, spec.tuning(self.target, **local.options).init())
        tuning = spec.tuning(self.target, **local.options)
        states = running.start(self.mesh, spec, problem, tuning.parameters(state), self.init_key, self.starts)
        done, chunk = 0, 1
        while done < local.tuning_steps and not (done and self.budget.is_spent("trial")):
            count = min(chunk, local.tuning_steps - done)
            tick = time.perf_counter()
            states, state, rate = running.warm_up(
                self.mesh, spec, problem, self.tune_key, _int(done), _int(count), states, state
            )
            self.progress.update(self.done, tuning=local.name, acceptance=float(rate))
            chunk = running.next_chunk(count, time.perf_counter() - tick, is_first=done == 0)
            done += count
        return local._replace(options={**local.options, **tuning.final(state)})

    def _local_alone(self, local: Local, num_local: int) -> tuple[Row, float]:
        options = {"local": local.name, "local_options": local.options, "num_local": _int(num_local)}
        return self._measure(f"{num_local} x {local.name}", options, uses_transport=False)

    def _hybrids(self, local: Local) -> None:
        """The hybrid with a few numbers of local moves; further out while the best is the largest tried."""
        tried: dict[int, Row] = {}
        rank = lambda m: self._rank(tried[m])
        counts = sorted({1, max(1, local.moves // 4), local.moves})
        while counts and not (tried and self.budget.is_spent("trial")):
            num_local = counts.pop(0)
            options = self._hybrid_options(local, num_local, "independence")
            tried[num_local], _ = self._measure(f"transport + {num_local} x {local.name}", options, uses_transport=True)
            best = max(tried, key=rank)
            if not counts and best == max(tried) and len(tried) < 5:
                counts.append(4 * best)
        best = max(tried, key=rank)
        if self.global_acceptance < LOW_ACCEPTANCE:
            for scale in PCN_SCALES:
                if self.budget.is_spent("trial"):
                    break
                options = self._hybrid_options(local, best, "pcn") | {
                    "scale": jnp.asarray(scale, jnp.result_type(float))
                }
                self._measure(f"pCN {scale} + {best} x {local.name}", options, uses_transport=True)

    def _hybrid_options(self, local: Local, num_local: int, move: str) -> dict[str, Any]:
        return {
            "local": local.name, "local_options": local.options, "num_local": _int(num_local), "move": move,
            "num_rounds": self.rounds,
        }  # fmt: skip

    def _tempering(self) -> None:
        """Parallel tempering, from what the exploration already measured."""
        found = self.explored
        value = least_ess(found.theta, found.log_prob)
        options = {
            "inverse_temperatures": jnp.asarray(found.inverse_temperatures, jnp.result_type(float)),
            "kernel": found.kernel, "kernel_options": found.kernel_options, "num_moves": found.num_moves,
        }  # fmt: skip
        share = self.num_chains / found.theta.shape[0]  # a ladder is wide: a few of them fill any device
        key = cost_key(self.target, "exploration", found.kernel, len(found.inverse_temperatures), found.theta.shape[0])
        seconds = share * remembered(key, lambda: found.round_seconds)
        scaled = value * self.num_chains / found.theta.shape[0]
        worth = scaled / (found.kept_rounds * seconds)
        gap = self.num_chains * found.kept_rounds / max(scaled, 1.0)
        label = f"tempering, {len(found.inverse_temperatures)} x {found.kernel}"
        self.rows.append(Row(label, "parallel_tempering", options, False, scaled, seconds, worth, gap, float("nan")))

    # ---- measuring

    def _measure(self, label: str, options: dict[str, Any], *, uses_transport: bool) -> tuple[Row, float]:
        """Runs a candidate; returns its row and the worth it has where the chains already are.

        A stretch too short for the chains to meet says nothing, and one so long that all records are independent says
        little: stretches grow, by thinning, until chains have clearly met or the time of a candidate is used up.
        """
        spec = REGISTRY["hybrid"]
        transport = self.transport if uses_transport else None
        problem = running.Problem(self.target, transport, options)
        states = running.start(self.mesh, spec, problem, {}, self.init_key, self.starts)
        key = cost_key(self.target, label, transport, self.num_chains, self.rounds)
        states = self._draw(spec, problem, states, 0, 1, 1, label)[0]  # compiles
        seconds = remembered(key, lambda: self._step_seconds(spec, problem, states, label))
        count = int(np.clip(self.seconds / seconds, FEWEST_RECORDS, NUM_RECORDS))
        most = max(1, int(self.seconds / (count * seconds)))
        thin, first = max(1, most // 64), 1
        while True:
            states, early = self._draw(spec, problem, states, first, count // 4, thin, label)
            states, rows = self._draw(spec, problem, states, first + count // 4, count, thin, label)
            for part in (early, rows):
                self.budget.spend_evaluations("trial", int(part["num_evaluations"].sum(dtype=np.int64)))
            value = least_ess(rows["theta"], rows["log_prob"])
            if thin == most or value >= CLEAR * self.num_chains or self.budget.is_spent("trial"):
                break
            thin, first = min(8 * thin, most), first + 2 * count  # chains that hardly met: look longer
        self.done += 1
        centred = least_ess(rows["theta"], rows["log_prob"], is_centred=True)
        time_taken = count * thin * seconds
        acceptance = float(rows["acceptance_rate"].mean())
        gap = self.num_chains * count * thin / max(value, 1.0)
        row = Row(label, "hybrid", options, uses_transport, value, seconds, value / time_taken, gap, acceptance)
        self.rows.append(row)
        self.progress.update(self.done, candidate=label, ess_per_second=row.worth)
        return row, centred / time_taken

    def _draw(
        self, spec: SamplerSpec, problem: running.Problem, states: Any, first: int, count: int, thin: int, label: str
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """`count` records in chunks of about a second; rows are (chain, record, ...)."""
        rows: list[dict[str, np.ndarray]] = []
        done, chunk = 0, 1
        while done < count:
            size = min(chunk, self.length, count - done)
            tick = time.perf_counter()
            states, out = running.draw(
                self.mesh, spec, problem, self.length, False, {}, self.run_key, _int(first + done), _int(size),
                _int(thin), states,
            )  # fmt: skip
            rows.append({name: np.asarray(x[:size]) for name, x in out.items()})
            chunk = running.next_chunk(size, time.perf_counter() - tick, is_first=False)
            done += size
            self.progress.update(self.done, candidate=label)
        return states, {name: np.moveaxis(np.concatenate([r[name] for r in rows]), 0, 1) for name in rows[0]}

    def _step_seconds(self, spec: SamplerSpec, problem: running.Problem, states: Any, label: str) -> float:
        """Seconds of one step of all chains: the best of a few stretches, each long enough to time."""
        best, thin, spent = np.inf, 1, 0.0
        while spent < TIMING_SECONDS:
            tick = time.perf_counter()
            self._draw(spec, problem, states, 0, 1, thin, label)
            elapsed = time.perf_counter() - tick
            spent += elapsed
            best = min(best, elapsed / thin)
            thin = min(4 * thin, 4096) if elapsed < TIMING_SECONDS / 8 else thin
        return best

    def _reason(self, best: Row) -> str:
        def figure(row: Row | None) -> str:
            return "untried" if row is None else f"{row.worth:.3g}"

        def top(rows: list[Row]) -> Row | None:
            return max(rows, key=lambda r: r.worth, default=None)

        through = top([r for r in self.rows if r.uses_transport])
        alone = top([r for r in self.rows if r.sampler == "hybrid" and not r.uses_transport])
        tempered = top([r for r in self.rows if r.sampler == "parallel_tempering"])
        parts = [f"{figure(alone)} with local moves alone", f"{figure(tempered)} with tempering"]
        if self.transport is None:
            return f"effective draws a second: {', '.join(parts)}"
        parts = [f"{figure(through)} with the transport", *parts]
        off = "" if best.uses_transport else "; the transport is switched off"
        return f"effective draws a second: {', '.join(parts)}{off}"


def _int(value: int) -> Array:
    return jnp.asarray(value, jnp.int32)
