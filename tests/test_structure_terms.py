"""The terms add up to log pi at every configuration, and they are as small as they can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from random_programs import NUM_DIMS, NUM_VALUES, random_program
from structured_models import MODELS, log_table, states_of
from terrazzo.targets.structure.dependence import Dependence
from terrazzo.targets.structure.program import Program
from terrazzo.targets.structure.terms import find_terms


def terms_of(function, num_dims):
    return find_terms(Dependence(Program(function, num_dims)))


@pytest.mark.parametrize("name", MODELS)
def test_the_terms_add_up(name):
    log_prob, sizes, arity = MODELS[name]
    terms = terms_of(log_prob, len(sizes))
    ours, exact = log_table(terms.log_prob, sizes), log_table(log_prob, sizes)
    np.testing.assert_allclose(ours, exact, rtol=0, atol=1e-11)
    assert terms.arities.max() == arity


@pytest.mark.parametrize("seed", range(400, 412))
def test_the_terms_of_random_programs_add_up(seed):
    program = random_program(seed, num_ops=6)
    log_prob = lambda theta: program(theta).sum()
    terms = terms_of(log_prob, NUM_DIMS)
    points = np.random.default_rng(seed).integers(0, NUM_VALUES, (40, NUM_DIMS)).astype(np.int32)
    ours, exact = (np.asarray(jax.vmap(f)(jnp.asarray(points))) for f in (terms.log_prob, log_prob))
    np.testing.assert_allclose(ours, exact, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", MODELS)
def test_a_term_changes_with_its_sites_alone(name):
    log_prob, sizes, _ = MODELS[name]
    terms = terms_of(log_prob, len(sizes))
    states = states_of(sizes)
    values = np.asarray(jax.jit(jax.vmap(terms.values))(jnp.asarray(states[:: max(1, len(states) // 200)])))
    kept = states[:: max(1, len(states) // 200)]
    scopes = terms.scopes
    for t in range(0, terms.num_terms, max(1, terms.num_terms // 20)):
        sites = scopes[[t]].indices
        _, first, back = np.unique(kept[:, sites], axis=0, return_index=True, return_inverse=True)
        np.testing.assert_array_equal(values[:, t], values[first, t][back.ravel()])


def test_quadratic_forms_give_pairs_with_nonzero_couplings_only():
    couplings = np.roll(np.eye(50), 1, axis=1)

    def ring(theta):
        s = 2.0 * theta.astype(float) - 1.0
        return s @ jnp.asarray(couplings) @ s

    terms = terms_of(ring, 50)
    assert terms.num_terms == 50
    assert set(terms.arities) == {2}


def test_a_vector_of_terms_is_summed():
    terms = terms_of(lambda theta: jnp.stack([theta[0] * theta[1], theta[2]]).astype(float), 3)
    assert sorted(terms.arities.tolist()) == [1, 2]
    assert float(terms.log_prob(jnp.array([1, 1, 1], jnp.int32))) == 2.0


def test_whole_numbers_are_not_taken_for_real_ones():
    terms = terms_of(lambda theta: (theta.sum() // 2).astype(float) + (theta.sum() % 2).astype(float), 4)
    sizes = np.full(4, 2)
    np.testing.assert_array_equal(
        log_table(terms.log_prob, sizes), log_table(lambda t: (t.sum() // 2 + t.sum() % 2).astype(float), sizes)
    )


# ---- selections by theta between values that depend on data


COUNTS = np.random.default_rng(0).poisson(2.0, 20).astype(float)
PLACES = np.arange(20, dtype=np.int32)


def change_point(theta, y):
    rate = jnp.where(theta[0] > PLACES, jnp.exp(y[0]), jnp.exp(y[1]))
    return jnp.sum(jnp.where(rate > 0, COUNTS * jnp.log(rate), -jnp.inf) - rate)


def two_masks(theta, y):
    """The second selection is not by the same comparison, and its cases look at theta."""
    one = jnp.where(theta[0] > PLACES, y[0], y[1] * COUNTS)
    two = jnp.where(theta[1] > PLACES, jnp.tanh(one), y[0])
    return jnp.sum(jnp.sin(one) * two + jnp.clip(two, -0.1, 0.1))


@pytest.mark.parametrize(("function", "num_dims"), [(change_point, 1), (two_masks, 2)])
def test_elementwise_functions_of_a_selection_are_taken_of_its_cases(function, num_dims):
    program = Program(function, num_dims, num_data=2)
    terms = find_terms(Dependence(program))
    read = {e.name for e in program.needed(terms.slots) if not program.by_theta.isdisjoint(e.inputs)}
    assert not read & ({"log", "mul"} if function is change_point else {"tanh"})
    rng = np.random.default_rng(1)
    for _ in range(20):
        theta, y = jnp.asarray(rng.integers(0, 20, num_dims), jnp.int32), jnp.asarray(rng.normal(size=2))
        ours = lambda y: terms.values(theta, y).sum() + terms.constant
        exact = lambda y: function(theta, y)
        np.testing.assert_allclose(ours(y), exact(y), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(jax.grad(ours)(y), jax.grad(exact)(y), rtol=1e-10, atol=1e-10)
