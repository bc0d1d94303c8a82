"""Four samplers of different make agree on the 4-bit Iris posterior, from random starts where gradients are huge.

Softmax regression on all 150 rows: 5 x 3 weights (a bias row included) on the grid -8..7, an even prior on the grid.
"""

from functools import cache

import jax
import numpy as np
import pytest
from scipy import stats

from terrazzo import problems, samplers

pytest.importorskip("sklearn")

# kept steps per sampler, so that each has a few thousand effective draws over the chains
RUNS = {
    "systematic_gibbs": dict(num_warmup=100, num_steps=400),
    "discrete_langevin": dict(num_warmup=1500, num_steps=6000),
    "path_auxiliary": dict(num_warmup=1500, num_steps=6000),
    "locally_balanced": dict(num_warmup=1000, num_steps=5000, reach=1),
}
NUM_CHAINS = 32


@cache
def iris():
    return problems.quantised_logistic("iris").target


@cache
def chain_means(name):
    """Mean log pi of each chain after warm-up, and the acceptance rate."""
    target, spec = iris(), samplers.get(name)
    options = {key: value for key, value in RUNS[name].items() if key not in ("num_steps", "num_warmup")}
    tuning = spec.tuning(target) if spec.tuning else None

    def warm(carry, key):
        states, search = carry
        parameters = tuning.parameters(search) if tuning else {}
        states, infos = jax.vmap(spec.factory(target, **options, **parameters).step)(
            jax.random.split(key, NUM_CHAINS), states
        )
        search = tuning.update(search, jax.vmap(tuning.observe)(states, infos)) if tuning else ()
        return (states, search), None

    @jax.jit
    def run(key):
        start_key, warm_key, run_key = jax.random.split(key, 3)
        starts = jax.vmap(spec.factory(target, **options).init)(target.space.random(start_key, (NUM_CHAINS,)))
        search = tuning.init() if tuning else ()
        carry, _ = jax.lax.scan(warm, (starts, search), jax.random.split(warm_key, RUNS[name]["num_warmup"]))
        states, search = carry
        sampler = spec.factory(target, **options, **(tuning.final(search) if tuning else {}))

        def step(states, key):
            states, infos = jax.vmap(sampler.step)(jax.random.split(key, NUM_CHAINS), states)
            return states, (states.log_prob, infos.acceptance_rate)

        _, (log_prob, rate) = jax.lax.scan(step, states, jax.random.split(run_key, RUNS[name]["num_steps"]))
        return log_prob.mean(axis=0), rate.mean()

    means, rate = run(jax.random.key(1))
    return np.asarray(means), float(rate)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in RUNS if name != "systematic_gibbs"])
def test_reaches_the_same_mean_log_prob_as_gibbs(name):
    """Welch's test on independent chain means (false-alarm rate 1e-6), and a bound on what it could miss."""
    gibbs, other = chain_means("systematic_gibbs")[0], chain_means(name)[0]
    error = np.sqrt((gibbs.var(ddof=1) + other.var(ddof=1)) / NUM_CHAINS)
    assert stats.ttest_ind(gibbs, other, equal_var=False).pvalue > 1e-6
    assert error < 0.25  # so a difference of about one nat is seen


@pytest.mark.slow
@pytest.mark.parametrize("name", ["discrete_langevin", "path_auxiliary"])
def test_tuning_meets_its_acceptance(name):
    rate = chain_means(name)[1]
    assert 0.45 < rate < 0.7
