"""What is read from a NumPyro model against SciPy, and planted mistakes that this must see.

The laws are sums of a few logarithms in float64: they hold to 1e-10, and each mistake is off by more than 0.01.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import terrazzo as tz
from mutants.model_reading import MUTANTS

pytestmark = pytest.mark.filterwarnings("ignore:the prior of 'k' is cut")
RATE, COUNT, SEEN = 2.5, 4, 3.0


def counted(y):
    rate = numpyro.sample("rate", dist.Exponential(0.5))
    k = numpyro.sample("k", dist.Poisson(rate))
    numpyro.sample("chol", dist.LKJCholesky(2, 1.0))
    numpyro.sample("y", dist.Normal(k, 1.0), obs=y)


def _read():
    return tz.from_numpyro(counted, SEEN, bounds={"k": (0, 6)})


def _at():
    root = jnp.asarray([[1.0, 0.0], [0.6, 0.8]])
    return {"rate": jnp.asarray(RATE), "k": jnp.asarray(COUNT, jnp.int32), "chol": root}


def _prior():
    return stats.expon.logpdf(RATE, scale=2.0) + stats.poisson.logpmf(COUNT, RATE) + np.log(0.5)  # LKJ: uniform in r


def joint():
    """How far the density of all sites and the data is off."""
    return float(_read().log_prob_fn(_at())) - (_prior() + stats.norm.logpdf(SEEN, COUNT))


def prior():
    """How far the density of the latent sites, within their bounds, is off."""
    return float(_read().reference.log_prob(_at())) - (_prior() - np.log(stats.poisson.cdf(6, RATE)))


def jacobian():
    """How far the log-Jacobian of a bijection of NumPyro is off."""
    bijection = dict(_read().space.variables)["chol"].bijection
    y = jnp.asarray([0.7])
    slope = jax.jacfwd(lambda y: bijection.constrain(y)[1, 0])(y)[0]
    return float(bijection.log_jacobian(y) - jnp.log(jnp.abs(slope)))


LAWS = {"joint": joint, "prior": prior, "jacobian": jacobian}


@pytest.mark.parametrize("law", LAWS)
def test_models_are_read_right(law):
    assert abs(LAWS[law]()) < 1e-10


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: f"{m.law}: {m.name}")
def test_mutants_are_caught(mutant):
    with mutant.planted():
        assert abs(LAWS[mutant.law]()) > 0.001
