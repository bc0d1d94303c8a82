"""The search behind `maximize`: parallel tempering with a cold end beyond beta = 1, then ascent.

The tempering is that of `samplers.kernels.tempering` on a ladder 0 = beta_0 < ... < beta_n, beta_n well above 1:
replicas at pi^beta_n sit near the maxima, hot ones carry them from one to another, and the ladder is adapted all the
time (there is no law to keep). What all replicas ever visited is remembered. From the best of it, exact coordinate
ascent: each coordinate in turn takes its best value, until no single-site change raises log pi.

References: Kirkpatrick, Gelatt, Vecchi (1983), Optimization by simulated annealing, Science 220; Earl & Deem (2005),
Parallel tempering: theory, applications, and new perspectives.
"""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from terrazzo.auto.policy import default_policy
from terrazzo.errors import arguments
from terrazzo.results.maximum import Maximum
from terrazzo.runtime.compilation import jit
from terrazzo.runtime.pacing import CHUNK_SECONDS, in_chunks
from terrazzo.runtime.progress import Progress
from terrazzo.samplers.kernels.default_gibbs import SLICE_FROM, default_gibbs
from terrazzo.samplers.kernels.exact import maximum
from terrazzo.samplers.kernels.tempering import TemperingState, parallel_tempering, prepared_inner
from terrazzo.samplers.parts.ascent import ascend, offsets_of
from terrazzo.samplers.parts.ladders import LadderState, tuning
from terrazzo.samplers.parts.paths import UNIFORM
from terrazzo.targets.interactions import evaluate
from terrazzo.targets.probing import non_finite_error
from terrazzo.targets.reading import MAX_SECONDS
from terrazzo.targets.target import Target

PILOT_SHARE = 0.05  # of a budget: random configurations, and as many changes of them
PILOT_DRAWS, PILOT_CHANGES = 256, 256  # at most: a median of so many is known to a tenth of their spread
COLD = 10.0  # at the cold end a typical change of one site has a ratio of e^10
LEAST_RANGE = 10.0  # of inverse temperatures: the coldest over the smallest above 0, at least
MAX_SWEEPS = 1000  # of ascent; log pi rises in each, so that only a plateau of rounding could need more
RESERVED_SWEEPS, RESERVED_SHARE = 8, 0.3  # of ascent, set aside from a budget; and of what is left, at most
ASCENT_SWEEPS = 4  # that the budget left should pay for each configuration which ascends
READING_SHARE = 0.3  # of max_seconds: the longest reading of a function
CHUNKS = 10  # of a limited time, at least, so that a limit is kept to a tenth
LEAST_ROUNDS = 20  # a budget that does not reach for as many rounds gets fewer replicas


class Search:
    """The state of one search: the candidates so far, what was spent, and the phases in order."""

    def __init__(
        self, target: Target, seed: int, progress: Progress, max_seconds: float | None, max_evaluations: int | None
    ):
        self.target, self.progress = target, progress
        self.key, self.rng = arguments.key_of_seed(seed), np.random.default_rng(seed)
        self.max_seconds, self.max_evaluations = max_seconds, max_evaluations
        self.started = time.perf_counter()
        self.num_evaluations, self.num_rounds = 0, 0
        self.theta = np.zeros((0, target.space.num_dims), np.int32)  # candidates, best first
        self.log_prob = np.zeros(0)
        self.is_local_maximum, self.is_proven, self.is_complete = False, False, True
        self.betas = np.zeros(0)
        self.history: list[tuple[int, int, float, float]] = []

    @property
    def left(self) -> float:
        """Evaluations that may still be spent."""
        return float("inf") if self.max_evaluations is None else float(self.max_evaluations - self.num_evaluations)

    @property
    def ascent_cost(self) -> int:
        """Evaluations of one sweep of coordinate ascent of one configuration."""
        space = self.target.space
        return 1 if self.target.site_logits_fn is not None else 1 + space.num_dims * len(offsets_of(space.max_size))

    def keep(self, theta: np.ndarray, log_prob: np.ndarray, most: int) -> None:
        """Takes in candidates; the best `most` different ones stay."""
        bad = np.isnan(log_prob) | (log_prob == np.inf)
        if bad.any():
            raise non_finite_error(self.target, np.asarray(theta)[bad.argmax()])
        rows, values = np.concatenate([theta, self.theta]).astype(np.int32), np.concatenate([log_prob, self.log_prob])
        order = np.argsort(-values, kind="stable")
        _, first = np.unique(rows[order], axis=0, return_index=True)
        order = order[np.sort(first)][:most]
        self.theta, self.log_prob = rows[order], values[order]

    def note(self) -> None:
        seconds = time.perf_counter() - self.started
        self.history.append((self.num_rounds, self.num_evaluations, seconds, float(self.log_prob[0])))

    # ---- phases

    def enumerate(self) -> None:
        """All configurations of a small space."""
        states = self.target.space.enumerate()
        self.num_evaluations += len(states)
        self.keep(states, evaluate(self.target, states), 1)
        self.is_local_maximum = self.is_proven = True
        self.note()

    def eliminate(self) -> bool:
        """The maximum by max-product, where the function's terms tie few sites together."""
        if self.left < default_policy().reading_evaluations:
            return False
        limit = MAX_SECONDS if self.max_seconds is None else min(MAX_SECONDS, READING_SHARE * self.max_seconds)
        found = maximum(self.target, max_seconds=limit)
        self.num_evaluations += default_policy().reading_evaluations
        if found is None:
            return False
        theta = found[0][None]
        self.keep(theta, evaluate(self.target, theta), 1)
        self.is_local_maximum = self.is_proven = True
        self.note()
        return True

    def pilot(self, init: np.ndarray | None, chains: int) -> None:
        """Random configurations and single changes of them: where to start, and how large differences of log pi are."""
        given = 0 if init is None else len(init)
        num_draws = int(
            max(0 if given else 1, min(max(PILOT_SHARE * self.left, chains), PILOT_DRAWS, self.left - given))
        )
        num_changes = int(max(0, min(PILOT_SHARE * self.left, PILOT_CHANGES, self.left - given - num_draws)))
        space, rng = self.target.space, self.rng
        draws = rng.integers(0, space.sizes, (num_draws, space.num_dims)).astype(np.int32)
        if init is not None:
            draws = np.concatenate([init, draws])
        rows = np.arange(num_changes)
        changed, sites = draws[rows % len(draws)], rng.integers(0, space.num_dims, num_changes)
        sizes = space.sizes[sites]
        changed[rows, sites] = (changed[rows, sites] + rng.integers(1, sizes)) % sizes
        values = evaluate(self.target, np.concatenate([draws, changed]))
        self.num_evaluations += len(values)
        of_draws, of_changed = values[: len(draws)], values[len(draws) :]
        self.keep(draws, of_draws, chains)
        if self.log_prob[0] == -np.inf:
            starts = np.asarray(self.target.possible_starts(jax.random.fold_in(self.key, 0), chains))
            self.num_evaluations += chains
            self.keep(starts, evaluate(self.target, starts), chains)
        finite = of_draws[np.isfinite(of_draws)]
        with np.errstate(invalid="ignore"):
            steps = np.abs(of_changed - of_draws[rows % len(draws)])
        steps = steps[np.isfinite(steps) & (steps > 0)]
        self.typical_step = float(np.median(steps)) if len(steps) else 1.0
        self.spread = max(float(finite.std()) if len(finite) > 1 else 1.0, self.typical_step)
        self.note()

    def ladder(self, num_temperatures: int, coldest: float | None) -> np.ndarray:
        """0, then geometric from where random configurations begin to feel log pi to where single sites are frozen."""
        coldest = max(1.0, COLD / self.typical_step) if coldest is None else float(coldest)
        if num_temperatures == 1:
            return np.array([coldest])
        hottest = min(1.0 / self.spread, coldest / LEAST_RANGE if num_temperatures > 2 else coldest)
        return np.concatenate([[0.0], np.geomspace(hottest, coldest, num_temperatures - 1)])

    def temper(self, ladder: np.ndarray, chains: int, num_rounds: int, patience: int | None, kernel: Any) -> None:
        """Rounds of tempering, in chunks of about a second."""
        target = self.target
        name, given = default_gibbs(target) if kernel is None else (kernel, {})
        options = prepared_inner(target, name, given)
        spare = min(RESERVED_SHARE * self.left, RESERVED_SWEEPS * self.ascent_cost) if self.max_evaluations else 0.0
        chains, ladder = _within_budget(target, self.left - spare, chains, ladder)
        if not chains:
            return
        make = eqx.Partial(parallel_tempering, num_temperatures=len(ladder), reference=UNIFORM, **options)
        starts = np.resize(self.theta, (chains, target.space.num_dims))
        key = jax.random.fold_in(self.key, 1)
        state = _begin(key, target, jnp.asarray(starts), jnp.asarray(ladder, jnp.result_type(float)), make)
        self.num_evaluations += chains
        self.progress.phase("tempering", num_rounds, "rounds")
        limit = num_rounds if patience is None else patience
        cost = 0.0  # evaluations of a round

        def advance(first: int, count: int) -> int:
            nonlocal state, cost
            state = _rounds(key, target, state, _int(count), _int(limit), make)
            spent = int(np.asarray(state.num_evaluations, np.int64).sum())
            done = int(state.num_rounds) - self.num_rounds
            self.num_rounds, self.num_evaluations = int(state.num_rounds), self.num_evaluations + spent
            cost = max(cost, spent / max(done, 1))
            return done

        aim = CHUNK_SECONDS if self.max_seconds is None else min(CHUNK_SECONDS, self.max_seconds / CHUNKS)
        affordable = lambda: int(min((self.left - spare) / cost, num_rounds)) if cost else 1
        try:
            for chunk in in_chunks(advance, num_rounds, affordable=affordable, aim=aim):
                self.take(state, chains)
                self.progress.update(self.num_rounds, best_log_prob=float(self.log_prob[0]))
                is_stuck = chunk.out < chunk.size or self.num_rounds - int(state.last_gain) >= limit
                if is_stuck or self.is_late or cost > self.left - spare:
                    break
        except KeyboardInterrupt:
            self.is_complete = False

    @property
    def is_late(self) -> bool:
        return self.max_seconds is not None and time.perf_counter() - self.started > self.max_seconds

    def take(self, state: "_Rounds", chains: int) -> None:
        """The best of every ladder, and where its cold end is now."""
        theta = np.concatenate([np.asarray(state.best), np.asarray(state.ladders.position)])
        log_prob = np.concatenate([np.asarray(state.best_log_prob, float), np.asarray(state.ladders.log_prob, float)])
        self.keep(theta, log_prob, 2 * chains)
        self.betas = np.asarray(state.tuning.betas)
        self.note()

    def ascend(self) -> None:
        """Coordinate ascent of the candidates, until none of them improves."""
        self.progress.phase("ascent")
        target = self.target
        offsets = offsets_of(target.space.max_size)
        per_row = self.ascent_cost
        num_rows = int(np.clip(self.left / (ASCENT_SWEEPS * per_row), 1, len(self.theta)))
        theta = self.theta[:num_rows]
        if num_rows > self.left:
            return
        # tempering knows log pi only up to the rounding of beta log pi / beta
        self.theta, self.log_prob = theta, evaluate(target, theta)
        self.keep(self.theta, self.log_prob, num_rows)
        self.num_evaluations += num_rows
        theta, log_prob = self.theta, self.log_prob
        try:
            for sweep in range(MAX_SWEEPS):
                if not len(theta) or len(theta) * per_row > self.left:
                    return
                swept = ascend(target, jnp.asarray(theta), jnp.asarray(offsets))
                self.num_evaluations += len(theta) * per_row
                new, values, is_changed = (np.asarray(part) for part in swept)
                is_better = is_changed & (values > log_prob)
                if not is_better.any():  # the best is among the rows, and no change of one site raises it
                    self.is_local_maximum = self.log_prob[0] > -np.inf
                    return
                theta, log_prob = np.where(is_better[:, None], new, theta), np.where(is_better, values, log_prob)
                self.keep(theta, log_prob, num_rows)
                self.progress.update(sweep + 1, best_log_prob=float(self.log_prob[0]))
        except KeyboardInterrupt:
            self.is_complete = False
        finally:
            self.note()

    def maximum(self) -> Maximum:
        space, flat = self.target.space, self.theta[0]
        values = {name: value[0] for name, value in space.decode(flat[None]).items()}
        columns = zip(*self.history, strict=True)
        names = ("num_rounds", "num_evaluations", "seconds", "log_prob")
        return Maximum(
            theta=values["theta"] if space.is_plain else values,
            log_prob=float(self.log_prob[0]),
            flat=flat.astype(np.int64),
            is_local_maximum=bool(self.is_local_maximum),
            is_proven=self.is_proven,
            is_complete=self.is_complete,
            num_evaluations=self.num_evaluations,
            num_rounds=self.num_rounds,
            history={name: np.asarray(column) for name, column in zip(names, columns, strict=True)},
            inverse_temperatures=self.betas,
        )


# ---- compiled parts


class _Rounds(NamedTuple):
    """What rounds carry on: ladders, their adaptation, the best so far, and the last round with a gain."""

    ladders: TemperingState
    tuning: LadderState
    best: Int[Array, "chain dim"]
    best_log_prob: Float[Array, " chain"]
    last_gain: Int[Array, ""]
    num_rounds: Int[Array, ""]
    num_evaluations: Int[Array, " chain"]


@jit
def _begin(key: Array, target: Target, theta: Array, ladder: Array, make: Callable) -> _Rounds:
    # The ladder is traced, here and in `_rounds`: outside compiled code tempering insists on a cold end at beta = 1.
    tune = tuning(ladder)
    first = tune.init()
    ladders = jax.vmap(make(target, **tune.parameters(first)).init)(theta, jax.random.split(key, len(theta)))
    zero = jnp.zeros((), jnp.int32)
    none = jnp.zeros(len(theta), jnp.int32)
    return _Rounds(
        ladders=ladders,
        tuning=first,
        best=ladders.position,
        best_log_prob=ladders.log_prob,
        last_gain=zero,
        num_rounds=zero,
        num_evaluations=none,
    )


@jit
def _rounds(key: Array, target: Target, state: _Rounds, count: Array, patience: Array, make: Callable) -> _Rounds:
    """At most `count` more rounds; fewer if `patience` of them bring no gain."""
    end = state.num_rounds + count
    tune = tuning(state.tuning.betas)
    num_chains = state.best.shape[0]

    def goes_on(state: _Rounds) -> Bool[Array, ""]:
        return (state.num_rounds < end) & (state.num_rounds - state.last_gain < patience)

    def one(state: _Rounds) -> _Rounds:
        sampler = make(target, **tune.parameters(state.tuning))
        keys = jax.random.split(jax.random.fold_in(key, state.num_rounds), num_chains)
        ladders, infos = jax.vmap(sampler.step)(keys, state.ladders)
        rung = jnp.argmax(ladders.log_probs, axis=1)[:, None]
        value = jnp.take_along_axis(ladders.log_probs, rung, axis=1)[:, 0]
        place = jnp.take_along_axis(ladders.places, rung, axis=1)[:, 0]
        theta = jnp.take_along_axis(ladders.positions, place[:, None, None], axis=1)[:, 0]
        is_better = value > state.best_log_prob
        num_rounds = state.num_rounds + 1
        is_gain = jnp.max(value) > jnp.max(state.best_log_prob)
        return _Rounds(
            ladders=ladders,
            tuning=tune.update(state.tuning, jax.vmap(tune.observe)(ladders, infos)),
            best=jnp.where(is_better[:, None], theta, state.best),
            best_log_prob=jnp.where(is_better, value, state.best_log_prob),
            last_gain=jnp.where(is_gain, num_rounds, state.last_gain),
            num_rounds=num_rounds,
            num_evaluations=state.num_evaluations + infos.num_evaluations,
        )

    return jax.lax.while_loop(goes_on, one, state._replace(num_evaluations=jnp.zeros_like(state.num_evaluations)))


# ---- small parts


def _int(value: int) -> Array:
    return jnp.asarray(value, jnp.int32)


def _within_budget(target: Target, left: float, chains: int, ladder: np.ndarray) -> tuple[int, np.ndarray]:
    """Fewer ladders, then fewer temperatures, until some rounds are affordable; no ladder if not even one round is."""
    values = target.space.max_size - 1
    per_sweep = target.space.num_dims * min(
        values, 2 * np.log2(values + 1) if target.space.max_size >= SLICE_FROM else values
    )
    per_sweep = 1 if target.site_logits_fn is not None else per_sweep
    affordable = left / (LEAST_ROUNDS * per_sweep)
    chains = int(np.clip(affordable / len(ladder), 1, chains))
    if affordable < len(ladder):
        places = np.linspace(0, len(ladder) - 1, max(int(affordable), 1)).round().astype(int)
        ladder = ladder[-1:] if len(places) < 3 else ladder[places]
    return (0 if per_sweep * len(ladder) * chains > left else chains), ladder
