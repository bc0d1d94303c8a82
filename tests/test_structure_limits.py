"""Reading has one allowance of time for everything; what it does not suffice for is done without."""

import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from structured_models import MODELS
from terrazzo.samplers.kernels import exact
from terrazzo.samplers.kernels.gibbs import prepare_systematic
from terrazzo.targets import reading, structure
from terrazzo.targets.structure.allowance import Allowance, OutOfTimeError
from terrazzo.targets.structure.terms import Terms


def lattice(theta):
    s = (2 * theta - 1).reshape(20, 20).astype(float)
    return 0.3 * (s * (jnp.roll(s, 1, 0) + jnp.roll(s, 1, 1))).sum() + 0.1 * (s[1:] * s[:-1] * s[1:, ::-1]).sum()


def test_nothing_is_found_after_the_time():
    found = structure.read(lattice, np.full(400, 2))
    found.allowance.left = 0.0
    assert found.factors is None
    assert found.conditionals is None
    assert found.graph.num_colours == 400
    assert not found.graph.order.sites
    assert not found.is_exact
    assert "coloured Gibbs sweeps" not in found.explain().opens


def test_what_was_found_in_time_stays():
    found = structure.read(lattice, np.full(400, 2))
    assert found.factors is not None
    found.allowance.left = 0.0
    assert found.conditionals is not None


def test_stages_add_up_and_nest(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("terrazzo.targets.structure.allowance.time.monotonic", lambda: now[0])
    allowance = Allowance(3.0)
    with allowance.stage(), allowance.stage():
        now[0] += 2.0
        allowance.check()
    now[0] += 100.0  # outside of a stage nothing counts
    allowance.check()
    with allowance.stage():
        allowance.check()
        now[0] += 1.5
        with pytest.raises(OutOfTimeError):
            allowance.check()
    assert allowance.left == -0.5


def test_slow_terms_end_at_the_limit(monkeypatch):
    """Tables whose terms take long to evaluate are left half-way, and the plain path is taken."""
    now, values = [0.0], Terms.values
    monkeypatch.setattr("terrazzo.targets.structure.allowance.time.monotonic", lambda: now[0])
    monkeypatch.setattr("terrazzo.targets.structure.tables.BATCH", 1)

    def slow(self, theta):
        now[0] += 30.0
        return values(self, theta)

    monkeypatch.setattr(Terms, "values", slow)
    log_prob, sizes, _ = MODELS["three_body"]
    target = tz.Target(log_prob, tz.binary(len(sizes)))
    reading._kept.clear()
    assert reading.structure_of(target).factors is None
    assert prepare_systematic(target) == {}
    assert exact.maximum(target) is None
