"""PyMC models as targets: the same density as PyMC's own, dims and coords, the prior, and new data."""

import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from terrazzo.errors import OptionError, SpaceError, TargetError

pm = pytest.importorskip("pymc")


def mixture():
    with pm.Model(coords={"point": list("abcd")}) as model:
        w = pm.Dirichlet("w", np.array([2.0, 1.0, 3.0]))
        mu = pm.Normal("mu", 0.0, 2.0, shape=3)
        sd = pm.HalfNormal("sd", 1.0)
        u = pm.Uniform("u", -1.0, 2.0)
        zero = pm.ZeroSumNormal("zero", 1.0, shape=3)
        z = pm.Categorical("z", p=w, dims="point")
        on = pm.Bernoulli("on", 0.4)
        day = pm.DiscreteUniform("day", -1, 3)
        k = pm.Poisson("k", 3.0)
        pm.Potential("extra", -u)
        pm.Normal("y", mu[z] + k + u + on + day + zero[0], sd, observed=[0.1, 2.2, 3.0, -1.0], dims="point")
    return model


@pytest.fixture(scope="module")
def target():
    flags = os.environ.get("XLA_FLAGS")
    found = tz.from_pymc(mixture(), bounds={"k": (0, 12)})
    assert os.environ.get("XLA_FLAGS") == flags  # PyMC's JAX module changes it
    return found


AT = {
    "w": np.array([0.2, 0.5, 0.3]), "mu": np.array([0.5, -1.0, 2.0]), "sd": np.array(0.7), "u": np.array(0.3),
    "zero": np.array([0.5, -0.2, -0.3]), "z": np.array([0, 2, 2, 1]), "on": np.array(1), "day": np.array(-1),
    "k": np.array(2),
}  # fmt: skip


def test_variables_have_pymcs_supports_dims_and_coords(target):
    found = dict(target.space.variables)
    assert {name: v.kind for name, v in found.items()} == {
        "w": "simplex", "mu": "real", "sd": "real", "u": "real", "zero": "real", "z": "categorical", "on": "binary",
        "day": "integers", "k": "integers",
    }  # fmt: skip
    assert (found["u"].low, found["u"].high, found["sd"].low) == (-1.0, 2.0, 0.0)
    assert (found["day"].low, found["day"].size, found["z"].size) == (-1, 5, 3)
    assert found["z"].dims == ("point",)
    assert dict(found["z"].coords)["point"] == ("a", "b", "c", "d")
    assert (found["zero"].shape, found["zero"].num_unconstrained) == ((3,), 2)
    assert target.model.observed["y"].dims == ("point",)


def by_hand(is_prior):
    v = AT
    total = stats.dirichlet.logpdf(v["w"], [2, 1, 3]) + stats.norm.logpdf(v["mu"], 0, 2).sum()
    total += stats.halfnorm.logpdf(v["sd"]) + np.log(1 / 3) + np.log(v["w"])[v["z"]].sum() + np.log(0.4 / 5)
    total += stats.norm.logpdf(v["zero"]).sum() + 0.5 * np.log(2 * np.pi)  # one dimension less
    total += stats.poisson.logpmf(2, 3.0)
    if is_prior:
        return total - np.log(stats.poisson.cdf(12, 3.0))
    mean = v["mu"][v["z"]] + 2 + 0.3 + 1 - 1 + 0.5
    return total - 0.3 + stats.norm.logpdf([0.1, 2.2, 3.0, -1.0], mean, 0.7).sum()


def test_the_density_is_pymcs(target):
    at = {name: jnp.asarray(x) for name, x in AT.items()}
    np.testing.assert_allclose(float(target.log_prob_fn(at)), by_hand(False), rtol=1e-6)
    np.testing.assert_allclose(float(target.reference.log_prob(at)), by_hand(True), rtol=1e-6)


@pytest.mark.slow
def test_the_prior_is_drawn_within_the_bounds(target):
    draws = jax.jit(jax.vmap(target.reference.draw))(jax.random.split(jax.random.key(0), 3000))
    assert set(draws) == set(AT)
    assert int(draws["k"].max()) <= 12
    np.testing.assert_allclose(draws["w"].mean(axis=0), np.array([2, 1, 3]) / 6, atol=0.03)
    np.testing.assert_allclose(np.bincount(np.asarray(draws["day"]) + 1) / 3000, np.full(5, 0.2), atol=0.04)
    np.testing.assert_allclose(draws["zero"].sum(axis=1), 0.0, atol=1e-6)


def test_bijections_of_pymc_keep_their_log_jacobians(target):
    bijection = dict(target.space.variables)["zero"].bijection
    y = jnp.array([0.4, -1.1])
    jacobian = np.asarray(jax.jacfwd(bijection.constrain)(y))
    np.testing.assert_allclose(bijection.log_jacobian(y), 0.5 * np.linalg.slogdet(jacobian.T @ jacobian)[1], atol=1e-6)
    np.testing.assert_allclose(bijection.unconstrain(bijection.constrain(y)), y, rtol=1e-6)


def unbounded():
    with pm.Model() as model:
        pm.Poisson("k", 3.0)
    return model


def dependent():
    with pm.Model() as model:
        top = pm.HalfNormal("top", 1.0)
        pm.Uniform("x", 0.0, top)
    return model


def all_observed():
    with pm.Model() as model:
        pm.Normal("y", 0.0, 1.0, observed=1.0)
    return model


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: tz.from_pymc(3), TargetError, "must be a pymc.Model"),
        (lambda: tz.from_pymc(all_observed()), TargetError, "no latent sites"),
        (lambda: tz.from_pymc(unbounded()), SpaceError, "site 'k': has no upper bound"),
        (lambda: tz.from_pymc(unbounded(), bounds={"q": (0, 3)}), OptionError, "no site of the model"),
        (lambda: tz.from_pymc(dependent()), SpaceError, "'x': has a support that depends"),
    ],
    ids=range(5),
)
def test_wrong_calls_are_typed(call, error, words):
    with pytest.raises(error, match=words):
        call()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_new_data_are_drawn_by_pymc(target):
    rows = {name: np.stack([x] * 200) for name, x in AT.items()}
    found = target.model.predict(0, rows, (), {})
    assert found["y"].shape == (200, 4)
    mean = AT["mu"][AT["z"]] + 2 + 0.3 + 1 - 1 + 0.5
    assert np.abs(found["y"].mean(axis=0) - mean).max() < 5 * 0.7 / 200**0.5  # z is not drawn anew
    with pytest.raises(TargetError, match="set_data"):
        target.model.predict(0, rows, (1,), {})
