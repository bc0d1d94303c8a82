"""`maximize` against exact maxima: by enumeration, by minimum cut, planted, black box, many values; budgets, Ctrl-C."""

from functools import cache

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from small_targets import SPACES, log_table, small_target
from terrazzo.errors import OptionError, SpaceError, TargetError
from terrazzo.inference import search
from terrazzo.problems import ising_mnist, spin_glass
from terrazzo.problems.exact import exact_answers
from terrazzo.targets.interactions import evaluate

SHORT = {"progress": "off", "num_rounds": 60, "chains": 2, "num_temperatures": 6}


@pytest.fixture(autouse=True)
def searched(monkeypatch):
    """The search itself is tested here; maxima by elimination are in test_structured_runs."""
    monkeypatch.setattr(search.Search, "eliminate", lambda self: False)


def check_local_maximum(target, out):
    """No single-site change is better; the value is the target's own."""
    sizes = target.space.sizes
    rows = [out.flat]
    for i, size in enumerate(sizes):
        for k in range(size):
            row = out.flat.copy()
            row[i] = k
            rows.append(row)
    values = evaluate(target, np.stack(rows))
    assert values[0] == pytest.approx(out.log_prob, rel=1e-12)
    assert values.max() <= values[0] + 1e-9 * abs(values[0])


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("enumerate_up_to", [4096, 1])
def test_small_spaces(name, enumerate_up_to):
    target = small_target(name, num_impossible=3, scale=1.5)
    out = tz.maximize(target, seed=0, enumerate_up_to=enumerate_up_to, **SHORT)
    table = log_table(target)
    assert out.log_prob == pytest.approx(table.max(), rel=1e-12)
    assert (out.flat == target.space.enumerate()[table.argmax()]).all()
    assert (target.space.encode(out.theta) == out.flat).all()
    assert out.is_local_maximum
    assert out.is_complete
    assert out.is_proven == (enumerate_up_to > 1)
    assert out.history["log_prob"][-1] == out.log_prob


def test_spin_glass_ground_state():
    """14 spins in the glass phase: 2^14 states, many local maxima."""
    target = spin_glass(14, beta=2.0, field=0.3, seed=1).target
    out = tz.maximize(target, seed=0, **SHORT)
    assert not out.is_proven
    assert out.log_prob == pytest.approx(float(np.max(evaluate(target, exact_answers(target).states))))
    check_local_maximum(target, out)


def test_ising_mnist_soon_comes_near():
    """784 spins; the mean of the posterior is 4081.0, ordinary samplers sit at 4057 to 4073."""
    problem = ising_mnist()
    out = tz.maximize(problem.target, seed=0, num_rounds=300, progress="off")
    assert 4077.0 < out.log_prob < problem.truth["max_log_prob"] + 0.05
    assert out.is_local_maximum
    assert out.theta.shape == (28, 28)
    assert out.inverse_temperatures[0] == 0
    assert out.inverse_temperatures[-1] >= 1


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_ising_mnist_maximum(seed):
    """The exact maximum, known by minimum cut. Eight of eight seeds reach it (after 1070 to 2860 of 3000 rounds)."""
    problem = ising_mnist()
    out = tz.maximize(problem.target, seed=seed, progress="off")
    assert out.log_prob == pytest.approx(problem.truth["max_log_prob"], abs=0.05)
    assert out.is_local_maximum


@cache
def planted(num_dims=60, distance=30):
    """Two modes at Hamming distance 30 of 60, one higher by half a nat: hill climbing finds either."""
    rng = np.random.default_rng(0)
    low = rng.integers(0, 2, num_dims)
    high = low.copy()
    high[rng.choice(num_dims, distance, replace=False)] ^= 1
    modes = jnp.asarray(np.stack([low, high]), jnp.int32)

    def log_prob(theta):
        agree = jnp.sum((modes == theta).astype(float), axis=1)
        return jnp.logaddexp(2.0 * agree[0], 2.0 * agree[1] + 0.5)

    return tz.Target(log_prob, tz.binary(num_dims)), high


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_higher_of_two_modes(seed):
    target, high = planted()
    out = tz.maximize(target, seed=seed, progress="off", num_rounds=200)
    assert (out.theta == high).all()
    assert out.log_prob == pytest.approx(120.5)


def test_black_box_with_names_and_labels():
    space = tz.Space(colour=tz.categorical(["red", "green", "blue"], 4), count=tz.integers(-5, 5, 3))

    def log_prob(values):
        return -float(np.sum((values["colour"] - 2) ** 2) + np.sum((values["count"] - np.array([3, -5, 0])) ** 2))

    out = tz.maximize(tz.blackbox(log_prob), space, seed=0, max_evaluations=20_000, **SHORT)
    assert out.log_prob == 0.0
    assert out.theta["colour"].tolist() == ["blue"] * 4
    assert out.theta["count"].tolist() == [3, -5, 0]
    assert out.num_evaluations <= 20_000


@pytest.mark.parametrize("size", [1000, pytest.param(2**16, marks=pytest.mark.slow), 2**20])
def test_many_values(size):
    """Values that are all listed, and too many for that (2^16 are the most that are: a study).

    A quadratic with a strong cross term: a narrow ridge that coordinate ascent alone climbs in tiny steps.
    """
    best = np.floor(np.array([0.3, 0.7, 0.51]) * size)

    def log_prob(theta):
        x = (theta.astype(float) - best) / (0.01 * size)
        return -0.5 * jnp.sum(x**2) + 0.45 * jnp.sum(x[1:] * x[:-1])

    out = tz.maximize(log_prob, tz.integers(0, size - 1, 3), seed=0, **SHORT)
    assert out.log_prob > -1e-3
    assert np.abs(out.theta - best).max() <= 0.001 * size
    if size <= 2**16:
        assert out.is_local_maximum


class Scaled(eqx.Module):
    """A target times a number: one compilation for all numbers."""

    scale: jax.Array
    base: tz.Target

    def __call__(self, theta):
        return self.scale * self.base.log_prob(theta)


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_any_scale(scale):
    """A score of tiny differences and one of huge ones: the ladder follows."""
    base = spin_glass(13, beta=2.0, field=0.3, seed=2).target
    target = tz.Target(Scaled(jnp.asarray(scale), base), tz.binary(13))
    out = tz.maximize(target, seed=0, **SHORT)
    assert out.log_prob == pytest.approx(scale * evaluate(base, base.space.enumerate()).max(), rel=1e-9)


def test_the_same_seed_gives_the_same_answer(monkeypatch):
    target = spin_glass(40, beta=2.0, seed=3).target
    first = tz.maximize(target, seed=5, **SHORT)
    monkeypatch.setattr(search, "CHUNK_SECONDS", 1e-3)
    second = tz.maximize(target, seed=5, **SHORT)
    assert (first.flat == second.flat).all()
    assert first.num_evaluations == second.num_evaluations
    assert len(second.history["log_prob"]) > len(first.history["log_prob"])
    assert (np.diff(second.history["log_prob"]) >= -1e-9).all()


@pytest.mark.parametrize("budget", [1, 20, 300, 3000])
def test_budgets_are_kept(budget):
    calls = []

    def log_prob(theta):
        calls.append(1)
        return -float(np.sum((theta - 3) ** 2))

    out = tz.maximize(tz.blackbox(log_prob), tz.integers(0, 5, 12), seed=0, max_evaluations=budget, progress="off")
    assert out.num_evaluations <= budget
    assert len(calls) <= out.num_evaluations + 20  # probing comes on top
    assert out.log_prob == -float(np.sum((out.theta.astype(int) - 3) ** 2))
    if budget == 3000:
        assert out.log_prob == 0.0
        assert out.is_local_maximum


def test_time_and_patience():
    target = spin_glass(40, beta=2.0, seed=3).target
    out = tz.maximize(target, seed=0, progress="off", num_rounds=10**9, patience=50)
    assert out.num_rounds < 10**4
    out = tz.maximize(target, seed=0, progress="off", num_rounds=10**9, patience=None, max_seconds=0.5)
    assert out.num_rounds >= 1


def test_ctrl_c_returns_the_best_so_far(monkeypatch):
    target = spin_glass(40, beta=2.0, seed=3).target
    real, calls = search._rounds, []

    def interrupted(*args):
        calls.append(1)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(*args)

    monkeypatch.setattr(search, "_rounds", interrupted)
    out = tz.maximize(target, seed=0, **SHORT)
    assert not out.is_complete
    assert out.num_rounds >= 1
    assert out.is_local_maximum
    assert np.isfinite(out.log_prob)


def test_starts_and_impossible_places():
    """Only two configurations of 2^24 are possible: from a given start the search stays sane."""
    target = tz.Target(lambda t: jnp.where((t[1:] == t[:-1]).all(), t[0].astype(float), -jnp.inf), tz.binary(24))
    out = tz.maximize(target, seed=0, init=np.zeros(24, int), **SHORT)
    assert out.log_prob >= 0.0
    with pytest.raises(TargetError, match="init"):
        tz.maximize(target, seed=0, **SHORT)
    target, high = planted()
    out = tz.maximize(target, seed=0, init=high, **SHORT)
    assert (out.theta == high).all()
    with pytest.raises(SpaceError):
        tz.maximize(target, seed=0, init=high + 5, **SHORT)


def test_nan_is_an_error():
    with pytest.raises(TargetError, match="returned"):
        tz.maximize(lambda t: jnp.where(t.sum() == 9, jnp.nan, t.sum().astype(float)), tz.binary(16), seed=0, **SHORT)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"num_rounds": 0}, "num_rounds"),
        ({"max_seconds": 0.0}, "max_seconds"),
        ({"max_evaluations": 0}, "max_evaluations"),
        ({"max_inverse_temperature": -1.0}, "max_inverse_temperature"),
        ({"seed": -1}, "seed"),
        ({"precision": "float16"}, "precision"),
        ({"kernel": "gibs", "enumerate_up_to": 1}, "gibbs"),
    ],
)
def test_bad_options(options, field):
    with pytest.raises(OptionError, match=field):
        tz.maximize(small_target("binary"), **{"seed": 0, "progress": "off", **options})
