"""Ready problems against plain NumPy, written from their formulas, and their exact answers against enumeration."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from terrazzo import problems
from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.problems import logistic, selection
from terrazzo.samplers.parts.pairwise import pairwise_terms


def random_states(target, num=32):
    return np.asarray(target.space.random(jax.random.key(0), (num,)))


def values_at(target, theta):
    return np.asarray(jax.jit(jax.vmap(target.log_prob))(jnp.asarray(theta, jnp.int32)))


def spins(theta):
    return 2.0 * theta - 1


def check_conditionals(target):
    """`site_logits` are the conditionals of log pi."""
    theta = jnp.asarray(random_states(target, 1)[0])
    sites = jnp.arange(target.space.num_dims, dtype=jnp.int32)
    cheap = jax.jit(jax.vmap(lambda i: target.site_logits(theta, i)))(sites)
    values = jnp.arange(target.space.max_size, dtype=jnp.int32)
    full = jax.jit(jax.vmap(lambda i: jax.vmap(lambda k: target.log_prob(theta.at[i].set(k)))(values)))(sites)
    np.testing.assert_allclose(cheap - cheap[:, :1], full - full[:, :1], atol=1e-10)


def test_spin_glass():
    problem = problems.spin_glass(9, beta=1.3, field=0.4, seed=5)
    target, theta = problem.target, random_states(problem.target)
    s = spins(theta)
    rng = np.random.default_rng(5)
    J = rng.normal(size=(9, 9))
    h = 0.4 * rng.normal(size=9)
    expected = [
        1.3 / 3 * sum(J[i, j] * row[i] * row[j] for i in range(9) for j in range(i + 1, 9)) + h @ row for row in s
    ]
    np.testing.assert_allclose(values_at(target, theta), expected, atol=1e-10)
    check_conditionals(target)
    assert len(pairwise_terms(target).edges) == 36
    assert target.has_gradient


def test_curie_weiss():
    problem = problems.curie_weiss(9, coupling=1.4, field=0.05)
    theta = random_states(problem.target)
    total = spins(theta).sum(axis=1)
    np.testing.assert_allclose(values_at(problem.target, theta), 1.4 / 18 * total**2 + 0.05 * total, atol=1e-12)
    exact = problems.exact_answers(problem.target)
    assert problem.log_z == pytest.approx(exact.log_z, abs=1e-10)
    np.testing.assert_allclose(exact.mean(), problem.truth["mean"], atol=1e-12)
    assert exact.mean_log_prob == pytest.approx(problem.truth["mean_log_prob"], abs=1e-10)
    law = np.bincount(exact.states.sum(axis=1), exact.probabilities)
    np.testing.assert_allclose(law, problem.truth["num_up"], atol=1e-12)
    check_conditionals(problem.target)
    assert abs(problems.curie_weiss(400, 1.5, 0.01).log_z) < 1000  # no overflow at any size


def test_ising_chain():
    problem = problems.ising_chain(7, 0.8, 0.5, seed=3)
    h = 0.5 * np.random.default_rng(3).normal(size=7)
    theta = random_states(problem.target)
    s = spins(theta)
    expected = 0.8 * (s * np.roll(s, -1, axis=1)).sum(axis=1) + s @ h
    np.testing.assert_allclose(values_at(problem.target, theta), expected, atol=1e-12)
    exact = problems.exact_answers(problem.target)
    assert problem.log_z == pytest.approx(exact.log_z, abs=1e-10)
    np.testing.assert_allclose(exact.mean(), problem.truth["mean"], atol=1e-12)
    assert np.isfinite(problems.ising_chain(5000, 2.0).log_z)


def test_potts():
    field = np.array([0.2, -0.3, 0.0])
    problem = problems.potts_torus(3, 3, 0.7, field)
    theta = random_states(problem.target)
    grid = theta.reshape(-1, 3, 3)
    bonds = (grid == np.roll(grid, -1, axis=1)).sum(axis=(1, 2)) + (grid == np.roll(grid, -1, axis=2)).sum(axis=(1, 2))
    np.testing.assert_allclose(values_at(problem.target, theta), 0.7 * bonds + field[theta].sum(axis=1), atol=1e-10)
    assert problem.log_z == pytest.approx(problems.exact_answers(problem.target).log_z, abs=1e-9)
    check_conditionals(problem.target)
    terms = pairwise_terms(problem.target)
    colours = np.asarray(problem.target.colours)
    assert (colours[terms.edges[:, 0]] != colours[terms.edges[:, 1]]).all()
    # two values are an Ising model: J [equal] = J / 2 (1 + s s')
    two = problems.potts_torus(4, 2, 0.6)
    assert two.log_z == pytest.approx(problems.kaufman_log_z(4, 4, 0.3) + 0.3 * 32, abs=1e-9)


def test_boltzmann_machine():
    problem = problems.boltzmann_machine(8, 5, scale=1.5, seed=2)
    fn = problem.target.log_prob_fn
    W, b, c = (np.asarray(a) for a in (fn.weights, fn.visible_bias, fn.hidden_bias))
    theta = random_states(problem.target)
    hidden = np.stack(np.unravel_index(np.arange(32), (2,) * 5), axis=1)
    joint = (theta @ b)[:, None] + hidden @ c + theta @ W.T @ hidden.T
    np.testing.assert_allclose(values_at(problem.target, theta), np.logaddexp.reduce(joint, axis=1), atol=1e-10)
    assert problem.log_z == pytest.approx(problems.exact_answers(problem.target).log_z, abs=1e-10)


def reference_selection(x, y, is_in, w=4.0):
    """From the definition, by slices of X and plain determinants."""
    n, d = x.shape
    lam = np.linalg.lstsq(x, y, rcond=None)[1].item() / (n - d)
    nu2 = 10 / lam
    part = x[:, is_in]
    S = part.T @ part + np.eye(part.shape[1]) / nu2
    left = y @ y - y @ part @ np.linalg.solve(S, part.T @ y)
    log_det = np.linalg.slogdet(S)[1] / 2
    return -log_det - part.shape[1] * np.log(nu2) / 2 - (w + n) / 2 * np.log(w * lam / n + left / n)


def test_variable_selection():
    problem = problems.variable_selection(7, 3, noise=30.0, seed=1)
    x, y = problem.truth["features"], problem.truth["responses"]
    theta = np.concatenate([np.zeros((1, 7), np.int32), np.ones((1, 7), np.int32), random_states(problem.target)])
    expected = [reference_selection(x, y, row.astype(bool)) for row in theta]
    np.testing.assert_allclose(values_at(problem.target, theta), expected, rtol=1e-10)
    assert problem.target.has_gradient
    assert problem.truth["support"].sum() == 3
    again = problems.variable_selection(7, 3, noise=30.0, seed=1)
    np.testing.assert_array_equal(again.truth["features"], x)


def test_noise_free_selection_prefers_the_true_support():
    """The paper's setting at its smallest size: float64 finds the true columns far above the empty model."""
    problem = problems.variable_selection(100, 10)
    support = problem.truth["support"]
    extra, fewer = support.copy(), support.copy()
    extra[np.flatnonzero(support == 0)[0]] = 1
    fewer[np.flatnonzero(support == 1)[0]] = 0
    empty, true, more, less = values_at(problem.target, np.stack([0 * support, support, extra, fewer]))
    assert true > 1000 > 0 > empty
    assert true > more
    assert true > less


def test_selection_refuses_single_precision():
    with jax.enable_x64(False), pytest.raises(UnsupportedError, match="float64"):
        problems.variable_selection(5, 2)
    with pytest.raises(OptionError, match="more rows"):
        selection.selection_target(np.ones((3, 4)), np.ones(3))


@pytest.mark.parametrize("num_bits", [1, 4])
@pytest.mark.parametrize("prior", ["uniform", "gaussian"])
def test_logistic(num_bits, prior):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(20, 3)), rng.integers(0, 3, 20)
    y[:3] = [0, 1, 2]
    target = logistic.logistic_target(x, y, num_bits=num_bits, prior=prior)
    theta = random_states(target)
    weights = 2.0 * theta - 1 if num_bits == 1 else theta - 8.0
    expected = []
    for row in weights:
        logits = x @ row.reshape(3, 3)
        value = (logits[np.arange(20), y] - np.logaddexp.reduce(logits, axis=1)).sum()
        if prior == "gaussian":
            mass = np.where(
                row < 0, stats.norm.cdf(row + 1) - stats.norm.cdf(row), stats.norm.sf(row) - stats.norm.sf(row + 1)
            )
            value += np.log(mass).sum()
        expected.append(value)
    np.testing.assert_allclose(values_at(target, theta), expected, rtol=1e-9)
    assert target.has_gradient


def test_data_sets():
    pytest.importorskip("sklearn")
    for dataset, num_dims in (("iris", 15), ("wine", 42), ("breast_cancer", 62), ("digits", 650)):
        features, labels = logistic.load_standardised(dataset)
        assert features.shape[1] * (labels.max() + 1) == num_dims
        is_constant = features[:, :-1].std(axis=0) == 0
        np.testing.assert_allclose(features[:, :-1].std(axis=0, ddof=1)[~is_constant], 1)
    problem = problems.quantised_logistic("iris", fold=2)
    assert problem.truth["features"].shape == (120, 5)
    assert problem.truth["test_features"].shape == (30, 5)
    rows = np.concatenate([logistic.fold_rows(150, fold)[1] for fold in range(5)])
    assert sorted(rows) == list(range(150))
    with pytest.raises(OptionError, match="dataset"):
        problems.quantised_logistic("mnist")
    with pytest.raises(OptionError, match="fold"):
        problems.quantised_logistic("iris", fold=5)


def test_exact_answers():
    def log_prob(t):
        a, b = t["a"].astype(float), t["b"].astype(float)
        return 0.3 * a * b - 0.2 * b

    target = tz.Target(log_prob, {"a": tz.binary(), "b": tz.integers(-1, 1)})
    exact = problems.exact_answers(target)
    table = np.array([[0.3 * a * b - 0.2 * b for b in (-1, 0, 1)] for a in (0, 1)])
    pi = np.exp(table) / np.exp(table).sum()
    assert exact.log_z == pytest.approx(np.log(np.exp(table).sum()))
    np.testing.assert_allclose(exact.marginals(), [[*pi.sum(axis=1), 0], pi.sum(axis=0)])
    np.testing.assert_allclose(exact.pair_marginals(0, 1)[:2], pi)
    assert exact.mean_log_prob == pytest.approx((pi * table).sum())
    with pytest.raises(OptionError, match="states"):
        problems.exact_answers(tz.Target(lambda s: 0.1 * s.sum().astype(float), tz.binary(30)))
