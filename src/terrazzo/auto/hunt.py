"""The hunt: configurations from which chains must find back into the law of the others.

R-hat sees only what the chains disagree on, and tempering from uniform starts does not find a narrow, deep mode beside
a broad one. Two further sources of starts are independent of both:

- *optima*: random configurations, the best of many random ones, tempered draws, and what the function's own parts lead
  to (`targets.parts`) are quenched by coordinate ascent. An optimum above anything drawn is normal in many dimensions
  and proves nothing by itself;
- *cut-offs* (`reach`): configurations of comparable probability that differ in a few sites from a draw, where every
  single change on the way is impossible.

Chains of the chosen sampler are started at both (`OtherStarts`). Those that come back into the law of the others have
said that nothing is there. Those that stay have found a mode of its own, which is then weighed: the sites of its draws
are fitted by a product of categoricals, and the bridge between the two gives its share of Z.
"""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.special import expit

from terrazzo.auto.policy import Policy
from terrazzo.diagnostics import LogZ, bridge_log_z
from terrazzo.errors import StartError
from terrazzo.samplers.parts.ascent import ascend, best_change, climb, offsets_of, stir
from terrazzo.samplers.parts.reading import read_running, with_conditionals
from terrazzo.targets.interactions import evaluate
from terrazzo.targets.parts import parts_of
from terrazzo.targets.precision import in_float64
from terrazzo.targets.target import Target
from terrazzo.verdict.coverage import Disagreement, Moments, compare, moments_of


class Optima(NamedTuple):
    """Local maxima that differ from each other, best first.

    Attributes:
        theta: (optimum, dim).
        log_prob: log pi there.
        num_quenched: Configurations that were quenched.
    """

    theta: np.ndarray
    log_prob: np.ndarray
    num_quenched: int


def hunt(key: Array, target: Target, draws: np.ndarray, policy: Policy, *, seconds: float | None) -> Optima:
    """Quenches random configurations and draws, until the evaluations or the seconds of a hunt are spent.

    Args:
        key: A JAX key.
        target: The target.
        draws: Tempered draws, (ladder, draw, dim).
        policy: How much is tried.
        seconds: The seconds of the whole run, or None without a limit.
    """
    limit = min(policy.hunt_seconds, policy.hunt_share * (seconds or np.inf))
    guided = _guided(jax.random.fold_in(key, 2**31), target, policy, limit)  # other turns count from 0
    target, rng = with_conditionals(target, read_running(target)), _generator(key)
    offsets = jnp.asarray(offsets_of(target.space.max_size))
    per_row = 2 if target.has_cheap_neighbours else 1 + target.space.num_dims * len(offsets)
    evaluations, turn = 0, 0

    def fresh() -> tuple[np.ndarray, np.ndarray]:
        nonlocal evaluations, turn
        starts = _starts(jax.random.fold_in(key, turn), rng, target, draws, turn, policy)
        evaluations, turn = evaluations + len(starts) * per_row, turn + 1
        rows, values = best_change(target, jnp.asarray(starts), offsets)
        return np.array(rows), np.array(values, float)

    (rows, values), (waiting, waiting_values) = fresh(), (guided, evaluate(target, guided))
    found, num_quenched, ends = _merged(waiting, waiting_values, policy), 0, np.inf
    while True:
        new, new_values, is_changed = (np.asarray(x) for x in ascend(target, jnp.asarray(rows), offsets))
        evaluations += len(rows) * per_row
        is_better = is_changed & (new_values > values)
        rows, values = np.where(is_better[:, None], new, rows), np.where(is_better, new_values, values)
        is_over = evaluations >= policy.hunt_evaluations or time.perf_counter() >= ends
        ends = min(ends, time.perf_counter() + limit)  # after the first sweep, which compiles
        done = np.flatnonzero(~is_better) if not is_over else np.arange(len(rows))
        found = _merged(np.concatenate([found[0], rows[done]]), np.concatenate([found[1], values[done]]), policy)
        num_quenched += len(done)
        if is_over:
            return Optima(*found, num_quenched)
        while len(waiting) < len(done):  # others take the places of those that have come to an end
            more, more_values = fresh()
            waiting, waiting_values = np.concatenate([waiting, more]), np.concatenate([waiting_values, more_values])
        rows[done], values[done] = waiting[: len(done)], waiting_values[: len(done)]
        waiting, waiting_values = waiting[len(done) :], waiting_values[len(done) :]


def _guided(key: Array, target: Target, policy: Policy, limit: float) -> np.ndarray:
    """Where the parts of the function lead from random configurations; none of a black box."""
    rng, space, wide = _generator(key), target.space, in_float64(target)
    none, offsets = np.zeros((0, space.num_dims), np.int32), offsets_of(space.max_size)
    if wide is None:
        return none
    with jax.enable_x64(True):
        parts = parts_of(wide, policy.most_parts)
        most = policy.guided_evaluations // (space.num_dims * len(offsets))
        if parts is None or parts.chosen is None or most < len(parts.chosen):
            return none
        rows = rng.integers(0, space.sizes, (min(policy.hunt_rows, most), space.num_dims)).astype(np.int32)
        which, ends = jnp.arange(len(rows), dtype=jnp.int32) % len(parts.chosen), np.inf
        while time.perf_counter() < ends:
            new = np.asarray(climb(parts, jnp.asarray(rows), which, jnp.asarray(offsets)))
            if (new == rows).all():
                break
            rows, ends = new, min(ends, time.perf_counter() + limit)  # after the first sweep, which compiles
    return rows


def _generator(key: Array) -> np.random.Generator:
    return np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))


def compile_ahead(target: Target, num_chains: int, policy: Policy) -> Iterator[Any]:
    """Compiles the parts of a hunt one by one, on blank configurations: while ladders run, say."""
    offsets, dim = jnp.asarray(offsets_of(target.space.max_size)), target.space.num_dims
    yield _guided(jax.random.key(0), target, policy, 0.0)
    target, rows = with_conditionals(target, read_running(target)), jnp.zeros((policy.hunt_rows, dim), jnp.int32)
    yield ascend(target, rows, offsets)
    yield best_change(target, rows, offsets)
    yield stir(target, jax.random.key(0), jnp.zeros((num_chains, dim), jnp.int32), offsets)


def _starts(
    key: Array, rng: np.random.Generator, target: Target, draws: np.ndarray, turn: int, policy: Policy
) -> np.ndarray:
    """Where a batch of quenches begins: by turns draws, plain random configurations, and the best of many random."""
    space, num = target.space, policy.hunt_rows
    if turn % policy.hunt_cycle == 0:
        flat = draws.reshape(-1, space.num_dims)
        return flat[rng.integers(0, len(flat), num)].astype(np.int32)
    if turn % policy.hunt_cycle == 1:
        scanned = rng.integers(0, space.sizes, (policy.scanned, space.num_dims)).astype(np.int32)
        return scanned[np.argsort(-evaluate(target, scanned), kind="stable")[:num]]
    rows = rng.integers(0, space.sizes, (num, space.num_dims)).astype(np.int32)
    if np.isfinite(evaluate(target, rows)).all():
        return rows
    try:
        return np.asarray(target.possible_starts(key, num))
    except StartError:  # impossible nearly everywhere: begin from draws that were shaken
        flat = draws.reshape(-1, space.num_dims)
        rows = flat[rng.integers(0, len(flat), num)].astype(np.int32)
        is_shaken = rng.random(rows.shape) < policy.shaken_share
        return np.where(is_shaken, rng.integers(0, space.sizes, rows.shape), rows).astype(np.int32)


def _merged(theta: np.ndarray, log_prob: np.ndarray, policy: Policy) -> tuple[np.ndarray, np.ndarray]:
    """Different optima, best first: of those that differ in few coordinates, the best."""
    least = max(1, int(policy.apart_share * theta.shape[1]))
    left = np.where(np.isfinite(log_prob), log_prob, -np.inf)
    kept: list[int] = []
    while len(kept) < policy.most_optima and left.max(initial=-np.inf) > -np.inf:
        best = int(np.argmax(left))
        kept.append(best)
        left = np.where((theta != theta[best]).sum(axis=1) < least, -np.inf, left)
    return theta[kept], log_prob[kept]


# ---- chains that start there


class OtherStarts(NamedTuple):
    """Chains of the chosen sampler that began at hunted configurations.

    Attributes:
        starts: Where each began, (chain, dim).
        theta: Their later draws, (chain, draw, dim).
        log_prob: Their log pi, (chain, draw).
    """

    starts: np.ndarray
    theta: np.ndarray
    log_prob: np.ndarray


class Mode(NamedTuple):
    """Where a chain stayed.

    Attributes:
        chain: Which of the other chains.
        theta: The best configuration that it visited.
        log_prob: log pi there.
        z: How far its mean is from that of the others, in standard errors.
        limit: What z would be at most if it had relaxed.
        share: Its share of Z (NaN if log Z is not known), and the share at three standard errors above.
        most: The latter.
        is_negligible: Whether no one would miss it.
    """

    chain: int
    theta: np.ndarray
    log_prob: float
    z: float
    limit: float
    share: float
    most: float
    is_negligible: bool


def pick_starts(optima: Optima, cut_off: np.ndarray, num_chains: int) -> np.ndarray:
    """Starts of `num_chains` chains: cut-off configurations have up to half of the places, optima the others."""
    others = cut_off[: num_chains // 2 if len(optima.theta) else num_chains]
    best = optima.theta[: num_chains - len(others)]
    rows = np.concatenate([best, others]).astype(np.int32)
    return rows[np.arange(num_chains) % len(rows)] if len(rows) else rows


def stirred(
    key: Array, target: Target, theta: np.ndarray, policy: Policy, *, copies: int = 1
) -> tuple[np.ndarray, np.ndarray]:
    """Configurations (start, dim) after a few Gibbs sweeps, so many copies of each, and log pi: (start, copy, ...).

    An optimum says little of what is around it: a jump may leave the very top of a narrow mode and nothing else of it.
    """
    target = with_conditionals(target, read_running(target))
    offsets = jnp.asarray(offsets_of(target.space.max_size))
    found, log_prob = jnp.asarray(np.repeat(theta, copies, axis=0), jnp.int32), jnp.zeros(len(theta) * copies)
    for i in range(policy.stirring_sweeps):
        found, log_prob = stir(target, jax.random.fold_in(key, i), found, offsets)
    shape = (len(theta), copies)
    return np.asarray(found).reshape(*shape, -1), np.asarray(log_prob, float).reshape(shape)


def features(theta: np.ndarray, log_prob: np.ndarray) -> np.ndarray:
    """Coordinates and log pi, (chain, draw, feature)."""
    return np.concatenate([theta.astype(float), log_prob[..., None].astype(float)], axis=-1)


def modes_apart(
    key: Array,
    target: Target,
    others: OtherStarts,
    reference: Moments,
    log_z: LogZ | None,
    policy: Policy,
) -> list[Mode]:
    """Chains that did not come back into the law of the draws, of whose `features` these are moments; each weighed."""

    def compared_with(c: int) -> Disagreement:
        own = features(others.theta[c : c + 1], others.log_prob[c : c + 1])
        return compare(reference, moments_of(own), alpha=policy.alpha / len(others.theta))

    with ThreadPoolExecutor() as pool:  # 128 chains of 4,096 sites take 4 s one by one
        differences = list(pool.map(compared_with, range(len(others.theta))))
    found = []
    for c, out in enumerate(differences):
        if out.z <= out.limit:
            continue
        part = LogZ(np.nan, np.nan, 0.0, np.nan)
        if log_z is not None:
            stir_key, weigh_key = jax.random.split(jax.random.fold_in(key, c))
            draws, values = others.theta[c], others.log_prob[c]
            if (draws == draws[:1]).all():  # it never moved: what it says of the mode is one configuration
                (draws,), (values,) = stirred(stir_key, target, draws[-1:], policy, copies=policy.mode_copies)
            part = weigh_mode(weigh_key, target, draws, values, policy)
        best = int(np.argmax(others.log_prob[c]))
        share, most = np.nan, np.nan
        if log_z is not None and np.isfinite(log_z.log_z):
            share = float(expit(part.log_z - log_z.log_z))
            error = np.hypot(part.standard_error, np.nan_to_num(log_z.standard_error))
            most = float(expit(part.log_z + 3.0 * error - log_z.log_z)) if np.isfinite(error) else np.nan
        found.append(
            Mode(
                chain=c, theta=others.theta[c, best], log_prob=float(others.log_prob[c, best]), z=out.z,
                limit=out.limit, share=share, most=most, is_negligible=most < policy.negligible,
            )
        )  # fmt: skip
    return found


def weigh_mode(key: Array, target: Target, theta: np.ndarray, log_prob: np.ndarray, policy: Policy) -> LogZ:
    """log Z of the part of the space where draws (draw, dim) stayed, by a bridge to a product fitted to them."""
    sizes, num = target.space.sizes, len(theta)
    counts = np.stack([np.bincount(column, minlength=target.space.max_size) for column in theta.T]).astype(float)
    is_value = np.arange(target.space.max_size) < sizes[:, None]
    table = np.where(is_value, (counts + policy.smoothing / sizes[:, None]) / (num + policy.smoothing), 0.0)
    rng = _generator(key)
    cumulative = np.cumsum(table, axis=1)
    own = (rng.random((policy.mode_draws, len(sizes), 1)) > cumulative[None]).sum(axis=-1)
    own = np.minimum(own, sizes - 1).astype(np.int32)
    log_q = lambda rows: np.log(table[np.arange(len(sizes)), rows]).sum(axis=-1)
    own_weights = evaluate(target, own) - log_q(own)
    return bridge_log_z(own_weights, (log_prob - log_q(theta))[None])
