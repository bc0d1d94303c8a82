"""Graphs, tables and elimination against enumeration, transfer matrices and mutants. False-alarm rate: 1e-6 each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy import stats
from scipy.special import logsumexp

import terrazzo as tz
from structured_models import MODELS, log_table, states_of
from terrazzo.targets.structure import elimination
from terrazzo.targets.structure.dependence import Dependence
from terrazzo.targets.structure.elimination import eliminate, maximum
from terrazzo.targets.structure.graph import FactorGraph
from terrazzo.targets.structure.pairs import pair_tables, potts_form
from terrazzo.targets.structure.program import Program
from terrazzo.targets.structure.tables import Factors, factor_tables
from terrazzo.targets.structure.terms import find_terms

ALPHA = 1e-6


def read_model(log_prob, sizes):
    terms = find_terms(Dependence(Program(log_prob, len(sizes))))
    graph = FactorGraph(terms.dependence.pool.csr(np.unique(terms.sets[terms.arities > 0])), np.asarray(sizes))
    factors, constant = factor_tables(terms, np.asarray(sizes))
    return terms, graph, factors, constant


def summed(factors, constant, states):
    total = np.full(len(states), constant)
    for group in factors:
        for sites, table in zip(group.sites, group.tables, strict=True):
            total = total + table[tuple(states[:, sites].T)]
    return total


def marginals_of(exact):
    """P(theta_i = k), shape (d, K); 0 at values that a site does not have."""
    turns = {site: t for t, site in enumerate(exact.order.sites)}
    parents = {
        s: min(near, key=turns.__getitem__)
        for s, near in zip(exact.order.sites, exact.order.around, strict=True)
        if near
    }
    waiting = np.bincount(list(parents.values()), minlength=len(exact.sizes))
    out = np.zeros((len(exact.sizes), int(exact.sizes.max())))
    joints = {}
    for site, around, below in exact._last_first():
        probabilities = np.diff(below, axis=1, prepend=0.0, append=1.0)
        prior = np.ones(())
        if site in parents:
            axes, joint = joints[parents[site]]
            prior = elimination._arranged(
                joint.sum(axis=tuple(k for k, s in enumerate(axes) if s not in around)),
                [s for s in axes if s in around],
                around,
            )
            waiting[parents[site]] -= 1
            if not waiting[parents[site]]:
                del joints[parents[site]]
        joint = prior.reshape(-1, 1) * probabilities
        out[site, : exact.sizes[site]] = joint.sum(axis=0)
        if waiting[site]:
            joints[site] = ((*around, site), joint.reshape([exact.sizes[s] for s in (*around, site)]))
    return out


@pytest.mark.parametrize("name", MODELS)
def test_everything_agrees_with_enumeration(name):
    log_prob, sizes, _ = MODELS[name]
    _, graph, factors, constant = read_model(log_prob, sizes)
    states, exact = states_of(sizes), log_table(log_prob, sizes)
    np.testing.assert_allclose(summed(factors, constant, states), exact, rtol=0, atol=1e-11)
    answer = eliminate(factors, constant, graph)
    assert answer.log_z == pytest.approx(logsumexp(exact), abs=1e-10)
    probabilities = np.exp(exact - answer.log_z)
    marginals = np.zeros((len(sizes), int(max(sizes))))
    for i in range(len(sizes)):
        np.add.at(marginals[i], states[:, i], probabilities)
    np.testing.assert_allclose(marginals_of(answer), marginals, atol=1e-12)
    theta, best = maximum(factors, constant, graph)
    assert best == pytest.approx(exact.max(), abs=1e-10)
    assert float(log_prob(jnp.asarray(theta))) == pytest.approx(exact.max(), abs=1e-10)
    draws = answer.sample(jax.random.key(1), 20_000)
    assert g_test(draws, sizes, probabilities) > ALPHA


def g_test(draws, sizes, probabilities):
    counts = np.bincount(np.ravel_multi_index(tuple(draws.T), tuple(sizes)), minlength=len(probabilities))
    assert counts[probabilities == 0].sum() == 0
    order = np.argsort(-probabilities)
    is_large = probabilities[order] * counts.sum() > 5
    large = order[is_large]
    seen = np.append(counts[large], counts.sum() - counts[large].sum())
    expected = np.append(probabilities[large], max(1 - probabilities[large].sum(), 1e-12)) * counts.sum()
    kept = expected > 5
    return stats.chi2.sf(((seen - expected)[kept] ** 2 / expected[kept]).sum(), max(kept.sum() - 1, 1))


@pytest.mark.parametrize("name", ["torus", "potts", "potts_by_equality", "dense_glass", "glass", "qubo_penalty"])
def test_the_potts_form_is_log_pi(name):
    log_prob, sizes, _ = MODELS[name]
    _, _, factors, constant = read_model(log_prob, sizes)
    form = potts_form(pair_tables(factors, sizes, constant))
    states = states_of(sizes)
    is_equal = states[:, form.edges[:, 0]] == states[:, form.edges[:, 1]]
    ours = form.constant + form.fields[np.arange(len(sizes)), states].sum(axis=1) + is_equal @ form.couplings
    np.testing.assert_allclose(ours, log_table(log_prob, sizes), atol=1e-10)


@pytest.mark.parametrize("name", ["hmm", "graph_colouring", "mixed"])
def test_other_pair_models_have_no_potts_form(name):
    log_prob, sizes, _ = MODELS[name]
    _, _, factors, constant = read_model(log_prob, sizes)
    pairs = pair_tables(factors, sizes, constant)
    assert pairs is not None
    assert potts_form(pairs) is None


@pytest.mark.parametrize("seed", range(6))
def test_random_tables_on_random_graphs(seed):
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 4, 8)
    scopes = [tuple(sorted(rng.choice(8, rng.integers(1, 4), replace=False).tolist())) for _ in range(9)]
    scopes = sorted(set(scopes))
    factors, rows = [], np.zeros((len(scopes), 8))
    for row, scope in zip(rows, scopes, strict=True):
        table = rng.normal(size=sizes[list(scope)])
        table[rng.random(table.shape) < 0.15] = -np.inf
        factors.append(Factors(np.array([scope]), table[None]))
        row[list(scope)] = 1
    graph = FactorGraph(sp.csr_matrix(rows), sizes)
    exact = summed(factors, 0.5, states_of(sizes))
    assert eliminate(factors, 0.5, graph).log_z == pytest.approx(logsumexp(exact), abs=1e-10)
    assert maximum(factors, 0.5, graph)[1] == pytest.approx(exact.max(), abs=1e-10)


def test_colours_differ_between_neighbours_and_two_are_found_where_they_do():
    rng = np.random.default_rng(0)
    for _ in range(20):
        edges = rng.integers(0, 30, (40, 2))
        edges = edges[edges[:, 0] != edges[:, 1]]
        rows = np.zeros((len(edges), 30))
        np.put_along_axis(rows, edges, 1.0, axis=1)
        graph = FactorGraph(sp.csr_matrix(rows), np.full(30, 2))
        assert (graph.colours[edges[:, 0]] != graph.colours[edges[:, 1]]).all()
        bipartite = np.where(edges % 2 == [[0, 1]], edges, -1)
        kept = edges[(bipartite >= 0).all(axis=1)]
        rows = np.zeros((len(kept), 30))
        np.put_along_axis(rows, kept, 1.0, axis=1)
        assert FactorGraph(sp.csr_matrix(rows), np.full(30, 2)).num_colours <= 2


def test_components():
    rows = np.zeros((2, 5))
    rows[0, [0, 3]] = rows[1, [1, 4]] = 1
    components = FactorGraph(sp.csr_matrix(rows), np.full(5, 2)).components
    assert components[0] == components[3] != components[1] == components[4]
    assert len(set(components.tolist())) == 3


def hidden_chain(num_steps):
    rng = np.random.default_rng(1)
    step, seen = np.log(rng.dirichlet(np.ones(4), 4)), np.log(rng.dirichlet(np.ones(6), 4))
    data = rng.integers(0, 6, num_steps)
    log_prob = lambda t: jnp.asarray(step)[t[:-1], t[1:]].sum() + jnp.asarray(seen)[t, data].sum()
    forward = seen[:, data[0]]
    for y in data[1:]:
        forward = logsumexp(forward[:, None] + step, axis=0) + seen[:, y]
    return log_prob, np.full(num_steps, 4), float(logsumexp(forward))


def strip(height, length, coupling=0.4):
    def log_prob(theta):
        s = (2.0 * theta.astype(float) - 1.0).reshape(height, length)
        return coupling * ((s[1:] * s[:-1]).sum() + (s[:, 1:] * s[:, :-1]).sum())

    columns = 2.0 * states_of(np.full(height, 2)) - 1.0
    within = coupling * (columns[:, 1:] * columns[:, :-1]).sum(axis=1).reshape((2,) * height)
    bond = np.exp(coupling * np.array([[1.0, -1.0], [-1.0, 1.0]]))
    forward = within
    for _ in range(length - 1):
        top = forward.max()
        after = np.exp(forward - top)
        for _ in range(height):  # the transfer matrix is a product of bonds, one for each row
            after = np.moveaxis(np.tensordot(after, bond, axes=(0, 0)), -1, height - 1)
        forward = np.log(after) + top + within
    return log_prob, np.full(height * length, 2), float(logsumexp(forward))


def tree(num_nodes):
    rng = np.random.default_rng(2)
    parents = np.array([rng.integers(0, i) for i in range(1, num_nodes)])
    table = rng.normal(size=(3, 3))
    messages = np.zeros((num_nodes, 3))
    for i in range(num_nodes - 1, 0, -1):
        messages[parents[i - 1]] += logsumexp(table + messages[i], axis=1)
    log_prob = lambda t: jnp.asarray(table)[t[parents], t[1:]].sum()
    return log_prob, np.full(num_nodes, 3), float(logsumexp(messages[0]))


def bayesian_network(num_nodes):
    """Deterministic tables and evidence; log Z by the tables' own product over all configurations of what is free."""
    rng = np.random.default_rng(3)
    parents = [sorted(rng.choice(i, min(i, int(rng.integers(0, 4))), replace=False).tolist()) for i in range(num_nodes)]
    with np.errstate(divide="ignore"):
        tables = [
            np.log(
                np.eye(2)[rng.integers(0, 2, (2,) * len(p))] if i % 4 == 3 else rng.dirichlet(np.ones(2), (2,) * len(p))
            )
            for i, p in enumerate(parents)
        ]

    def log_prob(theta):
        total = jnp.zeros(())
        for i, p in enumerate(parents):
            total = total + jnp.asarray(tables[i])[(*[theta[j] for j in p], theta[i])]
        return total

    return log_prob, np.full(num_nodes, 2), 0.0


@pytest.mark.parametrize(
    ("model", "size"), [(hidden_chain, (2000,)), (strip, (12, 400)), (tree, (10_000,)), (bayesian_network, (40,))]
)
def test_large_models_are_answered_exactly(model, size):
    log_prob, sizes, log_z = model(*size)
    _, graph, factors, constant = read_model(log_prob, sizes)
    answer = eliminate(factors, constant, graph)
    draws = answer.sample(jax.random.key(0), 2000)
    assert answer.log_z == pytest.approx(log_z, rel=1e-9, abs=1e-9)
    marginals = marginals_of(answer)
    freedom = np.sqrt(np.maximum(marginals[:, 1] * (1 - marginals[:, 1]), 1e-12) / len(draws))
    z = ((draws == 1).mean(axis=0) - marginals[:, 1]) / freedom
    assert np.abs(z).max() < stats.norm.isf(ALPHA / len(sizes))


def test_evidence_is_respected():
    log_prob, sizes, _ = MODELS["network"]
    _, graph, factors, constant = read_model(log_prob, sizes)
    assert (eliminate(factors, constant, graph).sample(jax.random.key(0), 100)[:, 4] == 1).all()


def test_a_wrong_message_is_seen(monkeypatch):
    """The mutant: a maximum in the place of a sum."""
    log_prob, sizes, _ = MODELS["torus"]
    _, graph, factors, constant = read_model(log_prob, sizes)
    summed_out = elimination._summed
    monkeypatch.setattr(elimination, "_summed", lambda table: (table.max(axis=-1), summed_out(table)[1]))
    assert abs(eliminate(factors, constant, graph).log_z - logsumexp(log_table(log_prob, sizes))) > 1e-3


def test_nothing_to_draw_is_an_error():
    graph = FactorGraph(sp.csr_matrix(np.ones((1, 1))), np.array([2]))
    answer = eliminate([Factors(np.array([[0]]), np.full((1, 2), -np.inf))], 0.0, graph)
    assert answer.log_z == -np.inf
    with pytest.raises(ValueError, match="impossible"):
        answer.sample(jax.random.key(0), 3)


def test_a_wide_graph_is_refused_before_anything_is_computed():
    def glass(theta):
        s = 2.0 * theta.astype(float) - 1.0
        return s @ jnp.asarray(np.random.default_rng(0).normal(size=(60, 60))) @ s

    _, graph, _, _ = read_model(glass, np.full(60, 2))
    assert not elimination.can_eliminate(graph)
    assert graph.treewidth == 59


def test_far_from_the_modes_rounding_is_not_taken_for_an_error():
    """|log pi| of 2e5 at random configurations: terms and log pi differ by 250 spacings of float64, 1e-8 nats."""

    def log_prob(theta):
        x = (theta[:, None].astype(float) - jnp.asarray([30.0, 3000.0])) / 4.0
        return jax.nn.logsumexp(-0.5 * x**2, axis=1).sum()

    with jax.enable_x64(False):
        result = tz.sample(log_prob, tz.integers(0, 4095, 6), seed=0, draws=2000, progress="off")
    assert result.verdict.grade == "exact"
    assert result.log_z == pytest.approx(6 * np.log(2 * 4 * np.sqrt(2 * np.pi)), abs=1e-6)
    assert (result.theta > 1500).mean() == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(6 * 16_000))
