"""Starts of positive probability: by chance where they are rare, by a penalty where chance fails, and honest errors."""

import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.errors import StartError, TargetError
from terrazzo.targets import starts


def rare(theta):
    """Possible for 1 in 2^14 configurations."""
    return jnp.where(jnp.all(theta[:14] == 1), 0.1 * theta.sum().astype(float), -jnp.inf)


def queens_penalty(places):
    """Pairs of queens, one a row, that attack each other."""
    rows = jnp.arange(places.shape[0], dtype=places.dtype)
    same = places[:, None] == places[None]
    diagonal = jnp.abs(places[:, None] - places[None]) == jnp.abs(rows[:, None] - rows[None])
    attack = (same | diagonal) & (rows[:, None] < rows[None])
    return attack.sum().astype(float)


def queens(places):
    return jnp.where(queens_penalty(places) == 0, 0.0, -jnp.inf)


def test_one_possible_configuration_in_sixteen_thousand():
    target = tz.Target(rare, tz.binary(30))
    for seed in range(3):
        theta = np.asarray(target.possible_starts(jax.random.key(seed), 8))
        assert (theta[:, :14] == 1).all()
        assert len(np.unique(theta, axis=0)) == 8
    again = np.asarray(target.possible_starts(jax.random.key(2), 8))
    np.testing.assert_array_equal(theta, again)


def test_nothing_found_says_how_many_were_tried_and_what_works():
    target = tz.Target(lambda t: jnp.where(jnp.all(t == 1), 0.0, -jnp.inf), tz.binary(60), probe=False)
    with pytest.raises(StartError, match=r"-inf at all of \d{5,} random") as caught:
        target.possible_starts(jax.random.key(0), 4)
    assert "init=... to tz.sample" in caught.value.remedy
    assert "penalty" in caught.value.remedy
    found = tz.sample(target, seed=0, sampler="gibbs", init=np.ones(60, int), draws=5, warmup=0, progress="off")
    assert (found.codes == 1).all()


def test_a_slow_black_box_is_tried_for_seconds_not_for_ever(monkeypatch):
    monkeypatch.setattr(starts, "SECONDS", 0.1)
    calls = []

    def slow(theta):
        calls.append(theta)
        time.sleep(0.001)
        return -np.inf

    target = tz.Target(tz.blackbox(slow), tz.binary(5), probe=False)
    with pytest.raises(StartError):
        target.possible_starts(jax.random.key(0), 4)
    assert 0 < len(calls) < 20_000 < starts.MOST_TRIES


@pytest.mark.parametrize("is_box", [False, True])
def test_a_penalty_leads_to_possible_configurations(is_box):
    """Eleven queens on a board: 2,680 solutions among 11^11 placements."""
    space = tz.integers(0, 10, 11)
    if is_box:
        target = tz.Target(
            tz.blackbox(lambda v: jax.device_get(jax.vmap(queens)(v)), vectorized=True), space,
            penalty=lambda v: jax.device_get(jax.vmap(queens_penalty)(v)),
        )  # fmt: skip
    else:
        target = tz.Target(queens, space, penalty=queens_penalty)
    theta = np.asarray(target.possible_starts(jax.random.key(0), 8))
    assert all(float(queens_penalty(jnp.asarray(row))) == 0 for row in theta)
    assert len(np.unique(theta, axis=0)) >= 6


def test_a_penalty_of_other_constraints_is_refused():
    with pytest.raises(TargetError, match=r"penalty: is 1 where log_prob is 0"):
        tz.Target(
            lambda t: 0.0 * t.sum().astype(float), tz.binary(3), penalty=lambda t: 1.0 + 0.0 * t.sum().astype(float)
        )
    with pytest.raises(TargetError, match=r"penalty: is 0 where log_prob is -inf"):
        tz.Target(queens, tz.integers(0, 10, 11), penalty=lambda t: 0.0 * t.sum().astype(float))
    with pytest.raises(TargetError, match=r"penalty: raised KeyError.*test_starts.py"):
        tz.Target(queens, tz.integers(0, 10, 11), penalty=lambda t: {}["no"])


def test_a_conditioned_target_keeps_its_penalty():
    target = tz.Target(queens, tz.integers(0, 10, 11), penalty=queens_penalty)
    rest = tz.condition(target, {0: 3})
    theta = np.asarray(rest.possible_starts(jax.random.key(0), 4))
    whole = np.concatenate([np.full((4, 1), 3), theta], axis=1)
    assert all(float(queens_penalty(jnp.asarray(row))) == 0 for row in whole)


def test_too_few_starts_are_spread():
    """Two possible islands; copies of the one that was found walk over it."""
    target = tz.Target(lambda t: jnp.where(jnp.all(t[:16] == t[0]) & (t[0] == 1), 0.0, -jnp.inf), tz.binary(30))
    theta = np.asarray(target.possible_starts(jax.random.key(0), 64))
    assert (theta[:, :16] == 1).all()
    assert len(np.unique(theta, axis=0)) >= 60
