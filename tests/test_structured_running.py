"""Sweeps and informed moves by conditionals read from plain functions: the laws and the draws of the plain path."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from scripted import stationary, transition_matrices
from structured_models import MODELS
from terrazzo import samplers
from terrazzo.auto.candidates import candidates, exploring_kernel
from terrazzo.samplers.kernels.gibbs import gibbs, prepare_systematic, systematic_gibbs
from terrazzo.samplers.kernels.locally_balanced import locally_balanced
from terrazzo.samplers.parts import reading
from terrazzo.samplers.parts.ascent import ascend, offsets_of
from terrazzo.samplers.parts.ratios import moves_of, neighbour_log_probs
from terrazzo.targets import structure
from terrazzo.targets.reading import structure_of

RNG = np.random.default_rng(11)
WEIGHTS, COUPLINGS = RNG.normal(size=(4, 3)), RNG.normal(size=(4, 4))


def small_rbm(theta):
    v = theta.astype(float)
    return jax.nn.softplus(v @ jnp.asarray(WEIGHTS)).sum() + 0.2 * v[0]


def small_glass(theta):
    s = 2.0 * theta.astype(float) - 1.0
    return 0.4 * s @ jnp.asarray(COUPLINGS) @ s


def small_potts(theta):
    return 0.9 * (theta[1:] == theta[:-1]).sum().astype(float) + 0.5 * (theta[0] == theta[-1]).astype(float)


def read(name, monkeypatch):
    """A target of four sites, and conditionals of each kind."""
    make, size = {"products": (small_rbm, 2), "wide products": (small_rbm, 3), "field": (small_glass, 2),
                  "weights": (small_glass, 2), "tables": (small_potts, 3)}[name]  # fmt: skip
    target = tz.Target(make, tz.integers(0, size - 1, shape=4))
    found = structure.read(lambda theta: target._traced(theta), target.space.sizes)
    if name in ("weights", "tables"):
        return target, found.conditionals
    monkeypatch.setattr("terrazzo.targets.structure.linear.MIN_DEGREE", 1)
    return target, found.running


def matrices(make, target):
    params = jax.tree.map(lambda x: x[None], eqx.filter(target, eqx.is_array))
    return transition_matrices(make, target, params)[0]


KINDS = ["products", "wide products", "field", "weights", "tables"]


def altered(running, **methods):
    """The same conditionals with some methods replaced."""
    new = type("Altered", (type(running),), methods)
    return new(**{f: getattr(running, f) for f in running.__dataclass_fields__})


@pytest.mark.parametrize("beta", [None, 0.3])
@pytest.mark.parametrize("name", KINDS)
def test_transition_matrices_are_those_of_the_plain_path(name, beta, monkeypatch):
    plain, running = read(name, monkeypatch)
    assert running.is_sequential
    assert reading._are_differences(plain, running)
    target = plain if beta is None else plain.tempered(beta)
    states = jnp.asarray(target.space.enumerate())
    law = stationary(np.asarray(jax.jit(jax.vmap(target.log_prob))(states))[None])[0]
    for make in (systematic_gibbs, partial(gibbs, num_updates=2), locally_balanced):
        ours, theirs = matrices(partial(make, conditionals=running), target), matrices(make, target)
        np.testing.assert_allclose(ours, theirs, atol=1e-11)
        np.testing.assert_allclose(law @ ours, law, atol=1e-11)


@pytest.mark.parametrize("name", ["products", "field"])
def test_a_stale_product_breaks_the_law_and_is_seen(name, monkeypatch):
    """Mutants: products that do not follow a change."""
    target, running = read(name, monkeypatch)
    stale = altered(
        running,
        moved=lambda self, tables, theta, i, value: tables,
        redrawn=lambda self, tables, theta, i, draw: (draw(self.site_logits(tables, theta, i)), tables),
    )
    states = jnp.asarray(target.space.enumerate())
    law = stationary(np.asarray(jax.jit(jax.vmap(target.log_prob))(states))[None])[0]
    wrong = matrices(partial(systematic_gibbs, conditionals=stale), target)
    assert np.abs(law @ wrong - law).max() > 1e-3
    assert not reading._are_differences(target, stale)


@pytest.mark.parametrize("name", ["rbm", "dense_glass", "network", "three_body", "graph_colouring", "potts"])
def test_draws_are_those_of_the_plain_path(name):
    """The same keys, the same configurations."""
    log_prob, sizes, _ = MODELS[name]
    target = tz.Target(log_prob, tz.categorical(int(sizes[0]), shape=len(sizes)))
    options = prepare_systematic(target)
    assert "conditionals" in options
    keys, starts = jax.random.split(jax.random.key(1), 64), target.possible_starts(jax.random.key(2), 64)
    ends = []
    for given in (options, {}):
        sampler = systematic_gibbs(target, num_sweeps=2, **given)
        ends.append(jax.jit(jax.vmap(lambda k, x, s=sampler: s.step(k, s.init(x))[0]))(keys, starts))
    assert (np.asarray(ends[0].position) == np.asarray(ends[1].position)).all()
    np.testing.assert_allclose(ends[0].log_prob, ends[1].log_prob, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["logistic", "rbm", "dense_glass", "network", "mixed", "graph_colouring"])
def test_neighbours_are_those_of_log_prob(name):
    log_prob, sizes, _ = MODELS[name]
    variables = {f"x{i}": tz.categorical(int(k)) for i, k in enumerate(sizes)}
    flat = lambda values: log_prob(jnp.stack([values[f"x{i}"].reshape(()) for i in range(len(sizes))]))
    target = tz.Target(flat, variables)
    cheap = reading.with_conditionals(target, reading.read_running(target))
    assert cheap.running is not None
    moves = moves_of(target.space, None)
    starts = target.possible_starts(jax.random.key(0), 5)
    ours, plain = (
        jax.jit(jax.vmap(lambda theta, t=t: neighbour_log_probs(t, moves, theta, t.log_prob(theta))))(starts)
        for t in (cheap, target)
    )
    np.testing.assert_allclose(ours, plain, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", ["locally_balanced", "zanella", "tabu"])
def test_informed_kernels_cost_one_evaluation(name):
    log_prob = MODELS["torus"][0]
    target = tz.Target(log_prob, tz.binary(16))
    spec = samplers.get(name)
    plain, ours = spec.factory(target), spec.factory(target, **spec.prepare(target))
    theta, key = target.possible_starts(jax.random.key(0), 1)[0], jax.random.key(3)
    old, new = (jax.jit(lambda k, x, s=s: s.step(k, s.init(x)))(key, theta) for s in (plain, ours))
    assert (np.asarray(old[0].position) == np.asarray(new[0].position)).all()
    assert int(old[1].num_evaluations) == 16 * int(new[1].num_evaluations)
    np.testing.assert_allclose(old[0].neighbours, new[0].neighbours, atol=1e-9)


def dense(num_dims):
    couplings = jnp.asarray(np.random.default_rng(0).normal(size=(num_dims, num_dims)) / num_dims)

    def log_prob(theta):
        s = 2.0 * theta.astype(float) - 1.0
        return s @ couplings @ s

    return tz.Target(log_prob, tz.binary(num_dims))


def test_the_default_sampler_takes_them():
    target = dense(60)
    assert isinstance(structure_of(target).conditionals, structure.RunningField)
    name, options, moves = exploring_kernel(target)
    assert (name, moves) == ("systematic_gibbs", 1)
    assert isinstance(options["conditionals"], structure.RunningField)
    assert candidates(target)[0].name == "systematic_gibbs"


def test_a_product_is_kept_once():
    """softplus looks at x, x - 0 and |x|: three linear products, of which two follow the first."""
    found = structure.read(small_rbm, np.full(4, 2))
    assert found.running.columns.shape == (4, 2, 3)


def test_hints_and_black_boxes_are_left_alone():
    hinted = tz.Target(small_potts, tz.categorical(3, shape=4), colours=(0, 1, 2, 3))
    assert prepare_systematic(hinted) == {}
    assert prepare_systematic(tz.Target(tz.blackbox(lambda theta: 0.0), tz.binary(4))) == {}
    whole = tz.Target(lambda t: jnp.log1p(((t[1:] * t[:-1]).sum() ** 2).astype(float)), tz.binary(40))
    assert prepare_systematic(whole, num_sweeps=2) == {"num_sweeps": 2}
    assert samplers.gibbs.prepare(dense(60)) == {}  # one update a step: nothing to gain
    assert samplers.gibbs.prepare(dense(60), num_updates=4)["num_updates"] == 4


def test_single_precision_runs_inside_a_ladder():
    with jax.enable_x64(False):
        sampler = tz.samplers.parallel_tempering(num_temperatures=3, kernel=tz.samplers.systematic_gibbs)
        result = tz.sample(dense(60), seed=0, sampler=sampler, draws=20, warmup=20, progress="off")
    assert np.isfinite(result.log_prob).all()


def tilted_potts(theta):  # no two changes gain the same
    return small_potts(theta) + jnp.asarray(COUPLINGS)[jnp.arange(4), theta].sum()


@pytest.mark.parametrize("log_prob", [small_rbm, small_glass, tilted_potts])
def test_ascent_by_running_conditionals_is_ascent(log_prob):
    """The same sweep, at the cost of one evaluation instead of one for every change."""
    target = tz.Target(log_prob, tz.categorical(3, shape=4) if log_prob is tilted_potts else tz.binary(4))
    running = reading.read_running(target)
    assert running is not None
    theta = target.space.random(jax.random.key(0), (16,))
    offsets = jnp.asarray(offsets_of(target.space.max_size))
    plain, read = (ascend(t, theta, offsets) for t in (target, reading.with_conditionals(target, running)))
    np.testing.assert_array_equal(plain[0], read[0])
    np.testing.assert_allclose(plain[1], read[1], rtol=1e-12)
    assert (np.asarray(plain[1]) >= np.asarray(jax.vmap(target.log_prob)(theta))).all()
