"""The trial: what each way of moving is worth, in effective draws a second, measured on the chains themselves.

All candidates start from the tempered draws, so that one which cannot travel between modes is seen to fail: its chains
keep disagreeing, and the effective sample size over all chains collapses. The worth of a candidate is

    least ESS of log pi and of (all but 5 % of) the coordinates / seconds,

or, where the trial was too short for the chains to agree but what tells them apart was seen to decay, what that decay
(`relaxation`) promises. The best one is frozen: the hybrid sampler with some number of local moves, local moves alone
(then the transport is switched off), or parallel tempering as in the exploration. What needs no transport is tried
first: a transport is learned for as long as it could be worth more.
"""

import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array

from terrazzo import devices, running
from terrazzo.progress import Progress
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.base import SamplerSpec, Tuning
from terrazzo.targets import Target
from terrazzo.transports import AbstractTransport
from terrazzo.warmup.budget import Budget
from terrazzo.warmup.exploration import FEWEST_KEPT, Explored
from terrazzo.warmup.locals import Local, candidates
from terrazzo.warmup.mixing import cautious_ess, least_ess, relaxation
from terrazzo.warmup.prospect import Rival

NUM_RECORDS, FEWEST_RECORDS = 64, 8  # the fewest where a step takes seconds
TRIAL_SECONDS, TRIAL_SHARE = 1.5, 0.008  # for each candidate: at least, and of the seconds of a whole run
TIMING_SECONDS = 0.2
MOST_SECONDS, MOST_THIN = 60.0, 100
CLEAR = 8.0  # effective draws a chain that end a candidate's trial
SATURATED = 0.5  # of the records are effective, as few as noise may show of independent ones: the stretch was too long
LONGER_STRETCH, SHORTER_STRETCH = 8.0, 0.25
RESOLVED = 4.0  # effective draws a chain, below which chains that never met cannot be told from slow ones
APART, WILL_MEET, MET = 0, 1, 2
LONGER = 3  # times the seconds of a candidate: the best local moves, where no chains have met
FAR_APART = 2.0  # R-hat of ladders of which it cannot be told whether they would ever meet
FAR_BELOW = 3.0  # times slower than the best of local kernels whose chains have not met
NEARLY = 0.9  # of the best worth: closer than trials this short can tell
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
        agreement: Of chains that began in different places: `MET`, `WILL_MEET` (by the decay of what tells them apart),
            or `APART`.
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
    agreement: int

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


class Tried(NamedTuple):
    """A local kernel that was tried alone: its row, its worth where chains already are, and the kernel, tuned."""

    row: Row
    speed: float
    local: Local


class Trial:
    """Runs candidates on all chains of the coming run, so that what is compiled here is what runs later."""

    def __init__(
        self, key: Array, target: Target, *, num_chains: int, mesh: Mesh, length: int, rounds: int, budget: Budget,
        progress: Progress, num_tied: int = 0,
    ):  # fmt: skip
        self.target, self.num_chains, self.mesh = target, num_chains, mesh
        self.length, self.rounds, self.budget, self.progress = length, rounds, budget, progress
        self.phase = "local trial"
        self.candidates = candidates(target, num_tied)
        if budget.is_short:
            self.candidates = [c for c in self.candidates if REGISTRY[c.name].tuning is None][:1] or self.candidates[:1]
        self.transport: AbstractTransport | None = None
        self.local: Local | None = None
        self.tried: list[Tried] = []
        self.init_key, self.tune_key, self.run_key = jax.random.split(key, 3)
        self.starts = devices.deal(mesh, jnp.zeros((num_chains, target.space.num_dims), jnp.int32))
        self.seconds = max(TRIAL_SECONDS, TRIAL_SHARE * (budget.seconds or 0.0))
        self.rows: list[Row] = []
        self.passed_over: set[str] = set()
        self.note = ""
        self.done = 0

    def compile_ahead(self) -> Iterator[None]:
        """Compiles the loops of the trial one by one, without a step: while ladders run, say."""
        for local in self.candidates:
            tuning = self._tuning(local)
            if tuning is not None:
                spec, problem = REGISTRY[local.name], running.Problem(self.target, None, local.options)
                state = devices.replicate(self.mesh, tuning.init())
                states = self._blank_states(spec, problem, tuning.parameters(state))
                self._tuning_steps(spec, problem, 0, 0, states, state)
                yield
                local = local._replace(options={**local.options, **tuning.final(state)})
            spec, problem = REGISTRY["hybrid"], running.Problem(self.target, None, self._local_options(local, 1))
            self._records(spec, problem, self._blank_states(spec, problem, {}), 0, 0, 1)
            yield

    def _blank_states(self, spec: SamplerSpec, problem: running.Problem, parameters: dict[str, Any]) -> Any:
        """States of the right shapes, that no step may be taken from."""
        like = eqx.filter_eval_shape(
            running.start.plain, self.mesh, spec, problem, parameters, self.init_key, self.starts
        )
        return devices.deal(self.mesh, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), like))

    def try_without(self, explored: Explored | None, starts: np.ndarray) -> Rival:
        """Tries local kernels and tempering, from these starts; returns what a transport would have to beat."""
        self.progress.phase("trying local moves", None, "candidates")
        self.starts = devices.deal(self.mesh, jnp.asarray(starts, jnp.int32))
        tried = [self._tried(self.candidates[0])]
        for local in self.candidates[1:]:
            if not self.is_spent:
                tried.append(self._tried(local))
        first = self._favourite(tried)
        self.local, self.tried = first.local, tried
        if first.row.agreement != MET:
            self.passed_over = {other.row.label for other in tried} - {first.row.label}
        if explored is not None:
            tempering = self._tempering(explored)
            if tempering.agreement != MET and explored.r_hat > FAR_APART and first.speed > 0:  # 0: cut short
                self.passed_over.add(tempering.label)
        left = [row for row in self.rows if row.label not in self.passed_over]
        is_open = len(left) > 1 and not any(row.agreement for row in left)
        if is_open:  # are local moves slow, or shut in? A longer look, in training's time
            self.seconds, self.phase = LONGER * self.seconds, "training"
            self._local_alone(self.local, self.local.moves)
            self.seconds /= LONGER
        if self.local.moves >= 4 and not self.is_spent:
            self._local_alone(self.local, self.local.moves // 4)
        ranked = [row for row in self.rows if row.agreement and row.label not in self.passed_over]
        worth = max((row.worth for row in ranked), default=0.0)
        local_worth = max((r.worth for r in ranked if r.sampler == "hybrid" and r.agreement == MET), default=0.0)
        gap = first.row.gap if first.local.moves == 1 and first.row.agreement == MET else float("inf")
        return Rival(worth, RESOLVED * self.num_chains, local_worth, gap)

    def _tried(self, local: Local) -> Tried:
        """Tunes a local kernel and tries it alone."""
        tuned = self._shortened(self._tuned(local))
        return Tried(*self._local_alone(tuned, tuned.moves), tuned)

    @staticmethod
    def _favourite(tried: list[Tried]) -> Tried:
        """Of local kernels, in the order of what did best on such targets, the one to go on with.

        If chains have met, the one that is worth most. If not, what the trial says is mostly noise: the first whose
        speed where chains are is not far below the best.
        """
        met = [one for one in tried if one.row.agreement == MET]
        if met:
            return max(met, key=lambda one: one.row.worth)
        fastest = max(one.speed for one in tried)
        return next(one for one in tried if one.speed >= fastest / FAR_BELOW)

    def try_transport(self, transport: AbstractTransport, acceptance: float) -> None:
        """Tries jumps through a learned transport, whose independence move would have this acceptance."""
        assert self.local is not None
        self.progress.phase("trying the transport", None, "candidates")
        self.phase, self.transport, self.done = "trial", transport, 0
        self._hybrids(self.local, acceptance)

    def choice(self, *, note: str = "") -> Choice:
        """The best of what was tried, and why; `note` says what became of a transport that was not tried."""
        best, self.note = self._best(), note
        return Choice(best, self.rows, "; ".join(filter(None, (self._reason(best), note))))

    def begin_again(self, starts: np.ndarray) -> None:
        """Forgets what was measured from starts that did not know all modes."""
        self.rows, self.passed_over = [], set()
        self.starts = devices.deal(self.mesh, jnp.asarray(starts, jnp.int32))
        self.phase = "trial"
        if self.local is not None:
            self.progress.phase("trying local moves", None, "candidates")
            self._local_alone(self.local, self.local.moves)

    def next_choice(self) -> Choice | None:
        """The best of the candidates that have not been chosen yet and whose chains met; None if there is none."""
        self.passed_over.add(self._best().label)
        left = [row for row in self.rows if row.label not in self.passed_over and row.agreement]
        if not left:
            return None
        best = max(left, key=lambda row: row.worth)
        parts = (self._reason(best), self.note, "the first choice did not keep its promise")
        return Choice(best, self.rows, "; ".join(filter(None, parts)))

    @property
    def is_spent(self) -> bool:
        return self.budget.is_spent(self.phase)

    def _have_met(self, ess: float) -> bool:
        """Whether chains with so many effective draws, which began in different places, came to agree."""
        return ess >= RESOLVED * self.num_chains

    def _best(self) -> Row:
        """The most worth; without a time limit, of those nearly as good the one whose draws are least correlated."""
        first = max(self.rows, key=self._rank)
        if self.budget.seconds is not None:
            return first
        nearly = [r for r in self.rows if self._rank(r) >= (self._rank(first)[0], NEARLY * first.worth)]
        return min(nearly, key=lambda r: r.gap * r.rounds)

    def _rank(self, row: Row) -> tuple[int, float]:
        """Candidates whose chains have met come first; among the others, those that could bring them together."""
        if row.label in self.passed_over:
            return -1, row.worth
        if row.agreement != APART:
            return 1 + row.agreement, row.worth
        return int(row.uses_transport or row.sampler == "parallel_tempering"), row.worth

    # ---- candidates

    def _tuning(self, local: Local) -> Tuning | None:
        tuning = REGISTRY[local.name].tuning
        return None if tuning is None else tuning(self.target, **local.options)

    def _tuned(self, local: Local) -> Local:
        """The kernel with its tuned parameters, found on the chains from the tempered draws."""
        tuning = self._tuning(local)
        if tuning is None:
            return local
        spec, problem = REGISTRY[local.name], running.Problem(self.target, None, local.options)
        state = devices.replicate(self.mesh, tuning.init())
        states = running.start(self.mesh, spec, problem, tuning.parameters(state), self.init_key, self.starts)
        done, chunk = 0, 1
        while done < local.tuning_steps and not (done and self.is_spent):
            count = min(chunk, local.tuning_steps - done)
            tick = time.perf_counter()
            states, state, rate = self._tuning_steps(spec, problem, done, count, states, state)
            if done == 0:  # compiled
                self.budget.excuse(time.perf_counter() - tick)
            self.progress.update(self.done, tuning=local.name, acceptance=float(rate))
            chunk = running.next_chunk(count, time.perf_counter() - tick, is_first=done == 0)
            done += count
        return local._replace(options={**local.options, **tuning.final(state)})

    def _tuning_steps(
        self, spec: SamplerSpec, problem: running.Problem, first: int, count: int, states: Any, state: Any
    ) -> tuple[Any, Any, Array]:
        return running.warm_up.briefly(
            self.mesh, spec, problem, self.tune_key, _int(first), _int(count), states, state
        )  # fmt: skip

    def _shortened(self, local: Local) -> Local:
        """The kernel with so few moves a step that enough steps fit into its trial."""
        if local.moves == 1:
            return local
        spec, options = REGISTRY["hybrid"], self._local_options(local, 1)
        problem = running.Problem(self.target, None, options)
        states = running.start(self.mesh, spec, problem, {}, self.init_key, self.starts)
        label = self._label(local, 1)
        states = self._first_step(spec, problem, states, label)
        seconds = self._step_seconds(spec, problem, states, label)
        return local._replace(moves=int(np.clip(self.seconds / (2 * FEWEST_RECORDS * seconds), 1, local.moves)))

    @staticmethod
    def _local_options(local: Local, num_local: int) -> dict[str, Any]:
        return {"local": local.name, "local_options": local.options, "num_local": _int(num_local)}

    def _local_alone(self, local: Local, num_local: int) -> tuple[Row, float]:
        options = self._local_options(local, num_local)
        return self._measure(self._label(local, num_local), options, uses_transport=False)

    @staticmethod
    def _label(local: Local, num_local: int | None = None) -> str:
        return f"{local.moves if num_local is None else num_local} x {local.name}"

    def _hybrids(self, local: Local, acceptance: float) -> None:
        """The hybrid with a few numbers of local moves; further out while the best is the largest tried.

        What moves best alone need not be the best partner of a jump: every local kernel has one look beside it.
        """
        tried: dict[int, Row] = {}
        rank = lambda m: self._rank(tried[m])
        local = self._partner(local)
        counts = sorted({1, max(1, local.moves // 4), local.moves})
        while counts and not (tried and self.is_spent):
            num_local = counts.pop(0)
            options = self._hybrid_options(local, num_local, "independence")
            known = [row for row in self.rows if row.label == self._pair_label(local, num_local)]
            label = self._pair_label(local, num_local)
            tried[num_local] = known[0] if known else self._measure(label, options, uses_transport=True)[0]
            best = max(tried, key=rank)
            if not counts and best == max(tried) and len(tried) < 5:
                counts.append(4 * best)
        best = max(tried, key=rank)
        if acceptance < LOW_ACCEPTANCE:
            for scale in PCN_SCALES:
                if self.is_spent:
                    break
                options = self._hybrid_options(local, best, "pcn") | {
                    "scale": jnp.asarray(scale, jnp.result_type(float))
                }
                self._measure(f"pCN {scale} + {best} x {local.name}", options, uses_transport=True)

    def _partner(self, local: Local) -> Local:
        """The local kernel that is worth most beside jumps."""
        others = [one.local for one in self.tried if one.local.name != local.name]
        worth: list[tuple[tuple[int, float], Local]] = []
        for other in [local, *others] if others else []:
            if worth and self.is_spent:
                break
            num_local = max(1, other.moves // 4)
            label, options = self._pair_label(other, num_local), self._hybrid_options(other, num_local, "independence")
            worth.append((self._rank(self._measure(label, options, uses_transport=True)[0]), other))
        return max(worth, key=lambda found: found[0])[1] if worth else local

    @staticmethod
    def _pair_label(local: Local, num_local: int) -> str:
        return f"transport + {num_local} x {local.name}"

    def _hybrid_options(self, local: Local, num_local: int, move: str) -> dict[str, Any]:
        return {**self._local_options(local, num_local), "move": move, "num_rounds": self.rounds}

    def _tempering(self, found: Explored) -> Row:
        """Parallel tempering, from what the exploration already measured."""
        value = min(cautious_ess(found.theta, found.log_prob), float(found.log_prob.size))
        options = {
            "inverse_temperatures": jnp.asarray(found.inverse_temperatures, jnp.result_type(float)),
            "kernel": found.kernel, "kernel_options": found.kernel_options, "num_moves": found.num_moves,
        }  # fmt: skip
        share = self.num_chains / found.theta.shape[0]  # a ladder is wide: a few of them fill any device
        seconds = share * found.round_seconds
        scaled = value * self.num_chains / found.theta.shape[0]
        worth = scaled / (found.kept_rounds * seconds)
        gap = self.num_chains * found.kept_rounds / max(scaled, 1.0)
        label = f"tempering, {len(found.inverse_temperatures)} x {found.kernel}"
        is_long = found.log_prob.shape[1] >= FEWEST_KEPT  # fewer draws than that can look independent by chance
        agreement = MET if is_long and self._have_met(scaled) else APART
        row = Row(label, "parallel_tempering", options, False, scaled, seconds, worth, gap, float("nan"), agreement)
        self.rows.append(row)
        return row

    # ---- measuring

    def _measure(self, label: str, options: dict[str, Any], *, uses_transport: bool) -> tuple[Row, float]:
        """Runs a candidate; returns its row and the worth it has where the chains already are (0 if cut short).

        A stretch too short for the chains to meet says nothing, and one so long that all records are independent says
        little: stretches grow, by thinning, until chains have clearly met or the time of a candidate is used up; if the
        first is long enough for all records to be independent, they shrink until they are not.
        """
        spec = REGISTRY["hybrid"]
        transport = self.transport if uses_transport else None
        problem = running.Problem(self.target, transport, options)
        states = running.start(self.mesh, spec, problem, {}, self.init_key, self.starts)
        states = self._first_step(spec, problem, states, label)
        seconds = self._step_seconds(spec, problem, states, label)
        count = int(np.clip(self.seconds / seconds, FEWEST_RECORDS, NUM_RECORDS))
        most = max(1, int(self.seconds / (count * seconds)))
        thin, first, factor = max(1, most // 64), 1, 1.0
        while True:
            states, early = self._draw(spec, problem, states, first, count // 4, thin, label)
            states, rows = self._draw(spec, problem, states, first + count // 4, count, thin, label)
            for part in (early, rows):
                self.budget.spend_evaluations(self.phase, int(part["num_evaluations"].sum(dtype=np.int64)))
            value = cautious_ess(rows["theta"], rows["log_prob"])
            plain = least_ess(rows["theta"], rows["log_prob"])
            if factor != LONGER_STRETCH and thin > 1 and plain >= SATURATED * rows["log_prob"].size:
                factor = SHORTER_STRETCH
            elif factor == SHORTER_STRETCH or thin == most or value >= CLEAR * self.num_chains:
                break
            else:  # chains that hardly met
                factor = LONGER_STRETCH
            if self.is_spent:
                break
            thin, first = int(np.clip(thin * factor, 1, most)), first + 2 * count
        self.done += 1
        centred = least_ess(rows["theta"], rows["log_prob"], is_centred=True)
        time_taken = count * thin * seconds
        acceptance = float(rows["acceptance_rate"].mean())
        gap, worth, agreement = self.num_chains * count * thin / max(plain, 1.0), value / time_taken, MET
        if not self._have_met(value):
            gap = 2 * thin * relaxation(rows["theta"], rows["log_prob"])
            left = self.budget.total_seconds_left
            is_soon = (MOST_SECONDS if left is None else left) >= RESOLVED * gap * seconds
            is_whole = time_taken >= self.seconds / 2  # a stretch cut short shows the fast part of the decay only
            agreement = WILL_MEET if is_soon and is_whole else APART
            worth = self.num_chains / (gap * seconds) if agreement else worth
            centred = centred if is_whole else 0.0
        row = Row(label, "hybrid", options, uses_transport, value, seconds, worth, gap, acceptance, agreement)
        self.rows = [r for r in self.rows if r.label != label] + [row]  # a second, longer look replaces the first
        self.progress.update(self.done, candidate=label, ess_per_second=row.worth)
        return row, centred / time_taken

    def _first_step(self, spec: SamplerSpec, problem: running.Problem, states: Any, label: str) -> Any:
        """One step, which compiles: seconds that are not the trial's own."""
        tick = time.perf_counter()
        states, _ = self._draw(spec, problem, states, 0, 1, 1, label)
        self.budget.excuse(time.perf_counter() - tick)
        return states

    def _draw(
        self, spec: SamplerSpec, problem: running.Problem, states: Any, first: int, count: int, thin: int, label: str
    ) -> tuple[Any, dict[str, np.ndarray]]:
        """`count` records in chunks of about a second; rows are (chain, record, ...)."""
        rows: list[dict[str, np.ndarray]] = []
        done, chunk = 0, 1
        while done < count:
            size = min(chunk, self.length, count - done)
            tick = time.perf_counter()
            states, out = self._records(spec, problem, states, first + done, size, thin)
            rows.append({name: np.asarray(x[:size]) for name, x in out.items()})
            chunk = running.next_chunk(size, time.perf_counter() - tick, is_first=False)
            done += size
            self.progress.update(self.done, candidate=label)
        return states, {name: np.moveaxis(np.concatenate([r[name] for r in rows]), 0, 1) for name in rows[0]}

    def _records(
        self, spec: SamplerSpec, problem: running.Problem, states: Any, first: int, count: int, thin: int
    ) -> tuple[Any, dict[str, Array]]:
        return running.draw(
            self.mesh, spec, problem, self.length, False, {}, self.run_key, _int(first), _int(count), _int(thin), states
        )

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
