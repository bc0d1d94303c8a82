"""The hunt for modes of reals that chains do not come back from: on arrays, on small targets, and end to end."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.stats import norm

import terrazzo as tz
from terrazzo.auto import CPU
from terrazzo.diagnostics import LogZ
from terrazzo.inference import mixed_hunt
from terrazzo.samplers.parts.ascent import Density, ascend_reals
from terrazzo.spaces import Configuration

NORMAL = LogZ(0.0, 0.0, 1000.0, 0.1)


def bumps(places, scales, weights):
    """A mixture of round Gaussians in d dimensions, as an unnormalised density with log Z = log sum(weights)."""
    places = jnp.asarray(places, float)

    def log_prob(x):
        each = [jnp.log(w) + jnp.sum(norm.logpdf(x, p, s)) for p, s, w in zip(places, scales, weights, strict=True)]
        return jax.nn.logsumexp(jnp.stack(each))

    return log_prob


def wide_reference(d, scale=5.0):
    return tz.Reference(lambda x: jnp.sum(norm.logpdf(x, 0.0, scale)), lambda key: scale * jax.random.normal(key, (d,)))


def hunted(target, draws, **options):
    num = draws.shape[0]
    hunt = mixed_hunt.Hunt(
        jax.random.key(0), target, target, Configuration(np.zeros((num, 0), np.int32), draws), 8, CPU, **options
    )
    for _ in hunt.steps():
        pass
    return hunt


@pytest.mark.parametrize("scale", [1e-5, 1.0, 1e5])
def test_scales_of_any_size_are_climbed(scale):
    target = tz.Target(lambda x: -0.5 * jnp.sum((x / jnp.array([scale, 1.0]) - 3.0) ** 2), tz.real(2))
    y, none = jnp.zeros((1, 2)), jnp.zeros((1, 0), jnp.int32)
    which, count = jnp.zeros(1, jnp.int32), jnp.asarray(200, jnp.int32)
    best, values, _ = ascend_reals(Density(target), none, y, which, jnp.full((1, 2), 0.1), count)
    np.testing.assert_allclose(best[0], [3.0 * scale, 3.0], rtol=1e-3)
    assert values[0] > -1e-4


def test_a_mode_that_only_a_part_shows_is_found():
    """sd 0.01 in five dimensions: fewer than one in 10^9 draws of the reference see it in log pi."""
    log_prob = bumps([[-1.0] * 5, [4.0] * 5], [1.0, 0.01], [2.0, 1.0])
    target = tz.Target(log_prob, tz.real(5), reference=wide_reference(5))
    draws = np.random.default_rng(0).normal(-1.0, 1.0, (400, 5))
    hunt = hunted(target, draws)
    distance = np.abs(hunt.found.reals - 4.0).max(axis=1)
    assert distance.min() < 0.01
    assert hunt.can_matter(0.0)[distance.argmin()]


def test_what_runs_away_is_no_top_and_what_is_flat_may_be_one():
    target = tz.Target(lambda x: -jnp.log1p(jnp.sum(x**2)) + jnp.minimum(x[0], 0.0), tz.real(2))
    hunt = hunted(target, np.random.default_rng(0).normal(size=(400, 2)))
    assert np.abs(hunt.found.reals).max() < 1.0
    box = lambda x: jnp.where(jnp.all(jnp.abs(x - 4.0) < 1.0), 9.0, jnp.sum(norm.logpdf(x, 0.0, 1.0)))
    hunt = hunted(
        tz.Target(box, tz.real(2), reference=wide_reference(2)), np.random.default_rng(0).normal(size=(400, 2))
    )
    assert hunt.log_density[0] == 9.0
    assert np.abs(hunt.found.reals[0] - 4.0).max() < 1.0


def share_error(weighed_modes=mixed_hunt.weighed_modes):
    """How far the share of a mode is off, of its own standard error and 1 %."""
    target = tz.Target(bumps([[0.0] * 3, [6.0] * 3], [1.0, 0.05], [1.0, 0.5]), tz.real(3))
    modes = weighed_modes(jax.random.key(0), target, np.full((1, 3), 6.0), NORMAL, CPU)
    expected = CPU.mixed.content / (2.0 + CPU.mixed.content)  # 0.9 of 0.5 against 1
    return abs(modes.shares[0] - expected) / (modes.errors[0] + 0.01 * expected)


def test_the_share_of_a_mode():
    assert share_error() < 5


def test_the_test_of_shares_can_fail(monkeypatch):
    """The proposal's density without the volume of its scale."""
    monkeypatch.setattr(np.linalg, "slogdet", lambda root: (1.0, 0.0))
    assert share_error() > 5


def test_negligible_modes_are_left_alone():
    target = tz.Target(bumps([[0.0] * 3, [6.0] * 3], [1.0, 0.05], [1.0, 1e-4]), tz.real(3))
    modes = mixed_hunt.weighed_modes(jax.random.key(0), target, np.full((1, 3), 6.0), NORMAL, CPU)
    assert len(modes.shares) == 0


def test_where_nothing_curves_the_share_is_unknown():
    target = tz.Target(lambda x: -jnp.sum(jnp.abs(x - 1.0)), tz.real(2))
    modes = mixed_hunt.weighed_modes(jax.random.key(0), target, np.full((1, 2), 0.5), NORMAL, CPU)
    assert np.isnan(modes.shares).all()
    found = mixed_hunt.mode_checks(target.space, 1.0, modes, np.ones((4, 50, 2)), CPU)
    assert [check.passed for check in found] == [True, False]


@pytest.mark.parametrize(("inside", "lost"), [(0.0, True), (0.05, True), (0.28, False), (0.6, False)])
def test_draws_are_held_against_the_share_of_a_mode(inside, lost):
    rng = np.random.default_rng(0)
    modes = mixed_hunt.Modes(np.full((1, 2), 8.0), np.eye(2)[None], np.array([0.3]), np.array([0.01]))
    is_there = rng.random((8, 500)) < inside / CPU.mixed.content
    y = rng.normal(size=(8, 500, 2)) + 8.0 * is_there[..., None]
    space = tz.Space(x=tz.real(2))
    assert (mixed_hunt.lacking(space, modes, y, CPU) > 0.1) == lost
    assert mixed_hunt.mode_checks(space, 1.0, modes, y, CPU)[0].passed != lost


def test_chains_that_stay_and_chains_that_come_back():
    rng = np.random.default_rng(0)
    own, back, apart = rng.normal(size=(8, 100, 3)), rng.normal(size=(3, 100, 3)), rng.normal(size=(2, 100, 3)) + 6.0
    back[:, :20] += 20.0  # on their way
    stuck = np.full((1, 100, 3), 4.0)
    stays = mixed_hunt.who_stays(own, np.concatenate([back, apart, stuck]), CPU)
    np.testing.assert_array_equal(stays, [False] * 3 + [True] * 3)


# ---- end to end


def run(target, seed=0):
    return tz.sample(target, seed=seed, progress="off")


def test_a_mode_that_ladders_miss_is_drawn_or_the_run_is_not_trusted():
    """A third of the mass within 0.05 of a point, beside a Gaussian of width 1; k says which of two laws holds."""
    broad = lambda x: jnp.sum(norm.logpdf(x, -1.0, 1.0))
    narrow = lambda x: jnp.sum(norm.logpdf(x, 4.0, 0.05))

    def log_prob(v):
        return jnp.where(v["k"] == 1, jnp.logaddexp(broad(v["x"]), narrow(v["x"])), broad(v["x"]))

    d = 5
    reference = tz.Reference(
        lambda v: jnp.sum(norm.logpdf(v["x"], 0.0, 5.0)) - jnp.log(2.0),
        lambda key: {"k": jax.random.bernoulli(key).astype(jnp.int32), "x": 5.0 * jax.random.normal(key, (d,))},
    )
    result = run(tz.Target(log_prob, tz.Space(k=tz.binary(), x=tz.real(d)), reference=reference))
    share = (result["x"][..., 0] > 2).mean()
    assert abs(share - 1 / 3) < 0.05 or result.verdict.grade == "not trusted"
    assert abs(share - 1 / 3) < 0.05, "learned from what was hunted"


def test_a_mode_tied_to_many_discrete_variables_is_not_overlooked():
    """theta cannot be summed out: chains started at the other top stay, and the verdict says so."""
    d = 12
    couplings = np.random.default_rng(1).normal(size=(d, d)) * 0.2

    def log_prob(v):
        spins = 2.0 * v["s"].astype(float) - 1.0
        near, far = jnp.sum(norm.logpdf(v["x"], 0.0, 1.0)), jnp.sum(norm.logpdf(v["x"], 5.0, 0.01)) + 6.0
        return spins @ couplings @ spins + jnp.where(v["s"].sum() >= 10, far, near)

    reference = tz.Reference(
        lambda v: jnp.sum(norm.logpdf(v["x"], 0.0, 5.0)) - d * jnp.log(2.0),
        lambda key: {
            "s": jax.random.bernoulli(key, 0.5, (d,)).astype(jnp.int32),
            "x": 5.0 * jax.random.normal(key, (2,)),
        },
    )
    result = run(tz.Target(log_prob, tz.Space(s=tz.binary(d), x=tz.real(2)), reference=reference))
    assert result.verdict.grade != "trusted"
    assert mixed_hunt.STAYING in str(result.verdict)
