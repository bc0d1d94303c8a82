"""The laws of mixed spaces in float32, for users who ask for it: kernels, ladders, transports and jumps.

The tests are those of `test_mixed_laws` and `test_mixed_transports`, with everything built in float32; false-alarm rate
1e-6 each.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from mixed_transport_laws import round_trip_gap
from terrazzo.samplers import MIXED_HYBRID
from terrazzo.samplers.kernels.collapsed import find_summation
from terrazzo.samplers.kernels.mixed_hybrid import beside_jumps, marginal_target
from terrazzo.samplers.parts.references import UserReference
from terrazzo.targets.mixed import of_reference
from terrazzo.targets.tracing import in_this_precision
from test_mixed_laws import (
    ALPHA,
    KERNELS,
    LOGITS,
    REFERENCE,
    SPACE,
    _built,
    _ladder,
    _log_prob,
    _p_value,
    _prior_draw,
    _prior_log_prob,
)
from test_mixed_transports import JUMPS, MEMBERS, TWO, _jumps, build
from transport_laws import limit


@pytest.fixture(autouse=True)
def _single_precision(_doctests_as_users_run):
    with jax.enable_x64(False):
        yield


def _as_users_write(log_prob):
    """A function whose constants are promoted as JAX usually does."""

    def value(v):
        with jax.numpy_dtype_promotion("standard"):
            return log_prob(v)

    return value


@pytest.fixture
def target():
    found = in_this_precision(tz.Target(_as_users_write(_log_prob), SPACE))
    assert found.log_density(jnp.zeros(2, jnp.int32), jnp.zeros(2)).dtype == np.float32
    return found


def _single(tree):
    return jax.tree.map(lambda x: x.astype(np.float32) if eqx.is_inexact_array(x) else x, tree)


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_leave_the_joint_law_invariant(target, name):
    assert _p_value(_built(target, name)) > ALPHA


@pytest.mark.parametrize("is_collapsed", [False, True])
def test_ladders_leave_the_law_of_their_cold_end_invariant(target, is_collapsed):
    q0 = _single(REFERENCE)
    q0 = eqx.tree_at(lambda r: r.log_probs, q0, jnp.zeros((0, 3))) if is_collapsed else q0
    sampler, begin = _ladder(target, is_collapsed=is_collapsed, reference=lambda _: q0)
    assert _p_value(sampler, thin=2, begin=begin) > ALPHA


@pytest.mark.parametrize("is_collapsed", [False, True])
def test_ladders_from_the_users_reference_leave_the_law_of_their_cold_end_invariant(is_collapsed):
    prior = tz.Reference(_as_users_write(_prior_log_prob), _prior_draw)
    target = in_this_precision(tz.Target(_as_users_write(_log_prob), SPACE, reference=prior))
    plans = [find_summation(t) if is_collapsed else None for t in (target, of_reference(target))]
    sampler, begin = _ladder(target, is_collapsed=is_collapsed, reference=lambda _: UserReference(target, plans[1]))
    assert _p_value(sampler, thin=2, begin=begin) > ALPHA


@pytest.mark.parametrize("name", MEMBERS)
def test_push_undoes_lift(name):
    # A float32 beside a spread of one is known to 1e-7, the slope of an untrained map is below ten.
    assert round_trip_gap(build(name, TWO), 5_000) < 1e-4


@pytest.mark.parametrize("name", ["autoregressive", "flow"])
def test_weights_give_log_z_of_counting_times_lebesgue_measure(name, target):
    drawn = tz.transports.sample_transport(jax.random.key(0), build(name, SPACE), target, 2**16)
    assert drawn.log_weights.dtype == np.float32
    weights = np.exp(np.asarray(drawn.log_weights, float))
    z = np.exp(LOGITS).sum() * np.sqrt(2 * np.pi)
    assert abs(weights.mean() - z) < limit(1) * weights.std() / 2**8


@pytest.mark.parametrize("name", JUMPS)
def test_jumps_leave_the_joint_law_invariant(target, name):
    member, options = JUMPS[name]
    assert _p_value(_jumps(target, build(member, SPACE, 0.1), **options)) > ALPHA


def test_the_hybrids_leave_the_joint_law_invariant(target):
    own = MIXED_HYBRID.prepare(target, local=tz.samplers.gibbs(num_updates=2), real="mala", num_local=2)
    moves = {"step_size": 0.7, "inverse_mass_matrix": np.array([1.0, 1.5], np.float32)}
    assert _p_value(MIXED_HYBRID.factory(target, build("autoregressive", SPACE, 0.1), **moves, **own)) > ALPHA
    plan = find_summation(target)
    marginal = marginal_target(target, plan)
    options, _ = beside_jumps({"summation": plan}, {}, marginal)
    transport = build("autoregressive", marginal.space, 0.1)
    assert _p_value(MIXED_HYBRID.factory(target, transport, max_doublings=3, **moves, **options)) > ALPHA
