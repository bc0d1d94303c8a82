"""The draws behind the discrete kernels follow their laws. False-alarm rate of each statistical test: 1e-6.

200,000 draws each: an outcome of probability 0.1 that is off by 4 % of itself is seen.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from terrazzo.samplers.parts import randomness, ratios
from terrazzo.samplers.parts.tables import normalised

ALPHA = 1e-6
NUM_DRAWS = 200_000


def draws_of(fn, seed=0):
    return jax.device_get(jax.jit(jax.vmap(fn))(jax.random.split(jax.random.key(seed), NUM_DRAWS)))


def p_value(outcomes, probabilities):
    """Chi-square of outcomes 0..n-1; impossible ones must not occur."""
    counts = np.bincount(outcomes, minlength=len(probabilities))
    is_possible = probabilities > 0
    assert not counts[~is_possible].any()
    return stats.chisquare(counts[is_possible], NUM_DRAWS * probabilities[is_possible]).pvalue


def random_weights(num, seed=0):
    """Log-weights with impossible outcomes at both ends and in the middle."""
    logits = np.random.default_rng(seed).normal(size=num) * 0.7
    logits[[0, num // 2, num - 1]] = -np.inf
    return logits


@pytest.mark.parametrize("num", [5, 6, 64, 65, 100, 400])
def test_categorical_by_every_algorithm(num):
    logits = random_weights(num)
    outcomes = draws_of(lambda key: randomness.categorical(key, jnp.asarray(logits)))
    assert p_value(outcomes, np.exp(logits) / np.exp(logits).sum()) > ALPHA


@pytest.mark.parametrize("num", [1, 2, 5, 6, 65])
def test_groups_of_rows_are_independent(num):
    """The sum of two rows has the law of a sum of independent ones; equal random numbers would not give it."""
    logits = random_weights(num) if num > 3 else np.linspace(0.4, -0.5, num)

    def draw(key):
        first, second = randomness.keys_of_rows(key, [2, 1], num, jnp.result_type(float))
        rows = [randomness.categorical_rows(part, jnp.tile(logits, (n, 1))) for part, n in ((first, 2), (second, 1))]
        return jnp.concatenate(rows)

    outcomes, probabilities = draws_of(draw), np.exp(logits) / np.exp(logits).sum()
    of_sum = np.convolve(probabilities, probabilities)
    for one, other in itertools.combinations(range(3), 2):
        assert num == 1 or p_value(outcomes[:, one] + outcomes[:, other], of_sum) > ALPHA
    assert outcomes.max() < num


@pytest.mark.parametrize("stay", [0.0, -np.inf])
def test_choices_of_a_coordinate(stay):
    logits = np.stack([random_weights(5, seed=1), random_weights(5, seed=2)], axis=1)
    weights = np.concatenate([np.full((1, 2), np.exp(stay)), np.exp(logits)])
    probabilities = weights / weights.sum(axis=0)
    log_probs = jnp.log(jnp.asarray(probabilities))
    outcomes = draws_of(lambda key: randomness.choice_rows(key, log_probs[0], log_probs[1:], [6, 6]))
    assert p_value(outcomes[:, 0] * 6 + outcomes[:, 1], np.outer(*probabilities.T).ravel()) > ALPHA
    if np.isfinite(stay):
        table = normalised(jnp.asarray(logits))
        np.testing.assert_allclose(
            table.log_prob(jnp.asarray([0, 2], jnp.int32)), np.log(probabilities[[0, 2], [0, 1]]).sum()
        )


def test_rare_moves_keep_their_probability():
    """A move of probability 1e-5 in single precision, among 2e7 coordinates: its number is known to 25 %."""
    log_move = jnp.log(jnp.full((1, 2**20), 1e-5, jnp.float32))
    log_stay = jnp.log1p(-jnp.exp(log_move[0]))
    draw = jax.jit(lambda key: randomness.choice_rows(key, log_stay, log_move, [2] * 2**20).sum())
    number = sum(int(draw(key)) for key in jax.random.split(jax.random.key(3), 20))
    mean = 20 * 2**20 * 1e-5
    assert stats.poisson.ppf(ALPHA / 2, mean) <= number <= stats.poisson.isf(ALPHA / 2, mean)


def test_paths_are_drawn_without_replacement():
    """The first two of at most three places: Plackett-Luce, with one index that has no weight."""
    weights = np.array([0.5, 1.0, 0.0, 2.0, 0.7])
    length = jnp.asarray(2, jnp.int32)
    path, ranks = draws_of(lambda key: randomness.path_ranks(key, jnp.log(jnp.asarray(weights)), 3, length))
    first, second = path[:, 0], path[:, 1]
    probabilities = np.zeros((5, 5))
    for i, j in itertools.permutations(range(5), 2):
        probabilities[i, j] = weights[i] / weights.sum() * weights[j] / (weights.sum() - weights[i])
    assert p_value(first * 5 + second, probabilities.ravel()) > ALPHA
    rows = np.arange(NUM_DRAWS)
    assert (ranks[rows, first] == 0).all()
    assert (ranks[rows, second] == 1).all()
    assert ((ranks < 3).sum(axis=1) == 2).all()


def test_log_of_the_rest():
    x = -np.logspace(-12, 2.5, 200)
    exact = np.where(x > -1, np.log(-np.expm1(x)), np.log1p(-np.exp(x)))
    np.testing.assert_allclose(randomness.log1mexp(jnp.asarray(x)), exact, rtol=1e-14, atol=1e-15)
    assert randomness.log1mexp(jnp.asarray([0.0, -jnp.inf])).tolist() == [-np.inf, 0.0]


@pytest.mark.parametrize("num", [1, 4, 5, 8, 11])
def test_batches_of_candidates_give_what_single_evaluations_do(num):
    target = tz.Target(lambda theta: -0.5 * jnp.sum((theta.astype(float) - 0.3) ** 2), tz.integers(0, 19, 3))
    theta, values = jnp.asarray([3, 7, 11], jnp.int32), jnp.arange(num, dtype=jnp.int32)
    together = ratios.log_probs_of(target, lambda k: theta.at[1].set(k), values)
    one_by_one = [float(target.log_prob(theta.at[1].set(k))) for k in range(num)]
    np.testing.assert_allclose(together, one_by_one, rtol=1e-14)


@pytest.mark.parametrize("reach", [None, 1, 2])
@pytest.mark.parametrize("space", [tz.integers(0, 5, 3), tz.binary(4), tz.Space(a=tz.binary(), b=tz.categorical(3))])
def test_offsets_are_undone(space, reach):
    """Every choice leads to another value, and back."""
    space = tz.Space(space) if not isinstance(space, tz.Space) else space
    offsets = ratios.offsets_of(space, reach)
    for theta in jnp.asarray(space.enumerate()[::7]):
        for number in range(1, len(offsets.lines) + 1):
            exists = number < offsets.num_choices
            choice = jnp.asarray(np.where(exists, number, 0), jnp.int32)
            moved = offsets.apply(theta, choice)
            assert ((moved != theta) == exists).all()
            assert ((moved >= 0) & (moved < space.sizes)).all()
            assert (offsets.apply(moved, offsets.undone(choice)) == theta).all()
            distances = offsets.distances(theta)[number - 1]
            assert ((theta + distances == moved) | ~exists).all()
