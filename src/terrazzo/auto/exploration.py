"""Tempered exploration: parallel tempering from overdispersed starts, before anything is learned.

What it finds is used three times: as the draws a transport is trained on, as the starts of half of the chains, and as
evidence from outside the transport against which the final draws are checked (docs/theory.md, traps 4, 11).

The ladder's length follows the problem. With rejection rates r_i of neighbours the barrier Lambda = sum_i r_i hardly
depends on the ladder, and configurations travel it fastest with about 2 Lambda + 1 rungs; the first rounds measure
Lambda, and if the first ladder is far too short, a longer one is laid out.

Reference: Syed, Bouchard-Cote, Deligiannidis, Doucet (2022), Non-reversible parallel tempering, JRSS B 84.
"""

import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.auto.candidates import exploring_kernel
from terrazzo.auto.context import Context
from terrazzo.auto.mixing import worst_agreement
from terrazzo.auto.policy import Policy
from terrazzo.diagnostics import LogZ
from terrazzo.engine.kernels import Problem
from terrazzo.engine.loop import Chains, draws, joined
from terrazzo.runtime import devices
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.kernels.tempering import TemperingState
from terrazzo.samplers.parts.ladder_evidence import ladder_evidence, stepping_stones
from terrazzo.samplers.parts.ladders import LEAST_REJECTION, default_ladder
from terrazzo.samplers.parts.pair_references import parts_reference
from terrazzo.samplers.parts.paths import UNIFORM
from terrazzo.targets.pair_models import PairReference
from terrazzo.targets.probing import non_finite_error
from terrazzo.targets.target import Target


class Explored(NamedTuple):
    """What exploration found.

    Attributes:
        theta: Cold draws, (ladder, draw, dim).
        log_prob: Their log pi, (ladder, draw).
        log_probs: log pi - log q0 of every replica, (ladder, draw, replica), hottest first.
        inverse_temperatures: The frozen ladder.
        barrier: The global barrier Lambda.
        evidence: log Z from all replicas; None if there are too few draws, or no rung at infinite temperature.
        reference: q0, what the ladders start from; None for the uniform law.
        kernel: The kernel inside the ladder.
        kernel_options: Its options.
        num_moves: Its steps between swaps.
        num_rounds: Rounds, adaptation included.
        kept_rounds: Rounds that the kept draws stand for (they are thinned).
        num_apart: How many draws of each ladder, the latest, are kept from training: what judges a transport.
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
    reference: PairReference | None
    kernel: str
    kernel_options: dict[str, Any]
    num_moves: int
    num_rounds: int
    kept_rounds: int
    num_apart: int
    num_evaluations: int
    r_hat: float
    seconds: float
    round_seconds: float

    def describe(self) -> dict[str, Any]:
        """What a result keeps of it."""
        return {
            "ladders": self.theta.shape[0], "temperatures": len(self.inverse_temperatures),
            "from": "uniform" if self.reference is None else self.reference.name, "barrier": round(self.barrier, 2),
            "kernel": self.kernel, "rounds": self.num_rounds,
            "kept": int(self.theta.shape[1]), "evaluations": self.num_evaluations, "r_hat": self.r_hat,
            "mean_log_prob": float(self.log_prob.mean()), "seconds": round(self.seconds, 2),
            "log_z": None if self.evidence is None else [self.evidence.log_z, self.evidence.standard_error],
        }  # fmt: skip


def spaced_ladder(betas: np.ndarray, rejections: np.ndarray, num_rungs: int) -> np.ndarray:
    """A ladder of `num_rungs` on which all pairs would reject equally often.

    >>> spaced_ladder(np.array([0.0, 0.5, 1.0]), np.array([0.6, 0.2]), 5).round(3).tolist()
    [0.0, 0.167, 0.333, 0.5, 1.0]
    """
    barrier = np.concatenate([[0.0], np.cumsum(np.maximum(rejections, LEAST_REJECTION))])
    spaced = np.interp(np.linspace(0.0, barrier[-1], num_rungs), barrier, betas)
    return np.concatenate([betas[:1], spaced[1:-1], betas[-1:]])


def mean_rejections(betas: np.ndarray, log_probs: np.ndarray) -> np.ndarray:
    """How often each pair of neighbours would not swap, from log pi of all replicas, (ladder, round, replica).

    >>> mean_rejections(np.array([0.0, 1.0]), np.array([[[1.0, 1.0], [0.0, np.log(2.0)]]])).round(3).tolist()
    [0.25]
    """
    with np.errstate(invalid="ignore", over="ignore"):
        ratio = np.diff(betas) * (log_probs[..., :-1] - log_probs[..., 1:])
        rates = np.where(np.isnan(ratio), 0.0, np.exp(np.minimum(ratio, 0.0)))
    return 1.0 - rates.mean(axis=(0, 1))


class _Ladders(NamedTuple):
    """The ladders between two chunks.

    Attributes:
        chains: Their kernel and devices.
        states: Their states.
        betas: The present ladder.
        rejections: Of its pairs, as last measured.
        num_rounds: Rounds so far.
        num_evaluations: Evaluations so far.
        best: The best log pi of the cold replicas, ever.
        round_seconds: The least wall time of a round of all ladders.
        compiled: The length of the ladder whose loop is compiled.
        ends: When exploring ends if nothing limits it (`time.perf_counter`).
    """

    chains: Chains
    states: Any
    betas: np.ndarray
    rejections: np.ndarray
    num_rounds: int
    num_evaluations: int
    best: float
    round_seconds: float
    compiled: int
    ends: float

    def is_over(self, context: Context, phase: str) -> bool:
        """Whether the budget of a phase is spent, or the seconds of exploring where there is no limit."""
        budget = context.budget
        return budget.is_spent(phase) or (budget.is_unlimited and time.perf_counter() > self.ends)


def explore(
    key: Array,
    context: Context,
    *,
    num_ladders: int | None = None,
    max_rounds: int | None = None,
    starts: np.ndarray,
    num_tied: int = 0,
) -> Explored:
    """Parallel tempering until the ladders agree, or the rounds or the budget are spent.

    Args:
        key: A JAX key.
        context: The run.
        num_ladders: Independent ladders; 8 on a CPU, more on an accelerator.
        max_rounds: The most rounds after adaptation; by default what a minute holds, within limits.
        starts: Where the ladders start, (start, dim), by turns.
        num_tied: How many sites must change together, if single sites are cut off.

    Returns:
        An `Explored`. The number of rounds depends on the draws and the budget alone, not on timings, unless the
        budget is in seconds.
    """
    began, policy, budget = time.perf_counter(), context.policy, context.budget
    evidence_key, init_key, adapt_key, draw_key, again_key = jax.random.split(key, 5)
    budget.add_compilation(budget.elapsed)
    phase = context.progress.phase("exploring", None, "rounds")
    ladders = _begin(init_key, context, num_ladders, starts, num_tied)
    ladders = _adapt(adapt_key, context, ladders)
    longer = _lengthened(ladders, policy)
    if longer is not None:
        ladders = longer if budget.is_spent("adaptation") else _adapt(again_key, context, longer)
    affordable = np.clip(policy.phase_seconds / ladders.round_seconds, policy.least_rounds, policy.most_rounds)
    most = max_rounds or int(affordable)
    phase.total = ladders.num_rounds + most
    ladders, rows, kept_rounds, r_hat = _explored(draw_key, context, ladders, most)
    evidence, num_kept, options = None, rows["log_prob"].shape[1], ladders.chains.problem.options
    if num_kept >= policy.fewest_kept:
        every = rows["replica_log_probs"]
        evidence = ladder_evidence(evidence_key, context.target, every, ladders.betas, _reference(ladders))
    return Explored(
        theta=rows["theta"], log_prob=rows["log_prob"], log_probs=rows["replica_log_probs"],
        inverse_temperatures=ladders.betas, barrier=float(ladders.rejections.sum()), evidence=evidence,
        reference=_reference(ladders),
        kernel=options["kernel"], kernel_options=options["kernel_options"], num_moves=options["num_moves"],
        num_rounds=ladders.num_rounds, kept_rounds=kept_rounds, num_evaluations=ladders.num_evaluations, r_hat=r_hat,
        num_apart=max(1, round(policy.held_out_share * num_kept)), seconds=time.perf_counter() - began,
        round_seconds=ladders.round_seconds,
    )  # fmt: skip


def default_ladders(target: Target, policy: Policy) -> int:
    """How many ladders explore where nobody said."""
    return policy.ladders if target.space.num_dims <= policy.wide_dims else policy.wide_ladders


def prepared_tempering(target: Target, policy: Policy, num_tied: int) -> dict[str, Any]:
    """Options of parallel tempering as it explores: `kernel`, `kernel_options` and `num_moves`."""
    kernel, kernel_options, num_moves = exploring_kernel(target, policy, num_tied)
    prepare, base = REGISTRY["parallel_tempering"].prepare, reference_for(target, kernel)
    assert prepare is not None
    given = {"kernel": kernel, "kernel_options": kernel_options, "num_moves": num_moves}
    return prepare(target, reference=UNIFORM if base is None else base, **given)


def reference_for(target: Target, kernel: str) -> PairReference | None:
    """What ladders start from; None for the uniform law.

    Where they move by clusters, it is the parts of the pair model that can be summed out: nothing opposes the clusters
    there (`candidates.exploring_kernel`), and clusters mix the parts at least as well as the whole. Elsewhere it is the
    uniform law, from which a ladder reaches every mode, even where the target has a prior: one that sits on one of two
    modes hides the other from all temperatures (R-hat of the ladders 1.90 with the prior, and 1.01 without;
    `tests/test_ladder_references.py` has that target).
    """
    return parts_reference(target) if kernel == "swendsen_wang" else None


def _reference(ladders: "_Ladders") -> PairReference | None:
    found = ladders.chains.problem.options.get("reference")
    return found if isinstance(found, PairReference) else None


def _begin(
    init_key: Array, context: Context, num_ladders: int | None, starts: np.ndarray, num_tied: int
) -> _Ladders:  # fmt: skip
    """The ladders at their starts."""
    target, policy, spec = context.target, context.policy, REGISTRY["parallel_tempering"]
    num_ladders = num_ladders or default_ladders(target, policy)
    problem = Problem(target, None, prepared_tempering(target, policy, num_tied))
    has_reference = isinstance(problem.options["reference"], PairReference)
    betas = default_ladder(policy.first_rungs, has_reference=has_reference)
    chains = Chains(
        mesh=devices.make_mesh(num_ladders), spec=spec, problem=problem, length=policy.block, parameters=_at(betas),
        is_brief=True,
    )  # fmt: skip
    states = chains.start(init_key, np.resize(starts, (num_ladders, target.space.num_dims)))
    return _Ladders(
        chains=chains, states=states, betas=betas, rejections=np.zeros(len(betas) - 1), num_rounds=0,
        num_evaluations=0, best=-np.inf, round_seconds=np.inf, compiled=0,
        ends=time.perf_counter() + policy.phase_seconds,
    )  # fmt: skip


def _at(betas: np.ndarray) -> dict[str, Array]:
    return {"inverse_temperatures": jnp.asarray(betas, jnp.result_type(float))}


def _adapt(key: Array, context: Context, ladders: _Ladders) -> _Ladders:
    """Moves the ladder, in windows of rounds, until all pairs would reject equally often."""
    windows = context.policy.windows
    for i, window in enumerate(windows):
        ladders, rows = _rounds(key, context, ladders, ladders.num_rounds, window, 1, "adaptation", fewest=1)
        ladders = ladders._replace(rejections=mean_rejections(ladders.betas, rows["replica_log_probs"]))
        if i == len(windows) - 1 or context.budget.is_spent("adaptation"):
            break
        ladders = ladders._replace(betas=spaced_ladder(ladders.betas, ladders.rejections, len(ladders.betas)))
    return ladders


def _lengthened(ladders: _Ladders, policy: Policy) -> _Ladders | None:
    """A ladder of the length that the barrier asks for, every rung from the nearest one; None if it is long enough.

    A ladder that is too long costs less than compiling a shorter one.
    """
    barrier = ladders.rejections.sum()
    wanted = min(int(np.ceil(2 * barrier)) + 1, policy.most_rungs)
    if wanted <= policy.rung_slack * len(ladders.betas):
        return None
    betas, old = spaced_ladder(ladders.betas, ladders.rejections, wanted), ladders.states
    nearest = np.abs(betas[:, None] - ladders.betas[None]).argmin(axis=1)
    chains, copied = ladders.chains._replace(parameters=_at(betas)), np.asarray(old.places)[:, nearest]
    states = TemperingState(
        position=old.position, log_prob=old.log_prob,
        positions=jnp.asarray(np.take_along_axis(np.asarray(old.positions), copied[:, :, None], axis=1)),
        places=jnp.asarray(np.broadcast_to(np.arange(wanted, dtype=np.int32), copied.shape)),
        log_probs=jnp.asarray(np.asarray(old.log_probs)[:, nearest]), parity=jnp.zeros_like(old.parity),
        log_bases=None if old.log_bases is None else jnp.asarray(np.asarray(old.log_bases)[:, nearest]),
    )  # fmt: skip
    even = np.full(wanted - 1, barrier / (wanted - 1))
    return ladders._replace(chains=chains, states=chains.place(states), betas=betas, rejections=even)


def _explored(
    key: Array, context: Context, ladders: _Ladders, most: int
) -> tuple[_Ladders, dict[str, np.ndarray], int, float]:
    """Blocks of rounds on the frozen ladder until the ladders agree; the kept rows, their rounds, and R-hat."""
    policy = context.policy
    blocks: list[dict[str, np.ndarray]] = []
    thins: list[int] = []
    enough = np.inf  # rounds, once the ladders agree
    while True:
        thins.append(2 ** (max(0, len(blocks) - policy.even_blocks + 2) // 2))
        count = min(policy.block, -(-(most - sum(thins[:-1]) * policy.block) // thins[-1]))
        first = len(blocks) * policy.block
        thin_key = jax.random.fold_in(key, thins[-1])  # steps are counted from zero when the thinning changes
        ladders, rows = _rounds(
            thin_key, context, ladders, first, count, thins[-1], "exploration", fewest=policy.fewest_rounds - first
        )
        blocks.append(rows)
        kept = blocks[len(blocks) // policy.starting_part :]
        whole = {name: np.concatenate([b[name] for b in kept], axis=1) for name in kept[0]}
        if len(blocks) < policy.starting_part:  # the same, within a block
            skipped = whole["log_prob"].shape[1] // policy.starting_part
            whole = {name: values[:, skipped:] for name, values in whole.items()}
        r_hat, least = worst_agreement(whole["theta"], whole["log_prob"], policy)
        context.progress.update(ladders.num_rounds, worst_r_hat=r_hat)
        if r_hat < policy.good_r_hat and least > policy.good_ess:
            enough = min(enough, policy.log_z_patience * sum(thins))
        is_precise = enough < np.inf and _log_z_error(ladders, whole["replica_log_probs"]) <= policy.log_z_error
        is_good = is_precise or sum(thins) >= enough
        if is_good or ladders.is_over(context, "exploration") or sum(thins) * policy.block >= most:
            break
    kept_rounds = sum(t * b["log_prob"].shape[1] for t, b in zip(thins[-len(kept) :], kept, strict=True))
    return ladders, whole, min(kept_rounds, max(thins) * whole["log_prob"].shape[1]), r_hat


def _log_z_error(ladders: _Ladders, log_probs: np.ndarray) -> float:
    """The standard error of log Z by draws of all replicas; 0 where ladders do not give it."""
    if ladders.betas[0] != 0 or ladders.chains.problem.target.soft_level is not None:
        return 0.0
    return stepping_stones(log_probs, ladders.betas, 0.0).standard_error


def _rounds(
    key: Array, context: Context, ladders: _Ladders, first: int, count: int, thin: int, phase: str, *, fewest: int
) -> tuple[_Ladders, dict[str, np.ndarray]]:
    """Kept rounds from number `first` on, `thin` rounds each; fewer, but at least `fewest`, if the time is over.

    With a budget in evaluations, spent between calls alone, the number of rounds does not depend on chunks.
    """
    is_compiled, done, rows = len(ladders.betas) == ladders.compiled, 0, []
    chains = ladders.chains._replace(parameters=_at(ladders.betas))

    def affordable() -> int:
        return max(1, fewest) - done if ladders.is_over(context, phase) else count

    pace = {"affordable": affordable, "is_compiled": is_compiled}
    for chunk in draws(chains, key, ladders.states, count, first=first, thin=thin, **pace):
        rows.append(chunk.out.rows)
        done += chunk.size
        ladders = ladders._replace(
            states=chunk.out.states, num_rounds=ladders.num_rounds + chunk.size * thin, compiled=len(ladders.betas),
            best=_best(context.target, chunk.out.states, ladders.best),
        )  # fmt: skip
        if chunk.is_first:
            context.budget.add_compilation(chunk.seconds)
            ladders = ladders._replace(ends=ladders.ends + chunk.seconds)
        else:
            fastest = min(ladders.round_seconds, chunk.seconds / (chunk.size * thin))
            ladders = ladders._replace(round_seconds=fastest)
        context.progress.update(ladders.num_rounds, best_log_prob=ladders.best, temperatures=len(ladders.betas))
        if done >= fewest and ladders.is_over(context, phase):
            break
    whole = joined(rows)
    context.budget.spend_evaluations(phase, whole["num_evaluations"])
    total = ladders.num_evaluations + int(whole["num_evaluations"].sum(dtype=np.int64))
    return ladders._replace(num_evaluations=total), whole


def _best(target: Target, states: Any, best: float) -> float:
    """The best log pi of the cold replicas, ever; a replica that met NaN or +inf is an error with its configuration."""
    log_probs = np.asarray(states.log_probs)
    bad = np.isnan(log_probs) | (log_probs == np.inf)
    if bad.any():
        ladder, rung = np.argwhere(bad)[0]
        raise non_finite_error(target, np.asarray(states.positions)[ladder, np.asarray(states.places)[ladder, rung]])
    return max(best, float(log_probs[:, -1].max()))
