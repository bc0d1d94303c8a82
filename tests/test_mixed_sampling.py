"""Runs on mixed spaces from the call to the result: the default, named samplers, storage, and what is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.engine.kernels import Problem
from terrazzo.engine.loop import Chains
from terrazzo.errors import OptionError, SpaceError
from terrazzo.inference.mixed import OUTSIDE, REFERENCE, Explored, exploration_checks, hot_starts
from terrazzo.inference.mixed_hunt import no_modes
from terrazzo.runtime.devices import make_mesh
from terrazzo.samplers import MIXED
from terrazzo.targets.improper import check_proper

DATA = np.array([-1.9, -2.3, -1.4, 1.8, 2.2, 2.5])
SPACE = tz.Space(label=tz.categorical(["low", "high"], shape=6, dims="who"), mean=tz.ordered(2), scale=tz.real(low=0.0))


def mixture(v):
    x = (jnp.asarray(DATA) - v["mean"][v["label"]]) / v["scale"]
    return jnp.sum(-0.5 * x**2 - jnp.log(v["scale"])) - 0.02 * jnp.sum(v["mean"] ** 2) - 2.0 * v["scale"]


RUN = {"seed": 1, "chains": 4, "draws": 60, "warmup": 120, "progress": "off"}


@pytest.fixture(scope="module")
def result():
    return tz.sample(mixture, SPACE, sampler=tz.samplers.blocked(max_doublings=4), **RUN)


def test_draws_are_in_the_users_scale(result):
    assert result["mean"].shape == (4, 60, 2)
    assert (np.diff(result["mean"]) > 0).all()
    assert (result["scale"] > 0).all()
    assert set(result["label"].ravel()) <= {"low", "high"}
    assert result.theta.shape == (4, 60, 6)
    assert result.reals.shape == (4, 60, 3)


def test_log_prob_is_that_of_the_users_function(result):
    values = {"label": result.theta[2, 7], "mean": result["mean"][2, 7], "scale": result["scale"][2, 7]}
    assert result.log_prob[2, 7] == pytest.approx(float(mixture(jax.tree.map(jnp.asarray, values))), rel=1e-9)


def test_summaries_and_exports_hold_reals(result):
    names = [row.name for row in result._summary.rows]
    assert {"mean[0]", "mean[1]", "scale", "log_prob"} <= set(names)
    frame = result.to_pandas()
    np.testing.assert_allclose(frame["scale"], result["scale"].ravel())
    tree = result.to_arviz()
    assert tree["posterior"]["mean"].shape == (4, 60, 2)
    assert "diverging" in tree["sample_stats"]


def test_a_result_is_stored_and_read_back(result, tmp_path):
    back = tz.Result.load(result.save(tmp_path / "run.tz"))
    np.testing.assert_array_equal(back["mean"], result["mean"])
    assert back.space == result.space
    assert "scale" in result.report(tmp_path / "run.html").read_text(encoding="utf-8")


def test_extended_and_resumed_runs_have_the_same_draws(result, tmp_path):
    longer = tz.sample(
        mixture, SPACE, sampler=tz.samplers.blocked(max_doublings=4), checkpoint=tmp_path / "c", **{**RUN, "draws": 30}
    )
    again = tz.sample(mixture, SPACE, sampler=tz.samplers.blocked(max_doublings=4), checkpoint=tmp_path / "c", **RUN)
    np.testing.assert_array_equal(longer["mean"], result["mean"][:, :30])
    np.testing.assert_array_equal(again["mean"], result["mean"])


def test_a_purely_real_space_is_nuts():
    sd = jnp.array([0.5, 2.0])
    found = tz.sample(
        lambda x: -0.5 * jnp.sum((x / sd) ** 2), tz.real(2), sampler="blocked", seed=0, chains=4, draws=300,
        warmup=200, progress="off",
    )  # fmt: skip
    assert found["theta"].shape == (4, 300, 2)
    np.testing.assert_allclose(found["theta"].std((0, 1)), sd, rtol=0.2)
    assert any(check.name == "share of divergent trajectories" for check in found.checks())


def test_black_boxes_walk_at_random_and_say_so():
    box = tz.blackbox(lambda v: -0.5 * (float(v["x"]) - 2 * int(v["k"])) ** 2)
    with pytest.warns(RuntimeWarning, match="no gradient"):
        found = tz.sample(
            box, tz.Space(k=tz.binary(), x=tz.real()), sampler="blocked", seed=0, chains=2, draws=20, warmup=20,
            progress="off",
        )  # fmt: skip
    assert found["x"].shape == (2, 20)


TWO_MODES = tz.Space(k=tz.binary(), x=tz.real())


def two_modes(v):
    """30 % at k = 0, x = -6, and 70 % at k = 1, x = 6: no single change leads from one to the other."""
    k = jnp.where(v["k"] > 0, 1.0, 0.0)
    left = jnp.log(0.3) - 0.5 * ((v["x"] + 6.0) / 0.5) ** 2 - 8.0 * k
    right = jnp.log(0.7) - 0.5 * ((v["x"] - 6.0) / 0.5) ** 2 - 8.0 * (1.0 - k)
    return jnp.logaddexp(left, right)


LOG_Z = np.log(np.sqrt(2 * np.pi) * 0.5 * (1 + np.exp(-8)))
WIDE = tz.Reference(
    log_prob=lambda v: jnp.log(0.5) + jax.scipy.stats.norm.logpdf(v["x"], 0.0, 10.0),
    draw=lambda key: {
        "k": jax.random.bernoulli(jax.random.fold_in(key, 1)).astype(jnp.int32), "x": 10.0 * jax.random.normal(key),
    },
)  # fmt: skip
DEFAULT = {"seed": 0, "chains": 4, "draws": 600, "warmup": 100, "progress": "off"}


@pytest.fixture(scope="module")
def separated():
    return tz.sample(two_modes, TWO_MODES, **DEFAULT)


@pytest.fixture(scope="module")
def with_prior(tmp_path_factory):
    run = {**DEFAULT, "checkpoint": tmp_path_factory.mktemp("prior")}
    target = tz.Target(two_modes, TWO_MODES, reference=WIDE)
    first = tz.sample(target, **{**run, "draws": 100})
    return first, tz.sample(target, **run)


def check_two_modes(result):
    is_right = result["x"] > 0
    error = max(is_right.mean(1).std(ddof=1) / 2, 0.01)
    assert abs(is_right.mean() - 0.7) < 3 * error
    assert (is_right.any(1) & (~is_right).any(1)).all()
    assert result.provenance["chosen"] in ("hybrid", "tempered")  # by measured worth: local chains stay apart
    tried = [row["candidate"] for row in result.provenance["warm-up"]["choice"]["trial"]]
    assert tried == ["collapsed", "tempered", "hybrid"]
    assert abs(result.evidence.log_z - LOG_Z) < 5 * result.evidence.standard_error < 0.5


def test_the_default_finds_two_modes_that_differ_in_both_kinds_of_variables(separated):
    check_two_modes(separated)


def test_jumps_and_ladders_confirm_each_other_where_the_ladders_start_from_a_prior(with_prior):
    _, result = with_prior
    check_two_modes(result)
    assert result.verdict.grade == "trusted", result.diagnose()
    assert result.log_z_verdict.grade == "trusted"
    checks = {check.name: check for check in result.checks()}
    assert checks[OUTSIDE].value == 0
    assert sum(check.is_independent for check in checks.values()) >= 1


def test_a_default_run_with_a_transport_goes_on_from_its_checkpoint_and_is_stored(with_prior, tmp_path):
    first, result = with_prior
    np.testing.assert_array_equal(first["x"], result["x"][:, :100])
    assert first.provenance["chosen"] == result.provenance["chosen"]
    back = tz.Result.load(result.save(tmp_path / "run.tz"))
    assert back.transport.space.num_dims == 0  # theta was summed out: the transport is one of the reals
    z = jnp.ones(1)
    np.testing.assert_array_equal(back.transport.push(z).theta.reals, result.transport.push(z).theta.reals)


def test_no_transport_is_learned_where_none_is_wanted():
    result = tz.sample(two_modes, TWO_MODES, sampler=tz.Auto(transport=False), **DEFAULT)
    assert result.transport is None
    assert result.provenance["chosen"] == "tempered"
    assert result.verdict.grade != "trusted"  # ladders compared with ladders are no independent source


@pytest.fixture(scope="module")
def jumping(tmp_path_factory):
    sampler = tz.samplers.hybrid(transport=tz.autoregressive(width=16), training=tz.Training(num_steps=600))
    folder = tmp_path_factory.mktemp("jumping")
    run = {"seed": 0, "chains": 4, "warmup": 100, "sampler": sampler, "checkpoint": folder, "progress": "off"}
    first = tz.sample(two_modes, TWO_MODES, draws=100, **run)
    return first, tz.sample(two_modes, TWO_MODES, draws=600, **run)


def test_the_hybrid_jumps_between_two_modes_that_differ_in_both_kinds_of_variables(jumping):
    _, found = jumping
    is_right = found["x"] > 0
    assert (is_right.any(1) & (~is_right).any(1)).all()
    # jumps are nearly independent draws: the standard error of 2,400 of them, times 1.5
    assert abs(is_right.mean() - 0.7) < 3 * 1.5 * np.sqrt(0.3 * 0.7 / is_right.size)
    assert found.provenance["info"]["global_acceptance_rate"] > 0.5
    for name in ("importance", "bridge"):
        estimate = found.evidence_estimates[name]
        assert abs(estimate.log_z - LOG_Z) < 5 * estimate.standard_error < 0.1


def test_a_hybrid_run_goes_on_from_its_checkpoint_and_is_stored(jumping, tmp_path):
    first, found = jumping
    np.testing.assert_array_equal(first["x"], found["x"][:, :100])
    back = tz.Result.load(found.save(tmp_path / "run.tz"))
    z = jnp.ones(2)
    np.testing.assert_array_equal(back.transport.push(z).theta.reals, found.transport.push(z).theta.reals)
    assert "difference from the exploration (standard errors)" in {check.name for check in found.checks()}


def test_a_plan_repeats_a_run_without_its_warm_up(separated, tmp_path):
    stored = tz.Result.load(separated.save(tmp_path / "run.tz"))
    run = {"seed": 0, "chains": 4, "draws": 600, "warmup": 100, "progress": "off"}
    again = tz.sample(two_modes, TWO_MODES, plan=stored.plan, **run)
    np.testing.assert_array_equal(again["x"], separated["x"])
    assert again.provenance["chosen"] == separated.provenance["chosen"]
    other = tz.Target(lambda v: 2.0 * two_modes(v), TWO_MODES)
    with pytest.raises(tz.errors.ConfigurationError, match="plan"):
        tz.sample(other, plan=stored.plan, **run)


def test_the_exploration_is_a_check(separated):
    names = {check.name for check in separated.checks()}
    assert "difference from the exploration (standard errors)" in names
    assert separated.verdict.grade != "trusted"  # the reference of the ladders was fitted to the chains


def test_only_ladders_that_the_chains_did_not_make_can_confirm():
    """A mode far from where the chains are is outside of a reference that was fitted to them."""
    rng = np.random.default_rng(0)
    theta, reals = rng.integers(0, 2, (4, 500, 1)), rng.normal(size=(4, 500, 1))
    some = Explored(
        theta=theta[:, ::-1], reals=reals[:, ::-1], log_weights=np.zeros((4, 500, 2)), is_chosen=np.zeros((), bool),
        inverse_temperatures=np.array([0.0, 1.0]), mean=np.zeros(0), sd=np.zeros(0), log_probs=np.zeros((0, 2)),
        num_outside=np.full((), np.nan), num_tops=np.zeros(()), is_incomplete=np.zeros((), bool),
        **no_modes(1)._asdict(),
    )  # fmt: skip
    checks = lambda target: {c.name: c for c in exploration_checks(target, some, theta, reals)}
    with_prior = tz.Target(two_modes, TWO_MODES, reference=WIDE)
    assert all(c.passed for c in checks(with_prior).values())
    lost = exploration_checks(with_prior, some._replace(num_outside=np.asarray(2.0)), theta, reals)
    assert {c.name: (c.passed, c.grade) for c in lost}[OUTSIDE] == (False, "unchecked")
    alone = checks(tz.Target(two_modes, TWO_MODES))[REFERENCE]
    assert not alone.passed
    assert alone.grade == "unchecked"
    elsewhere = exploration_checks(with_prior, some._replace(theta=np.ones_like(theta)), np.zeros_like(theta), reals)
    assert not {c.name: c.passed for c in elsewhere}["difference from the exploration (standard errors)"]  # constants


def test_ladders_start_at_draws_of_the_users_reference():
    target = tz.Target(two_modes, TWO_MODES, reference=WIDE)
    spec, key = MIXED["tempered"], jax.random.key(0)
    problem = Problem(target, None, spec.prepare(target), None)
    tuning = spec.tuning(target)
    chains = Chains(make_mesh(64), spec, problem, 1, parameters=tuning.parameters(tuning.init()))
    anywhere = target.possible_starts(key, 64)
    start = hot_starts(chains, key, chains.start(key, anywhere), anywhere)
    assert np.abs(np.asarray(anywhere.reals)).max() <= 2
    assert np.abs(np.asarray(start.reals)).max() > 10
    assert np.isfinite(np.asarray(jax.vmap(target.log_density)(start.theta, start.reals))).all()


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: tz.sample(mixture, SPACE, seed=0, sampler="gibbs"), r"blocked\(discrete='gibbs'\)"),
        (lambda: tz.sample(mixture, SPACE, seed=0, sampler="smc"), "does not move real"),
        (lambda: tz.sample(mixture, SPACE, seed=0, sampler="latent_pcn"), "does not move real"),
        (lambda: tz.sample(mixture, SPACE, seed=0, sampler=tz.samplers.hybrid(local="tree_gibbs")), "tables"),
        (lambda: tz.sample(mixture, SPACE, seed=0, sampler=tz.Auto(transport=tz.product())), "transport"),
        (lambda: tz.maximize(mixture, SPACE, seed=0), "does not search"),
        (lambda: tz.condition(tz.Target(mixture, SPACE), {"scale": 1.0}), "real variables"),
        (lambda: tz.product().build(jax.random.key(0), SPACE), "real variables"),
        (lambda: tz.sample(mixture, SPACE, seed=0, sampler=tz.samplers.blocked(discrete="tree_gibbs")), "tables"),
        (lambda: tz.sample(mixture, SPACE, seed=0, sampler=tz.samplers.blocked(real="x")), "unknown"),
        (lambda: tz.sample(lambda t: t.astype(float).sum(), tz.binary(3), seed=0, sampler="blocked"), "real variables"),
    ],
)
def test_what_does_not_apply_is_refused_early(call, text):
    with pytest.raises(tz.errors.TerrazzoError, match=text):
        call()


def test_starts_are_checked():
    start = {"label": ["low"] * 6, "mean": [0.0, 1.0], "scale": -1.0}
    with pytest.raises(SpaceError, match="init: scale"):
        tz.sample(mixture, SPACE, sampler="blocked", init=start, **RUN)
    several = {"label": [["low"] * 6] * 3, "mean": [[0.0, 1.0]] * 3, "scale": [1.0] * 3}
    with pytest.raises(OptionError, match="for 4 chains"):
        tz.sample(mixture, SPACE, sampler="blocked", init=several, **RUN)


def test_starts_that_chance_never_finds_are_drawn_given_the_reals():
    """Forty sites were seen to be occupied: one of 2^40 configurations of theta is possible."""

    def log_prob(v):
        each = jnp.where(v["z"] > 0, jnp.log(v["p"]), -jnp.inf)
        return jnp.sum(each) + jnp.log1p(-v["p"])

    target = tz.Target(log_prob, tz.Space(z=tz.binary(40), p=tz.real(0.0, 1.0)), probe=False)
    start = target.possible_starts(jax.random.key(0), 4)
    assert (np.asarray(start.theta) == 1).all()
    assert len(np.unique(np.asarray(start.reals))) == 4


def test_explain_says_what_ties_the_discrete_variables_together():
    found = tz.explain(mixture, SPACE)
    assert found.num_colours == 1


ONE_REAL = {"x": tz.real(), "k": tz.binary()}


@pytest.mark.parametrize(
    ("log_prob", "space", "text"),
    [
        (lambda v: -0.5 * v["y"] ** 2, {"x": tz.real(), "y": tz.real()}, "'x' goes to its upper end"),
        (lambda v: jax.nn.log_sigmoid(v["x"]), ONE_REAL, "'x' goes to its upper end"),  # separable data, flat prior
        (lambda v: -jax.nn.softplus(v["x"]), ONE_REAL, "'x' goes to its lower end"),
        (lambda v: -0.5 * jnp.where(v["k"] > 0, v["x"], 0.0) ** 2, ONE_REAL, "improper"),  # a slab without a prior
        (lambda v: -jnp.log(v["s"]), {"s": tz.real(low=0.0)}, "'s' goes"),
        (lambda v: -v["s"][1], {"s": tz.real(low=0.0, shape=2)}, r"'s' \(coordinate 0\) goes to its upper end"),
        (lambda v: -0.5 * (v["c"][1] - v["c"][0]) ** 2, {"c": tz.ordered(2)}, r"'c' \(coordinate 0\)"),
    ],
)
def test_improper_distributions_are_refused_early(log_prob, space, text):
    with pytest.raises(tz.errors.TargetError, match=text):
        tz.sample(log_prob, tz.Space(**space), seed=0, sampler="blocked", progress="off")


def hierarchical(v):
    """A model of groups whose means are drawn around m by a scale s, in its centred form."""
    groups = -0.5 * jnp.sum(((v["x"] - v["m"]) / v["s"]) ** 2) - 5 * jnp.log(v["s"])
    return groups - jnp.log1p(v["s"] ** 2) - 0.5 * v["m"] ** 2 - 0.5 * jnp.sum((v["x"] - 1.0) ** 2)


@pytest.mark.parametrize(
    ("log_prob", "space"),
    [
        (lambda v: -0.5 * ((v["x"] - 1e6) / 1e4) ** 2, {"x": tz.real()}),
        (lambda v: -jnp.log1p(v["x"] ** 2), {"x": tz.real()}),  # Cauchy
        (lambda v: -0.999 * jnp.log(v["s"]) - 0.001 * v["s"], {"s": tz.real(low=0.0)}),  # Gamma(0.001, 0.001)
        (lambda v: -0.5 * (jnp.log(v["s"]) / 100.0) ** 2 - jnp.log(v["s"]), {"s": tz.real(low=0.0)}),
        (lambda v: 0.0 * v["p"], {"p": tz.real(0.0, 1.0)}),
        (lambda v: 0.0 * v["w"].sum(), {"w": tz.simplex(3)}),
        (lambda v: -0.5 * jnp.sum((v["c"] - 1e4) ** 2), {"c": tz.ordered(3)}),
        (hierarchical, {"s": tz.real(low=0.0), "m": tz.real(), "x": tz.real(5)}),  # no bound at x = m, s = 0
    ],
)
def test_wide_distributions_are_not_taken_for_improper(log_prob, space):
    check_proper(tz.Target(log_prob, tz.Space(**space)))


def test_what_is_improper_along_two_coordinates_together_is_not_trusted():
    found = tz.sample(
        lambda v: -0.5 * (v["a"] + v["b"]) ** 2, tz.Space(a=tz.real(), b=tz.real()), seed=0, chains=4, draws=100,
        warmup=100, sampler=tz.samplers.blocked(max_doublings=5), progress="off",
    )  # fmt: skip
    assert found.verdict.grade == "not trusted"
