"""What a verdict rests on: the census, the hunt, reach, log Z, precision, plans; and that wrong draws are not trusted.

The table of targets that fool samplers is in `fooling_targets.py`; the whole of it runs in `make study`.
"""

import contextlib
import dataclasses
import os
import signal
import subprocess
import sys
import time
import warnings
from functools import partial
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from calls import sample_with
from fooling_table import is_wrong
from fooling_targets import NUM_CASES, asia, cases, lost_mode, narrow_binary
from terrazzo.auto import Budget, agreement, census, evidence, exploration, planning
from terrazzo.auto.evidence import settle_evidence
from terrazzo.auto.hunt import OtherStarts, features, hunt, modes_apart, weigh_mode
from terrazzo.auto.mixing import cautious_ess, least_ess
from terrazzo.auto.plan import Plan
from terrazzo.auto.policy import CPU
from terrazzo.auto.reach import _distinct, cut_off
from terrazzo.diagnostics import LogZ, mcse
from terrazzo.engine import loop
from terrazzo.errors import OptionError, StartError
from terrazzo.results.draws import Codes
from terrazzo.runtime.progress import Progress
from terrazzo.samplers.parts.ascent import best_change, offsets_of, stir
from terrazzo.samplers.parts.reading import read_running, with_conditionals
from terrazzo.targets import precision
from terrazzo.verdict.coverage import moments_of

ALPHA = 1e-6


def chain(theta):
    spins = 2.0 * theta.astype(float) - 1.0
    return 0.4 * jnp.sum(spins[1:] * spins[:-1]) + 0.1 * jnp.sum(spins)


# ---- the census


def test_small_spaces_are_counted_and_drawn_from_exactly():
    result = sample_with(chain, tz.binary(6), seed=0, draws=4000, progress="off")
    target = tz.Target(chain, tz.binary(6))
    values = np.asarray(jax.jit(jax.vmap(target.log_prob))(jnp.asarray(target.space.enumerate())))
    log_z = np.logaddexp.reduce(values)
    assert result.verdict.grade == "exact"
    assert abs(result.log_z - log_z) < 1e-12
    assert result.log_z_standard_error == 0.0
    counts = np.bincount(np.asarray(target.space.index(result.theta.astype(int))).ravel(), minlength=64)
    assert stats.chisquare(counts, np.exp(values - log_z) * counts.sum()).pvalue > ALPHA
    np.testing.assert_allclose(result.log_prob, values[np.asarray(target.space.index(result.theta.astype(int)))])
    fewer = sample_with(chain, tz.binary(6), seed=0, draws=30, progress="off")
    assert (fewer.theta == result.theta[:, :30]).all()


def test_a_needle_is_found_by_the_census():
    needle = lambda t: jnp.where(jnp.all(t == 1), 14 * jnp.log(2.0), 0.0)
    result = sample_with(needle, tz.binary(14), seed=0, progress="off")
    assert abs(result.theta.all(axis=-1).mean() - 0.5) < 0.05


def test_a_black_box_is_counted_too():
    result = sample_with(tz.blackbox(lambda t: -0.5 * float(t.sum())), tz.integers(0, 3, 3), seed=0, progress="off")
    assert result.verdict.grade == "exact"


def test_a_census_that_would_take_too_long_is_not_taken(monkeypatch):
    """It is given up after a small part of the 65,536 configurations."""
    seen = []
    slow = tz.Target(tz.blackbox(lambda t: seen.append(time.sleep(0.01)) or 0.0), tz.binary(16))
    quick = Budget(policy=dataclasses.replace(CPU, census_seconds=0.5))
    with Progress("off") as progress:
        assert census.take_census(slow, budget=quick, progress=progress) is None
        assert len(seen) < 2**14
        assert census.take_census(slow, budget=Budget(evaluations=100), progress=progress) is None


def test_a_space_without_a_possible_configuration_is_an_error():
    with pytest.raises(StartError, match="all of the 8"):
        sample_with(lambda t: jnp.where(t.sum() > 9, 0.0, -jnp.inf), tz.binary(3), seed=0, progress="off")


# ---- the hunt


def planted(narrow, d=20):
    """A flat half and a narrow half at all ones."""

    def log_prob(theta):
        ones = theta.astype(float).sum()
        return jnp.logaddexp(-d * jnp.log(2.0), ones * jnp.log(narrow) + (d - ones) * jnp.log(1 - narrow))

    return tz.Target(log_prob, tz.binary(d))


def test_the_hunt_finds_a_narrow_mode_that_draws_do_not_show():
    target = planted(0.99)
    draws = np.random.default_rng(0).integers(0, 2, (4, 50, 20))
    found = hunt(jax.random.key(0), target, draws, CPU, seconds=None)
    assert (found.theta[0] == 1).all()
    assert (np.diff(found.log_prob) <= 0).all()


def test_parts_of_a_mixture_lead_to_modes_that_log_pi_does_not_show():
    """In 60 bits no start in 1e9 is in reach of the narrow mode by log pi; its own log-density leads there."""
    brief = dataclasses.replace(CPU, hunt_seconds=60.0, hunt_evaluations=2**14)
    with jax.enable_x64(False):
        found = narrow_binary(np.random.default_rng(0), d=60)
        target = tz.Target(found.log_prob, found.space)
        draws = np.random.default_rng(0).integers(0, 2, (8, 16, 60))
        hunted = lambda policy: found.feature(hunt(jax.random.key(0), target, draws, policy, seconds=None).theta)
        assert hunted(brief).max() == 1
        assert hunted(dataclasses.replace(brief, most_parts=0)).max() == 0  # the mutant: without parts


def narrow_of_integers(theta):
    """Half in a Gaussian of width 8 about 20, half in one of width 0.7 about 45; 64 values."""
    x = theta.astype(float)
    parts = [-0.5 * jnp.sum(((x - centre) / width) ** 2) - 4 * jnp.log(width) for centre, width in ((20, 8), (45, 0.7))]
    return jnp.logaddexp(*parts)


@pytest.mark.parametrize("seed", range(2))
def test_the_hunt_sees_a_mode_from_wherever_one_coordinate_is_wrong(seed):
    """One random start in 130 has three coordinates in reach of the narrow mode; a sweep needs the right three."""
    target = tz.Target(narrow_of_integers, tz.integers(0, 63, 4))
    draws = np.random.default_rng(0).normal(20, 8, (4, 50, 4)).clip(0, 63).astype(int)
    policy = dataclasses.replace(CPU, hunt_seconds=600.0, hunt_evaluations=2**19, scanned=2**10)
    found = hunt(jax.random.key(seed), target, draws, policy, seconds=None)
    assert found.theta[0].tolist() == [45] * 4
    assert found.num_quenched > 500


def test_a_chain_that_never_moved_is_weighed_by_what_is_around_it():
    """Half of Z is around (45, ..., 45), and two thousandths of that at the very top."""
    target, rng = tz.Target(narrow_of_integers, tz.integers(0, 63, 4)), np.random.default_rng(0)
    draws = rng.normal(20, 8, (4, 400, 4)).round().clip(0, 63).astype(int)
    log_prob = lambda theta: np.asarray(jax.vmap(jax.vmap(target.log_prob))(jnp.asarray(theta, jnp.int32)))
    frozen = np.full((1, 100, 4), 45)
    others = OtherStarts(frozen[:, 0], frozen, log_prob(frozen))
    known = LogZ(4 * np.log(np.sqrt(2 * np.pi)) + np.log(2), 0.01, 1.0, np.nan)
    (mode,) = modes_apart(jax.random.key(0), target, others, moments_of(features(draws, log_prob(draws))), known, CPU)
    assert 0.3 < mode.share < 0.45  # a third: its part of Z, over that and Z
    assert not mode.is_negligible


@pytest.mark.parametrize("is_read", [False, True])
def test_stirring_is_gibbs(is_read):
    """Independent sites: after one sweep from anywhere, each has its own law."""
    weights = np.random.default_rng(0).normal(size=(3, 3))
    target = tz.Target(lambda t: jnp.asarray(weights)[jnp.arange(3), t].sum(), tz.categorical(3, shape=3))
    target = with_conditionals(target, read_running(target)) if is_read else target
    new, values = stir(target, jax.random.key(0), jnp.zeros((20_000, 3), jnp.int32), jnp.asarray(offsets_of(3)))
    np.testing.assert_allclose(values, weights[np.arange(3), np.asarray(new)].sum(axis=1))
    for i in range(3):
        expected = 20_000 * np.exp(weights[i]) / np.exp(weights[i]).sum()
        assert stats.chisquare(np.bincount(np.asarray(new)[:, i], minlength=3), expected).pvalue > 1e-6


def test_the_best_change_is_the_best_of_all():
    weights = np.random.default_rng(0).normal(size=(4, 3))
    target = tz.Target(lambda t: jnp.asarray(weights)[jnp.arange(4), t].sum(), tz.categorical(3, shape=4))
    theta = np.asarray(target.space.random(jax.random.key(0), (32,)))
    offsets = jnp.asarray(offsets_of(3))
    for one in (target, with_conditionals(target, read_running(target))):
        new, values = (np.asarray(x) for x in best_change(one, jnp.asarray(theta), offsets))
        gains = weights.max(axis=1) - weights[np.arange(4), theta]
        site = gains.argmax(axis=1)
        expected = theta.copy()
        expected[np.arange(32), site] = weights.argmax(axis=1)[site]
        np.testing.assert_array_equal(new, expected)
        np.testing.assert_allclose(values, weights[np.arange(4), theta].sum(axis=1) + gains.max(axis=1))


def test_chains_that_stay_are_told_from_chains_that_came_back_and_are_weighed():
    target, rng = planted(0.99), np.random.default_rng(0)
    draws = rng.integers(0, 2, (4, 400, 20))
    stuck = (rng.random((1, 200, 20)) < 0.99).astype(int)
    both = np.concatenate([stuck, rng.integers(0, 2, (1, 200, 20))])
    log_prob = lambda theta: np.asarray(jax.vmap(jax.vmap(target.log_prob))(jnp.asarray(theta, jnp.int32)))
    others = OtherStarts(both[:, 0], both, log_prob(both))
    moments = moments_of(features(draws, log_prob(draws)))
    modes = modes_apart(jax.random.key(0), target, others, moments, LogZ(0.0, 0.01, 1.0, np.nan), CPU)
    assert [mode.chain for mode in modes] == [0]
    assert abs(modes[0].share - 0.5) < 0.05
    assert not modes[0].is_negligible
    tiny = modes_apart(jax.random.key(0), target, others, moments, LogZ(20.0, 0.01, 1.0, np.nan), CPU)
    assert tiny[0].is_negligible
    unknown = modes_apart(jax.random.key(0), target, others, moments, None, CPU)
    assert np.isnan(unknown[0].share)
    assert not unknown[0].is_negligible


def test_the_weight_of_a_mode_is_right():
    target, rng = planted(0.95), np.random.default_rng(1)
    theta = (rng.random((400, 20)) < 0.95).astype(np.int32)
    values = np.asarray(jax.jit(jax.vmap(target.log_prob))(jnp.asarray(theta)))
    out = weigh_mode(jax.random.key(0), target, theta, values, CPU)
    assert abs(out.log_z) < 5 * out.standard_error + 0.02


# ---- reach


@pytest.mark.parametrize("size", [2, 3])
def test_tied_bits_are_seen_to_be_cut_off(size):
    tied = lambda t: jnp.where(jnp.all(t.reshape(-1, size) == t.reshape(-1, size)[:, :1]), 0.0, -jnp.inf)
    target = tz.Target(tied, tz.binary(4 * size))
    rows = np.repeat(np.random.default_rng(0).integers(0, 2, (8, 4)), size, axis=1)
    found = cut_off(np.random.default_rng(0), target, rows, CPU)
    assert found.num_sites == size
    assert (found.theta.reshape(-1, 4, size) == found.theta.reshape(-1, 4, size)[..., :1]).all()


def test_a_single_site_is_cut_off_from_nothing():
    target = tz.Target(lambda t: -0.5 * (t[0].astype(float) - 30.0) ** 2, tz.integers(0, 100, 1))
    found = cut_off(np.random.default_rng(0), target, np.array([[30]]), CPU)
    assert (found.theta.shape, found.num_sites) == ((0, 1), 0)


def test_what_single_sites_reach_is_not_cut_off():
    target = tz.Target(chain, tz.binary(10))
    rows = np.random.default_rng(0).integers(0, 2, (8, 10))
    assert cut_off(np.random.default_rng(0), target, rows, CPU).num_sites == 0
    half = tz.Target(lambda t: jnp.where(t.sum() < 6, 0.0, -jnp.inf), tz.binary(10))  # impossible, but not in the way
    assert cut_off(np.random.default_rng(0), half, (rows * 0), CPU).num_sites == 0


def test_steep_slopes_far_from_the_draws_are_not_taken_for_constraints():
    """At random configurations of a steep target every single change may fall far; only impossible ones tie sites."""
    steep = lambda t: -50.0 * jnp.abs(t[:4].astype(float).sum() - t[4:].astype(float).sum())
    target = tz.Target(steep, tz.binary(8))
    rows = np.array([[1, 0, 0, 0, 1, 0, 0, 0], [1, 1, 0, 0, 1, 0, 1, 0]])
    assert cut_off(np.random.default_rng(0), target, rows, CPU).num_sites == 2
    assert cut_off(np.random.default_rng(0), target, rows, CPU, is_strict=True).num_sites == 0


def test_a_constant_that_should_change_is_noticed():
    """Draws in which one bit never moved, although its conditional is even."""
    target, rng = tz.Target(chain, tz.binary(8)), np.random.default_rng(0)
    theta = rng.integers(0, 2, (4, 300, 8))
    theta[..., 0] = 1
    plan = Plan("gibbs", {}, False, theta[:, 0], np.zeros(4, bool), {})
    held = agreement.comparison(jax.random.key(0), target, plan, theta, rng.normal(size=(4, 300)), CPU)
    (check,) = agreement.constants_check(held)
    assert not check.passed
    sharp = tz.Target(lambda t: 40.0 * t[0].astype(float), tz.binary(8))
    (check,) = agreement.constants_check(held._replace(target=sharp))
    assert check.passed


def test_a_softened_ladder_crosses_what_is_impossible():
    """Blocks of six bits that must agree: no single site, pair or small block can change, but hot replicas pass."""
    blocks = lambda t: t.reshape(2, 6).sum(axis=1)
    penalty = lambda t: jnp.minimum(blocks(t), 6 - blocks(t)).sum()
    fields = jnp.array([1.0, -0.5])
    log_prob = lambda t: jnp.where(penalty(t) == 0, (fields * (blocks(t) == 6).astype(float)).sum(), -jnp.inf)
    target = tz.Target(log_prob, tz.binary(12), penalty=penalty)
    options = {"chains": 8, "draws": 800, "exploration": {"max_rounds": 400}, "transport": False, "progress": "off"}
    found = sample_with(target, seed=0, **options)
    exact = 1 / (1 + np.exp(-np.asarray(fields)))
    seen = found.theta.reshape(8, 800, 2, 6).all(axis=-1).astype(float)
    wrong = np.abs(seen.mean(axis=(0, 1)) - exact) > 5 * np.asarray(mcse(seen)) + 0.01
    assert not wrong.any(), found.diagnose()
    assert found.provenance["chosen"] == "parallel_tempering"


# ---- log Z


def log_z(value, error, k=np.nan):
    return LogZ(value, error, 100.0, k)


@pytest.mark.parametrize(
    ("estimates", "least", "is_settled", "expected"),
    [
        ({"bridge": log_z(4.2, 0.01), "tempering": log_z(20.2, 0.1)}, 0.0, True, None),
        ({"bridge": log_z(4.2, 0.01), "tempering": log_z(20.2, 0.1)}, 0.0, False, None),
        ({"tempering": log_z(3809.04, 0.06)}, 0.0, False, None),
        ({"tempering": log_z(3.0, 0.06)}, 0.0, True, 3.0),
        ({"tempering": log_z(3.0, 0.06)}, 5.0, True, None),
        ({"importance": log_z(4.0, 0.01, 0.9)}, 0.0, True, None),
        ({"importance": log_z(4.0, 0.01, 0.9), "tempering": log_z(4.4, 0.1)}, 0.0, True, 4.4),
        ({"importance": log_z(4.0, 0.02, 0.2), "tempering": log_z(4.1, 0.1)}, 0.0, True, 4.0),
        ({"bridge": log_z(4.0, 0.0)}, 0.0, True, None),
    ],
)
def test_a_headline_log_z_needs_agreement_and_soundness(estimates, least, is_settled, expected):
    found, verdict = settle_evidence(estimates, least=least, is_settled=is_settled)
    assert verdict.reason
    if expected is None:
        assert np.isnan(found.log_z)
        assert verdict.grade == "not trusted"
    else:
        assert found.log_z == expected
        sound = [value for value in estimates.values() if not value.pareto_k > 0.7]
        assert verdict.grade == ("trusted" if len(sound) > 1 else "unchecked")


def test_log_z_is_at_least_what_was_drawn():
    theta = np.array([[[0, 0], [0, 1]], [[0, 0], [1, 1]]])
    assert abs(evidence.log_sum_of_seen(theta, np.zeros((2, 2))) - np.log(3.0)) < 1e-12


# ---- precision


def test_float32_that_cannot_resolve_log_pi_is_left():
    offset = lambda t: 1e9 + 0.7 * t.astype(jnp.result_type(float)).sum()
    exact = 1 / (1 + np.exp(-0.7))
    with jax.enable_x64(False):
        right = sample_with(offset, tz.binary(5), seed=0, sampler="gibbs", progress="off")
        wrong = sample_with(offset, tz.binary(5), seed=0, sampler="gibbs", precision="float32", progress="off")
        counted = sample_with(offset, tz.binary(5), seed=0, precision="float32", progress="off")
    assert counted.verdict.grade == "not trusted"  # every configuration was seen, but not told apart
    assert abs(right.theta.mean() - exact) < 0.03
    assert wrong.verdict.grade == "not trusted"
    assert "rounding" in str(wrong.verdict)


def test_float32_arrays_are_computed_with_in_float64():
    rng = np.random.default_rng(0)
    rates = rng.normal(size=(50, 3))
    with jax.enable_x64(False):
        data, totals = jnp.asarray(rates, jnp.float32), jnp.asarray(rng.poisson(3e4, 50), jnp.float32)

        def poisson(theta):
            rate = jnp.exp(10.0 + 0.001 * (data @ theta.astype(jnp.float32)))
            return jnp.sum(totals * jnp.log(rate) - rate)

        target = tz.Target(poisson, tz.integers(0, 50, 3))
        rows = np.asarray(target.space.random(jax.random.key(0), (64,)))
        assert precision.rounding(target, rows) > 0.1
        with jax.enable_x64(True):
            wide = precision.doubled(target)
            values = np.asarray(jax.jit(jax.vmap(wide.log_prob))(jnp.asarray(rows)))
            assert precision.rounding(wide, rows) < 1e-6
    x, y = np.asarray(data, float), np.asarray(totals, float)
    rate = np.exp(10.0 + np.float64(np.float32(0.001)) * rows @ x.T)  # numbers in the code are float32 too
    np.testing.assert_allclose(values, (y * np.log(rate) - rate).sum(axis=1), rtol=1e-12)


def test_loops_and_branches_are_widened():
    def looped(theta):
        total, _ = jax.lax.scan(lambda c, x: (c + jnp.sin(c) * x, None), jnp.float32(1e7), theta.astype(jnp.float32))
        total = jax.lax.while_loop(lambda c: c < 2e7, lambda c: c + jnp.float32(0.3) * 1e7, total)
        return jax.lax.cond(theta[0] > 0, lambda: total, lambda: total + jnp.float32(0.1))

    with jax.enable_x64(True):
        out = precision.Doubled(looped)(jnp.array([1, 0, 1], jnp.int32))
        assert out.dtype == np.float64
    total = 1e7
    for x in (1, 0, 1):
        total = total + np.sin(total) * x
    while total < 2e7:
        total += np.float64(np.float32(0.3)) * 1e7
    assert abs(float(out) - total) < 1e-6


# ---- plans, limits, interruptions

SMALL = {"chains": 4, "draws": 60, "exploration": {"max_rounds": 100}, "transport": False, "progress": "off"}


@pytest.fixture(scope="module")
def planned():
    return sample_with(chain, tz.binary(8), seed=3, **SMALL)


def test_a_plan_repeats_a_run(planned, monkeypatch):
    again = sample_with(chain, tz.binary(8), seed=3, plan=planned.plan, **SMALL)
    assert (again.theta == planned.theta).all()
    assert (again.log_prob == planned.log_prob).all()
    assert [c.name for c in again.checks()] == [c.name for c in planned.checks()]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"log_prob": lambda t: 0.1 * chain(t)}, "target's"),
        ({"chains": 2}, "chains"),
        ({"plan": 3}, "plan"),
        ({"sampler": "gibbs", "exploration": False}, "plan"),
    ],
)
def test_a_plan_of_another_run_is_refused(planned, changed, words):
    given = {**SMALL, "log_prob": chain, "plan": planned.plan, **changed}
    with pytest.raises(OptionError, match=words):
        sample_with(given.pop("log_prob"), tz.binary(8), seed=3, **given)


def test_a_plan_comes_back_from_a_file(planned, tmp_path):
    stored = tz.Result.load(planned.save(tmp_path / "run.tz"))
    again = sample_with(chain, tz.binary(8), seed=3, plan=stored.plan, **SMALL)
    assert (again.theta == planned.theta).all()
    assert str(stored.verdict) == str(planned.verdict)
    assert stored.log_z_verdict == planned.log_z_verdict


def test_too_short_an_exploration_leaves_a_run_unchecked():
    short = sample_with(chain, tz.binary(8), seed=3, **{**SMALL, "exploration": {"max_rounds": 9}})
    assert short.verdict.grade != "trusted"
    assert any(c.name == "draws of the exploration" and not c.passed for c in short.checks())


def test_without_exploration_the_default_sampler_is_unchecked():
    found = sample_with(chain, tz.binary(8), seed=3, **{**SMALL, "draws": 800, "exploration": False})
    assert found.verdict.grade == "unchecked"
    assert "exploration" in str(found.verdict)


def test_exploration_starts_from_init():
    """Only one configuration in 2^26 is possible together with its neighbours: without `init` there is no start."""
    ball = lambda t: jnp.where(t.sum() <= 2, -t.astype(float).sum(), -jnp.inf)
    found = sample_with(ball, tz.binary(26), seed=0, init=np.zeros(26, int), **SMALL)
    assert (found.theta.sum(axis=-1) <= 2).all()


def test_fewer_draws_than_asked_for_are_said():
    with pytest.warns(RuntimeWarning, match="of 100000 draws"):
        cut = sample_with(
            chain, tz.binary(8), seed=0, sampler="gibbs", draws=100_000, max_evaluations=9000, progress="off"
        )
    assert f"draws a chain {cut.num_draws} of 100000" in str(cut.verdict)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_returns_what_was_drawn(monkeypatch, number):
    count = [0]
    plain = loop.Chains.draw

    def draw(*args):
        count[0] += 1
        if count[0] == 3:
            os.kill(os.getpid(), number)
        return plain(*args)

    monkeypatch.setattr(loop.Chains, "draw", draw)
    options = {"sampler": "gibbs", "chunk_size": 10, "progress": "off", "chains": 2}
    cut = sample_with(chain, tz.binary(8), seed=0, draws=100, **options)
    assert not cut.is_complete
    assert cut.num_draws == 30
    monkeypatch.undo()
    assert (cut.theta == sample_with(chain, tz.binary(8), seed=0, draws=30, **options).theta).all()


def test_a_signal_in_a_black_box_returns_what_was_drawn():
    calls = [0]

    def log_prob(theta):
        calls[0] += 1
        if calls[0] == 4000:
            os.kill(os.getpid(), signal.SIGINT)
        return -0.5 * float(theta.sum())

    options = {"sampler": "gibbs", "chains": 2, "warmup": 1, "progress": "off", "chunk_size": 10}
    cut = sample_with(tz.blackbox(log_prob), tz.binary(6), seed=0, draws=100_000, **options)
    assert not cut.is_complete
    assert 0 < cut.num_draws < 4000


def test_a_signal_before_the_first_kept_draw_is_a_keyboard_interrupt(monkeypatch):
    plain = loop.Chains.tuned

    def tuned(*args):
        os.kill(os.getpid(), signal.SIGINT)
        return plain(*args)

    monkeypatch.setattr(loop.Chains, "tuned", tuned)
    with pytest.raises(KeyboardInterrupt):
        sample_with(chain, tz.binary(8), seed=0, sampler="gibbs", progress="off")


def test_a_signal_while_comparing_keeps_the_draws(monkeypatch, planned):
    def interrupted(c):
        os.kill(os.getpid(), signal.SIGINT)
        return agreement.exploration_check(c)

    monkeypatch.setattr(agreement, "CHECKS", (interrupted, *agreement.CHECKS[1:]))
    found = sample_with(chain, tz.binary(8), seed=3, plan=planned.plan, **SMALL)
    assert (found.theta == planned.theta).all()
    assert found.verdict.grade != "trusted"
    assert any(c.name == "comparisons made" for c in found.checks())


def test_progress_shows_the_best_log_prob_that_was_seen():
    target, seen = tz.Target(chain, tz.binary(3)), [-np.inf]
    for value in (1.0, 3.0, 2.0):
        states = SimpleNamespace(log_probs=np.array([[0.0, value]]), positions=np.zeros((1, 2, 3)))
        seen.append(exploration._best(target, states, seen[-1]))
    assert seen[1:] == [1.0, 3.0, 3.0]


def test_a_cautious_ess_is_that_of_the_worse_half():
    rng = np.random.default_rng(0)
    theta = rng.integers(0, 2, (8, 64, 3))
    theta[:4] = np.repeat(theta[:4, ::16], 16, axis=1)
    log_prob = rng.normal(size=(8, 64))
    assert cautious_ess(theta, log_prob, CPU) < 0.5 * least_ess(theta, log_prob, CPU) + 64


INTERRUPTED_RUN = """
import sys, numpy as np, jax.numpy as jnp, terrazzo as tz
def log_prob(theta):
    spins = 2.0 * theta - 1.0
    return 0.4 * jnp.sum(spins[1:] * spins[:-1]) + 0.1 * jnp.sum(spins)
print("ready", flush=True)
try:
    sampler = tz.samplers.hybrid(transport="product", training=tz.Training(num_steps=200),
                                 exploration=tz.Exploration(max_rounds=200))
    result = tz.sample(log_prob, tz.binary(26), seed=0, sampler=sampler, chains=4, draws=2000, thin=20, progress="off")
except KeyboardInterrupt:
    print("nothing drawn", flush=True)
else:
    np.save(sys.argv[1], result.theta)
    print("drawn", result.num_draws, result.is_complete, result.verdict.grade, flush=True)
"""


def interrupted_after(seconds, path):
    """Runs the script, sends Ctrl-C after so many seconds, and returns what it said and how long it took."""
    command = [sys.executable, "-c", INTERRUPTED_RUN, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        began = time.perf_counter()
        if seconds is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            process.send_signal(signal.SIGINT)
        said, errors = process.communicate(timeout=300)
    return said, errors, time.perf_counter() - began


@pytest.mark.slow
def test_ctrl_c_at_twenty_moments(tmp_path):
    """From the first kept draw on everything drawn comes back, a prefix of the whole; before, a clean interrupt."""
    said, errors, whole_seconds = interrupted_after(None, tmp_path / "whole.npy")
    assert said.startswith("drawn 2000 True"), errors
    whole = np.load(tmp_path / "whole.npy")
    moments = np.linspace(0.02, 0.98, 20) * whole_seconds
    outcomes = []
    for i, seconds in enumerate(moments):
        said, errors, _ = interrupted_after(float(seconds), tmp_path / f"{i}.npy")
        outcomes.append(said.split()[0] if said else errors[-300:])
        assert said.startswith(("nothing drawn", "drawn")), errors
        if said.startswith("drawn"):
            part = np.load(tmp_path / f"{i}.npy")
            assert (part == whole[:, : part.shape[1]]).all()
            assert part.shape[1] == 2000 or "False not trusted" in said
    assert {"nothing", "drawn"} <= set(outcomes), outcomes


PEAK_RUN = """
import resource, sys, jax.numpy as jnp, terrazzo as tz
draws = int(sys.argv[1])
result = tz.sample(lambda t: 0.3 * jnp.sum(t), tz.binary(1000), seed=0, sampler="metropolis", chains=8, draws=draws,
                   progress="off")
print(result.codes.nbytes, 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.slow
def test_a_run_takes_at_most_one_and_a_half_times_its_draws():
    """400 MB of draws against 4 MB: the difference of the peaks."""
    sizes, peaks = [], []
    for draws in (500, 50_000):
        out = subprocess.run([sys.executable, "-c", PEAK_RUN, str(draws)], capture_output=True, text=True, check=True)
        size, peak = map(float, out.stdout.split())
        sizes.append(size)
        peaks.append(peak)
    assert (peaks[1] - peaks[0]) / (sizes[1] - sizes[0]) < 1.5


def test_a_run_does_not_read_its_draws_as_int64(monkeypatch):
    """Kept small, they are handed out eight times as large: sampling, extending and changing a result must not ask."""

    def widened(self, result, owner=None):
        raise AssertionError("theta was read")

    monkeypatch.setattr(Codes, "__get__", widened)
    options = dict(seed=0, sampler="gibbs", draws=20, warmup=5, progress="off")
    result = tz.sample(lambda t: 0.3 * t.astype(float).sum(), tz.binary(30), **options)
    assert result.extend(draws=10).changed(provenance={}).num_draws == 30


# ---- the table


@pytest.mark.parametrize("build", [asia, partial(lost_mode, weight=0.1)], ids=["asia", "lost_mode"])
def test_wrong_draws_are_never_trusted(build):
    case = build(np.random.default_rng(0))
    options = {"draws": 400, "exploration": {"max_rounds": 200}, "transport": False, "progress": "off"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = sample_with(case.log_prob, case.space, seed=0, **options)
    assert not (is_wrong(case, result) and result.verdict.is_trusted), result.diagnose()


@pytest.mark.slow
@pytest.mark.parametrize("max_seconds", [None, 30.0])
@pytest.mark.parametrize("number", range(NUM_CASES))
def test_the_whole_table(number, max_seconds):
    """As users run it. Wrong draws may not be trusted; healthy targets must be, given time."""
    case, init = cases(1)[number]
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        result = sample_with(case.log_prob, case.space, seed=1, init=init, max_seconds=max_seconds, progress="off")
    assert not (is_wrong(case, result) and result.verdict.is_trusted), result.diagnose()
    if case.is_healthy and max_seconds is None:
        assert result.verdict.is_trusted, result.diagnose()


def test_sites_that_change_together_are_different_and_uniform():
    """Floyd's algorithm: every set of three out of six sites once in 20. A chi-square of 19 degrees, alpha 1e-6."""
    rows = np.sort(_distinct(np.random.default_rng(0), 40_000, 3, 6), axis=1)
    _, counts = np.unique(rows, axis=0, return_counts=True)
    assert len(counts) == 20  # all sets, and no row that holds a site twice
    assert ((counts - 2000) ** 2 / 2000).sum() < 63.2


def test_starts_are_searched_for_once(monkeypatch):
    """Where possible configurations are rare, a second search may fail that the first had no need of."""
    searches, found = [], tz.Target.possible_starts

    def explored(*_, starts, **__):
        assert (starts.sum(axis=1) == 5).all()
        raise KeyboardInterrupt

    monkeypatch.setattr(tz.Target, "possible_starts", lambda self, *a: searches.append(a) or found(self, *a))
    monkeypatch.setattr(planning, "explore", explored)
    fixed_sum = lambda theta: jnp.where(jnp.sum(theta) == 5, 0.3 * theta[0].astype(float), -jnp.inf)
    with pytest.raises(KeyboardInterrupt):
        tz.sample(fixed_sum, tz.binary(30), seed=0, progress="off", sampler=tz.Auto(transport=False))
    assert len(searches) == 1
