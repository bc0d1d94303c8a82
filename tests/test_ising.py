"""Ising problems: Kaufman's log Z against enumeration and tables, the digit against its anchors."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo import problems
from terrazzo.errors import OptionError
from terrazzo.problems import ising
from terrazzo.samplers import coloured_gibbs, parallel_tempering
from terrazzo.samplers.kernels.swendsen_wang import swendsen_wang
from terrazzo.samplers.parts.pairwise import pairwise_terms

# log Z at J = 0.28, 0.3, 0.4406868, 0.5, 0.6
TABLE = {
    8: (49.740105, 50.60933, 60.141781, 66.344582, 78.141649),
    10: (77.710681, 79.060017, 93.610301, 103.272975, 121.70639),
    15: (174.845609, 177.875993, 209.821747, 231.496673, 272.972935),
    32: (795.741587, 809.532489, 952.648089, 1051.104988, 1239.868713),
}


@pytest.mark.parametrize("length", TABLE)
def test_kaufman_against_the_table(length):
    values = [ising.kaufman_log_z(length, length, j) for j in (0.28, 0.3, 0.4406868, 0.5, 0.6)]
    np.testing.assert_allclose(values, TABLE[length], atol=6e-6)


@pytest.mark.parametrize(("num_rows", "num_columns"), [(4, 4), (3, 4), (2, 5)])
def test_kaufman_against_enumeration(num_rows, num_columns):
    target = ising._lattice_target(0.37, np.zeros((num_rows, num_columns)))
    table = np.asarray(jax.jit(jax.vmap(target.log_prob))(jnp.asarray(target.space.enumerate())))
    assert np.logaddexp.reduce(table) == pytest.approx(ising.kaufman_log_z(num_rows, num_columns, 0.37), abs=1e-10)
    assert np.logaddexp.reduce(table) == pytest.approx(ising.kaufman_log_z(num_columns, num_rows, 0.37), abs=1e-10)


@pytest.mark.parametrize("shape", [(4, 6), (3, 4), (5, 5), (2, 2)])
def test_conditionals_terms_and_colours(shape):
    rng = np.random.default_rng(0)
    target = ising._lattice_target(0.4, rng.normal(size=shape))
    theta = target.space.random(jax.random.key(0))
    sites = jnp.arange(target.space.num_dims, dtype=jnp.int32)
    cheap = jax.jit(jax.vmap(lambda i: target.site_logits(theta, i)))(sites)
    up = jax.jit(jax.vmap(lambda i: target.log_prob(theta.at[i].set(1)) - target.log_prob(theta.at[i].set(0))))(sites)
    np.testing.assert_allclose(cheap[:, 1] - cheap[:, 0], up, atol=1e-12)
    terms = pairwise_terms(target)  # verified inside
    assert len(terms.edges) == 2 * target.space.num_dims
    colours = np.asarray(target.colours)
    assert (colours[terms.edges[:, 0]] != colours[terms.edges[:, 1]]).all()
    assert colours.max() < (2 if shape[0] % 2 == shape[1] % 2 == 0 else 3)
    assert target.has_gradient


def test_mnist_anchors():
    problem = problems.ising_mnist()
    truth, target = problem.truth, problem.target
    assert truth["clean"].sum() == 111
    assert (truth["clean"] != truth["corrupt"]).sum() == 78
    log_prob = lambda image: float(target.log_prob(jnp.asarray(image.ravel(), jnp.int32)))
    assert log_prob(truth["clean"]) == pytest.approx(3990.8, abs=1e-6)
    assert log_prob(truth["corrupt"]) == pytest.approx(3326.4, abs=1e-6)
    assert truth["clean"][5, 15:20].any()
    for bad in ("other", ""):
        with pytest.raises(OptionError, match="setting"):
            problems.ising_mnist(bad)
    with pytest.raises(OptionError, match="length"):
        problems.ising_torus(1)


def reference_energy(image, corrupt, beta, eta, *, count_twice):
    """The paper's text by loops over pixels: E = -beta sum_{i, j} s_i s_j - eta sum_i s_i c_i on a torus."""
    s, c = 2.0 * image - 1.0, 2.0 * corrupt - 1.0
    total = 0.0
    for row in range(28):
        for column in range(28):
            ends = [((row + 1) % 28, column), (row, (column + 1) % 28)]
            ends += [(row - 1, column), (row, column - 1)] if count_twice else []
            total -= beta * sum(s[row, column] * s[end] for end in ends) + eta * s[row, column] * c[row, column]
    return total


@pytest.mark.parametrize("setting", ["paper", "text"])
@pytest.mark.parametrize(("beta", "eta"), [(1.0, 2.1), (0.4, 0.7)])
def test_mnist_energy_of_the_text(setting, beta, eta):
    problem = problems.ising_mnist(setting, beta=beta, eta=eta)
    truth = problem.truth
    rng = np.random.default_rng(0)
    images = {"clean": truth["clean"], "corrupt": truth["corrupt"], "random": rng.integers(0, 2, (28, 28))}
    for name, image in images.items():
        expected = -reference_energy(image, truth["corrupt"], beta, eta, count_twice=setting == "paper")
        found = float(problem.target.log_prob(jnp.asarray(image.ravel(), jnp.int32)))
        assert found == pytest.approx(expected, abs=1e-8)
        if name != "random":
            assert truth[f"log_prob_{name}"] == pytest.approx(expected, abs=1e-8)
    assert ("mean_log_prob" in truth) == (setting == "paper" and beta == 1.0)
    with pytest.raises(OptionError, match="beta"):
        problems.ising_mnist(setting, beta=float("nan"))


def test_cluster_moves_reach_the_exact_energy():
    """Swendsen-Wang on the critical 8 x 8 torus: mean bond sum per site against its exact value, 1e-6."""
    problem = problems.ising_torus(8)
    sampler = swendsen_wang(problem.target)
    step = jax.vmap(sampler.step)
    start = jax.vmap(sampler.init)(problem.target.space.random(jax.random.key(0), (64,)))

    @jax.jit
    def run(state):
        def body(state, key):
            state, _ = step(jax.random.split(key, 64), state)
            return state, state.log_prob

        return jax.lax.scan(body, state, jax.random.split(jax.random.key(1), 600))[1]

    energy = np.asarray(run(start))[100:] / 0.4406868 / 64
    means = energy.mean(axis=0)
    z = (means.mean() - 1.491589) / (means.std(ddof=1) / 8)
    assert abs(z) < 5.5  # Student's t with 63 degrees of freedom at 1e-6
    assert means.std(ddof=1) / 8 < 0.005


def test_tempering_gives_kaufman():
    """Parallel tempering over coloured Gibbs on the 8 x 8 torus below the critical temperature: log Z, 1e-6."""
    problem = problems.ising_torus(8, 0.5)
    sampler = parallel_tempering(num_temperatures=12, kernel=coloured_gibbs)
    run = tz.sample(problem.target, seed=0, sampler=sampler, chains=16, warmup=200, draws=300, progress="off")
    found = run.evidence_estimates["tempering"]
    miss = (found.log_z - problem.log_z) / found.standard_error
    assert abs(miss) < 7.6  # Student's t with 15 degrees of freedom at 1e-6
    assert found.standard_error < 0.1
