"""The laws of docs/theory.md, section 5 for every registered discrete sampler, which it gets by being registered.

(i) exact invariance, from the exact transition matrix; (ii) sampled steps follow that matrix; (iii) irreducibility;
(iv) evaluations are counted truly; (v) kernels compile and batch without host callbacks. False-alarm rate of each
statistical test: 1e-6.
"""

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.linalg import expm

import terrazzo as tz
from mutants.discrete_kernels import MUTANTS
from scripted import quick_jit, stationary, transition_matrices
from small_targets import SPACES, draw, log_table, small_target, stacked_targets, suitable
from terrazzo import samplers
from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.samplers.kernels.any_scale import curvature_of
from terrazzo.samplers.parts.balancing import balancing_function

ALPHA = 1e-6
OWN_LAWS = {"parallel_tempering"}  # its state is a whole ladder: see test_auxiliary_laws.py, also for pairwise targets
SPECS = {
    name: spec
    for name, spec in samplers.REGISTRY.items()
    if not spec.needs & {"transport", "pairwise"} and name not in OWN_LAWS
}

# Kernels with continuous auxiliary variables have no finite list of outcomes: one step from exact starts instead.
CONTINUOUS = {"slice_gibbs", "zanella", "tabu", "any_scale", "discontinuous_hmc", "binary_hmc"}

STEEP = curvature_of(jnp.asarray([[-1.0, 0.4, -0.2], [0.4, 0.3, 0.5], [-0.2, 0.5, -0.8]]))

# Options beside the defaults under which the laws are checked too.
VARIANTS = {
    "metropolis": [{"probability": 0.4, "boundary": "reflect"}],
    "integer_metropolis": [{"scale": 1.7, "factor": np.tril(np.ones((3, 3))), "boundary": "wrap"}],
    "gibbs": [{"num_updates": 2}],
    "metropolised_gibbs": [{"num_updates": 2}],
    "slice_gibbs": [{"num_updates": 1}],
    "block_gibbs": [{"block_size": 3}, {"blocks": ((0, 1), (2,))}],
    "hamming_ball": [{"radius": 2, "block_size": 2}],
    "pair_gibbs": [{"reach": "line"}],
    "locally_balanced": [{"balancing": "sqrt", "reach": 1}, {"balancing": "min"}, {"balancing": "max"}],
    "zanella": [{"balancing": "sqrt", "duration": 0.3, "reach": 1}],
    "tabu": [{"balancing": "min", "duration": 0.4}],
    "gibbs_with_gradients": [{"balancing": "barker", "reach": None}],
    "discrete_langevin": [{"step_size": 1.0, "form": "one_hot"}, {"step_size": 0.7, "balancing": "barker"}],
    "path_auxiliary": [{"path_length": 2.6, "reach": None, "balancing": "max"}],
    "dlmc": [{"num_changes": 3.0, "reach": None}, {"num_changes": 2.0, "form": "euler"}],
    "any_scale": [{"scale": 2.5, "curvature": STEEP}],
}
CASES = [
    pytest.param(name, options, id=f"{name}-{number}")
    for name in SPECS
    for number, options in enumerate([{}, *VARIANTS.get(name, [])])
]
SCRIPTED_CASES = [case for case in CASES if case.values[0] not in CONTINUOUS]
CONTINUOUS_CASES = [case for case in CASES if case.values[0] in CONTINUOUS]


NUM_TARGETS = 20
NAN_AT_ZERO, IMPOSSIBLE_START = NUM_TARGETS, NUM_TARGETS + 1  # two more, for the rules on such states


@cache
def pattern(space_name):
    """A target, and the arrays of 20 random ones and of two special ones, to put in the place of its own."""
    target = small_target(space_name)
    stacked = stacked_targets(target, NUM_TARGETS + 2)
    tables = stacked.log_prob_fn.table
    tables = tables.at[NAN_AT_ZERO].set(jnp.where(jnp.isfinite(tables[NAN_AT_ZERO]), tables[NAN_AT_ZERO], 0.0))
    tables = tables.at[IMPOSSIBLE_START].set(tables[NAN_AT_ZERO])
    tables = tables.at[NAN_AT_ZERO, 0].set(jnp.nan).at[IMPOSSIBLE_START, :8].set(-jnp.inf)
    return target, eqx.tree_at(lambda t: t.log_prob_fn.table, stacked, tables)


@cache
def probabilities(space_name):
    target, stacked = pattern(space_name)
    static = eqx.filter(target, eqx.is_array, inverse=True)
    states = jnp.asarray(target.space.enumerate())
    tables = jax.vmap(lambda params: jax.vmap(eqx.combine(params, static).log_prob)(states))(stacked)
    return stationary(np.asarray(tables)[:NUM_TARGETS])


def freeze(options):
    return tuple(sorted((key, id(value)) for key, value in options.items()))


_PREPARED, _MATRICES = {}, {}


def maker(name, options, target):
    """`target -> sampler`, with what must be found on the host found beforehand, once.

    Conditionals that are read from one target are those of its own data, not of the targets that are put in its place:
    kernels with them have their laws in test_structured_running.py and test_structured_sweeps.py.
    """
    spec = SPECS[name]
    if spec.prepare is None:
        return partial(spec.factory, **options)
    case = (name, freeze(options), id(target))
    if case not in _PREPARED:
        found = {key: value for key, value in spec.prepare(target, **options).items() if key != "conditionals"}
        _PREPARED[case] = (target, found)  # keeps the target, and so its id, alive
    return partial(spec.factory, **_PREPARED[case][1])


def matrices(name, options):
    """The exact transition matrices of a case on all targets of its space, computed once."""
    case = (name, freeze(options))
    if case not in _MATRICES:
        target, stacked = pattern(suitable(SPECS[name]))
        _MATRICES[case] = transition_matrices(maker(name, options, target), target, stacked)
    return _MATRICES[case]


def nth(target, stacked, number):
    """One of the stacked targets."""
    return eqx.combine(jax.tree.map(lambda a: a[number], stacked), eqx.filter(target, eqx.is_array, inverse=True))


def one_steps(make, target, starts, key):
    """Indices of the states after one step from each start, in one compiled batch; keys also draw auxiliary starts."""

    params, static = eqx.partition(target, eqx.is_array)

    @(jax.jit if len(starts) > 100_000 else quick_jit)
    def run(params, starts, keys):
        target = eqx.combine(params, static)
        sampler = make(target)

        def one(theta, key):
            init_key, step_key = jax.random.split(key)
            return target.space.index(sampler.step(step_key, sampler.init(theta, init_key))[0].position)

        return jax.vmap(one)(starts, keys)

    return np.asarray(run(params, jnp.asarray(starts), jax.random.split(key, len(starts))))


def g_test(counts, expected_probabilities):
    """The p-value of counts (rows: independent multinomials); impossible outcomes must not occur."""
    expected = expected_probabilities * counts.sum(axis=-1, keepdims=True)
    possible = expected_probabilities > 1e-12
    if counts[~possible].any():
        return 0.0
    rare = possible & (expected < 5.0)  # pooled into one cell per row, or left out if still too small
    statistic, freedom = 0.0, 0
    for row, mean, is_rare, is_common in zip(counts, expected, rare, possible & ~rare, strict=True):
        observed, wanted = list(row[is_common]), list(mean[is_common])
        if is_rare.any() and mean[is_rare].sum() >= 5.0:
            observed.append(row[is_rare].sum())
            wanted.append(mean[is_rare].sum())
        observed, wanted = np.asarray(observed, float), np.asarray(wanted)
        if len(wanted) > 1:
            statistic += ((observed - wanted) ** 2 / wanted).sum()
            freedom += len(wanted) - 1
    return stats.chi2.sf(statistic, freedom) if freedom else 1.0


def invariance_p_value(make, target, pi, *, num_draws=200_000, seed=0):
    """Exact starts, one step: does the law stay pi? Sees relative errors of about one per cent."""
    rng = np.random.default_rng(seed)
    starts = target.space.enumerate()[rng.choice(len(pi), num_draws, p=pi)]
    ends = one_steps(make, target, starts, jax.random.key(seed))
    return g_test(np.bincount(ends, minlength=len(pi))[None], pi[None])


# ---- (i) invariance


@pytest.mark.parametrize(("name", "options"), SCRIPTED_CASES)
def test_leaves_every_target_invariant_exactly(name, options):
    pi, P = probabilities(suitable(SPECS[name])), matrices(name, options)[:NUM_TARGETS]
    assert (P >= 0).all()
    assert np.abs(P.sum(axis=-1) - 1).max() <= 1e-12
    assert np.abs(np.einsum("ts,tsu->tu", pi, P) - pi).max() <= 1e-12


@pytest.mark.parametrize(("name", "options"), CONTINUOUS_CASES)
def test_leaves_targets_invariant_from_exact_starts(name, options):
    space = suitable(SPECS[name])
    target, stacked = pattern(space)
    pi = probabilities(space)[2]
    assert invariance_p_value(maker(name, options, target), nth(target, stacked, 2), pi, num_draws=300_000) > ALPHA


# ---- (ii) sampled steps


@pytest.mark.parametrize("name", [name for name in SPECS if name not in CONTINUOUS | {"integer_metropolis"}])
def test_sampled_steps_follow_the_exact_matrix(name):
    target, stacked = pattern(suitable(SPECS[name]))
    number, num_draws = 2, 4000
    P = matrices(name, {})[number]
    states = np.repeat(target.space.enumerate(), num_draws, axis=0)
    ends = one_steps(maker(name, {}, target), nth(target, stacked, number), states, jax.random.key(7))
    counts = np.zeros_like(P)
    np.add.at(counts, (np.repeat(np.arange(len(P)), num_draws), ends), 1)
    assert g_test(counts, P) > ALPHA


@pytest.mark.parametrize("options", [{"scale": 2.0, "factor": np.tril(np.ones((3, 3)))}])
def test_integer_metropolis_is_invariant_with_real_noise(options):
    """Its script draws only the sign of a step, so that the law of the real noise is tested here."""
    target, stacked = pattern("ordered")
    make = maker("integer_metropolis", options, target)
    assert invariance_p_value(make, nth(target, stacked, 2), probabilities("ordered")[2]) > ALPHA


@pytest.mark.parametrize("balancing", ["barker"])
def test_zanella_follows_its_generator(balancing):
    """One step is exp(tau Q), with Q built here from the definition."""
    target, stacked = pattern("mixed")
    target = nth(target, stacked, 0)
    states, log_prob = target.space.enumerate(), log_table(target)
    Q = np.zeros((len(states), len(states)))
    log_g = balancing_function(balancing)
    for i, x in enumerate(states):
        for j, y in enumerate(states):
            if (x != y).sum() == 1:
                Q[i, j] = np.exp(log_g(jnp.asarray(log_prob[j] - log_prob[i])))
    Q -= np.diag(Q.sum(axis=1))
    make = partial(samplers.zanella.factory, duration=0.7, balancing=balancing)
    num_draws = 4000
    ends = one_steps(make, target, np.repeat(states, num_draws, axis=0), jax.random.key(3))
    counts = np.zeros_like(Q)
    np.add.at(counts, (np.repeat(np.arange(len(Q)), num_draws), ends), 1)
    assert g_test(counts, np.maximum(expm(0.7 * Q), 0.0)) > ALPHA


# ---- (iii) irreducibility, and the rules on impossible and erroneous states


def reached_from(P, start):
    """The states that can follow `start` after any number of steps."""
    reached = np.zeros(len(P), bool)
    reached[start] = True
    for _ in range(len(P)):
        reached |= (P[reached] > 0).any(axis=0)
    return reached


@cache
def walker(name, num_steps=500, num_chains=64):
    """`(params, start) -> indices of the states visited by chains from one state`, where there is no matrix."""
    target, _ = pattern(suitable(SPECS[name]))
    make, static = maker(name, {}, target), eqx.filter(target, eqx.is_array, inverse=True)

    @quick_jit
    def run(params, theta):
        sampler = make(eqx.combine(params, static))

        def chain(key):
            init_key, run_key = jax.random.split(key)
            step = lambda state, key: (lambda new: (new, target.space.index(new.position)))(sampler.step(key, state)[0])
            return jax.lax.scan(step, sampler.init(theta, init_key), jax.random.split(run_key, num_steps))[1]

        return jax.vmap(chain)(jax.random.split(jax.random.key(0), num_chains))

    return run


def walk(name, number, start):
    """The states visited from a start, on one of the stacked targets: shape (chain, step)."""
    target, stacked = pattern(suitable(SPECS[name]))
    params = jax.tree.map(lambda a: a[number], stacked)
    return np.asarray(walker(name)(params, jnp.asarray(target.space.enumerate()[start])))


@pytest.mark.parametrize("name", SPECS)
def test_reaches_every_state_that_matters(name):
    """From the least likely state, an impossible one; and no impossible state is entered from a possible one."""
    space = suitable(SPECS[name])
    pi, worst = probabilities(space)[1], int(probabilities(space)[1].argmin())
    assert pi[worst] == 0
    if name in CONTINUOUS or name == "integer_metropolis":
        visited = walk(name, 1, worst)
        assert set(np.flatnonzero(pi > 1e-3)) <= set(visited.ravel().tolist())
        assert set(visited.ravel().tolist()) <= {*np.flatnonzero(pi > 0).tolist(), worst}
    else:
        P = matrices(name, {})[1]
        assert reached_from(P, worst)[pi > 1e-3].all()
        assert (P[np.ix_(pi > 0, pi == 0)] == 0).all()


@pytest.mark.parametrize("name", SPECS)
def test_holds_an_erroneous_state_and_leaves_impossible_ones(name):
    """+inf (a NaN of the user) is entered when proposed and never left; -inf is left."""
    if name in CONTINUOUS or name == "integer_metropolis":
        held = walk(name, NAN_AT_ZERO, 1) == 0
        assert held[:, -1].mean() > 0.5
        assert (held[:, 1:] >= held[:, :-1]).all()
        assert (walk(name, IMPOSSIBLE_START, 0)[:, -1] >= 8).all()
    else:
        P = matrices(name, {})
        assert np.isclose(P[NAN_AT_ZERO, 0, 0], 1.0)
        assert (P[NAN_AT_ZERO, 1:, 0] > 0).any()
        assert all(reached_from(P[NAN_AT_ZERO], i)[0] for i in range(P.shape[1]))
        assert all(reached_from(P[IMPOSSIBLE_START], i)[8:].any() for i in range(8))
        assert (P[IMPOSSIBLE_START, 8:, :8] == 0).all()


# ---- (iv) cost


class Counter:
    """Counts, on the host, how many configurations were evaluated (a gradient is one)."""

    def __init__(self):
        self.count = 0

    def tick(self, value):
        self.count += int(np.size(value))
        return np.asarray(value)


class Counted(eqx.Module):
    fn: eqx.Module = None
    counter: Counter = eqx.field(static=True, default=None)

    def __call__(self, values):
        return self.tick(self.fn(values))

    def one_hot(self, rows):
        return self.tick(self.fn.one_hot(rows))

    def tick(self, value):
        callback = lambda x: jax.pure_callback(
            self.counter.tick, jax.ShapeDtypeStruct((), x.dtype), x, vmap_method="broadcast_all"
        )

        @jax.custom_vjp
        def counted(x):
            return callback(x)

        counted.defvjp(lambda x: (callback(x), None), lambda _, g: (callback(g),))
        return counted(value)


@cache
def counted_target(space_name):
    counter = Counter()
    counted = Counted(draw(SPACES[space_name], 3), counter)
    return tz.Target(counted, SPACES[space_name], one_hot_log_prob=counted.one_hot), counter


@pytest.mark.parametrize(("name", "options"), [case for case in CASES if case.id[-2:] in ("-0", "-1")])
def test_counts_its_evaluations(name, options):
    space = suitable(SPECS[name])
    target, counter = counted_target(space)
    sampler = maker(name, options, pattern(space)[0])(target)
    theta = jnp.asarray(target.space.enumerate()[5])
    state = jax.block_until_ready(quick_jit(sampler.init)(theta, jax.random.key(0)))
    step = quick_jit(sampler.step)
    for number in range(3):
        counter.count = 0
        state, info = jax.block_until_ready(step(jax.random.key(number), state))
        assert counter.count == int(info.num_evaluations)


# ---- (v) compiled and batched


@pytest.mark.parametrize("name", SPECS)
def test_runs_compiled_and_batched_without_host_callbacks(name):
    target, _ = pattern(suitable(SPECS[name]))
    sampler = maker(name, {}, target)(target)
    theta = jnp.zeros((3, target.space.num_dims), jnp.int32)
    init = jax.eval_shape(jax.vmap(sampler.init), theta, jax.random.split(jax.random.key(0), 3))
    jaxpr = jax.make_jaxpr(jax.vmap(sampler.step))(jax.random.split(jax.random.key(0), 3), init)
    assert "callback" not in str(jaxpr)
    for before, after in zip(jax.tree.leaves(init), jaxpr.out_avals, strict=False):
        assert (before.shape, before.dtype) == (after.shape, after.dtype)


@pytest.mark.parametrize("name", [name for name in SPECS if SPECS[name].tuning is not None])
def test_tuning_ends_in_usable_parameters(name):
    spec = SPECS[name]
    target = small_target(suitable(spec))
    tuning = spec.tuning(target)

    def step(carry, key):
        states, search = carry
        sampler = spec.factory(target, **tuning.parameters(search))
        states, infos = jax.vmap(sampler.step)(jax.random.split(key, 16), states)
        return (states, tuning.update(search, jax.vmap(tuning.observe)(states, infos))), infos.acceptance_rate.mean()

    @quick_jit
    def run(key):
        starts = jax.vmap(spec.factory(target).init)(target.space.random(key, (16,)), jax.random.split(key, 16))
        (states, search), rates = jax.lax.scan(step, (starts, tuning.init()), jax.random.split(key, 120))
        return tuning.final(search), states, rates

    final, states, _ = run(jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(jax.device_get(final)))
    jax.eval_shape(spec.factory(target, **final).step, jax.random.key(1), jax.tree.map(lambda a: a[0], states))


# ---- the tests can fail


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda m: m.name)
def test_mutants_are_caught(mutant):
    space = suitable(SPECS[mutant.law])
    target, stacked = pattern(space)
    pi = probabilities(space)[:3]
    options = {
        key: STEEP if isinstance(value, str) and value == "steep" else value for key, value in mutant.options.items()
    }
    with mutant.planted():
        make = maker(mutant.law, options, target)
        if mutant.law in CONTINUOUS or mutant.is_sampled:
            caught = invariance_p_value(make, nth(target, stacked, 2), pi[2]) < ALPHA
        else:
            P = transition_matrices(make, target, jax.tree.map(lambda a: a[:3], stacked))
            caught = np.abs(np.einsum("ts,tsu->tu", pi, P) - pi).max() > 1e-9
    assert caught


# ---- registry and typed errors


def test_unknown_names_get_near_ones():
    with pytest.raises(OptionError, match="did you mean"):
        samplers.get("gibs")


@pytest.mark.parametrize("name", ["integer_metropolis", "any_scale"])
def test_ordered_methods_refuse_unordered_variables(name):
    with pytest.raises(UnsupportedError, match="unordered"):
        SPECS[name].factory(small_target("mixed"))


@pytest.mark.parametrize("name", [n for n, s in SPECS.items() if "gradient" in s.needs])
def test_gradient_methods_refuse_targets_without_one(name):
    blind = tz.Target(lambda theta: jnp.where(theta.sum() > 1, 0.0, -1.0), tz.binary(4))
    with pytest.raises(UnsupportedError, match="differentiated"):
        SPECS[name].factory(blind)


def test_specs_are_complete():
    for name, spec in samplers.REGISTRY.items():
        assert spec.name == name
        assert spec.summary
        assert spec.reference.rstrip(")")[-4:].isdigit()
        assert spec.needs <= {"transport", "gradient", "binary", "ordered", "pairwise", "ladder"}
