"""`Target(..., terms=True)`: a function that returns its terms is the same target as its sum."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.errors import TargetError
from terrazzo.targets.reading import structure_of

TABLE = np.random.default_rng(0).normal(size=(3, 3))


def terms(theta):
    return jnp.asarray(TABLE)[theta[1:], theta[:-1]]


def test_the_sum_is_log_pi_and_the_terms_are_read():
    space = tz.categorical(3, shape=40)
    target, plain = tz.Target(terms, space, terms=True), tz.Target(lambda t: terms(t).sum(), space)
    theta = target.possible_starts(jax.random.key(0), 5)
    for one in theta:
        assert float(target.log_prob(one)) == pytest.approx(float(plain.log_prob(one)), rel=1e-12)
    assert structure_of(target).terms.num_terms == 39
    results = [tz.sample(t, seed=0, draws=20, progress="off") for t in (target, plain)]
    assert results[0].verdict.grade == "exact"
    assert results[0].log_z == pytest.approx(results[1].log_z, rel=1e-12)


def test_batches_of_terms():
    batched = tz.Target(lambda t: 0.5 * (t[:, 1:] * t[:, :-1]).astype(float), tz.binary(5), vectorized=True, terms=True)
    assert float(batched.log_prob(jnp.ones(5, jnp.int32))) == 2.0
    assert structure_of(batched).graph.num_colours == 2


@pytest.mark.parametrize("vectorized", [False, True])
def test_black_boxes_give_their_sum(vectorized):
    box = tz.blackbox(lambda t: 0.5 * (t[..., 1:] * t[..., :-1]), vectorized=vectorized)
    target = tz.Target(box, tz.binary(4), terms=True)
    assert float(target.log_prob(jnp.array([1, 1, 1, 0], jnp.int32))) == 1.0
    assert structure_of(target) is None


@pytest.mark.parametrize("make", [lambda f: f, tz.blackbox])
def test_what_is_no_vector_is_said(make):
    with pytest.raises(TargetError, match=r"(?s)terms=True.*vector of terms"):
        tz.Target(make(lambda t: t.sum().astype(float)), tz.binary(4), terms=True)
