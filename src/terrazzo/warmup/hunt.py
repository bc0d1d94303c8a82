"""The hunt: configurations from which chains must find back into the law of the others.

R-hat sees only what the chains disagree on, and tempering from uniform starts does not find a narrow, deep mode beside
a broad one. Two further sources of starts are independent of both:

- *optima*: random configurations, the best of many random ones, and tempered draws are quenched by coordinate ascent.
  An optimum above anything drawn is normal in many dimensions and proves nothing by itself;
- *cut-offs* (`reach`): configurations of comparable probability that differ in a few sites from a draw, where every
  single change on the way is impossible.

Chains of the chosen sampler are started at both (`OtherStarts`). Those that come back into the law of the others have
said that nothing is there. Those that stay have found a mode of its own, which is then weighed: the sites of its draws
are fitted by a product of categoricals, and the bridge between the two gives its share of Z.
"""

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.special import expit

from terrazzo.ascent import ascend, offsets_of
from terrazzo.diagnostics import LogZ, bridge_log_z
from terrazzo.diagnostics.coverage import compare, moments_of
from terrazzo.errors import StartError
from terrazzo.interactions import evaluate
from terrazzo.targets import Target

ROWS = 256  # configurations quenched side by side
MOST_EVALUATIONS = 2**22
SECONDS, SHARE = 6.0, 0.05  # of a hunt: in all, and of the seconds of a whole run
MOST_KEPT = 64  # optima
SCANNED = 2**14  # random configurations of which the best are quenched
MAX_SWEEPS = 50
APART = 0.1  # of the coordinates: optima that differ in fewer are taken for one
ALPHA = 1e-4  # chance that chains which have relaxed are said to stay, over all of them
NEGLIGIBLE = 1e-3  # of Z: a mode that no one would miss
OWN_DRAWS = 4096
SMOOTHING = 0.5  # of a draw, spread over the values of a site


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


def hunt(key: Array, target: Target, draws: np.ndarray, *, seconds: float | None) -> Optima:
    """Quenches random configurations and draws, until the evaluations or the seconds of a hunt are spent.

    Args:
        key: A JAX key.
        target: The target.
        draws: Tempered draws, (ladder, draw, dim).
        seconds: The seconds of the whole run, or None without a limit.
    """
    began = time.perf_counter()
    limit = SECONDS if seconds is None else min(SECONDS, SHARE * seconds)
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))
    offsets = jnp.asarray(offsets_of(target.space.max_size))
    per_row = 1 + target.space.num_dims * len(offsets)
    theta, log_prob, evaluations, batches = np.zeros((0, target.space.num_dims), np.int32), np.zeros(0), 0, 0
    while batches == 0 or (evaluations < MOST_EVALUATIONS and time.perf_counter() - began < limit):
        rows = _starts(jax.random.fold_in(key, batches), rng, target, draws, batches)
        values = np.full(len(rows), -np.inf)
        for _ in range(MAX_SWEEPS):
            new, found, is_changed = (np.asarray(x) for x in ascend(target, jnp.asarray(rows), offsets))
            evaluations += len(rows) * per_row
            is_better = is_changed & (found > values)
            rows, values = np.where(is_better[:, None], new, rows), np.maximum(values, found)
            if not is_better.any() or (batches and time.perf_counter() - began > limit):
                break
        theta, log_prob = _merged(np.concatenate([theta, rows]), np.concatenate([log_prob, values]))
        batches += 1
    return Optima(theta, log_prob, batches * ROWS)


def _starts(key: Array, rng: np.random.Generator, target: Target, draws: np.ndarray, turn: int) -> np.ndarray:
    """Where a batch of quenches begins: by turns draws, plain random configurations, and the best of many random."""
    space = target.space
    if turn % 4 == 0:
        flat = draws.reshape(-1, space.num_dims)
        return flat[rng.integers(0, len(flat), ROWS)].astype(np.int32)
    if turn % 4 == 1:
        scanned = rng.integers(0, space.sizes, (SCANNED, space.num_dims)).astype(np.int32)
        return scanned[np.argsort(-evaluate(target, scanned), kind="stable")[:ROWS]]
    try:
        return np.asarray(target.possible_starts(key, ROWS))
    except StartError:  # impossible nearly everywhere: begin from draws that were shaken
        flat = draws.reshape(-1, space.num_dims)
        rows = flat[rng.integers(0, len(flat), ROWS)].astype(np.int32)
        is_shaken = rng.random(rows.shape) < 0.5
        return np.where(is_shaken, rng.integers(0, space.sizes, rows.shape), rows).astype(np.int32)


def _merged(theta: np.ndarray, log_prob: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Different optima, best first: of those that differ in few coordinates, the best."""
    least = max(1, int(APART * theta.shape[1]))
    left = np.where(np.isfinite(log_prob), log_prob, -np.inf)
    kept: list[int] = []
    while len(kept) < MOST_KEPT and left.max(initial=-np.inf) > -np.inf:
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
    """

    chain: int
    theta: np.ndarray
    log_prob: float
    z: float
    limit: float
    share: float
    most: float

    @property
    def is_negligible(self) -> bool:
        """Whether no one would miss it."""
        return self.most < NEGLIGIBLE


def pick_starts(optima: Optima, cut_off: np.ndarray, num_chains: int) -> np.ndarray:
    """Starts of `num_chains` chains: cut-off configurations have up to half of the places, optima the others."""
    others = cut_off[: num_chains // 2 if len(optima.theta) else num_chains]
    best = optima.theta[: num_chains - len(others)]
    rows = np.concatenate([best, others]).astype(np.int32)
    return rows[np.arange(num_chains) % len(rows)] if len(rows) else rows


def features(theta: np.ndarray, log_prob: np.ndarray) -> np.ndarray:
    """Coordinates and log pi, (chain, draw, feature)."""
    return np.concatenate([theta.astype(float), log_prob[..., None].astype(float)], axis=-1)


def modes_apart(
    key: Array, target: Target, others: OtherStarts, theta: np.ndarray, log_prob: np.ndarray, log_z: LogZ | None
) -> list[Mode]:
    """Chains that did not come back into the law of the draws (chain, draw, dim), each weighed."""
    reference = moments_of(features(theta, log_prob))
    found = []
    for c in range(len(others.theta)):
        own = features(others.theta[c : c + 1], others.log_prob[c : c + 1])
        out = compare(reference, moments_of(own), alpha=ALPHA / len(others.theta))
        if out.z <= out.limit:
            continue
        part = LogZ(np.nan, np.nan, 0.0, np.nan)
        if log_z is not None:
            part = weigh_mode(jax.random.fold_in(key, c), target, others.theta[c], others.log_prob[c])
        best = int(np.argmax(others.log_prob[c]))
        share, most = np.nan, np.nan
        if log_z is not None and np.isfinite(log_z.log_z):
            share = float(expit(part.log_z - log_z.log_z))
            error = np.hypot(part.standard_error, np.nan_to_num(log_z.standard_error))
            most = float(expit(part.log_z + 3.0 * error - log_z.log_z)) if np.isfinite(error) else np.nan
        found.append(
            Mode(c, others.theta[c, best], float(others.log_prob[c, best]), out.z, out.limit, share, most)
        )  # fmt: skip
    return found


def weigh_mode(key: Array, target: Target, theta: np.ndarray, log_prob: np.ndarray) -> LogZ:
    """log Z of the part of the space where draws (draw, dim) stayed, by a bridge to a product fitted to them."""
    sizes, num = target.space.sizes, len(theta)
    counts = np.stack([np.bincount(column, minlength=target.space.max_size) for column in theta.T]).astype(float)
    is_value = np.arange(target.space.max_size) < sizes[:, None]
    table = np.where(is_value, (counts + SMOOTHING / sizes[:, None]) / (num + SMOOTHING), 0.0)
    rng = np.random.default_rng(np.asarray(jax.random.bits(key, (4,), jnp.uint32)))
    cumulative = np.cumsum(table, axis=1)
    own = (rng.random((OWN_DRAWS, len(sizes), 1)) > cumulative[None]).sum(axis=-1)
    own = np.minimum(own, sizes - 1).astype(np.int32)
    log_q = lambda rows: np.log(table[np.arange(len(sizes)), rows]).sum(axis=-1)
    own_weights = evaluate(target, own) - log_q(own)
    return bridge_log_z(own_weights, (log_prob - log_q(theta))[None])
