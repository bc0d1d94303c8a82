"""Targets on which samplers are fooled, generated from a seed, each with one number whose exact value is known.

Every case is a log-probability, a space, a function of draws (chain, draw, dim) -> (chain, draw), and the exact mean of
that function. `cases(seed)` draws their weights, centres, fields and sizes anew.
"""

from functools import cache
from itertools import product
from math import comb, lgamma
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz


class Fooling(NamedTuple):
    name: str
    log_prob: Any
    space: Any
    feature: Any
    exact: float
    is_healthy: bool = False


def _as_float(theta):
    return theta.astype(jnp.result_type(float))


def bernoulli_mixture(name, centres, weights, sharps, which):
    """A mixture of products of Bernoullis; the number is the share of draws nearest to one centre."""
    centres, sharps = np.asarray(centres), np.asarray(sharps, float)
    log_in, log_out = jnp.asarray(np.log(sharps)), jnp.asarray(np.log1p(-sharps))
    where, log_w = jnp.asarray(centres, jnp.int32), jnp.asarray(np.log(weights))

    def log_prob(theta):
        same = _as_float(theta[None] == where).sum(axis=1)
        return jax.nn.logsumexp(log_w + same * log_in + (where.shape[1] - same) * log_out)

    rng = np.random.default_rng(0)  # the exact share, by exact draws: its error is far below what is tested
    labels = rng.choice(len(weights), 200_000, p=np.asarray(weights))
    keep = rng.random((len(labels), centres.shape[1])) < sharps[labels][:, None]
    draws = np.where(keep, centres[labels], 1 - centres[labels])
    feature = lambda theta: (
        np.stack([np.abs(theta.astype(int) - c).sum(axis=-1) for c in centres]).argmin(axis=0) == which
    ).astype(float)
    return Fooling(name, log_prob, tz.binary(centres.shape[1]), feature, float(feature(draws[None])[0].mean()))


def lost_mode(rng, weight, d=40):
    centre = rng.integers(0, 2, d)
    other = np.where(np.arange(d) < d * 3 // 4, 1 - centre, centre)
    return bernoulli_mixture(
        f"lost mode of {weight:.0%}", [centre, other], [1 - weight, weight], [0.97, 0.97], 1
    )  # fmt: skip


def narrow_binary(rng, d=28):
    centre = rng.integers(0, 2, d)
    return bernoulli_mixture("narrow beside broad, binary", [centre, 1 - centre], [0.5, 0.5], [0.55, 0.995], 1)


def narrow_integers(rng, d=4):
    wide, thin = rng.integers(60, 100, d), rng.integers(150, 200, d)
    return _gaussians("narrow beside broad, integers", [wide, thin], [30.0, 2.0], [0.5, 0.5], 256)


def two_wells(rng, d=6):
    weight = float(rng.uniform(0.1, 0.4))
    return _gaussians("two wells of integers", [np.full(d, 16), np.full(d, 46)], [2.0, 2.0], [1 - weight, weight], 64)


def _gaussians(name, centres, widths, weights, size):
    """A mixture of rounded Gaussians on integers; the number is the share nearest to the second."""
    grid = np.arange(size)
    tables = []
    for centre, width in zip(centres, widths, strict=True):
        rows = -0.5 * ((grid[None] - np.asarray(centre)[:, None]) / width) ** 2
        tables.append(rows - np.log(np.exp(rows).sum(axis=1, keepdims=True)))
    tables = jnp.asarray(np.stack(tables))
    log_w = jnp.asarray(np.log(weights))
    d = tables.shape[1]

    def log_prob(theta):
        return jax.nn.logsumexp(log_w + tables[:, np.arange(d), theta].sum(axis=1))

    def feature(theta):
        each = [np.asarray(tables)[m][np.arange(d), theta].sum(axis=-1) + np.log(weights[m]) for m in range(2)]
        return 1.0 / (1.0 + np.exp(each[0] - each[1]))  # the posterior share of the second: its mean is the weight

    return Fooling(name, log_prob, tz.integers(0, size - 1, d), feature, float(weights[1]))


def narrow_categorical(rng, d=14, k=4):
    centre = rng.integers(0, k, d)
    where = jnp.asarray(centre, jnp.int32)

    def log_prob(theta):
        same = _as_float(theta == where).sum()
        narrow = same * np.log(0.99) + (d - same) * np.log(0.01 / (k - 1))
        return jnp.logaddexp(np.log(0.5) - d * np.log(k), np.log(0.5) + narrow)

    def feature(theta):
        same = (theta == centre).sum(axis=-1)
        narrow = same * np.log(0.99) + (d - same) * np.log(0.01 / (k - 1))
        return 1.0 / (1.0 + np.exp(-d * np.log(k) - narrow))

    return Fooling("narrow beside broad, categorical", log_prob, tz.categorical(k, shape=d), feature, 0.5)


def needle(rng, d):
    centre = jnp.asarray(rng.integers(0, 2, d), jnp.int32)

    def log_prob(theta):
        return jnp.where(jnp.all(theta == centre), d * np.log(2.0), 0.0)

    feature = lambda theta: (theta == np.asarray(centre)).all(axis=-1).astype(float)
    return Fooling(f"needle, d = {d}", log_prob, tz.binary(d), feature, 2.0**d / (2.0**d + 2.0**d - 1))


def trap(rng, num_blocks=8, k=5):
    """Blocks whose optimum is all ones, while every other step leads to all zeros."""
    heights = jnp.asarray(np.r_[np.arange(k - 1, -1, -1.0), k + 0.3])

    def log_prob(theta):
        return heights[theta.reshape(num_blocks, k).sum(axis=1)].sum()

    weights = np.exp(np.asarray(heights)) * [comb(k, j) for j in range(k + 1)]
    feature = lambda theta: theta.reshape(*theta.shape[:-1], num_blocks, k).all(axis=-1).mean(axis=-1)
    return Fooling("traps", log_prob, tz.binary(num_blocks * k), feature, float(weights[-1] / weights.sum()))


def parity(rng, d=30):
    fields = rng.normal(0.0, 1.0, d)
    f = jnp.asarray(fields)

    def log_prob(theta):
        return jnp.where(theta.sum() % 2 == 0, (f * _as_float(theta)).sum(), -jnp.inf)

    def even(fields):  # half of prod (1 + e^f) + prod (1 - e^f)
        return 0.5 * (np.prod(1 + np.exp(fields)) + np.prod(1 - np.exp(fields)))

    whole, rest = even(fields), even(fields[1:])
    return Fooling("parity", log_prob, tz.binary(d), lambda t: t[..., 0].astype(float), float(1 - rest / whole))


def tied(rng, size, d=36):
    """Groups of bits that must agree."""
    fields = jnp.asarray(rng.normal(0.0, 1.0, d // size))

    def log_prob(theta):
        groups = theta.reshape(-1, size)
        same = jnp.all(groups == groups[:, :1])
        return jnp.where(same, (fields * _as_float(groups[:, 0])).sum(), -jnp.inf)

    exact = 1 / (1 + np.exp(-np.asarray(fields)))
    starts = np.repeat(rng.integers(0, 2, (8, d // size)), size, axis=1)
    return Fooling(
        f"bits tied by {size}", log_prob, tz.binary(d),
        lambda t: t.reshape(*t.shape[:-1], -1, size)[..., 0].mean(axis=-1), float(exact.mean()),
    ), starts  # fmt: skip


def fixed_sum(rng, d=40, k=8):
    fields = rng.normal(0.0, 1.5, d)
    f = jnp.asarray(fields)

    def log_prob(theta):
        return jnp.where(theta.sum() == k, (f * _as_float(theta)).sum(), -jnp.inf)

    def table(values):
        out = np.zeros(k + 1)
        out[0] = 1.0
        for v in values:
            out[1:] = out[1:] + np.exp(v) * out[:-1]
        return out

    top = int(np.argmax(fields))
    exact = np.exp(fields[top]) * table(np.delete(fields, top))[k - 1] / table(fields)[k]
    starts = np.stack([np.isin(np.arange(d), rng.choice(d, k, replace=False)) for _ in range(8)]).astype(int)
    return Fooling("fixed sum", log_prob, tz.binary(d), lambda t: t[..., top].astype(float), float(exact)), starts


def halves(rng, half=15):
    """Two halves of which one must be all zeros; the way between is the empty configuration."""
    weight = float(rng.uniform(0.1, 0.5))
    odds = np.log(0.9 / 0.1)
    norm = half * np.log1p(np.exp(odds))

    def log_prob(theta):
        left, right = _as_float(theta[:half]).sum(), _as_float(theta[half:]).sum()
        value = jnp.where(right > 0, np.log(weight) + odds * right, np.log(1 - weight) + odds * left)
        return jnp.where((left > 0) & (right > 0), -jnp.inf, value - norm)

    feature = lambda t: (t[..., half:].sum(axis=-1) > 0).astype(float)
    return Fooling("halves that exclude each other", log_prob, tz.binary(2 * half), feature, weight)


def unlock(rng, most=5, extra=22):
    """A count unlocks variables that are pinned to a value of their own otherwise."""
    gain = float(rng.uniform(0.3, 0.9))

    def log_prob(v):
        free = jnp.arange(most, dtype=jnp.int32) < v["k"]
        fits = jnp.where(free, v["x"] < 2, v["x"] == 2)
        field = 0.3 * _as_float(v["y"]).sum()
        return jnp.where(jnp.all(fits), field - gain * _as_float(v["k"]), -jnp.inf)

    weights = np.exp((np.log(2.0) - gain) * np.arange(most + 1))
    space = tz.Space(k=tz.integers(0, most), x=tz.categorical(3, shape=most), y=tz.binary(extra))
    exact = float((weights * np.arange(most + 1)).sum() / weights.sum())
    return Fooling("a count that unlocks", log_prob, space, lambda t: t[..., 0].astype(float), exact)


def asia(rng, extra=20):
    """The textbook network with its deterministic OR, a positive X-ray, and bits that belong to nothing."""
    asia_, smoke = 0.01, 0.5
    p_tub, p_lung, p_bronc = np.array([0.01, 0.05]), np.array([0.01, 0.1]), np.array([0.3, 0.6])
    p_xray, p_dysp = np.array([0.05, 0.98]), np.array([[0.1, 0.8], [0.7, 0.9]])
    tables = [jnp.asarray(np.log(np.stack([1 - p, p], axis=-1))) for p in (p_tub, p_lung, p_bronc, p_xray, p_dysp)]
    tub, lung, bronc, xray, dysp = tables

    def log_prob(theta):
        a, t, s, c, b, e, d = (theta[i] for i in range(7))
        value = jnp.where(a == 1, np.log(asia_), np.log(1 - asia_)) + np.log(smoke)
        value = value + tub[a, t] + lung[s, c] + bronc[s, b] + xray[e, 1] + dysp[e, b, d]
        value = value + 0.2 * _as_float(theta[7:]).sum()
        return jnp.where(e == jnp.maximum(t, c), value, -jnp.inf)

    total = np.zeros(2)
    for a, t, s, c, b, d in product((0, 1), repeat=6):
        e = max(t, c)
        pick = lambda p, x: p if x else 1 - p
        total[e] += (
            pick(asia_, a) * smoke * pick(p_tub[a], t) * pick(p_lung[s], c) * pick(p_bronc[s], b)
            * p_xray[e] * pick(p_dysp[e, b], d)
        )  # fmt: skip
    return Fooling(
        "asia", log_prob, tz.binary(7 + extra), lambda t: t[..., 5].astype(float), float(total[1] / total.sum())
    )


def assignment(rng, n=10):
    """Permutations by weight: all labels different."""
    scores = rng.normal(0.0, 1.0, (n, n))
    s = jnp.asarray(scores)

    def log_prob(theta):
        counts = jnp.zeros(n, jnp.int32).at[theta].add(1)
        return jnp.where(jnp.all(counts == 1), s[np.arange(n), theta].sum(), -jnp.inf)

    def permanent(matrix):
        size = len(matrix)
        sums = {0: 1.0}
        for i in range(size):
            new = {}
            for used, value in sums.items():
                for j in range(size):
                    if not used >> j & 1:
                        new[used | 1 << j] = new.get(used | 1 << j, 0.0) + value * matrix[i, j]
            sums = new
        return sums[(1 << size) - 1]

    weights = np.exp(scores)
    best = int(np.argmax(scores[0]))
    rest = np.delete(np.delete(weights, 0, 0), best, 1)
    exact = weights[0, best] * permanent(rest) / permanent(weights)
    starts = np.stack([rng.permutation(n) for _ in range(8)])
    space = tz.categorical(n, shape=n)
    return Fooling("assignment", log_prob, space, lambda t: (t[..., 0] == best).astype(float), float(exact)), starts


def mean_field_potts(rng, num=40, q=5):
    """The complete graph at the inverse temperature of equal weight: a first-order transition, with fixed counts."""
    counts = np.array([c for c in product(range(num + 1), repeat=q - 1) if sum(c) <= num])
    counts = np.column_stack([counts, num - counts.sum(axis=1)])
    log_ways = lgamma(num + 1) - np.array([[lgamma(c + 1) for c in range(num + 1)][n] for n in counts.ravel()]).reshape(
        counts.shape
    ).sum(axis=1)
    squares, is_ordered = (counts**2).sum(axis=1), counts.max(axis=1) > num / 2

    def share(coupling):
        values = log_ways + coupling * squares / (2 * num)
        weights = np.exp(values - values.max())
        return weights[is_ordered].sum() / weights.sum()

    grid = np.linspace(2.0, 5.0, 301)
    coupling = float(grid[np.argmin([abs(share(c) - 0.5) for c in grid])])

    def log_prob(theta):
        n = _as_float(jnp.zeros(q, jnp.int32).at[theta].add(1))
        return coupling * (n**2).sum() / (2 * num)

    def feature(theta):
        most = np.stack([(theta == k).sum(axis=-1) for k in range(q)]).max(axis=0)
        return (most > num / 2).astype(float)

    return Fooling("first-order Potts", log_prob, tz.categorical(q, shape=num), feature, float(share(coupling)))


def label_switching(rng, num=24, k=3):
    """Labels of a mixture with unknown centres summed out: all relabellings are equally likely."""
    data = np.concatenate([rng.normal(c, 0.3, num // k) for c in (-3.0, 0.0, 3.0)])
    x = jnp.asarray(data)

    def log_prob(theta):
        hot = _as_float(theta[:, None] == jnp.arange(k, dtype=jnp.int32))
        n, total = hot.sum(axis=0), hot.T @ x
        prior, noise = 1 / 25.0, 1 / 0.09
        precision = prior + noise * n
        return (0.5 * (noise * total) ** 2 / precision - 0.5 * jnp.log(precision)).sum()

    return Fooling(
        "labels that switch", log_prob, tz.categorical(k, shape=num), lambda t: (t[..., 0] == 0).astype(float), 1 / k
    )


# ---- healthy ones


def independent(rng, d=40):
    fields = rng.normal(0.0, 1.0, d)
    f = jnp.asarray(fields)
    exact = 1 / (1 + np.exp(-fields))
    log_prob = lambda theta: (f * _as_float(theta)).sum()
    return Fooling("independent bits", log_prob, tz.binary(d), lambda t: t.mean(axis=-1), float(exact.mean()), True)


def spin_chain(rng, d=40):
    coupling = float(rng.uniform(0.2, 0.6))
    field = float(rng.uniform(0.0, 0.2))

    def log_prob(theta):
        s = 2.0 * _as_float(theta) - 1.0
        return coupling * (s[1:] * s[:-1]).sum() + field * s.sum()

    values = np.array([-1.0, 1.0])
    step = np.exp(coupling * np.outer(values, values) + field * values[None])
    left = np.exp(field * values)
    forward = left @ np.linalg.matrix_power(step, d - 1)
    first = left * (np.linalg.matrix_power(step, d - 1) @ np.ones(2))
    assert np.isclose(forward.sum(), first.sum())
    return Fooling(
        "spin chain", log_prob, tz.binary(d), lambda t: t[..., 0].astype(float), float(first[1] / first.sum()), True
    )


def mean_field(rng, d=40):
    """All pairs of spins coupled, above the critical temperature, in a field."""
    coupling, field = float(rng.uniform(0.2, 0.8)), float(rng.uniform(-0.2, 0.2))

    def log_prob(theta):
        total = (2.0 * _as_float(theta) - 1.0).sum()
        return coupling * total**2 / (2 * d) + field * total

    ups = np.arange(d + 1)
    total = 2.0 * ups - d
    log_weights = coupling * total**2 / (2 * d) + field * total - [lgamma(k + 1) + lgamma(d - k + 1) for k in ups]
    weights = np.exp(log_weights - log_weights.max())
    exact = float((weights * ups).sum() / weights.sum() / d)
    return Fooling("mean field", log_prob, tz.binary(d), lambda t: t.mean(axis=-1), exact, True)


def leading_ones(rng, d=30):
    """Every one at the beginning has the same gain."""
    gain = float(rng.uniform(0.5, 0.68))
    log_prob = lambda theta: gain * _as_float(jnp.cumprod(theta).sum())
    length = np.arange(d + 1)
    log_weights = gain * length + np.log(2.0) * np.maximum(d - 1 - length, 0)
    weights = np.exp(log_weights - log_weights.max())
    feature = lambda t: np.cumprod(t, axis=-1).sum(axis=-1).astype(float)
    return Fooling(
        "leading ones", log_prob, tz.binary(d), feature, float((weights * length).sum() / weights.sum()), True
    )


def counts(rng, d=5):
    rates = rng.uniform(5.0, 60.0, d)
    grid = np.arange(200)
    table = grid[None] * np.log(rates[:, None]) - np.array([lgamma(n + 1.0) for n in grid])[None]
    t = jnp.asarray(table)
    log_prob = lambda theta: t[np.arange(d), theta].sum()
    weights = np.exp(table - table.max(axis=1, keepdims=True))
    exact = ((weights * grid).sum(axis=1) / weights.sum(axis=1))[0]
    return Fooling("counts", log_prob, tz.integers(0, 199, d), lambda t: t[..., 0].astype(float), float(exact), True)


def potts_ring(rng, d=30, q=4):
    coupling = float(rng.uniform(0.3, 0.9))
    fields = rng.normal(0.0, 0.4, q)
    f = jnp.asarray(fields)

    def log_prob(theta):
        same = _as_float(theta == jnp.roll(theta, 1)).sum()
        return coupling * same + f[theta].sum()

    step = np.exp(coupling * np.eye(q) + 0.5 * (fields[:, None] + fields[None]))
    power = np.linalg.matrix_power(step, d)
    exact = float(np.diag(power)[0] / np.trace(power))
    feature = lambda t: (t == 0).mean(axis=-1)
    return Fooling("Potts ring", log_prob, tz.categorical(q, shape=d), feature, exact, True)


NUM_CASES = 40


@cache
def cases(seed=0):
    """All cases, with starts where possible configurations are hard to find."""
    rng = np.random.default_rng(seed)
    plain = [
        *(lost_mode(rng, w) for w in (0.02, 0.05, 0.1, 0.3)),
        lost_mode(rng, 0.1, d=80), narrow_binary(rng), narrow_binary(rng, d=30), narrow_integers(rng), two_wells(rng),
        narrow_categorical(rng), narrow_categorical(rng, d=20, k=3), needle(rng, 12), needle(rng, 18), needle(rng, 24),
        trap(rng), trap(rng, num_blocks=12, k=4), parity(rng), halves(rng), halves(rng, half=20), unlock(rng),
        asia(rng), mean_field_potts(rng), label_switching(rng),
        independent(rng), independent(rng, d=120), spin_chain(rng), spin_chain(rng, d=100), counts(rng),
        potts_ring(rng), potts_ring(rng, d=60), mean_field(rng), mean_field(rng, d=100), leading_ones(rng),
        leading_ones(rng, d=60), narrow_binary(rng, d=60), narrow_categorical(rng, d=40),
    ]  # fmt: skip
    started = [tied(rng, 2), tied(rng, 3), fixed_sum(rng), assignment(rng)]
    found = [(case, None) for case in plain] + started
    assert len(found) == NUM_CASES
    return found
