"""Every registered latent kernel leaves p~ invariant; every planted mistake is caught.

Exact starts (theta ~ pi by enumeration, then lift), a few steps, chi-square of theta at alpha = 1e-6: see
`sampled_laws.py`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from calls import sample_with
from mutants.latent_kernels import KERNEL_MUTANTS
from mutants.transports import TRANSPORT_MUTANTS
from sampled_laws import ALPHA, invariance, stepper
from small_targets import small_target
from terrazzo import samplers
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.kernels.hybrid import global_move
from terrazzo.transports import REGISTRY as TRANSPORTS
from transport_laws import flow_quadrature_gap, identity_z_scores, lift_z_scores, limit, perturbed, push_all

NUM_STEPS = 3
SMALL = {"num_layers": 2, "width": 8, "context_width": 4}
KERNELS = sorted(name for name, spec in REGISTRY.items() if "transport" in spec.needs)
CHEAP = {
    "latent_hmc": {"num_steps": 3},
    "latent_nuts": {"max_num_doublings": 2},
    "latent_elliptical_slice": {"max_shrinks": 6},
}


def transport_of(target, name="flow"):
    options = {"architecture": "affine", **SMALL} if name == "flow" else {"scale": 0.5}
    return perturbed(TRANSPORTS[name].build(target.space, key=jax.random.key(1), **options), 0.1)


def p_value(make, target, transport):
    return invariance(stepper(make, num_steps=NUM_STEPS), target, transport)


def maker(name):
    spec = REGISTRY[name]
    return lambda target, transport: spec.factory(target, transport, **CHEAP.get(name, {}))


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_are_invariant(name):
    target = small_target("mixed", num_impossible=2)
    assert p_value(maker(name), target, transport_of(target)) > ALPHA


@pytest.mark.parametrize("name", ["latent_random_walk", "latent_pcn", "latent_elliptical_slice"])
def test_kernels_are_invariant_on_a_product(name):
    target = small_target("mixed")
    assert p_value(maker(name), target, transport_of(target, "product")) > ALPHA


@pytest.mark.parametrize("name", KERNEL_MUTANTS)
def test_broken_kernels_are_caught(name):
    target = small_target("mixed")
    assert p_value(KERNEL_MUTANTS[name], target, transport_of(target)) < ALPHA


@pytest.mark.parametrize("name", TRANSPORT_MUTANTS)
def test_broken_transports_are_caught(name):
    make, law = TRANSPORT_MUTANTS[name]
    space = tz.Space(tz.integers(0, 3)) if law == "quadrature" else tz.Space(a=tz.integers(-1, 1), b=tz.binary())
    flow = perturbed(tz.transports.flow_transport(space, key=jax.random.key(1), architecture="affine", **SMALL), 0.3)
    if law == "identity":
        logits = 2.0 * jax.random.normal(jax.random.key(0), (space.num_dims, space.max_size))
        scores = identity_z_scores(make(space, logits))
        assert np.abs(scores).max() > limit(scores.size)
    elif law == "quadrature":
        assert not flow_quadrature_gap(make(flow)) <= 1e-6  # NaN is caught too
    elif law == "support":
        theta = push_all(make(flow), jnp.array([[40.0, 40.0], [1e4, 1e4]])).theta
        assert not space.contains(np.asarray(theta)).all()
    else:
        scores = lift_z_scores(make(flow), num_draws=2**14)
        assert np.abs(scores).max() > limit(scores.size)


@pytest.mark.parametrize(("local", "count"), [("gibbs", 2), ("locally_balanced", 1 + 2 * 3)])
def test_the_hybrid_starts_plain_local_samplers_for_nothing(local, count):
    """Two local moves: their own evaluations, and one more only where the local state holds more than theta, log pi."""
    target = tz.Target(lambda theta: -0.5 * theta.astype(float).sum(), tz.binary(3))
    sampler = samplers.hybrid.factory(target, None, local=local, num_local=2)
    state = sampler.init(jnp.zeros(3, jnp.int32), jax.random.key(0))
    state, info = sampler.step(jax.random.key(1), state)
    assert int(info.num_evaluations) == count
    assert float(state.log_prob) == float(target.log_prob(state.position))


def test_the_hybrid_without_a_transport():
    """Local moves alone, as the default sampler runs them; at the wrong temperature they are caught."""
    target = small_target("mixed")
    alone = lambda target, _: samplers.hybrid.factory(target, None, num_local=2)
    warm = lambda target, _: _with_true_log_prob(
        samplers.hybrid.factory(target.tempered(0.9), None, num_local=2), target
    )
    assert p_value(alone, target, None) > ALPHA
    assert p_value(warm, target, None) < ALPHA


def test_rounds_whose_proposals_are_drawn_ahead():
    """Several rounds a step, on a transport whose weight depends on theta alone; a proposal used twice is caught."""
    target = small_target("mixed", num_impossible=2)
    transport = transport_of(target, "product")
    rounds = lambda target, transport: samplers.hybrid.factory(target, transport, num_local=1, num_rounds=3)
    assert p_value(rounds, target, transport) > ALPHA
    assert p_value(_with_one_proposal, target, transport) < ALPHA


def _with_one_proposal(target, transport):
    """The same proposal in every round: after a rejection it depends on where the chain is."""
    jump = global_move(target, transport)

    def step(key, state):
        keys = jax.random.split(key, 5)
        proposal = jump.draw(keys[0])
        for k in keys[1:]:
            state, _, _ = jump.move(k, state, proposal)
        return state, None

    return samplers.SamplingAlgorithm(lambda theta, key: samplers.State(theta, target.log_prob(theta)), step)


def _with_true_log_prob(algorithm, target):
    def step(key, state):
        new, info = algorithm.step(key, state)
        return new._replace(log_prob=target.log_prob(new.position)), info

    return algorithm._replace(step=step)


def test_tuned_scales_reach_their_acceptance():
    target = tz.Target(lambda t: -0.05 * jnp.sum((t.astype(float) - 4.0) ** 2), tz.integers(0, 15, 6))
    for name, low, high in (("latent_random_walk", 0.2, 0.4), ("latent_pcn", 0.2, 0.45)):
        result = sample_with(
            target, seed=0, sampler=name, training=False, transport_options={"architecture": "affine", **SMALL},
            draws=300, warmup=400, progress="off",
        )  # fmt: skip
        assert low < result.sample_stats["acceptance_rate"].mean() < high
        assert list(result.provenance["tuned"]) == ["scale"]
