"""Marginals, pair marginals and log Z against enumeration, on ten problems, from random starts.

Each case draws from 64 chains and compares every marginal and pair marginal with its exact value. The standard error
is sd / sqrt(ESS) by our own ESS, so autocorrelation is accounted for; the false-alarm rate is 1e-6 a case, all of its
statistics together (Bonferroni, normal tails), and each statistic's standard error is at most 0.01, so that an error
of 0.06 in any of these probabilities is seen. log Z: Student's t over 16 independent runs or ladders, 1e-6 a case.

`make test` runs each sampler on one or two problems and each problem under a few samplers; the rest of the cross
product is slow.
"""

from functools import cache
from itertools import combinations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from calls import sample_with
from small_targets import small_target
from terrazzo import problems, samplers
from terrazzo.diagnostics import mcse
from terrazzo.errors import UnsupportedError
from terrazzo.problems import logistic

ALPHA = 1e-6
NUM_CHAINS, NUM_WARMUP, NUM_DRAWS = 64, 300, 400
LARGEST_ERROR = 0.01
NUM_BINS = 4  # values of large variables are gathered
RARE = 0.03  # a probability below this, or above 1 - this, is not normal enough to test


def two_features():
    """Two classes of Iris by two features: 4 weights of 4 bits."""
    features, labels = logistic.load_standardised("iris")
    return logistic.logistic_target(features[50:, 2:4], labels[50:] - 1, prior="gaussian")


PROBLEMS = {
    "ising_chain": lambda: problems.ising_chain(10, 0.5, 0.4).target,
    "ising_torus": lambda: problems.ising_torus(3, 0.3, field=0.1).target,
    "potts": lambda: problems.potts_torus(3, 3, 0.6, [0.3, 0.0, -0.2]).target,
    "spin_glass": lambda: problems.spin_glass(10, beta=0.9, field=0.3).target,
    "curie_weiss": lambda: problems.curie_weiss(10, 1.1, 0.05).target,
    "boltzmann": lambda: problems.boltzmann_machine(10, 6, scale=1.2).target,
    "selection": lambda: problems.variable_selection(10, 4, noise=20.0).target,
    "logistic": two_features,
    "mixture": lambda: problems.mixture(2, num_bits=4),
    "table": lambda: small_target("mixed", 9),
}
NAMES = [name for name, spec in samplers.REGISTRY.items() if "transport" not in spec.needs]

# Steps a kept draw, in units of the number of sites for kernels that change one site a step.
PER_SITE = {"gibbs": 1.0, "metropolised_gibbs": 1.0, "slice_gibbs": 0.1, "block_gibbs": 0.5, "hamming_ball": 0.3,
            "pair_gibbs": 0.5, "swap": 1.0,
            "locally_balanced": 1.0, "gibbs_with_gradients": 2.0, "metropolis": 3.0, "integer_metropolis": 2.0,
            "discrete_langevin": 1.0, "path_auxiliary": 1.0, "dlmc": 1.0, "any_scale": 1.0}  # fmt: skip
THIN = {"zanella": 4, "tabu": 4, "discontinuous_hmc": 3, "gaussian_integral_hmc": 2}
OPTIONS = {"parallel_tempering": {"num_temperatures": 4}}
QUICK = {
    "ising_chain": ("coloured_gibbs", "gaussian_integral_hmc"),
    "ising_torus": ("swendsen_wang", "gibbs_with_gradients"),
    "potts": ("dlmc", "block_gibbs", "pair_gibbs", "swap", "tree_gibbs"),
    "spin_glass": ("path_auxiliary", "binary_hmc"),
    "curie_weiss": ("parallel_tempering", "tabu"),
    "boltzmann": ("any_scale", "systematic_gibbs"),
    "selection": ("metropolised_gibbs",),
    "logistic": ("integer_metropolis", "discrete_langevin"),
    "mixture": ("slice_gibbs", "discontinuous_hmc"),
    "table": ("hamming_ball", "locally_balanced", "metropolis", "zanella", "gibbs"),
}


@cache
def target_of(problem):
    if problem == "logistic":
        pytest.importorskip("sklearn")
    return PROBLEMS[problem]()


@cache
def exact_of(problem):
    return problems.exact_answers(target_of(problem))


def draws_of(name, target, seed=0):
    """Kept draws, (chain, draw, d), after a tuned warm-up that is then frozen: one compilation."""
    spec = samplers.get(name)
    if spec.check is not None:
        spec.check(target)
    options = OPTIONS.get(name, {})
    fixed = options if spec.prepare is None else spec.prepare(target, **options)
    tuning = None if spec.tuning is None else spec.tuning(target, **options)
    thin = THIN.get(name) or max(1, round(PER_SITE.get(name, 0) * target.space.num_dims))
    thin = thin * (1 if target.space.is_binary or name == "integer_metropolis" else 3)
    over_chains = lambda key: jax.random.split(key, NUM_CHAINS)

    def warm(carry, key):
        states, search = carry
        sampler = spec.factory(target, **({} if tuning is None else tuning.parameters(search)), **fixed)
        states, infos = jax.vmap(sampler.step)(over_chains(key), states)
        return (
            states,
            search if tuning is None else tuning.update(search, jax.vmap(tuning.observe)(states, infos)),
        ), None

    @jax.jit
    def run(key, theta):
        init_key, warm_key, run_key = jax.random.split(key, 3)
        search = None if tuning is None else tuning.init()
        first = spec.factory(target, **({} if tuning is None else tuning.parameters(search)), **fixed)
        states = jax.vmap(first.init)(theta, over_chains(init_key))
        (states, search), _ = jax.lax.scan(warm, (states, search), jax.random.split(warm_key, NUM_WARMUP))
        sampler = spec.factory(target, **({} if tuning is None else tuning.final(search)), **fixed)
        step = lambda states, key: (jax.vmap(sampler.step)(over_chains(key), states)[0], None)

        def keep(states, key):
            states, _ = jax.lax.scan(step, states, jax.random.split(key, thin))
            return states, states.position.astype(jnp.uint8)

        return jax.lax.scan(keep, states, jax.random.split(run_key, NUM_DRAWS))[1]

    theta = target.possible_starts(jax.random.key(seed + 1), NUM_CHAINS)
    return np.moveaxis(np.asarray(run(jax.random.key(seed), theta)), 0, 1)


def indicators(theta, sizes):
    """Which (binned) value each site has, and each pair of sites; the first value follows from the others."""
    bins = [np.minimum(NUM_BINS, size) for size in sizes]
    codes = [theta[..., i].astype(int) * bins[i] // sizes[i] for i in range(len(sizes))]
    single = [[code == k for k in range(1, num)] for code, num in zip(codes, bins, strict=True)]
    pairs = [a & b for i, j in combinations(range(len(sizes)), 2) for a in single[i] for b in single[j]]
    return np.stack([column for columns in single for column in columns] + pairs, axis=-1)


def misses(theta, exact, sizes):
    """How many standard errors each testable statistic is off, and the largest standard error."""
    expected = exact.probabilities @ indicators(exact.states, sizes)
    is_testable = (expected > RARE) & (expected < 1 - RARE)
    drawn = indicators(theta, sizes)[..., is_testable]
    errors = mcse(drawn)
    return np.abs(drawn.mean(axis=(0, 1)) - expected[is_testable]) / errors, errors.max()


def check(name, problem):
    target = target_of(problem)
    try:
        theta = draws_of(name, target)
    except UnsupportedError as error:
        pytest.skip(f"does not apply: {error.args[0].splitlines()[0]}")
    off, error = misses(theta, exact_of(problem), target.space.sizes)
    assert len(off) >= 6
    assert error < LARGEST_ERROR
    assert off.max() < stats.norm.isf(ALPHA / 2 / len(off))


QUICK_CASES = [(name, problem) for problem, names in QUICK.items() for name in names]


@pytest.mark.parametrize(("name", "problem"), QUICK_CASES)
def test_marginals_and_pairs(name, problem):
    check(name, problem)


@pytest.mark.slow
@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("name", NAMES)
def test_marginals_and_pairs_of_every_sampler(name, problem):
    if (name, problem) in QUICK_CASES:
        pytest.skip("runs in `make test`")
    check(name, problem)


def test_every_sampler_and_every_problem_is_met():
    assert {name for name, _ in QUICK_CASES} >= set(NAMES)
    assert {problem for _, problem in QUICK_CASES} == set(PROBLEMS)


class Lookup(eqx.Module):
    """log pi from a table of ten bits: the binary problems then share one compilation."""

    table: jax.Array

    def __call__(self, theta):
        return self.table[theta @ (1 << jnp.arange(10, dtype=theta.dtype))[::-1]]


def shared_form(problem):
    """The target as it is, or as a table if it is binary (made up to ten sites by free ones), and its log Z."""
    target, exact = target_of(problem), exact_of(problem)
    if not target.space.is_binary:
        return target, exact.log_z
    num_free = 10 - target.space.num_dims
    with np.errstate(divide="ignore"):
        table = np.repeat(np.log(exact.probabilities) + exact.log_z, 2**num_free)
    return tz.Target(Lookup(jnp.asarray(table)), tz.binary(10)), exact.log_z + num_free * np.log(2)


LARGE = {"potts", "logistic"}
EVIDENCE_CASES = [pytest.param(p, marks=pytest.mark.slow if p in LARGE else ()) for p in PROBLEMS]


@pytest.mark.parametrize("problem", EVIDENCE_CASES)
def test_smc_log_z(problem):
    target, log_z = shared_form(problem)
    sampler = tz.samplers.smc(num_moves=2)
    out = tz.sample(target, seed=0, sampler=sampler, chains=16, draws=1024, progress="off")
    assert out.evidence.standard_error < 0.1
    assert abs(out.evidence.log_z - log_z) / out.evidence.standard_error < stats.t.isf(ALPHA / 2, 15)


@pytest.mark.parametrize("problem", EVIDENCE_CASES)
def test_tempering_log_z(problem):
    target, log_z = shared_form(problem)
    sampler = tz.samplers.parallel_tempering(num_temperatures=8)
    run = tz.sample(target, seed=0, sampler=sampler, chains=16, warmup=300, draws=600, progress="off")
    assert run.evidence.standard_error < 0.1
    assert abs(run.evidence.log_z - log_z) / run.evidence.standard_error < stats.t.isf(ALPHA / 2, 15)


def test_tempering_through_sample():
    """`tz.sample` runs a ladder with options, and crosses between two modes of unequal weight; 1e-6."""
    problem = problems.curie_weiss(24, 1.5, 0.02)
    result = sample_with(
        problem.target, seed=0, chains=32, draws=400, warmup=200, sampler="parallel_tempering", progress="off",
        sampler_options={"num_temperatures": 5, "kernel": "systematic_gibbs", "num_moves": 1},
    )  # fmt: skip
    up = result.draws["theta"].mean(axis=2)
    miss = abs(up.mean() - problem.truth["mean"]) / mcse(up)
    assert mcse(up) < 0.02
    assert miss < stats.norm.isf(ALPHA / 2)


@pytest.mark.parametrize("kernel", ["gibbs", "metropolis", "locally_balanced"])
def test_log_probs_survive_a_move_of_the_ladder(kernel):
    """Warm-up moves the ladder: what a kernel carried at the old temperature must not be believed at the new one."""
    target = target_of("table")
    ladders = jnp.asarray(np.random.default_rng(0).uniform(0.05, 0.95, (20, 2)))

    def body(state, row):
        low, key = row
        betas = jnp.concatenate([jnp.sort(low), jnp.ones(1)])
        state, _ = tz.samplers.parallel_tempering.factory(target, inverse_temperatures=betas, kernel=kernel).step(
            key, state
        )
        return state, jnp.abs(state.log_probs - jax.jit(jax.vmap(target.log_prob))(state.positions[state.places])).max()

    start = tz.samplers.parallel_tempering.factory(target, inverse_temperatures=[0.3, 0.6, 1.0], kernel=kernel).init(
        target.possible_starts(jax.random.key(0), 1)[0]
    )
    _, gaps = jax.jit(lambda s: jax.lax.scan(body, s, (ladders, jax.random.split(jax.random.key(1), 20))))(start)
    assert np.asarray(gaps).max() < 1e-9
