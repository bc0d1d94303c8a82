"""The laws in float32, which is what users run: every registered sampler and transport, drawing as it draws for them.

One step from exact starts must leave the law alone (chi-square), and E_p[exp(v) / p; theta] = 1 (z-scores); false-alarm
rate 1e-6 each.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pairwise_targets import pairwise_target
from sampled_laws import ALPHA, invariance, stepper
from small_targets import small_target, suitable
from terrazzo import samplers
from terrazzo.transports import REGISTRY as TRANSPORTS
from test_auxiliary_laws import tempering_law
from test_latent_laws import CHEAP, transport_of
from test_transport_laws import IDS, MEMBERS, MIXED, build
from transport_laws import identity_z_scores, limit, round_trip_failures

LADDERS = {"parallel_tempering"}  # a whole ladder must start in its law
ALONE = sorted(n for n, spec in samplers.REGISTRY.items() if "transport" not in spec.needs and n not in LADDERS)
LATENT = sorted(n for n, spec in samplers.REGISTRY.items() if "transport" in spec.needs)


@pytest.fixture(autouse=True)
def _single_precision(_doctests_as_users_run):
    with jax.enable_x64(False):
        yield


def fresh_target(spec):
    """A target whose arrays are of the present precision."""
    if "pairwise" in spec.needs:
        return pairwise_target(4, 2, 1)
    with jax.enable_x64(True):
        space = suitable(spec)
    return small_target.__wrapped__(space, 3, num_impossible=1)


@pytest.mark.parametrize("name", ALONE)
def test_samplers_are_invariant(name):
    spec = samplers.REGISTRY[name]
    target = fresh_target(spec)
    assert target.log_prob(jnp.asarray(target.space.enumerate()[0])).dtype == np.float32
    options = {} if spec.prepare is None else spec.prepare(target)
    assert invariance(stepper(lambda target: spec.factory(target, **options)), target) > ALPHA


@pytest.mark.parametrize("name", LATENT)
def test_latent_samplers_are_invariant(name):
    spec = samplers.REGISTRY[name]
    target = small_target.__wrapped__("mixed", 3, num_impossible=2)
    make = lambda target, transport: spec.factory(target, transport, **CHEAP.get(name, {}))
    assert invariance(stepper(make), target, transport_of(target)) > ALPHA


@pytest.mark.parametrize("parity", [0, 1])
def test_tempering_is_invariant(parity):
    assert tempering_law(parity=parity) > ALPHA


@pytest.mark.parametrize("member", MEMBERS, ids=IDS)
def test_transports_keep_the_law(member):
    transport = build(member, MIXED, "mild")
    scores = identity_z_scores(transport, num_draws=2**16)
    assert scores.size >= 6  # of 24 states
    assert np.abs(scores).max() < limit(scores.size)
    assert round_trip_failures(transport, 20_000) == 0


def test_every_transport_is_here():
    assert {name for name, _ in MEMBERS} == set(TRANSPORTS)
