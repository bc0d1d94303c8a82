"""Coloured sweeps read from plain functions: the same conditionals and transition matrices as by evaluating log pi."""

from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from scripted import stationary, transition_matrices
from structured_models import MODELS, target_of
from terrazzo.auto.candidates import candidates, exploring_kernel
from terrazzo.samplers.kernels import coloured_gibbs
from terrazzo.samplers.parts import colouring, pairwise
from terrazzo.samplers.parts.colouring import read_conditionals
from terrazzo.targets.structure import AbstractSiteLogits

READ = ["potts_by_equality", "hmm", "graph_colouring", "network", "three_body", "mixed"]


@pytest.mark.parametrize("beta", [None, 0.3])
@pytest.mark.parametrize("name", READ)
def test_conditionals_are_those_of_log_pi(name, beta):
    target = target_of(name)
    colours, conditionals = read_conditionals(target)
    target = target if beta is None else target.tempered(beta)
    for number, one in enumerate(conditionals):
        assert (np.flatnonzero(np.asarray(colours) == number) == np.asarray(one.sites)).all()

    @jax.jit
    @jax.vmap
    def logits(theta):
        ours = [target.tempered_values(one.logits(theta), None) for one in conditionals]
        return ours, [jax.vmap(lambda i: target.site_logits(theta, i))(one.sites) for one in conditionals]

    rng = np.random.default_rng(1)
    thetas = np.stack([colouring.random_pair(target, rng)[0] for _ in range(5)])
    for ours, plain in zip(*jax.tree.map(np.asarray, logits(jnp.asarray(thetas, jnp.int32))), strict=True):
        both = lambda x: np.exp(x - x.max(axis=-1, keepdims=True))
        np.testing.assert_allclose(both(ours), both(plain[..., : ours.shape[-1]]), atol=1e-10)


def short_chain(theta):
    return jnp.asarray(TABLE)[theta[1:], theta[:-1]].sum() + 0.3 * theta[0].astype(float)


TABLE = np.random.default_rng(5).normal(size=(3, 3))


def matrices(target, options):
    params = eqx.filter(target, eqx.is_array)
    stacked = jax.tree.map(lambda x: x[None], params)
    return transition_matrices(partial(coloured_gibbs.coloured_gibbs, **options), target, stacked)[0]


@pytest.mark.parametrize("beta", [None, 0.3])
@pytest.mark.parametrize("size", [2, 3])
def test_transition_matrices_are_those_of_the_plain_path(size, beta):
    plain = tz.Target(short_chain, tz.categorical(size, shape=4))
    options = coloured_gibbs.prepare(plain)
    assert "conditionals" in options
    target = plain if beta is None else plain.tempered(beta)
    by_terms = matrices(target, options)
    by_candidates = matrices(target, {"colours": options["colours"], "verify": False})
    np.testing.assert_allclose(by_terms, by_candidates, atol=1e-12)
    states = jnp.asarray(target.space.enumerate())
    law = stationary(np.asarray(jax.jit(jax.vmap(target.log_prob))(states))[None])[0]
    np.testing.assert_allclose(law @ by_terms, law, atol=1e-12)
    forgotten = [Stale(one.sites, one.is_value, one) for one in options["conditionals"]]
    wrong = matrices(target, {**options, "conditionals": forgotten})
    assert np.abs(law @ wrong - law).max() > 1e-3
    assert not colouring._are_differences(plain, forgotten)


class Stale(AbstractSiteLogits):
    """The mutant: conditionals that do not see the other sites."""

    sites: Any
    is_value: Any
    of: Any

    def logits(self, theta):
        return self.of.logits(jnp.zeros_like(theta))


def test_a_step_costs_one_evaluation():
    target = target_of("network")
    sampler = coloured_gibbs.coloured_gibbs(target, **coloured_gibbs.prepare(target))
    state = sampler.init(jnp.asarray(colouring.random_pair(target, np.random.default_rng(0))[0], jnp.int32))
    assert int(sampler.step(jax.random.key(0), state)[1].num_evaluations) == 1


def test_hints_and_dense_functions_stay_on_the_plain_path():
    log_prob, sizes, _ = MODELS["rbm"]
    assert read_conditionals(tz.Target(log_prob, tz.binary(len(sizes)))) is None
    hinted = tz.Target(short_chain, tz.binary(4), colours=(0, 1, 0, 1))
    assert read_conditionals(hinted) is None
    assert read_conditionals(tz.Target(tz.blackbox(lambda theta: 0.0), tz.binary(4))) is None


def lattice(theta):
    s = (2 * theta - 1).reshape(24, 24).astype(float)
    return 0.3 * (s * (jnp.roll(s, 1, 0) + jnp.roll(s, 1, 1))).sum()


def test_the_default_sampler_takes_them():
    """Clusters explore where all values are alike; a field leaves the sweeps."""
    target = tz.Target(lattice, tz.binary(576))
    assert exploring_kernel(target)[0] == "swendsen_wang"
    assert "coloured_gibbs" in [local.name for local in candidates(target)]
    field = np.linspace(-0.1, 0.1, 576)
    name, options, moves = exploring_kernel(
        tz.Target(lambda theta: lattice(theta) + field @ theta.astype(float), tz.binary(576))
    )
    assert (name, moves) == ("coloured_gibbs", 1)
    assert "conditionals" in options


def test_single_precision_runs():
    with jax.enable_x64(False):
        sampler = tz.samplers.parallel_tempering(num_temperatures=3, kernel=tz.samplers.coloured_gibbs)
        result = tz.sample(lattice, tz.binary(576), seed=0, sampler=sampler, draws=20, warmup=20, progress="off")
    assert np.isfinite(result.log_prob).all()


def test_pair_terms_are_read_without_evaluating_all_pairs(monkeypatch):
    def never(target):
        raise AssertionError("all pairs were evaluated")

    monkeypatch.setattr(pairwise, "_differences", never)
    terms = pairwise.pairwise_terms(tz.Target(lattice, tz.binary(576)))
    assert len(terms.edges) == 2 * 576
    np.testing.assert_allclose(terms.couplings, 0.6, rtol=1e-12)
    potts = tz.Target(lambda t: 0.8 * (t[1:] == t[:-1]).sum().astype(float), tz.categorical(4, shape=50))
    np.testing.assert_allclose(pairwise.pairwise_terms(potts).couplings, 0.8, rtol=1e-12)
    with pytest.raises(AssertionError, match="all pairs"):
        pairwise.pairwise_terms(target_of("three_body"))
