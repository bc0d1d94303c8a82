"""What the default draws with on mixed spaces: decisions on tables of measurements, and checks on draws that are known.

The runs themselves are in `test_mixed_sampling`.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.auto.policy import CPU
from terrazzo.diagnostics import LogZ
from terrazzo.engine.loop import Chains
from terrazzo.inference import mixed_default
from terrazzo.inference.mixed_choice import Tried, can_pay, choose, is_apart, needed_seconds, thinning, tried
from terrazzo.inference.mixed_default import spread_by_weight
from terrazzo.inference.mixed_weighing import WEIGHTED, evidence_checks, num_outside, weighted_check
from terrazzo.samplers.kernels.collapsed import affordable_summation, find_summation
from terrazzo.spaces import Configuration
from terrazzo.transports.base import TransportDraws


def row(name="collapsed", ess=700.0, r_hat=1.0, step_seconds=1e-3):
    return Tried(name=name, ess=ess, r_hat=r_hat, num_chains=8, num_draws=100, step_seconds=step_seconds)


APART = row(ess=10.0, r_hat=3.0)
SLOW = row(ess=40.0, r_hat=1.2, step_seconds=0.05)
QUICK = row(ess=40.0, r_hat=1.2)


@pytest.mark.parametrize(("own", "pays"), [(row(), False), (QUICK, False), (APART, True), (SLOW, True)])
def test_a_transport_is_learned_where_chains_are_apart_or_slow(own, pays):
    assert can_pay(own, 1000, CPU) is pays


def test_seconds_are_those_of_enough_effective_draws_or_of_all_that_were_asked_for():
    assert needed_seconds(row(ess=800.0), 1000, CPU) == pytest.approx(1.0)  # 1000 steps
    assert needed_seconds(SLOW, 1000, CPU) == pytest.approx(CPU.enough_ess * 8 / (40.0 / 5.0))
    assert needed_seconds(SLOW, 50, CPU) == pytest.approx(50 * 8 / (40.0 / 5.0))


LADDERS = row("tempered", ess=300.0, r_hat=1.02, step_seconds=1e-2)
JUMPS = row("hybrid", ess=500.0, r_hat=1.01, step_seconds=2e-3)


@pytest.mark.parametrize(
    ("own", "ladders", "hybrid", "chosen"),
    [
        (row(), LADDERS, None, "collapsed"),
        (QUICK, row("tempered", step_seconds=1e-4), None, "collapsed"),  # they are what checks the chains
        (APART, LADDERS, None, "tempered"),
        (APART, row("tempered", ess=9.0, r_hat=4.0), None, "collapsed"),  # nothing is gained
        (APART, LADDERS, JUMPS, "hybrid"),
        (APART, LADDERS, JUMPS._replace(step_seconds=1.0), "tempered"),
        (APART, LADDERS, JUMPS._replace(ess=9.0, r_hat=1.5), "tempered"),  # jumps that no chain accepts
        (SLOW, LADDERS, JUMPS, "hybrid"),
        (SLOW, LADDERS._replace(step_seconds=9.0), JUMPS._replace(step_seconds=9.0), "collapsed"),
        (APART, APART._replace(name="tempered", r_hat=2.0), APART._replace(name="hybrid", r_hat=1.5), "hybrid"),
    ],
)
def test_what_is_worth_most_draws(own, ladders, hybrid, chosen):
    assert choose(own, ladders, hybrid).name == chosen


def test_draws_are_thinned_to_what_is_worth_most_a_second_within_seconds():
    """A step of all draws takes a second: what came before it decides how many of them pay."""
    slow, quick = row(ess=100.0), row(ess=100.0, step_seconds=1e-5)  # a gap of 8
    assert thinning(slow, 1000, 5.0, before=1e9) == 5  # no more seconds
    assert thinning(slow, 1000, 0.0, before=1e9) == 1
    assert thinning(slow, 1000, 1e9, before=0.0) == 1
    found = [thinning(slow, 1000, 1e9, before=seconds) for seconds in (3.0, 30.0, 300.0)]
    assert found == sorted(set(found))
    assert 24 <= thinning(quick, 1000, 5.0, before=30.0) <= 32  # nearly free: to independence, at most four gaps
    assert thinning(row(ess=800.0), 1000, 1e9, before=1e9) == 1  # they are independent already
    for k in range(1, 40):  # no other thinning is worth more: by the autocorrelation r of a gap of 8
        r = (7 / 9) ** k
        most = (7 / 9) ** found[1]
        assert (1 - r) / (1 + r) / (30.0 + k) <= (1 - most) / (1 + most) / (30.0 + found[1]) + 1e-12


def test_trials_are_measured():
    rng = np.random.default_rng(0)
    theta, reals = rng.integers(0, 2, (4, 100, 2)), rng.normal(size=(4, 100, 1))
    found = tried("blocked", theta, reals, 0.01)
    assert 200 < found.ess <= 500
    assert not is_apart(found)
    assert found.worth == pytest.approx(found.ess)
    assert is_apart(tried("blocked", theta, reals + 9.0 * np.arange(4)[:, None, None], 0.01))


# ---- sums that are affordable


def test_theta_is_summed_out_where_that_costs_a_few_sweeps():
    labels = lambda v: jnp.sum(-0.5 * (v["m"][v["z"]] - 1.0) ** 2) - jnp.sum(v["m"] ** 2)
    target = tz.Target(labels, tz.Space(z=tz.categorical(3, shape=30), m=tz.real(3)))
    assert affordable_summation(target).num_entries == 90
    point = lambda v: (
        jnp.sum(jnp.where(jnp.arange(200, dtype=jnp.int32) < v["c"], v["m"], -v["m"])) - 300.0 * v["m"] ** 2
    )
    assert affordable_summation(tz.Target(point, tz.Space(c=tz.integers(0, 199), m=tz.real()))) is not None
    tied = lambda v: -0.5 * (jnp.sum(jnp.where(v["on"] > 0, v["b"], 0.0)) - 1.0) ** 2 - jnp.sum(v["b"] ** 2)
    target = tz.Target(tied, tz.Space(on=tz.binary(8), b=tz.real(8)))
    assert find_summation(target) is not None  # 510 entries, 16 values: a sum costs 32 sweeps
    assert affordable_summation(target) is None


# ---- what weights say


def test_chains_outside_of_a_transport_are_counted():
    own = np.linspace(-3.0, 0.0, 1000)
    theirs = np.array([[-1.0] * 10, [50.0] * 10, [50.0] * 4 + [-1.0] * 6])
    assert num_outside(own, theirs) == 1.0
    assert num_outside(own, None) == float("inf")


def test_jumps_are_tried_from_heavy_draws_too():
    log_weights = np.random.default_rng(0).permutation(800).reshape(8, 100) / 10.0
    found = log_weights[spread_by_weight(log_weights, 4, CPU.mixed.heaviest)]
    assert (np.diff(found) > 15).all()
    assert found[-1] == pytest.approx(0.99 * 79.9, abs=0.2)


SPACE = tz.Space(k=tz.categorical(3), x=tz.real())


def weighted(rng, number=8000):
    """Draws of q = uniform x N(0, 2^2), with weights of k uniform, x ~ N(0, 1)."""
    k, x = rng.integers(0, 3, (number, 1)), 2.0 * rng.normal(size=(number, 1))
    log_weights = -0.375 * x[:, 0] ** 2
    return TransportDraws(Configuration(k, x), log_weights, log_weights)


def test_draws_that_differ_from_weighted_ones_are_contradicted():
    rng = np.random.default_rng(0)
    theta, reals, drawn = rng.integers(0, 3, (4, 500, 1)), rng.normal(size=(4, 500, 1)), weighted(rng)
    (right,) = weighted_check(SPACE, drawn, theta, reals, CPU, is_other=True)
    assert right.name == WEIGHTED
    assert right.passed
    assert right.is_independent
    (shifted,) = weighted_check(SPACE, drawn, theta, reals + 0.4, CPU, is_other=True)
    (biased,) = weighted_check(SPACE, drawn, np.where(theta == 2, 1, theta), reals, CPU, is_other=False)
    assert not shifted.passed
    assert not biased.passed
    assert biased.grade == "not trusted"
    assert not biased.is_independent
    reals_alone = drawn._replace(theta=Configuration(drawn.theta.theta[:, :0], drawn.theta.reals))
    assert not weighted_check(SPACE, reals_alone, theta, reals + 0.4, CPU, is_other=True)[0].passed


def test_a_value_too_rare_to_be_drawn_contradicts_nothing():
    """By weight k is 2 but for one draw in a million, which many light draws show: the run has never seen another."""
    rng = np.random.default_rng(0)
    reals, drawn = rng.normal(size=(4, 500, 1)), weighted(rng)
    theta = np.full((4, 500, 1), 2)
    rare = drawn._replace(log_weights=drawn.log_weights - 14.0 * (drawn.theta.theta[:, 0] != 2))
    assert weighted_check(SPACE, rare, theta, reals, CPU, is_other=True)[0].passed
    assert not weighted_check(SPACE, drawn, theta, reals, CPU, is_other=True)[0].passed


def test_weights_without_an_error_confirm_nothing():
    rng = np.random.default_rng(0)
    theta, reals, drawn = rng.integers(0, 3, (4, 500, 1)), rng.normal(size=(4, 500, 1)), weighted(rng)
    heavy = drawn._replace(log_weights=rng.standard_cauchy(8000) * 5.0)
    assert weighted_check(SPACE, heavy, theta, reals, CPU, is_other=True) == ()


def test_log_z_of_a_transport_that_contradicts_ladders_is_not_trusted():
    ladders, near = LogZ(2.0, 0.05, np.nan, np.nan), LogZ(2.1, 0.02, 900.0, 0.3)
    far, unsound = LogZ(4.0, 0.02, 900.0, 0.3), LogZ(4.0, 0.02, 9.0, 0.9)
    grades = lambda checks: [(check.passed, check.grade) for check in checks]
    assert grades(evidence_checks({"tempering": ladders, "importance": near}, CPU, uses_transport=False)) == [
        (True, "not trusted")
    ]
    assert grades(evidence_checks({"exploration": ladders, "importance": far}, CPU, uses_transport=True)) == [
        (False, "not trusted")
    ]
    assert grades(evidence_checks({"tempering": ladders, "importance": unsound}, CPU, uses_transport=True)) == [
        (False, "")
    ]
    assert evidence_checks({"importance": near}, CPU, uses_transport=True) == ()


# ---- step sizes at which nothing diverges


def calmed(monkeypatch, shares, *, step_seconds=1e-3, chains=8):
    """The step size that is chosen where `shares(scale, draws)` of the trajectories diverge, and the trials' draws."""
    lengths = []

    def trial(key, chains_, states, count):
        lengths.append(count)
        diverging = np.zeros((chains, count))
        diverging.flat[: round(shares(chains_.parameters["scale"], count) * diverging.size)] = 1
        found = row(step_seconds=step_seconds)._replace(num_draws=count, num_chains=chains)
        return mixed_default._Trial({"diverging": diverging}, None, found)

    monkeypatch.setattr(mixed_default, "_try", trial)
    found, _ = mixed_default._calm(jax.random.key(0), Chains(None, None, None, 1, {"scale": 1.0}), None, CPU)
    return found.parameters["scale"], lengths


def test_a_trial_goes_on_until_it_excludes_too_many_divergences(monkeypatch):
    assert calmed(monkeypatch, lambda scale, draws: 0.0) == (1.0, [100, 375])  # 3,000 trajectories: 0.1 % are 3
    assert calmed(monkeypatch, lambda scale, draws: 0.0, step_seconds=1.0) == (1.0, [100])  # too expensive
    late = lambda scale, draws: 0.002 * (scale > 0.9 and draws > 100)
    assert calmed(monkeypatch, late) == (0.5, [100, 375, 375])


def test_step_sizes_are_halved_while_trajectories_diverge(monkeypatch):
    assert calmed(monkeypatch, lambda scale, draws: 0.02 * (scale > 0.3))[0] == 0.25
    assert calmed(monkeypatch, lambda scale, draws: 0.02)[0] == 1.0  # nothing helps
    assert calmed(monkeypatch, lambda scale, draws: 0.0007)[0] == 1.0  # few enough, and never none
    assert calmed(monkeypatch, lambda scale, draws: 0.02 * scale)[0] == 0.125  # the least
