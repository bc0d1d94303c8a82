"""Conditionals by weights, tables, terms and running products are those of log pi; sweeps leave pi alone.

Mutants: two sites of one term in a colour, a wrong owner, a stale product.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import log_softmax, softmax

import terrazzo as tz
from structured_models import MODELS, log_table, states_of, target_of
from terrazzo.samplers.kernels.coloured_gibbs import coloured_gibbs
from terrazzo.samplers.kernels.gibbs import systematic_gibbs
from terrazzo.targets import structure
from terrazzo.targets.running_conditionals import check_running
from terrazzo.targets.structure.conditionals import term_logits
from terrazzo.targets.structure.linear import running_field
from terrazzo.targets.structure.terms import Terms

SMALL = ["potts_by_equality", "glass", "graph_colouring", "all_or_nothing", "network", "three_body", "mixed"]


def exact_logits(log_prob, sizes):
    """For all configurations (state, site, value): log pi of the neighbours; -inf at what is no value."""
    table = log_table(log_prob, sizes).reshape(tuple(sizes))
    states, size = states_of(sizes), int(max(sizes))
    out = np.full((len(states), len(sizes), size), -np.inf)
    for i, k in enumerate(sizes):
        for value in range(k):
            moved = states.copy()
            moved[:, i] = value
            out[:, i, value] = table[tuple(moved.T)]
    return states, out


def assert_same_conditionals(ours, exact):
    """Equal up to a constant of each row, where the row has a possible value at all."""
    is_seen = np.isfinite(exact).any(axis=-1)
    np.testing.assert_allclose(
        log_softmax(ours[is_seen], axis=-1), log_softmax(exact[is_seen], axis=-1), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("name", MODELS)
def test_logits_by_tables_and_by_terms(name):
    """At 500 random states, and 200 of them."""
    log_prob, sizes, _ = MODELS[name]
    found = structure.read(log_prob, sizes)
    states, exact = exact_logits(log_prob, sizes)
    kept = np.random.default_rng(0).permutation(len(states))[:500]
    groups = [np.flatnonzero(found.graph.colours == c) for c in range(found.graph.num_colours)]
    cases = [(one, kept) for one in (*found.colour_logits(), found.all_logits())]
    cases += [(one, kept[:200]) for one in term_logits(found.terms, sizes, groups)]
    for one, rows in cases:
        ours = np.asarray(jax.jit(jax.vmap(one.logits))(jnp.asarray(states[rows])))
        assert_same_conditionals(ours, exact[rows][:, np.asarray(one.sites)])


def test_a_site_of_many_neighbours_beside_many_of_one():
    weights = np.random.default_rng(0).normal(size=(30, 3, 3))
    star = lambda t: jnp.asarray(weights)[np.arange(30), t[0], t[1:]].sum()
    found = structure.read(star, np.full(31, 3))
    one = found.all_logits()
    assert one.owner is not None
    theta = np.random.default_rng(1).integers(0, 3, 31).astype(np.int32)
    near = np.array([[float(star(jnp.asarray(theta).at[i].set(k))) for k in range(3)] for i in range(31)])
    assert_same_conditionals(np.asarray(one.logits(jnp.asarray(theta))), near)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("by_terms", [False, True], ids=["tables", "terms"])
def test_a_sweep_leaves_pi_alone(name, by_terms):
    """One sweep from exact draws: each site's marginal and each pair's, within 5.5 standard errors (2e-8 each)."""
    log_prob, sizes, _ = MODELS[name]
    found = structure.read(log_prob, sizes)
    groups = [np.flatnonzero(found.graph.colours == c) for c in range(found.graph.num_colours)]
    conditionals = term_logits(found.terms, sizes, groups) if by_terms else found.colour_logits()
    colours = tuple(found.graph.colours.tolist())
    sampler = coloured_gibbs(target_of(name), colours=colours, conditionals=conditionals, verify=False)
    answer = found.exact()
    num = 40_000
    draws = jnp.asarray(answer.sample(jax.random.key(0), num))
    sweep = lambda key, theta: sampler.step(key, sampler.init(theta))[0].position
    after = np.asarray(jax.jit(jax.vmap(sweep))(jax.random.split(jax.random.key(1), num), draws))
    probabilities = softmax(log_table(log_prob, sizes))
    counts = np.bincount(np.ravel_multi_index(tuple(after.T), tuple(sizes)), minlength=len(probabilities))
    assert counts[probabilities == 0].sum() == 0
    states = states_of(sizes)
    for i in range(len(sizes)):
        for j in range(i):
            is_both = (states[:, i] == states[:, j]) | (states[:, i] == 1)
            p = probabilities[is_both].sum()
            z = (counts[is_both].sum() / num - p) / np.sqrt(max(p * (1 - p), 1e-9) / num)
            assert abs(z) < 5.5
    is_moved = (after != np.asarray(draws)).any(axis=1)
    assert is_moved.mean() > 0.1


def test_two_sites_of_a_term_in_one_group_are_refused():
    found = structure.read(lambda t: (t[0] * t[1]).astype(float), np.full(2, 2))
    with pytest.raises(ValueError, match="share a term"):
        term_logits(found.terms, np.full(2, 2), [np.array([0, 1])])


def test_a_wrong_owner_is_seen():
    log_prob, sizes, _ = MODELS["three_body"]
    found = structure.read(log_prob, sizes)
    states, exact = exact_logits(log_prob, sizes)
    groups = [np.flatnonzero(found.graph.colours == c) for c in range(found.graph.num_colours)]
    one = term_logits(found.terms, sizes, groups)[0]
    wrong = eqx.tree_at(lambda o: o.owner, one, jnp.roll(one.owner, 1))
    ours = np.asarray(jax.jit(jax.vmap(wrong.logits))(jnp.asarray(states)))
    with pytest.raises(AssertionError):
        assert_same_conditionals(ours, exact[:, np.asarray(one.sites)])


def potts_regression(theta):
    weights = np.random.default_rng(5).normal(size=(10, 5, 3))
    rows = jax.nn.one_hot(theta, 3, dtype=float)
    return -jnp.log1p(jnp.exp(-jnp.einsum("nik,ik->n", jnp.asarray(weights), rows))).sum() + 0.2 * rows[:, 1].sum()


RUNNING = {
    "logistic": MODELS["logistic"][:2],
    "rbm": MODELS["rbm"][:2],
    "nothing_but_one": MODELS["nothing_but_one"][:2],
    "one-hot": (potts_regression, np.full(5, 3)),
}


@pytest.mark.parametrize("name", RUNNING)
def test_running_products_are_the_conditionals(name):
    log_prob, sizes = RUNNING[name]
    running = structure.read(log_prob, sizes).running
    space = tz.Space(tz.categorical(int(sizes[0]), shape=len(sizes)))
    points = np.random.default_rng(0).integers(0, sizes, (6, len(sizes)))
    check_running(running, log_prob, space, points)
    states, exact = exact_logits(log_prob, sizes)
    kept = np.random.default_rng(0).permutation(len(states))[:100]
    ours = jax.jit(jax.vmap(lambda theta: running.logits(running.start(theta), theta)))(jnp.asarray(states[kept]))
    assert_same_conditionals(np.asarray(ours), exact[kept])
    assert_sweep_is_right(running, log_prob, sizes)


def assert_sweep_is_right(running, log_prob, sizes, num=40_000):
    probabilities = softmax(log_table(log_prob, sizes))
    states = states_of(sizes)
    draws = states[np.random.default_rng(0).choice(len(states), num, p=probabilities)]
    target = tz.Target(log_prob, tz.categorical(int(sizes[0]), shape=len(sizes)))
    sampler = systematic_gibbs(target, conditionals=running)
    sweep = lambda key, theta: sampler.step(key, sampler.init(theta))[0].position
    after = np.asarray(jax.jit(jax.vmap(sweep))(jax.random.split(jax.random.key(1), num), jnp.asarray(draws)))
    for i in range(len(sizes)):
        p = probabilities[states[:, i] == 1].sum()
        assert abs((after[:, i] == 1).mean() - p) < 5.5 * np.sqrt(p * (1 - p) / num)
        for j in range(i):
            p = probabilities[states[:, i] == states[:, j]].sum()
            assert abs((after[:, i] == after[:, j]).mean() - p) < 5.5 * np.sqrt(p * (1 - p) / num)


def dense(num_dims):
    couplings = np.random.default_rng(0).normal(size=(num_dims, num_dims)) / np.sqrt(num_dims)

    def log_prob(theta):
        s = 2.0 * theta.astype(float) - 1.0
        return s @ jnp.asarray(couplings) @ s + 0.1 * s.sum()

    return log_prob, np.full(num_dims, 2)


def test_a_dense_glass_has_a_running_field(monkeypatch):
    log_prob, sizes = dense(40)
    running = structure.read(log_prob, sizes).running
    points = np.random.default_rng(0).integers(0, 2, (6, 40))
    check_running(running, log_prob, tz.Space(tz.binary(40)), points)
    log_prob, sizes = dense(7)
    monkeypatch.setattr("terrazzo.targets.structure.linear.MIN_DEGREE", 1)
    small = running_field(structure.read(log_prob, sizes).pairs)
    assert_sweep_is_right(small, log_prob, sizes)


def test_a_stale_product_is_seen():
    log_prob, sizes, _ = MODELS["rbm"]
    running = structure.read(log_prob, sizes).running

    class Stale(type(running)):
        def moved(self, tables, theta, i, value):
            return tables

    stale = Stale(running.unary, running.sizes, running.origin, running.columns, running.rest)
    points = np.random.default_rng(0).integers(0, sizes, (6, len(sizes)))
    with pytest.raises(tz.errors.TargetError, match="after a change"):
        check_running(stale, log_prob, tz.Space(tz.binary(6)), points)


ODD = {
    "a constant draw": lambda t: (jax.random.normal(jax.random.key(0), (4,)) * t.astype(float)).sum(),
    "a draw by theta": lambda t: jax.random.uniform(jax.random.fold_in(jax.random.key(0), t[0])) + t[1].astype(float),
    "a callback": lambda t: jax.pure_callback(
        lambda x: np.float64(x.sum()), jax.ShapeDtypeStruct((), float), t, vmap_method="sequential"
    ),
    "nothing at all": lambda t: jnp.zeros(()),
    "an empty sum": lambda t: t[:0].astype(float).sum() + t[0].astype(float),
    "linear algebra": lambda t: jnp.linalg.slogdet(jnp.eye(4) * 3.0 + jnp.outer(t, t).astype(float))[1],
    "a long recurrence": lambda t: jax.lax.scan(
        lambda c, x: (jnp.sin(c + x), None), 0.0, jnp.tile(t.astype(float), 999)
    )[0],
    "a while loop": lambda t: jax.lax.while_loop(lambda c: c < 9.0, lambda c: c + 1.0 + t[2].astype(float), 0.0),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_functions_are_read(name):
    sizes = np.full(4, 2)
    found = structure.read(ODD[name], sizes)
    assert not found.is_whole
    np.testing.assert_allclose(log_table(found.terms.log_prob, sizes), log_table(ODD[name], sizes), atol=1e-10)


def test_a_function_that_cannot_be_traced_is_an_error():
    with pytest.raises(jax.errors.ConcretizationTypeError):
        structure.read(lambda t: 1.0 if t[0] > 0 else 0.0, np.full(2, 2))


def test_reading_never_fails_and_gives_up_in_time():
    log_prob, sizes, _ = MODELS["torus"]
    found = structure.read(log_prob, sizes, max_seconds=0.0)
    assert found.is_whole
    assert found.terms.num_terms == 1
    assert found.graph.arity == 16
    np.testing.assert_allclose(log_table(found.terms.log_prob, sizes), log_table(log_prob, sizes), atol=1e-12)
    assert isinstance(found.terms, Terms)
    assert found.running is None
