"""Transports on mixed spaces obey their law with any weights, and the joint jump leaves the joint law invariant.

Statistical tests have a false-alarm rate of 1e-6 each, with fixed seeds. Planted mistakes must be seen.
"""

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from mixed_transport_laws import quadrature_gap, round_trip_gap, volume_gap
from mutants.mixed_transports import MUTANTS
from terrazzo.samplers import MIXED_HYBRID, SamplingAlgorithm
from terrazzo.samplers.kernels.collapsed import find_summation
from terrazzo.samplers.kernels.mixed_hybrid import beside_jumps, jumped, marginal_target
from terrazzo.spaces import Configuration
from terrazzo.transports import REGISTRY, FlowTransport, deserialise, posterior_log_weights, serialise, sites
from test_mixed_laws import ALPHA, LOGITS, SPACE, _log_prob, _p_value
from transport_laws import limit, log_det_gap, perturbed, push_all

ONE = tz.Space(k=tz.integers(0, 3), x=tz.real())
TWO = tz.Space(b=tz.binary(), x=tz.real(2), k=tz.categorical(3))
FLOW = {"num_layers": 2, "width": 8, "context_width": 4}
MEMBERS = {
    "autoregressive": ("autoregressive", {"width": 8}),
    "reals first": ("autoregressive", {"width": 8, "order": "reversed"}),
    "flow": ("flow", FLOW),
    "uniform flow": ("flow", {"dequantizer": "uniform", **FLOW}),
}
REALS = {1: np.array([[-2.0], [0.3], [4.0]]), 2: np.array([[-1.0, 2.0], [0.4, 0.1]])}


def build(name, space, scale=0.0):
    kind, options = MEMBERS[name]
    if options.get("order") == "reversed":
        options = {**options, "order": np.arange(space.num_dims + space.num_reals)[::-1]}
    transport = REGISTRY[kind].build(space, key=jax.random.key(3), **options)
    return perturbed(transport, scale) if scale else transport


@pytest.fixture(scope="module")
def target():
    return tz.Target(_log_prob, SPACE)


@pytest.mark.parametrize("name", MEMBERS)
def test_the_volume_of_every_theta_and_y_is_one(name):
    is_flow = MEMBERS[name][0] == "flow"
    # Sharp flows put mass at offsets that no float64 x = theta + u resolves (see test_transport_laws).
    cases = (
        ((ONE, 0.0), (ONE, 0.3 if is_flow else 1.0)) if is_flow else ((ONE, 0.0), (ONE, 1.0), (TWO, 0.0), (TWO, 0.5))
    )
    for space, scale in cases:
        assert quadrature_gap(build(name, space, scale), REALS[space.num_reals]) <= 1e-6


def test_the_volume_of_a_flow_over_two_sites_and_a_real_is_one():
    space = tz.Space(b=tz.binary(2), x=tz.real())
    assert quadrature_gap(build("flow", space, 0.1), REALS[1][:1]) <= 1e-6


@pytest.mark.parametrize("name", MEMBERS)
def test_push_undoes_lift(name):
    assert round_trip_gap(build(name, TWO), 20_000) < 1e-9
    assert round_trip_gap(build(name, TWO, 0.3), 20_000) < 1e-6


def test_the_parallel_pass_gives_the_density_of_decoding():
    assert volume_gap(build("reals first", TWO, 0.3), 2_000) < 1e-8
    assert volume_gap(build("autoregressive", tz.Space(n=tz.integers(0, 99), x=tz.real()), 0.3), 2_000) < 1e-8


def test_log_determinants_are_those_of_autodiff():
    outputs = jax.random.normal(jax.random.key(0), (64, sites.NUM_REAL_OUTPUTS))
    z = 2.0 * jax.random.normal(jax.random.key(1), (64,))
    slope = jax.vmap(jax.jacfwd(lambda z, o: sites.real_transform(z, o)[0]))(z, outputs)
    r, log_det = jax.vmap(sites.real_transform)(z, outputs)
    np.testing.assert_allclose(log_det, jnp.log(slope), atol=1e-10)
    back, log_det_back = jax.vmap(sites.real_inverse)(r, outputs)
    np.testing.assert_allclose(back, z, atol=1e-9)
    np.testing.assert_allclose(log_det_back, -log_det, atol=1e-8)
    assert log_det_gap(build("flow", TWO, 0.3)) <= 1e-10


@pytest.mark.parametrize("name", MEMBERS)
def test_the_support_is_never_left(name):
    transport = build(name, TWO, 0.3)
    ends = [-np.inf, -1e4, -40.0, 0.0, 40.0, 1e4, np.inf]
    z = jnp.asarray(np.random.default_rng(0).choice(ends, (200, 4)))
    found, log_volume = push_all(transport, z)
    assert TWO.contains(np.asarray(found.theta)).all()
    assert not np.isnan(np.asarray(log_volume)).any()
    assert (np.asarray(log_volume)[~np.isfinite(np.asarray(z)).all(1)] == -np.inf).all()


@pytest.mark.parametrize("name", ["autoregressive", "flow"])
def test_weights_give_log_z_of_counting_times_lebesgue_measure(name, target):
    """s is bounded below: log Z is right only with the Jacobian of its bound."""
    transport = build(name, SPACE)
    weights = np.exp(
        np.asarray(tz.transports.sample_transport(jax.random.key(0), transport, target, 2**16).log_weights)
    )
    z = np.exp(LOGITS).sum() * np.sqrt(2 * np.pi)
    assert abs(weights.mean() - z) < limit(1) * weights.std() / 2**8


def test_weights_of_given_draws_are_those_of_the_density(target):
    transport = build("autoregressive", SPACE, 0.1)
    draws = tz.transports.sample_transport(jax.random.key(0), transport, target, 64)
    found = posterior_log_weights(jax.random.key(1), transport, target, draws.theta)
    np.testing.assert_allclose(found, draws.log_weights, atol=1e-8)


@pytest.mark.parametrize("name", ["autoregressive", "flow"])
def test_transports_are_stored(name):
    transport = build(name, TWO, 0.3)
    back = deserialise(*serialise(transport), TWO)
    z = jax.random.normal(jax.random.key(0), (10, 4))
    np.testing.assert_array_equal(push_all(back, z).log_volume, push_all(transport, z).log_volume)


# ---- kernels


def _jumps(target, transport, **options):
    """The jump alone, without the local moves that would cover for it."""
    whole = MIXED_HYBRID.factory(target, transport)

    def step(key, state):
        start = Configuration(state.position, state.reals)
        found, rate, _ = jumped(key, target, transport, start, **{"move": "independence", "scale": 0.5, **options})
        return whole.init(found), rate

    return SamplingAlgorithm(whole.init, step)


JUMPS = {
    "autoregressive": ("reals first", {}),
    "flow": ("flow", {}),
    "pcn": ("autoregressive", {"move": "pcn"}),
    "elliptical slice": ("flow", {"move": "elliptical_slice"}),
}


@pytest.mark.parametrize("name", JUMPS)
def test_jumps_leave_the_joint_law_invariant(target, name):
    member, options = JUMPS[name]
    assert _p_value(_jumps(target, build(member, SPACE, 0.1), **options)) > ALPHA


def test_the_hybrid_leaves_the_joint_law_invariant(target):
    options = MIXED_HYBRID.prepare(target, local=tz.samplers.gibbs(num_updates=2), real="mala", num_local=2)
    sampler = MIXED_HYBRID.factory(
        target, build("autoregressive", SPACE, 0.1), step_size=0.7, inverse_mass_matrix=np.array([1.0, 1.5]), **options
    )
    assert _p_value(sampler) > ALPHA


def _jumps_of_reals(target, marginal, plan):
    """A jump of the reals by their marginal density, then theta given them, without the local move of the reals."""
    transport = build("autoregressive", marginal.space, 0.1)
    whole = MIXED_HYBRID.factory(target, build("autoregressive", SPACE))

    def step(key, state):
        jump_key, theta_key = jax.random.split(key)
        start = Configuration(state.position[:0], state.reals)
        found, rate, _ = jumped(jump_key, marginal, transport, start, move="independence", scale=0.5)
        return whole.init(Configuration(plan.backward(theta_key, plan.forward(found.reals)[1]), found.reals)), rate

    return SamplingAlgorithm(whole.init, step)


def test_the_hybrid_through_the_reals_alone_leaves_the_joint_law_invariant(target):
    plan = find_summation(target)
    marginal = marginal_target(target, plan)
    assert _p_value(_jumps_of_reals(target, marginal, plan)) > ALPHA
    options, parameters = beside_jumps({"summation": plan}, {"scale": 0.7}, marginal)
    sampler = MIXED_HYBRID.factory(
        target, build("autoregressive", marginal.space, 0.1), max_doublings=3, **options, **parameters
    )
    assert _p_value(sampler) > ALPHA


def test_a_jump_by_the_density_at_one_theta_is_seen(target):
    wrong = tz.Target(lambda y: target.log_density(jnp.zeros(2, jnp.int32), y), tz.real(2))
    assert _p_value(_jumps_of_reals(target, wrong, find_summation(target)), thin=3) < ALPHA


def test_a_transport_of_the_reals_alone_is_stored_with_a_mixed_run():
    transport = build("autoregressive", tz.Space(tz.real(2)), 0.3)
    back = deserialise(*serialise(transport, TWO), TWO)
    assert back.space == transport.space
    z = jax.random.normal(jax.random.key(0), (10, 2))
    np.testing.assert_array_equal(push_all(back, z).log_volume, push_all(transport, z).log_volume)
    data, config = serialise(transport, TWO)
    config["space"]["variables"][0]["shape"] = [10**9]
    with pytest.raises(tz.errors.FileFormatError):
        deserialise(data, config, TWO)


def test_a_jump_without_the_jacobian_of_the_bound_is_seen(target, monkeypatch):
    monkeypatch.setattr(tz.Space, "log_jacobian", lambda self, y: jnp.zeros((), y.dtype))
    assert _p_value(_jumps(target, build("autoregressive", SPACE))) < ALPHA


def test_a_jump_by_a_density_without_its_spline_is_seen(target, monkeypatch):
    inverse = sites.real_inverse
    wrong = lambda r, outputs: (inverse(r, outputs)[0], -outputs[0])
    monkeypatch.setattr(sites, "real_inverse", wrong)
    assert _p_value(_jumps(target, build("autoregressive", SPACE, 0.3)), thin=4) < ALPHA


@pytest.mark.parametrize("mutant", MUTANTS)
def test_mutants_are_caught(mutant):
    kind, law = MUTANTS[mutant]
    right = build("flow" if issubclass(kind, FlowTransport) else "reals first", ONE, 0.3)
    wrong = kind(**{field.name: getattr(right, field.name) for field in dataclasses.fields(right)})
    if law == "quadrature":
        assert quadrature_gap(right, REALS[1]) <= 1e-6
        assert quadrature_gap(wrong, REALS[1]) > 1e-3
    else:
        assert round_trip_gap(right, 2_000) < 1e-6
        assert round_trip_gap(wrong, 2_000) > 1e-3


# ---- training


def test_the_gradient_of_the_reverse_kl_is_unbiased():
    """Against the derivative of the KL itself: theta enumerated, y by quadrature."""
    space = tz.Space(k=tz.binary(), x=tz.real())
    target = tz.Target(lambda v: -0.5 * (v["x"] - jnp.where(v["k"] > 0, 1.5, 0.0)) ** 2, space)
    transport = perturbed(
        REGISTRY["autoregressive"].build(space, key=jax.random.key(0), width=4, num_blocks=0, order=[1, 0]), 0.2
    )
    params, static = eqx.partition(transport, eqx.is_inexact_array)
    nodes, step = np.linspace(-25.0, 25.0, 4_001, retstep=True)

    def exact(params):
        one = eqx.combine(params, static)

        def cost(k, x):
            position = Configuration(k[None], x[None])
            log_q = one.log_prob(position)
            return jnp.exp(log_q) * (log_q - target.log_density(*position))

        return step * sum(jnp.sum(jax.vmap(lambda x, k=k: cost(jnp.asarray(k, jnp.int32), x))(nodes)) for k in (0, 1))

    objective = tz.reverse_kl().resolve(transport, target)
    loss = lambda params, key: objective(eqx.combine(params, static), target, key, 64, jnp.ones(()))[0]
    keys = jax.random.split(jax.random.key(1), 1024)
    found = jax.jit(lambda keys: jax.lax.map(lambda key: jax.grad(loss)(params, key), keys, batch_size=64))(keys)
    flat = lambda tree: np.concatenate([np.asarray(x).reshape(len(keys), -1) for x in jax.tree.leaves(tree)], axis=1)
    sampled = flat(found)
    truth = np.concatenate([np.asarray(x).ravel() for x in jax.tree.leaves(jax.jit(jax.grad(exact))(params))])
    error = sampled.std(axis=0) / np.sqrt(len(keys))
    moving = error > 1e-12
    assert np.abs(truth[~moving]).max(initial=0.0) < 1e-6
    assert (np.abs(sampled.mean(axis=0) - truth)[moving] / error[moving]).max() < limit(int(moving.sum()))


def test_annealing_begins_at_the_reference_or_at_wide_normals():
    """At beta = 0 the objective does not see the target, which is far away."""
    space = tz.Space(k=tz.binary(), x=tz.real())
    own = tz.Reference(
        lambda v: jax.scipy.stats.norm.logpdf(v["x"], 1.0, 2.0) - jnp.log(2.0),
        lambda key: {"k": jnp.asarray(0), "x": 1.0 + 2.0 * jax.random.normal(key)},
    )
    transport, key = build("autoregressive", space), jax.random.key(0)
    z = jax.random.normal(key, (256, 2))
    found = push_all(transport, z)
    log_q = jax.vmap(lambda z: -0.5 * jnp.sum(z**2) - jnp.log(2 * jnp.pi))(z) - found.log_volume
    x = found.theta.reals[:, 0]
    starts = {None: -0.5 * (x / 3.0) ** 2, own: jax.scipy.stats.norm.logpdf(x, 1.0, 2.0) - jnp.log(2.0)}
    for reference, start in starts.items():
        target = tz.Target(lambda v: -0.5 * (v["x"] - 50.0) ** 2, space, reference=reference)
        _, info = tz.reverse_kl().resolve(transport, target)(transport, target, key, 256, jnp.zeros(()))
        np.testing.assert_allclose(info.value, jnp.mean(log_q - start), rtol=1e-9)


@pytest.mark.parametrize("name", ["autoregressive", "flow"])
def test_reals_alone_have_transports_too(name):
    transport = build(name, tz.Space(tz.real(3)), 0.2)
    assert round_trip_gap(transport, 1_000) < 1e-6
    z = jax.random.normal(jax.random.key(0), (20, 3))
    reals = (lambda t, z: t.push(z).theta.reals) if name == "flow" else (lambda t, z: t.decode(z)[0].reals)
    jacobian = eqx.filter_jit(lambda t, z: jax.vmap(jax.jacfwd(lambda z: reals(t, z)))(z))(transport, z)
    log_volume = push_all(transport, z).log_volume
    np.testing.assert_allclose(log_volume, jnp.linalg.slogdet(jacobian)[1], atol=1e-9)


def test_draws_that_do_not_fit_are_refused():
    transport, target = build("autoregressive", ONE), tz.Target(lambda v: -(v["x"] ** 2), ONE)
    draws = Configuration(np.zeros((5, 1), int), np.zeros((5, 2)))
    with pytest.raises(tz.errors.OptionError, match="draws"):
        tz.fit(jax.random.key(0), transport, target, objective=tz.forward_kl(draws))
    with pytest.raises(tz.errors.OptionError, match="draws"):
        tz.forward_kl(Configuration(np.zeros((5, 1), int), np.zeros((4, 1))))
    with pytest.raises(tz.errors.GradientError, match="straight"):
        tz.fit(jax.random.key(0), build("flow", ONE), target, objective=tz.reverse_kl("straight_through"))
