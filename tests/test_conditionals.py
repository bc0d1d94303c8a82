"""Conditional laws against enumeration: the reduced target, the clamped transport, weighted draws and chains.

Monte-Carlo tests have a false-alarm rate of 1e-6 each, with fixed seeds.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from small_targets import SPACES, log_table, small_target
from terrazzo import diagnostics
from terrazzo.errors import OptionError, SpaceError, TransportError
from terrazzo.problems import ising_torus
from terrazzo.problems.exact import exact_answers
from terrazzo.targets.conditioning import clamped_codes, reduced_space
from terrazzo.transports.clamped import clamp_transport
from transport_laws import box_quadrature_gap, identity_z_scores, limit, perturbed, round_trip_failures

CLAMPS = {"mixed": [{"a": 1}, {"b": 2}, {"c": -1, "a": 0}], "binary": [{0: 1}, {(1,): 0, 3: 1}]}
CASES = [(name, clamped) for name, many in CLAMPS.items() for clamped in many]


def slice_of(target, clamped):
    """All states of the target that agree with the clamped values, and their free coordinates."""
    codes = clamped_codes(target.space, clamped)
    states = target.space.enumerate()
    agrees = ((states == codes) | (codes < 0)).all(axis=1)
    return agrees, states[agrees][:, codes < 0]


def autoregressive(space, order=None, scale=0.7):
    return perturbed(tz.transports.autoregressive_transport(space, key=jax.random.key(0), width=8, order=order), scale)


# ---- what is clamped


def test_codes_from_the_users_values():
    space = tz.Space(
        colour=tz.categorical(["red", "green", "blue"], (2, 2), dims=("row", "column"), coords={"row": ["top", "low"]}),
        count=tz.integers(-3, 4, 3),
        flag=tz.binary(),
    )
    codes = clamped_codes(space, {"colour": {(0, 1): "blue"}, "count": np.ma.masked_equal([-3, 0, 4], 0)})
    assert codes.tolist() == [-1, 2, -1, -1, 0, -1, 7, -1]
    reduced = reduced_space(space, codes)
    assert reduced.names == ("colour", "count", "flag")
    variables = dict(reduced.variables)
    assert variables["colour"].labels == ("red", "green", "blue")
    assert variables["colour"].coords == (("colour_free", ("top, 0", "low, 0", "low, 1")),)
    assert variables["count"].coords == (("count_free", (1,)),)
    assert reduced_space(space, clamped_codes(space, {"flag": 1})).names == ("colour", "count")
    plain = tz.Space(tz.binary(4))
    assert clamped_codes(plain, {0: 1, -1: 0}).tolist() == [1, -1, -1, 0]
    assert clamped_codes(plain, {"theta": [1, 0, 1, 0]}).tolist() == [1, 0, 1, 0]
    assert clamped_codes(plain, np.ma.masked_array([1, 0, 1, 0], [0, 1, 1, 0])).tolist() == [1, -1, -1, 0]


@pytest.mark.parametrize(
    ("clamped", "match"),
    [
        ({"z": 1}, "names"),
        ({"a": 2}, "outside"),
        ({"c": 7}, "outside"),
        ({"b": {3: 1}}, "index"),
        (3, "dict"),
        ({"a": np.ma.masked_array([1, 0], [0, 1])}, "shape"),
    ],
)
def test_bad_clamps(clamped, match):
    with pytest.raises(SpaceError, match=match):
        tz.condition(small_target("mixed"), clamped)


def test_all_or_nothing():
    target = small_target("mixed")
    assert tz.condition(target, {}) is target
    with pytest.raises(OptionError, match="every"):
        tz.condition(target, {"a": 0, "b": 1, "c": 2})


# ---- the conditional target


@pytest.mark.parametrize(("name", "clamped"), CASES)
@pytest.mark.parametrize("beta", [None, 0.5])
def test_the_conditional_target_is_the_slice(name, clamped, beta):
    target = small_target(name, num_impossible=1)
    target = target if beta is None else target.tempered(beta)
    agrees, free = slice_of(target, clamped)
    reduced = tz.condition(target, clamped)
    assert (reduced.space.enumerate() == free).all()
    np.testing.assert_allclose(log_table(reduced), log_table(target)[agrees], rtol=1e-12)
    if beta is None:
        assert reduced.has_gradient == target.has_gradient
        full = np.flatnonzero(clamped_codes(target.space, clamped) < 0)
        states = jnp.asarray(target.space.enumerate()[agrees])
        slopes = jax.jit(jax.vmap(target.slope))(states)[:, full]
        np.testing.assert_allclose(jax.jit(jax.vmap(reduced.slope))(jnp.asarray(free)), slopes, rtol=1e-9, atol=1e-12)
        rows = jax.nn.one_hot(states[0], target.space.max_size, dtype=float)
        narrow = jax.nn.one_hot(jnp.asarray(free)[0], reduced.space.max_size, dtype=float)
        one_hot = [
            float(jax.jit(lambda x, f=fn: f(x))(at))
            for fn, at in ((reduced.one_hot_fn, narrow), (target.one_hot_fn, rows))
        ]
        assert one_hot[0] == pytest.approx(one_hot[1])


def test_cheap_conditionals_and_colours_survive():
    target = ising_torus(4, 0.4, field=0.3).target
    fixed = np.ma.masked_array(np.ones((4, 4), int), np.arange(16).reshape(4, 4) % 3 > 0)
    reduced = tz.condition(target, fixed)
    assert reduced.space.num_dims == 10
    assert len(reduced.colours) == 10
    theta = reduced.space.random(jax.random.key(0))
    sites = jnp.arange(10, dtype=jnp.int32)
    logits = jax.jit(jax.vmap(lambda i: reduced.site_logits(theta, i)))(sites)
    direct = [jax.jit(jax.vmap(lambda i, k=k: reduced.log_prob(theta.at[i].set(k))))(sites) for k in (0, 1)]
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], direct[1] - direct[0], rtol=1e-6)
    result = tz.sample(reduced, seed=0, sampler="coloured_gibbs", chains=16, draws=2000, warmup=50, progress="off")
    exact, statistics = exact_answers(reduced), diagnostics.describe(result.theta)
    assert np.abs((statistics.mean - exact.mean()) / statistics.mcse).max() < limit(10)


@pytest.mark.parametrize("vectorized", [False, True])
@pytest.mark.parametrize("kind", ["plain", "blackbox"])
def test_vectorised_and_black_box_targets(kind, vectorized):
    space = tz.Space(x=tz.integers(2, 4, 2), y=tz.categorical(["u", "v", "w"]))
    xp = np if kind == "blackbox" else jnp

    def log_prob(values):
        return xp.sum(values["x"].astype(float), axis=-1) * (1.0 + values["y"].astype(float))

    fn = tz.blackbox(log_prob, vectorized=vectorized) if kind == "blackbox" else log_prob
    options = {} if kind == "blackbox" else {"vectorized": vectorized}
    target = tz.Target(fn, space, **options)
    reduced = tz.condition(target, {"x": {1: 4}, "y": "w"})
    assert reduced.space.names == ("x",)
    assert log_table(reduced).tolist() == [18.0, 21.0, 24.0]


# ---- the clamped transport


@pytest.mark.parametrize(("kind", "clamped"), [("autoregressive", {"b": 2}), ("product", {"a": 1})])
def test_clamped_transports_obey_the_laws(kind, clamped):
    space = SPACES["mixed"]
    codes = clamped_codes(space, clamped)
    if kind == "product":
        inner = tz.transports.product_transport(space, logits=np.random.default_rng(0).normal(size=(3, 4)))
    else:
        inner = autoregressive(space, order=[2, 0, 1], scale=0.3)
    transport = clamp_transport(inner, codes, reduced_space(space, codes))
    assert box_quadrature_gap(transport) <= 1e-6
    scores = identity_z_scores(transport, num_draws=2**16)
    assert np.abs(scores).max() < limit(scores.size)
    assert round_trip_failures(transport, 10_000) == 0
    log_q = np.asarray(jax.jit(jax.vmap(transport.log_prob))(jnp.asarray(transport.space.enumerate())))
    assert np.exp(log_q).sum() == pytest.approx(1.0)


@pytest.mark.parametrize(("order", "clamped"), [([2, 0, 1], {"c": 1}), ([2, 0, 1], {"c": 0, "a": 1}), (None, {"a": 0})])
def test_a_clamped_prefix_is_the_conditional_of_q(order, clamped):
    target = small_target("mixed")
    transport = autoregressive(target.space, order)
    codes = clamped_codes(target.space, clamped)
    is_fixed = codes[np.asarray(transport.order)] >= 0
    assert (np.diff(is_fixed.astype(int)) <= 0).all()  # the clamped coordinates come first
    agrees, free = slice_of(target, clamped)
    log_q = np.asarray(jax.jit(jax.vmap(transport.log_prob))(jnp.asarray(target.space.enumerate())))[agrees]
    narrow = clamp_transport(transport, codes, reduced_space(target.space, codes))
    found = np.asarray(jax.jit(jax.vmap(narrow.log_prob))(jnp.asarray(free)))
    np.testing.assert_allclose(found, log_q - np.logaddexp.reduce(log_q), atol=1e-12)


# ---- draws


@pytest.mark.parametrize(
    ("kind", "clamped"), [("autoregressive", {"a": 1}), ("autoregressive", {"c": 1}), ("product", {"b": 0})]
)
def test_weighted_draws(kind, clamped):
    """Importance sampling by a transport of the whole space, clamped: means and log Z_c; 1e-6."""
    target = small_target("mixed", num_impossible=1)
    build = partial(autoregressive, scale=0.15) if kind == "autoregressive" else tz.transports.product_transport
    reduced = tz.condition(target, clamped)
    sampler = tz.samplers.importance(transport=build(target.space))
    out = tz.sample(reduced, seed=0, sampler=sampler, chains=8, draws=2500, progress="off")
    exact = exact_answers(reduced)
    assert abs(out.evidence.log_z - exact.log_z) < 4.9 * out.evidence.standard_error
    weights = np.exp(out.log_weights - out.log_weights.max())
    table = diagnostics.describe(out.theta, weights)
    mean = exact.probabilities @ reduced.space.enumerate()
    assert (np.abs(table.mean - mean) <= limit(3) * table.mcse + 1e-12).all()
    assert np.isfinite(out.summary()["mean"].to_numpy()).all()
    assert out.verdict.grade == "unchecked", str(out.verdict)


def test_weights_that_say_nothing_are_not_trusted():
    """Draws of a transport that misses most of the law have weights with a heavy tail."""
    target = tz.Target(lambda t: 3.0 * t.astype(float).sum(), tz.integers(0, 9, 6))
    sampler = tz.samplers.importance(transport=tz.transports.product_transport(target.space))
    out = tz.sample(target, seed=0, sampler=sampler, draws=500, progress="off")
    assert out.verdict.grade == "not trusted"


@pytest.mark.parametrize("kind", ["autoregressive", "none"])
def test_chains(kind):
    target, clamped = small_target("mixed", num_impossible=1), {"b": 2}
    reduced = tz.condition(target, clamped)
    trained = tz.samplers.hybrid(
        transport=autoregressive(target.space), training=False, exploration=False, local="systematic_gibbs", num_local=1
    )
    sampler = trained if kind == "autoregressive" else "systematic_gibbs"
    options = {"chains": 16, "draws": 1000, "warmup": 50, "thin": 2, "progress": "off"}
    result = tz.sample(reduced, seed=1, sampler=sampler, **options)
    assert (result.evidence is not None) == (kind == "autoregressive")
    exact = exact_answers(reduced)
    index = reduced.space.index(result.theta.astype(np.int32))
    worst = 0.0
    for state, p in enumerate(exact.probabilities):
        share = (index == state).astype(np.uint8)
        if p > 1e-3:
            worst = max(worst, abs(share.mean() - p) / float(diagnostics.mcse(share)))
    assert worst < stats.norm.isf(1e-6 / 2 / len(exact.probabilities))


def test_a_clamped_transport_is_stored(tmp_path):
    target = small_target("mixed")
    reduced = tz.condition(target, {"b": 2})
    sampler = tz.samplers.hybrid(transport=autoregressive(target.space), training=False, exploration=False)
    options = {"seed": 0, "chains": 4, "draws": 20, "warmup": 5, "progress": "off", "sampler": sampler}
    result = tz.sample(reduced, checkpoint=tmp_path / "run", **options)
    again = tz.sample(reduced, checkpoint=tmp_path / "run", **options)
    assert (again.theta == result.theta).all()
    back = tz.Result.load(result.save(tmp_path / "result.tz"))
    z = jax.random.normal(jax.random.key(0), (back.transport.num_dims,))
    assert (back.transport.push(z).theta == result.transport.push(z).theta).all()


def test_clamping_twice():
    target = small_target("mixed")
    twice = tz.condition(tz.condition(target, {"b": 2}), {"a": 1})
    once = tz.condition(target, {"b": 2, "a": 1})
    assert twice.clamped.space == target.space
    assert (np.asarray(twice.clamped.codes) == np.asarray(once.clamped.codes)).all()


def test_transports_of_other_spaces():
    target = small_target("mixed")
    other = tz.transports.product_transport(tz.binary(2))
    flow = tz.flow(num_layers=2, width=8, context_width=4).build(jax.random.key(0), target.space)
    for transport in (other, flow):  # a flow cannot hold coordinates fixed
        sampler = tz.samplers.importance(transport=transport)
        with pytest.raises(TransportError, match="another space"):
            tz.sample(tz.condition(target, {"a": 0}), seed=0, sampler=sampler, progress="off")
