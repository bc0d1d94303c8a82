"""Diagnostics against ArviZ's own numbers, against slow and obvious versions, and at the awkward ends."""

import numpy as np
import pytest
from arviz_stats.base import array_stats
from scipy import stats

from terrazzo import diagnostics
from terrazzo.diagnostics import chains
from terrazzo.errors import OptionError
from terrazzo.samplers.parts.ladder_evidence import stepping_stones

AXES = {"chain_axis": 0, "draw_axis": 1}


def autoregressive(rng, num_chains, num_draws, phi):
    x = np.zeros((num_chains, num_draws, 2))
    noise = rng.normal(size=x.shape)
    for t in range(1, num_draws):
        x[:, t] = phi * x[:, t - 1] + noise[:, t]
    return x


KINDS = {
    "float": lambda x: x,
    "signed": lambda x: np.round(x).astype(np.int32),
    "binary": lambda x: (x > 0).astype(np.uint8),
    "rare": lambda x: (x > 1.7).astype(np.uint8),
    "wide": lambda x: np.clip(np.round(x * 2000) + 30000, 0, 65535).astype(np.uint16),
    "huge": lambda x: np.round(x * 1e6).astype(np.int64),
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("num_chains", "num_draws"), [(4, 500), (2, 7), (1, 101), (33, 64), (3, 4)])
@pytest.mark.parametrize("phi", [0.0, 0.95, -0.8])
def test_equal_to_arviz(kind, num_chains, num_draws, phi):
    draws = KINDS[kind](autoregressive(np.random.default_rng(1), num_chains, num_draws, phi))
    is_constant = draws.min(axis=(0, 1)) == draws.max(axis=(0, 1))
    expected = {
        "ess_bulk": array_stats.ess(draws, method="bulk", **AXES),
        "ess_tail": array_stats.ess(draws, method="tail", prob=(0.05, 0.95), **AXES),
        "mcse": array_stats.mcse(draws, **AXES),
    }
    if num_chains > 1:
        expected["r_hat"] = array_stats.rhat(draws, **AXES)
    table = diagnostics.describe(draws)._asdict()
    separate = {
        "ess_bulk": diagnostics.ess(draws),
        "ess_tail": diagnostics.ess(draws, method="tail"),
        "mcse": diagnostics.mcse(draws),
        "r_hat": diagnostics.rhat(draws),
    }
    for name, value in expected.items():
        wanted = np.where(is_constant, np.nan, value)
        known = ~np.isnan(wanted)  # a coordinate whose only change falls in the dropped middle draw is NaN in both
        np.testing.assert_allclose(table[name][known], wanted[known], rtol=1e-10, err_msg=name)
        np.testing.assert_allclose(separate[name][known], wanted[known], rtol=1e-10, err_msg=name)
    np.testing.assert_allclose(diagnostics.ess(draws, method="mean"), table["sd"] ** 2 / table["mcse"] ** 2, rtol=1e-9)
    np.testing.assert_allclose(table["mean"], draws.mean(axis=(0, 1)), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(table["sd"], draws.std(axis=(0, 1), ddof=1), rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(table["is_constant"], is_constant)


def test_constant_is_nan_and_stuck_chains_show():
    constant = diagnostics.describe(np.full((4, 100), 3, np.uint8))
    assert constant.is_constant
    assert np.isnan([constant.ess_bulk, constant.ess_tail, constant.r_hat, constant.mcse]).all()
    stuck = diagnostics.describe(np.repeat(np.arange(4, dtype=np.uint8)[:, None], 100, axis=1))
    assert not stuck.is_constant
    assert np.isinf(stuck.r_hat)
    assert stuck.ess_bulk < 10
    one_stuck = np.random.default_rng(0).integers(0, 2, (4, 500))
    one_stuck[0] = 1
    assert diagnostics.rhat(one_stuck) > 1.1
    assert diagnostics.ess(one_stuck) < 50


def test_too_few_draws_and_bad_input():
    assert np.isnan(diagnostics.ess(np.array([[0, 1, 0], [1, 0, 1]])))
    assert np.isnan(diagnostics.rhat(np.array([[0.0, np.nan, 1, 2], [1, 0, 1, 3]])))
    for bad in (np.zeros(3), np.zeros((2, 0, 3)), np.array([["a", "b"]])):
        with pytest.raises(OptionError, match="draws"):
            diagnostics.ess(bad)
    with pytest.raises(OptionError, match="bulk, tail, mean"):
        diagnostics.ess(np.zeros((2, 8)), method="median")


def test_shapes():
    draws = np.random.default_rng(0).integers(0, 3, (2, 50, 2, 3))
    assert diagnostics.ess(draws).shape == (2, 3)
    assert diagnostics.describe(draws).r_hat.shape == (2, 3)
    assert np.ndim(diagnostics.rhat(draws[..., 0, 0])) == 0


def slow_variogram_ess(x):
    """Effective draws per chain, straight from the definition."""
    num_draws = x.shape[1]
    within = x.var(axis=1, ddof=1).mean()
    var_plus = (num_draws - 1) / num_draws * within + x.mean(axis=1).var(ddof=1)
    rho = [1.0]
    for t in range(1, num_draws):
        rho.append(1 - ((x[:, t:] - x[:, : num_draws - t]) ** 2).mean() / (2 * var_plus))
    last = 1
    while last + 2 < num_draws and rho[last + 1] + rho[last + 2] >= 0:
        last += 2
    return num_draws / (1 + 2 * sum(rho[1 : last + 1]))


@pytest.mark.parametrize("phi", [0.3, 0.9])
def test_paper_ess_is_the_variogram_estimator(phi):
    draws = np.round(autoregressive(np.random.default_rng(2), 32, 400, phi)).astype(np.int32)
    draws = np.concatenate([draws, np.zeros_like(draws[..., :1])], axis=-1)
    figure = diagnostics.paper_ess(draws, num_groups=2)
    groups = []
    for g in range(2):
        x = draws[16 * g : 16 * (g + 1)].astype(float)
        groups.append(np.mean([25 * slow_variogram_ess(x[..., 0]), 25 * slow_variogram_ess(x[..., 1]), 1.0]))
    np.testing.assert_allclose(figure.per_group, groups, rtol=1e-9)
    assert figure.mean == pytest.approx(np.mean(groups))
    assert figure.standard_error == pytest.approx(np.std(groups, ddof=1) / np.sqrt(2))
    assert figure.num_constant == 1
    bulk = diagnostics.ess(draws[..., :2]).mean() / 32 * 25
    assert figure.mean == pytest.approx(bulk * 2 / 3, rel=0.25)
    with pytest.raises(OptionError, match="divisor"):
        diagnostics.paper_ess(draws, num_groups=5)


def test_importance_summary():
    rng = np.random.default_rng(0)
    weights = rng.gamma(5.0, size=4000)
    out = diagnostics.importance_summary(np.log(weights) + 1000)
    assert out.log_z == pytest.approx(np.log(weights.mean()) + 1000)
    assert out.standard_error == pytest.approx(weights.std(ddof=1) / weights.mean() / np.sqrt(4000), rel=1e-6)
    assert out.ess == pytest.approx(weights.sum() ** 2 / (weights**2).sum())
    assert out.pareto_k < 0.4
    heavy = diagnostics.importance_summary(np.log(rng.pareto(0.8, 4000)))
    assert 0.9 < heavy.pareto_k < 1.6
    assert np.isnan(diagnostics.importance_summary([0.0, 1.0]).pareto_k)
    equal = diagnostics.importance_summary(np.full(1000, -3.0))
    assert equal.pareto_k == -np.inf
    assert equal.standard_error == pytest.approx(0, abs=1e-6)
    zeros = diagnostics.importance_summary(np.where(np.arange(1000) % 2 == 0, -np.inf, 0.0))
    assert zeros.log_z == pytest.approx(np.log(0.5))
    assert diagnostics.importance_summary(np.full(30, -np.inf)).log_z == -np.inf
    for bad in ([], [np.nan], [np.inf]):
        with pytest.raises(OptionError, match="log_weights"):
            diagnostics.importance_summary(bad)


@pytest.mark.parametrize("num", [26, 300, 20_000])
def test_pareto_k_is_that_of_arviz(num):
    rng = np.random.default_rng(num)
    for log_weights in (rng.normal(0, 2, num), np.log(rng.pareto(0.8, num)), np.log(rng.gamma(5.0, size=num)) - 3000):
        theirs = array_stats.psislw(-log_weights)[1]
        assert diagnostics.evidence.pareto_k(log_weights) == pytest.approx(float(theirs), abs=1e-6)


def test_standard_error_covers():
    """The delta-method error has the right size: 400 estimates, chi-square of their standardised spread (1e-6)."""
    rng = np.random.default_rng(0)
    outs = [diagnostics.importance_summary(rng.normal(0, 0.7, 2000) - 0.245) for _ in range(400)]
    z = np.array([out.log_z / out.standard_error for out in outs])
    assert 400 * 0.68 < (z**2).sum() < 400 * 1.40  # chi-square quantiles at 1e-6 with 400 degrees


def test_total_variation():
    assert diagnostics.total_variation([0.5, 0.5], [1.0, 0.0]) == 0.5
    assert diagnostics.total_variation([2, 2], [10, 10]) == 0
    with pytest.raises(OptionError, match="shape"):
        diagnostics.total_variation([1, 1], [1, 1, 1])


def test_running_rhat_follows_the_batch():
    rng = np.random.default_rng(0)
    draws = rng.integers(0, 5, (6, 2000, 4)).astype(np.uint16) + 60000
    draws[:, :, 1] = 7
    draws[:3, :, 2] += 1
    draws[:, :, 3] = np.arange(6)[:, None]
    whole = diagnostics.RunningRhat()
    for half in (draws[:, :1000], draws[:, 1000:]):
        whole.update(half)
    batch = whole.r_hat()
    halves = np.concatenate([draws[:, :1000], draws[:, 1000:]]).astype(float)[:, :, [0, 2]]
    within, between = halves.var(axis=1, ddof=1).mean(axis=0), halves.mean(axis=1).var(axis=0, ddof=1)
    np.testing.assert_allclose(batch[[0, 2]], np.sqrt(between / within + 999 / 1000), rtol=1e-10)
    assert np.isnan(batch[1])
    assert np.isinf(batch[3])
    for step in (1, 7, 500):
        running = diagnostics.RunningRhat()
        assert np.isnan(running.worst())
        for start in range(0, 2000, step):
            running.update(draws[:, start : start + step])
        assert running.num_draws == 2000
        assert len(running._blocks) <= 33
        np.testing.assert_allclose(running.r_hat(), batch, rtol=0.02)
        assert np.isinf(running.worst())


def test_coordinates_side_by_side_are_the_same(monkeypatch):
    draws = np.random.default_rng(3).integers(0, 5, (4, 100, 7))
    alone = chains.describe(draws)
    monkeypatch.setattr(chains, "MANY_NUMBERS", 1)
    for one, other in zip(alone, chains.describe(draws), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("shape", [(4, 101, 9), (1, 12, 5), (3, 3, 4)])
def test_two_values_side_by_side_are_what_ranks_give(shape):
    """Indicators take a path of their own; the same numbers as floats go through ranks, one by one."""
    rng = np.random.default_rng(0)
    draws = (rng.random(shape) < rng.random(shape[2])).astype(np.int8)
    draws[..., 0] = 1  # a constant
    draws[..., 1], draws[0, :, 1] = 0, 1  # chains that are constant, and differ
    for statistic in (diagnostics.ess, diagnostics.rhat):
        for same in (draws, draws + 5, draws == 1):
            np.testing.assert_allclose(statistic(same), statistic(same.astype(float)), rtol=1e-12)


def test_the_error_of_stepping_stones_is_the_scatter_of_estimates():
    """Gaussian energies with a known ratio of normalisers, 60 times: a chi-square of 59 degrees, error rate 1e-6."""
    rng, betas, num_dims = np.random.default_rng(1), np.linspace(0.05, 1.0, 8), 6
    exact = 0.5 * num_dims * np.log(betas[0] / betas[-1])
    found = []
    for _ in range(60):
        noise = rng.normal(size=(16, 60, len(betas), num_dims))
        found.append(stepping_stones(-0.5 * (noise**2).sum(axis=-1) / betas, betas, 0.0)[:2])
    log_z, error = np.array(found).T
    ratio = ((log_z - exact) ** 2).sum() / (error**2).mean()
    assert stats.chi2.ppf(5e-7, 60) < ratio < stats.chi2.isf(5e-7, 60)
