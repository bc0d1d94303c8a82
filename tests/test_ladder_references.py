"""References of ladders of discrete variables: pi_beta proportional to q0^(1 - beta) pi^beta.

Every kernel that ladders can hold leaves such a law invariant: exact transition matrices where the outcomes of a step
are finitely many, else one step from exact starts (false-alarm rate 1e-6; 65,000 draws see 4 % of a state of mass
0.05). A round of the ladder leaves the joint law of all replicas alone. Every mutant is caught by one of these laws.
"""

import importlib
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from pairwise_targets import pairwise_target
from sampled_laws import ALPHA, QUICK, chi_square, invariance, is_off, stepper
from scripted import stationary, transition_matrices
from small_targets import log_table, small_target, stacked_targets, suitable
from terrazzo import samplers
from terrazzo.auto.exploration import reference_for
from terrazzo.errors import OptionError, UnsupportedError
from terrazzo.problems.ising import kaufman_log_z
from terrazzo.runtime import compilation
from terrazzo.samplers.parts import paths
from terrazzo.samplers.parts.pair_references import (
    mixed_log_probs,
    parts_reference,
    prior_reference,
    product_reference,
)
from terrazzo.targets.pair_models import PairReference
from terrazzo.targets.structure import halving
from terrazzo.targets.target import Target
from test_discrete_laws import CONTINUOUS, SPECS, maker, nth

tempering = importlib.import_module("terrazzo.samplers.kernels.tempering")
cluster = importlib.import_module("terrazzo.samplers.kernels.swendsen_wang")

BETA = 0.4
NOT_IN_LADDERS = {"exact", "smc", "importance"}


def product_of(target, seed=0):
    """A random product on the target's space."""
    sizes = target.space.sizes
    weights = np.random.default_rng(seed).gamma(1.0, size=(len(sizes), target.space.max_size))
    is_value = np.arange(weights.shape[1]) < sizes[:, None]
    return product_reference(mixed_log_probs(jnp.asarray(np.where(is_value, weights, 0)), sizes))


def table_of(base, space):
    return np.asarray(jax.vmap(base.log_density)(jnp.asarray(space.enumerate())))


# ---- kernels

SCRIPTED = sorted(name for name, spec in SPECS.items() if name not in CONTINUOUS and spec.program is None)


@pytest.mark.parametrize("name", SCRIPTED)
def test_kernels_leave_what_lies_between_invariant_exactly(name):
    assert kernel_gap(name) <= 1e-12


def kernel_gap(name):
    spec = SPECS[name]
    target = small_target(suitable(spec))
    stacked, base = stacked_targets(target, 3), product_of(target)
    make = maker(name, {}, target)
    P = transition_matrices(lambda t: make(t.tempered(BETA, base)), target, stacked)
    q0, worst = table_of(base, target.space), 0.0
    for i in range(3):
        log_pi = log_table(nth(target, stacked, i)).astype(float)
        pi = stationary(np.where(np.isinf(log_pi), log_pi, BETA * log_pi + (1 - BETA) * q0))
        worst = max(worst, np.abs(pi @ P[i] - pi).max())
    return worst


@pytest.mark.parametrize("name", sorted(name for name in CONTINUOUS if SPECS[name].program is None))
def test_kernels_with_auxiliary_variables_leave_it_invariant(name):
    spec = SPECS[name]
    target = small_target(suitable(spec), 1)
    assert invariance(stepper(spec.factory), target.tempered(BETA, product_of(target))) > ALPHA


@cache
def square(num_values=2):
    """A plain function of a pair model on six sites: its terms, colours and conditionals are read."""
    edges = np.array([(0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)])
    rng = np.random.default_rng(num_values)
    couplings, fields = jnp.asarray(rng.uniform(0.3, 1.2, len(edges))), jnp.asarray(rng.normal(size=(6, num_values)))

    def spins(theta):  # has a gradient
        s = 2.0 * theta.astype(couplings.dtype) - 1.0
        return 0.5 * jnp.sum(couplings * s[edges[:, 0]] * s[edges[:, 1]]) + jnp.sum(fields[:, 0] * s)

    def labels(theta):
        is_equal = (theta[edges[:, 0]] == theta[edges[:, 1]]).astype(couplings.dtype)
        return jnp.sum(couplings * is_equal) + jnp.sum(fields[jnp.arange(6), theta])

    return tz.Target(spins, tz.binary(6)) if num_values == 2 else tz.Target(labels, tz.categorical(num_values, shape=6))


def parts_of(target, num_sites=2):
    """Parts whose largest table has so many sites."""
    before = halving.LOG_ENTRIES
    try:
        halving.LOG_ENTRIES = num_sites * np.log2(target.space.max_size)
        return parts_reference(target)
    finally:
        halving.LOG_ENTRIES = before


READ = ("coloured_gibbs", "systematic_gibbs", "gibbs", "tree_gibbs", "swendsen_wang", "gibbs_with_gradients")
READ += ("slice_gibbs", "locally_balanced", "zanella", "tabu", "discrete_langevin", "dlmc", "path_auxiliary")


def read_law(name, kind="product"):
    """One step of a kernel with what it reads of the function."""
    spec, target = samplers.REGISTRY[name], square()
    base = product_of(target) if kind == "product" else parts_of(target)
    options = {} if spec.prepare is None else spec.prepare(target)
    return invariance(stepper(partial(spec.factory, **options)), target.tempered(BETA, base))


@pytest.mark.parametrize("name", [*READ, "gaussian_integral_hmc"])
def test_kernels_that_read_the_function_leave_it_invariant(name):
    assert read_law(name) > ALPHA


@pytest.mark.parametrize("name", [name for name in READ if name != "tree_gibbs"])
def test_parts_are_between_too(name):
    assert read_law(name, "parts") > ALPHA


def test_clusters_of_more_values():
    target = square(3)
    options = samplers.swendsen_wang.prepare(target)
    run = stepper(partial(samplers.swendsen_wang.factory, **options))
    assert invariance(run, target.tempered(BETA, parts_of(target))) > ALPHA


@pytest.mark.parametrize("name", ["tree_gibbs", "gaussian_integral_hmc"])
def test_kernels_that_cannot_follow_a_tied_reference_say_so(name):
    target = square()
    with pytest.raises(UnsupportedError, match="ties sites together"):
        samplers.REGISTRY[name].factory(target.tempered(BETA, parts_of(target)))


def test_terms_in_another_order_are_refused():
    target = pairwise_target(4, 2, 1, is_positive=True)
    terms, base = samplers.swendsen_wang.prepare(target)["terms"], parts_of(target)
    other = terms._replace(edges=terms.edges[::-1], couplings=terms.couplings[::-1])
    prepare = partial(samplers.parallel_tempering.prepare, target, reference=base, kernel="swendsen_wang")
    assert prepare()["reference"] is base
    with pytest.raises(OptionError, match="not those that the reference was made of"):
        prepare(kernel_options={"terms": other})


# ---- ladders


def ladder_law(kind, *, parity=1, kernel="gibbs", num_draws=200_000):
    """One round from exact starts at every temperature: the joint law of all replicas must stay."""
    plain = small_target("binary", 1, num_impossible=0 if kind == "parts" else 1)
    three = kind != "product"  # replicas of one leg; two legs have as many in all on a smaller space
    pad = lambda t: jnp.concatenate([t, jnp.zeros(4 - len(t), t.dtype)])
    target = tz.Target(lambda t: plain.log_prob(pad(t)), tz.binary(3 if three else 2), probe=False)
    options = {"inverse_temperatures": (0.0, BETA, 1.0)} if three else {"inverse_temperatures": (0.3, 1.0)}
    if kind == "parts":
        target = pairwise_target(3, 2, 4)
        base = parts_of(target, 1)
        options |= {"reference": base}
    elif kind == "prior":
        base = product_of(target)
        options |= {"reference": base}
    else:
        base = product_of(target)
        options |= {"reference": "product", "second_leg": (0.0, 1.0), "product": base.terms.fields}
    log_pi, q0 = log_table(target).astype(float), table_of(base, target.space)
    betas = [*options["inverse_temperatures"], *options.get("second_leg", ())[::-1]]
    legs = [1.0] * 3 if three else [0.0, 0.0, 1.0, 1.0]
    between = lambda b, g: np.where(np.isinf(log_pi), log_pi, b * log_pi + g * (1 - b) * q0)
    laws = [stationary(between(b, g)) for b, g in zip(betas, legs, strict=True)]
    rng = np.random.default_rng(0)
    starts = np.stack([rng.choice(len(p), num_draws, p=p) for p in laws], axis=1)
    states = jnp.asarray(target.space.enumerate())
    sampler = tempering.parallel_tempering(target, kernel=kernel, **options)

    @partial(jax.jit, compiler_options=QUICK)
    def run(starts, keys):
        def one(start, key):
            positions = states[start]
            state = sampler.init(positions[-1], key)
            log_bases = jnp.asarray(legs) * jax.vmap(base.log_density)(positions)
            state = state._replace(
                positions=positions, log_probs=jax.vmap(target.log_prob)(positions), log_bases=log_bases,
                parity=jnp.asarray(parity, jnp.int32),
            )  # fmt: skip
            new, _ = sampler.step(jax.random.fold_in(key, 1), state)
            held = new.positions[new.places]
            wrong = jnp.asarray(legs) * jax.vmap(base.log_density)(held) - new.log_bases
            return target.space.index(held), new.log_prob - target.log_prob(new.position), wrong

        return jax.vmap(one)(starts, keys)

    ends, gap, wrong = run(jnp.asarray(starts), jax.random.split(jax.random.key(0), num_draws))
    if is_off(gap) or is_off(wrong):
        return 0.0
    joint = laws[0]
    for law in laws[1:]:
        joint = np.multiply.outer(joint, law)
    cells = np.ravel_multi_index(np.asarray(ends).T, joint.shape)
    return chi_square(np.bincount(cells, minlength=joint.size), joint.ravel())


@pytest.mark.parametrize("parity", [0, 1])
@pytest.mark.parametrize("kind", ["prior", "parts", "product"])
def test_a_round_leaves_all_replicas_in_their_laws(kind, parity):
    assert ladder_law(kind, parity=parity) > ALPHA


def run_of(target, **options):
    sampler = samplers.parallel_tempering(num_temperatures=6, **options)
    return tz.sample(target, seed=0, sampler=sampler, chains=16, warmup=200, draws=400, progress="off")


def evidence_miss(target, **options):
    """How many standard errors log Z is off (16 chains)."""
    if options.get("reference") == "parts":
        options["reference"] = parts_of(target)
    run = run_of(target, **options)
    found = run.evidence_estimates["tempering"]
    return abs(found.log_z - np.logaddexp.reduce(log_table(target))) / found.standard_error


MOST = stats.t.isf(ALPHA / 2, 15)


@pytest.mark.parametrize("reference", ["product", "parts"])
def test_evidence_from_a_reference(reference):
    assert evidence_miss(pairwise_target(5, 2, 3), reference=reference) < MOST


def test_evidence_by_two_legs_with_impossible_configurations():
    assert evidence_miss(small_target("mixed", 53, num_impossible=8, scale=1.5), reference="product") < MOST


def test_two_legs_keep_a_mode_that_the_product_has_lost():
    """The product is fitted to what the cold chains saw: the uniform leg brings the rest. 30 % of the mass is apart."""
    ones = lambda t: jnp.sum(t).astype(float)

    def log_prob(theta):
        far, near = 1.6 * ones(theta), 1.6 * (14 - ones(theta))
        return jnp.logaddexp(far + np.log(0.3), near + np.log(0.7))

    run = run_of(tz.Target(log_prob, tz.binary(14)), reference="product")
    share = (np.asarray(run.theta).sum(axis=2) > 7).mean(axis=1)
    assert (share > 0).all()
    assert abs(share.mean() - 0.3) < MOST * share.std(ddof=1) / 4
    assert len(run.replicas.inverse_temperatures) == run.replicas.log_prob.shape[2] == 12


def test_a_fitted_product_shortens_the_ladder():
    """Independent sites with strong fields: from the product nothing is left to climb, from uniform there is."""
    strength = jnp.asarray(np.random.default_rng(0).normal(size=20) * 3.0)
    target = tz.Target(lambda t: jnp.sum(strength * t.astype(strength.dtype)), tz.binary(20))
    run = run_of(target, reference="product")
    v, betas = run.replicas.log_prob, run.replicas.inverse_temperatures
    rejected = 1 - np.exp(np.minimum(0, np.diff(betas) * (v[..., :-1] - v[..., 1:]))).mean(axis=(0, 1))
    assert rejected[6:].sum() < 0.5 * rejected[:5].sum()


# ---- references


def test_parts_are_normalised_and_have_their_conditionals():
    target = square()
    base = parts_of(target)
    left_out = np.asarray(base.terms.couplings) == 0
    assert base.has_edges
    assert 0 < left_out.sum() < len(left_out)
    table = table_of(base, target.space)
    np.testing.assert_allclose(np.logaddexp.reduce(table), 0.0, atol=1e-12)
    theta = jnp.asarray([1, 0, 1, 1, 0, 0])
    logits = np.asarray(base.site_logits(theta))
    for i in range(6):
        both = [float(base.log_density(theta.at[i].set(k))) for k in (0, 1)]
        np.testing.assert_allclose(logits[i, 1] - logits[i, 0], both[1] - both[0], atol=1e-12)


def test_a_lattice_is_cut_into_narrow_parts():
    site = np.arange(1024).reshape(32, 32)
    pairs = [np.stack([site, np.roll(site, 1, axis)], axis=-1).reshape(-1, 2) for axis in (0, 1)]
    edges = np.concatenate(pairs)
    numbers = halving.parts(1024, edges, np.ones(len(edges)), 2)
    assert np.bincount(numbers).max() >= 64
    for part in range(numbers.max() + 1):
        inside = edges[(numbers[edges] == part).all(axis=1)]
        sites = np.flatnonzero(numbers == part)
        order = halving.pair_graph(len(sites), np.searchsorted(sites, inside), 2).order
        assert order.log_sizes.max() <= halving.LOG_ENTRIES
    assert (numbers[edges[:, 0]] != numbers[edges[:, 1]]).mean() < 0.2


def prior_target(log_prior, space=None):
    space = space or tz.Space(a=tz.binary(2), k=tz.integers(1, 3))
    log_likelihood = lambda v: 0.3 * v["k"].astype(float) * v["a"].sum().astype(float)
    reference = tz.Reference(log_prior, lambda key: None)
    return tz.Target(lambda v: log_likelihood(v) + log_prior(v), space, reference=reference)


def test_a_prior_that_is_a_product_is_read():
    """What it excludes has a share of the uniform law."""
    log_k = jnp.log(jnp.asarray([0.0, 0.2, 0.8]))
    target = prior_target(lambda v: jnp.sum(jnp.where(v["a"] == 1, np.log(0.1), np.log(0.9))) + log_k[v["k"] - 1])
    base = prior_reference(target)
    assert not base.has_edges
    q = np.exp(np.asarray(base.terms.fields))
    np.testing.assert_allclose(q[:2, :2], 0.95 * np.array([[0.9, 0.1]] * 2) + 0.025, rtol=1e-6)
    np.testing.assert_allclose(q[2], 0.95 * np.array([0.0, 0.2, 0.8]) + 0.05 / 3, rtol=1e-6)
    assert samplers.parallel_tempering.prepare(target)["reference"].name == "product"
    assert evidence_miss(target) < MOST


@pytest.mark.slow
def test_the_default_explores_past_a_prior_that_hides_a_mode():
    """Half of the mass is where the prior has next to none: ladders from the prior do not agree, uniform ones do."""
    near = lambda t, p: jnp.sum(jnp.where(t == 1, jnp.log(p), jnp.log1p(-p)))
    log_prob = lambda t: jnp.logaddexp(near(t, 0.05), near(t, 0.95)) - jnp.log(2.0)
    reference = tz.Reference(lambda t: near(t, 0.05), lambda key: None)
    target = tz.Target(log_prob, tz.binary(30), reference=reference)
    assert prior_reference(target) is not None
    assert reference_for(target, "systematic_gibbs") is None
    result = tz.sample(target, seed=0, progress="off")
    share = (np.asarray(result.theta).sum(axis=2) > 15).mean(axis=1)
    assert result.verdict.grade == "trusted"
    assert abs(share.mean() - 0.5) < MOST * share.std(ddof=1) / np.sqrt(len(share))


def test_a_prior_that_ties_sites_is_not_used():
    target = prior_target(lambda v: jnp.where(v["a"][0] == v["a"][1], 0.1, 0.0))
    assert prior_reference(target) is None
    assert samplers.parallel_tempering.prepare(target)["reference"] == "uniform"
    assert evidence_miss(target) < MOST


def test_wrong_references_are_refused():
    target = square()
    for given, words in (("nothing", "must be 'uniform'"), (3, "must be 'uniform'")):
        with pytest.raises(OptionError, match=words):
            tz.sample(target, seed=0, sampler=samplers.parallel_tempering(reference=given), progress="off")
    free = tz.Target(lambda t: 0.5 * jnp.sum(t).astype(float), tz.binary(3))
    with pytest.raises(UnsupportedError, match="finds no couplings to leave out"):
        tz.sample(free, seed=0, sampler=samplers.parallel_tempering(reference="parts"), progress="off")
    soft = tz.Target(
        lambda t: jnp.where(t.sum() > 1, -jnp.inf, 0.0), tz.binary(3), penalty=lambda t: jnp.maximum(t.sum() - 1, 0)
    )
    with pytest.raises(UnsupportedError, match="softened"):
        paths.found_reference(soft.softened(-1.0), "product")


# ---- the default


def test_clusters_explore_from_parts(tmp_path):
    """A lattice at its critical point: log Z by ladders from the parts; a stored plan gives the same draws."""
    coupling = 0.5 * np.log(1 + np.sqrt(2))

    def log_prob(theta):
        spins = 2.0 * theta.astype(float) - 1.0
        return coupling * jnp.sum(spins * (jnp.roll(spins, 1, 0) + jnp.roll(spins, 1, 1)))

    options = {"seed": 1, "chains": 4, "draws": 200, "progress": "off"}
    result = tz.sample(log_prob, tz.binary((16, 16)), **options)
    explored = result.provenance["warm-up"]["exploration"]
    assert explored["from"] == "parts"
    found = result.evidence_estimates["tempering"]
    assert abs(found.log_z - kaufman_log_z(16, 16, coupling)) < 5 * found.standard_error
    assert found.standard_error < 0.1
    path = tmp_path / "run.tz"
    result.save(path)
    again = tz.sample(log_prob, tz.binary((16, 16)), plan=tz.Result.load(path).plan, **options)
    np.testing.assert_array_equal(again.theta, result.theta)


# ---- the tests can fail

FORGOTTEN = lambda self, part: None
LOG_SWAP, LOG_DENSITY, EXCHANGED = tempering.log_swap, PairReference.log_density, tempering.exchanged
MUTANTS = {
    "a sweep without the base": (
        PairReference, "site_logits", lambda base, theta: jnp.zeros_like(base.terms.fields),
        lambda: read_law("coloured_gibbs")),
    "a single site without the base": (Target, "of_base", FORGOTTEN, lambda: float(kernel_gap("gibbs") <= 1e-12)),
    "a swap without the base": (
        tempering, "log_swap", lambda betas, log_probs, *_: LOG_SWAP(betas, log_probs), lambda: ladder_law("prior")),
    "the uniform leg swaps by the base": (
        paths.Path, "shares", property(lambda path: 1 - path.betas), lambda: ladder_law("product")),
    "log q0 stays behind at a swap": (
        tempering, "exchanged", lambda is_swapped, *rows: (*EXCHANGED(is_swapped, *rows[:2]), *rows[2:]),
        lambda: ladder_law("prior")),
    "clusters without the couplings of the base": (
        PairReference, "has_edges", property(lambda base: False), lambda: read_law("swendsen_wang", "parts")),
    "a base that is not normalised": (
        PairReference, "log_density", lambda base, theta: LOG_DENSITY(base, theta) + 0.5,
        lambda: float(evidence_miss(pairwise_target(5, 2, 3), reference="parts") < MOST)),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTANTS)
def test_mutants_are_caught(name, monkeypatch):
    owner, attribute, mutant, law = MUTANTS[name]
    monkeypatch.setattr(compilation, "_groups", compilation._Groups())  # nothing that was compiled without the mutant
    monkeypatch.setattr(owner, attribute, mutant)
    assert law() <= ALPHA
