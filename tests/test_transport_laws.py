"""Every registered transport obeys the laws of docs/theory.md, section 5, with any weights.

Monte-Carlo tests have a false-alarm rate of 1e-6 each, with fixed seeds.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from small_targets import small_target
from terrazzo.transports import REGISTRY, deserialise, serialise
from terrazzo.transports.cells import cell, is_inside, log_offsets
from transport_laws import (
    identity_z_scores,
    lift_z_scores,
    limit,
    log_det_gap,
    perturbed,
    push_all,
    quadrature_gap,
    round_trip_failures,
)

MEMBERS = [(name, options) for name, spec in REGISTRY.items() for options in spec.tests]
FLOWS = [m for m in MEMBERS if m[0] == "flow"]
IDS = ["-".join([name, *(str(v) for v in options.values() if isinstance(v, str))]) for name, options in MEMBERS]
ONE = tz.Space(tz.integers(0, 7))
TWO = tz.Space(a=tz.integers(-1, 1), b=tz.binary())
MIXED = tz.Space(a=tz.binary(), b=tz.categorical(3), c=tz.integers(-1, 2))
SMALL = {"num_layers": 2, "width": 8, "context_width": 4}
WEIGHTS = {"untrained": 0.0, "gentle": 0.05, "mild": 0.1, "other weights": 0.3, "sharp": 1.0}


def build(member, space, weights="untrained"):
    name, options = member
    transport = REGISTRY[name].build(space, key=jax.random.key(3), **options)
    return perturbed(transport, WEIGHTS[weights]) if WEIGHTS[weights] else transport


@pytest.mark.parametrize("member", MEMBERS, ids=IDS)
def test_cells_integrate_to_one(member):
    # Affine couplings before the cubic tails can put mass at u < 1e-16 of a border, which no float64 x = theta + u
    # resolves: in two dimensions their weights stay small enough for that mass to be below 1e-6.
    two = "gentle" if member[1].get("architecture") == "affine" else "other weights"
    for space, weights in ((ONE, "untrained"), (ONE, "other weights"), (TWO, two)):
        assert quadrature_gap(build(member, space, weights)) <= 1e-6


@pytest.mark.parametrize("member", MEMBERS, ids=IDS)
def test_identity_and_lift_by_monte_carlo(member):
    transport = build(member, MIXED, "mild")
    scores = identity_z_scores(transport)
    assert scores.size >= 12  # of 24 states
    assert np.abs(scores).max() < limit(scores.size)
    scores = lift_z_scores(build(member, TWO, "mild"))
    assert np.abs(scores).max() < limit(scores.size)


@pytest.mark.parametrize("member", MEMBERS, ids=IDS)
def test_trained_weights_obey_too(member):
    target = small_target("mixed")
    fitted = tz.fit(jax.random.key(0), build(member, target.space), target, num_steps=60, batch_size=64)
    scores = identity_z_scores(fitted.transport)
    assert np.abs(scores).max() < limit(scores.size)


@pytest.mark.parametrize("weights", ["untrained", "sharp"])
@pytest.mark.parametrize("member", MEMBERS, ids=IDS)
def test_push_undoes_lift(member, weights):
    assert round_trip_failures(build(member, MIXED, weights), 100_000) == 0


def test_push_undoes_lift_a_million_times_in_single_precision():
    space = tz.Space(a=tz.binary(), b=tz.integers(0, 15), c=tz.categorical(5))
    with jax.enable_x64(False):
        for member in (("flow", {"architecture": "affine", **SMALL}), ("product", {"scale": 6.0})):
            assert round_trip_failures(build(member, space, "other weights"), 1_000_000) == 0


@pytest.mark.parametrize("member", FLOWS, ids=[i for i in IDS if i.startswith("flow")])
def test_log_determinants(member):
    assert log_det_gap(build(member, MIXED, "other weights")) <= 1e-10


@pytest.mark.parametrize("member", MEMBERS, ids=IDS)
def test_the_support_is_never_left(member):
    transport = build(member, MIXED)
    rows = [
        [s * v for s in signs] for v in (16.7, 40.0, 1e4, np.inf) for signs in ((1, 1, 1), (-1, -1, -1), (1, -1, 1))
    ]
    z = jnp.asarray(np.array([*rows, [np.nan, 0.0, 0.0]]))
    theta, log_volume = push_all(transport, z)
    assert MIXED.contains(np.asarray(theta)).all()
    assert not np.isnan(np.asarray(log_volume)[:-1]).any()
    assert (np.asarray(log_volume)[~np.isfinite(np.asarray(z)).all(axis=1)] == -np.inf).all()


@pytest.mark.parametrize("size", [2, 3, 256, 65536])
@pytest.mark.parametrize("is_double", [False, True])
def test_cells_are_exact_everywhere(size, is_double):
    """theta never is K, u is never 0 or 1, and log u agrees with a direct formula where that one is accurate."""
    with jax.enable_x64(is_double):
        y = jnp.concatenate([jnp.linspace(-20, 20, 20_001), jnp.array([-1e4, -40.0, 16.64, 17.0, 40.0, 88.0, 1e4])])
        k = jnp.full(y.shape, float(size))
        theta = cell(y, k)
        assert int(theta.min()) >= 0
        assert int(theta.max()) == size - 1
        real = theta.astype(y.dtype)
        inside = np.asarray(is_inside(y, real, k))
        log_u, log_1mu = (np.asarray(x)[inside] for x in log_offsets(y, real, k))
        assert np.isfinite(log_u).all()
        assert np.isfinite(log_1mu).all()
        assert np.abs(np.logaddexp(log_u, log_1mu)).max() < (1e-9 if is_double else 2e-2 if size > 256 else 1e-4)


def test_categoricals_with_probabilities_down_to_1e_30():
    """Improbable categories in the middle of probable ones still have a cell, in single precision."""
    with jax.enable_x64(False):
        logits = np.zeros((2, 9), np.float32)
        logits[0, 1::2], logits[1, 4] = -69.0, -69.0  # 1e-30 between probable neighbours
        space = tz.Space(tz.integers(0, 8, 2))
        transport = tz.transports.product_transport(space, logits=logits)
        assert round_trip_failures(transport, 100_000) == 0
        wide = tz.Space(tz.integers(0, 65535))
        slope = np.where(np.arange(65536) % 2, -60.0, 0.0)[None].astype(np.float32)
        assert round_trip_failures(tz.transports.product_transport(wide, logits=slope), 2_000) == 0


@pytest.mark.parametrize("member", MEMBERS, ids=IDS)
def test_stored_transports_are_the_same(member):
    transport = build(member, MIXED, "other weights")
    back = deserialise(*serialise(transport), MIXED)
    z = jax.random.normal(jax.random.key(5), (100, 3))
    for a, b in zip(push_all(transport, z), push_all(back, z), strict=True):
        assert (np.asarray(a) == np.asarray(b)).all()


def test_flowjax_bijections_can_stand_in():
    """Another library's bijection serves as T_phi: flowjax's spline coupling flow, as an independent reference."""
    import paramax
    from flowjax.bijections import RationalQuadraticSpline
    from flowjax.distributions import Normal
    from flowjax.flows import coupling_flow

    from terrazzo.transports.dequantizers import UniformDequantizer
    from terrazzo.transports.flow import FlowTransport

    with jax.numpy_dtype_promotion("standard"):
        flow = coupling_flow(
            jax.random.key(0), base_dist=Normal(jnp.zeros(3)), flow_layers=2, nn_width=8, invert=False,
            transformer=RationalQuadraticSpline(knots=4, interval=4.0),
        )  # fmt: skip
        transport = FlowTransport(MIXED, paramax.unwrap(flow.bijection), UniformDequantizer(), "spline")
        scores = identity_z_scores(transport)
    assert np.abs(scores).max() < limit(scores.size)


@pytest.mark.parametrize("size", [3, 16])
def test_a_rough_decode_draws_from_the_same_law(size):
    """What training draws: theta ~ q, by chi-square over all configurations of two coordinates, alpha = 1e-6."""
    space = tz.Space(a=tz.integers(0, size - 1), b=tz.categorical(["x", "y"]))
    transport = perturbed(tz.transports.autoregressive_transport(space, key=jax.random.key(0), width=8), 0.7)
    z = jax.random.normal(jax.random.key(1), (2**16, 2))
    scored = jax.jit(jax.vmap(transport.push_scored))(z)
    q = np.exp(np.asarray(jax.jit(jax.vmap(transport.log_prob))(jnp.asarray(space.enumerate(), jnp.int32)), float))
    counts = np.bincount(np.asarray(jax.jit(jax.vmap(space.index))(scored.theta)), minlength=len(q))
    expected = q / q.sum() * len(z)
    is_common = expected >= 10
    assert stats.chi2.sf(((counts - expected)[is_common] ** 2 / expected[is_common]).sum(), is_common.sum() - 1) > 1e-6
    ends = jax.jit(jax.vmap(transport.push_scored))(
        jnp.array([[40.0, 40.0], [-40.0, -40.0], [jnp.inf, -jnp.inf]])
    ).theta
    assert space.contains(np.asarray(ends)).all()
