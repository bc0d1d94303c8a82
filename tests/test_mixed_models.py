"""Mixed models from end to end: the default sampler against answers by marginalisation, and its calibration.

The always-run part draws two models with one kernel; `make study` draws all ten with the default sampler, from NumPyro
and by hand, and runs simulation-based calibration.

Each mean may miss by 4 standard errors (6e-5 a mean, about 70 of them: 0.4 % for all ten together; seeds are fixed).
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from scipy import stats

import terrazzo as tz
from mixed_models import NAMES, mixed_model
from terrazzo.diagnostics import ess

MAX_MISS = 4.0
QUICK = ("occupancy", "gaussian_mixture")


def misses(result, truth):
    """How many standard errors each mean is off, by name; a coordinate that never changes has no error to count in."""
    found = {}
    for name, known in truth.items():
        draws = np.asarray(result[name], float)
        flat = draws.reshape(*draws.shape[:2], -1)
        sd = flat.std(axis=(0, 1))
        error = sd / np.sqrt(np.array([float(ess(flat[:, :, i], method="mean")) for i in range(flat.shape[2])]))
        is_free = sd > 0
        found[name] = np.abs(flat.mean(axis=(0, 1)) - np.ravel(known))[is_free] / error[is_free]
        assert (np.abs(flat.mean(axis=(0, 1)) - np.ravel(known))[~is_free] < 0.01).all(), name
    return found


@pytest.mark.parametrize("name", QUICK)
def test_the_posterior_of_a_numpyro_model_is_that_by_marginalisation(name):
    found = mixed_model(name)
    target = tz.from_numpyro(found.model, *found.args)
    result = tz.sample(target, seed=0, chains=4, draws=250, warmup=300, sampler="collapsed", progress="off")
    worst = misses(result, found.truth())
    assert max(float(x.max()) for x in worst.values() if x.size) < MAX_MISS, worst
    assert set(result.predictive(draws=3)) == set(result.model.observed)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("form", ["numpyro", "by hand"])
@pytest.mark.parametrize("name", NAMES)
def test_all_posteriors_are_those_by_marginalisation(name, form):
    found = mixed_model(name)
    by_hand = tz.Target(found.log_prob, found.space)
    target = by_hand if form == "by hand" else tz.from_numpyro(found.model, *found.args)
    result = tz.sample(target, seed=1, progress="off")
    worst = misses(result, found.truth())
    assert max(float(x.max()) for x in worst.values() if x.size) < MAX_MISS, worst


def two_groups(y):
    """Means of two groups, and which group each point is in."""
    mu = numpyro.sample("mu", dist.Normal(jnp.array([-1.0, 1.0]), 0.7).to_event(1))
    with numpyro.plate("point", 8):
        z = numpyro.sample("z", dist.Bernoulli(0.4))
        numpyro.sample("y", dist.Normal(mu[z], 0.8), obs=y)


def change_point(y):
    """A rate that changes once."""
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.0).expand([2]).to_event(1))
    change = numpyro.sample("change", dist.DiscreteUniform(1, 9))
    with numpyro.plate("time", 10):
        numpyro.sample("y", dist.Poisson(jnp.where(jnp.arange(10) < change, rate[0], rate[1])), obs=y)


NUM_SETS, NUM_RANKED = 60, 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("model", [two_groups, change_point])
def test_simulation_based_calibration(model):
    """Ranks of the truth among nearly independent draws are uniform (Talts et al. 2018); chi-square, alpha 1e-6."""
    ranks: dict[str, list[float]] = {}
    rng = np.random.default_rng(0)
    for i in range(NUM_SETS):
        with jax.numpy_dtype_promotion("standard"):  # as NumPyro draws
            trace = numpyro.handlers.trace(numpyro.handlers.seed(model, jax.random.key(i))).get_trace(None)
        data = np.asarray(trace["y"]["value"])
        result = tz.sample(
            tz.from_numpyro(model, data), seed=i, chains=4, draws=250, sampler="collapsed", progress="off"
        )
        for name in result.space.names:
            values = np.asarray(result[name], float)
            chosen = values.reshape(-1, *values.shape[2:])[:: values.shape[0] * values.shape[1] // NUM_RANKED]
            known = np.asarray(trace[name]["value"], float)
            below, ties = (chosen < known).sum(axis=0), (chosen == known).sum(axis=0)
            rank = below + rng.integers(0, ties + 1)  # ties are broken at random
            for j, value in enumerate(np.ravel(rank)):
                ranks.setdefault(f"{name}[{j}]", []).append(float(value))
    for name, found in ranks.items():
        counts, _ = np.histogram(found, bins=np.linspace(-0.5, NUM_RANKED + 0.5, 4))
        assert stats.chisquare(counts).pvalue > 1e-6, (name, counts)
