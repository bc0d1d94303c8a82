"""The default sampler: its pipeline, its choices, its budgets, and above all whether it notices a lost mode."""

import importlib
import os
import time
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import terrazzo as tz
from planted_modes import SPACE, Case
from terrazzo import devices, running
from terrazzo.background import meanwhile, num_cores
from terrazzo.diagnostics import LogZ, mcse
from terrazzo.diagnostics.coverage import disagreement, evidence_gap, share_beyond, start_r_hat
from terrazzo.errors import OptionError, TargetError, TransportError
from terrazzo.progress import Progress
from terrazzo.samplers import REGISTRY
from terrazzo.warmup import Budget, agreement, learning, pipeline, prospect, settle_evidence
from terrazzo.warmup import exploration as exploration_module
from terrazzo.warmup import trial as trial_module
from terrazzo.warmup.exploration import BLOCK, FEWEST, FEWEST_KEPT, Explored, deal_rungs, explore
from terrazzo.warmup.locals import SAFE_FLAG, Local, candidates, exploring_kernel, may_hang
from terrazzo.warmup.mixing import least_ess, relaxation
from terrazzo.warmup.prospect import expected_acceptance, foretold
from terrazzo.warmup.trial import APART, MET, WILL_MEET, Row, Trial, Tried

PHASES = [
    "exploring",
    "learning from the draws",
    "learning from the target",
    "weighing the transport",
    "trying local moves",
    "trying the transport",
]
SMALL = {
    "chains": 8, "draws": 400, "progress": "off", "transport_options": {"width": 16},
    "training": {"num_steps": 200, "batch_size": 64}, "exploration": {"max_rounds": 300},
}  # fmt: skip


def log_prob(theta):
    spins = 2.0 * theta.astype(float) - 1.0
    return 0.6 * jnp.sum(spins[1:] * spins[:-1]) + 0.3 * spins[0] - 0.2 * spins[4]


@pytest.fixture(scope="module")
def target():
    return tz.Target(log_prob, tz.binary(6))


@pytest.fixture(scope="module")
def result(target):
    return tz.sample(target, seed=1, **SMALL)


def same(a, b):
    return (a.theta == b.theta).all() and (a.log_prob == b.log_prob).all()


# ---- the pipeline


def test_it_is_right_and_says_what_it_did(target, result):
    states = target.space.enumerate()
    values = np.asarray(jax.vmap(target.log_prob)(jnp.asarray(states, jnp.int32)))
    log_z = np.log(np.exp(values).sum())
    mean = np.exp(values - log_z) @ states
    z = (result.theta.mean(axis=(0, 1)) - mean) / mcse(result.theta.astype(float))
    assert np.abs(z).max() < stats.norm.isf(1e-6 / 2 / 6)
    assert result.verdict.is_trusted, result.diagnose()
    for name in ("importance", "bridge", "tempering"):
        estimate = result.evidence_estimates[name]
        assert abs(estimate.log_z - log_z) < 5 * estimate.standard_error, name
    assert result.evidence == min(result.evidence_estimates.values(), key=lambda v: v.standard_error)
    for phase in PHASES:
        assert phase in result.provenance["seconds"]
    warm_up = result.provenance["warm-up"]
    assert warm_up["exploration"]["rounds"] > 0
    assert len(warm_up["choice"]["trial"]) >= 4
    assert "effective draws a second" in result.choice


def test_the_diagnosis_prints_every_check(result):
    text = str(result.diagnose())
    for check in result.checks():
        assert check.name in text
    for words in ("R-hat between starts", "tempered", "log Z, bridge", "sampler:", "verdict: trusted"):
        assert words in text


@pytest.mark.parametrize("options", [{"chunk_size": 7}, {"progress": "plain"}])
def test_chunks_and_progress_do_not_matter(target, result, options, capfd):
    assert same(result, tz.sample(target, seed=1, plan=result.plan, **{**SMALL, **options}))


@pytest.mark.parametrize("sampler", ["auto", "hybrid"])
def test_a_run_resumes_to_the_same_draws(target, tmp_path, sampler, result):
    options = {**SMALL, "draws": 60, "sampler": sampler}
    folder = tmp_path / "run"
    whole = tz.sample(target, seed=1, checkpoint=folder, chunk_size=20, **options)
    files = sorted(folder.glob("draws-*.tz"))
    for file in files[len(files) // 2 :]:
        file.unlink()
    resumed = tz.sample(target, seed=1, checkpoint=folder, chunk_size=20, **options)
    assert same(whole, resumed)
    assert [c.name for c in whole.checks()] == [c.name for c in resumed.checks()]
    assert resumed.choice == whole.choice


def test_several_rounds_a_step_are_steps_to_the_user(target, tmp_path, monkeypatch):
    """As on an accelerator: proposals of a few rounds are drawn at once, and thinning still counts rounds."""
    monkeypatch.setattr(pipeline, "rounds_a_step", lambda thin: 3)
    options = {**SMALL, "draws": 60, "thin": 6, "sampler": "auto"}
    whole = tz.sample(target, seed=1, **options)
    assert whole.provenance["thin"] == 6
    assert same(whole, tz.sample(target, seed=1, plan=whole.plan, **{**options, "chunk_size": 7}))
    folder = tmp_path / "run"
    tz.sample(target, seed=1, checkpoint=folder, chunk_size=20, plan=whole.plan, **options)
    sorted(folder.glob("draws-*.tz"))[-1].unlink()
    assert same(whole, tz.sample(target, seed=1, checkpoint=folder, chunk_size=20, **options))


def test_many_draws_are_thinned_before_they_are_compared(target, result, monkeypatch):
    monkeypatch.setattr(agreement, "MAX_COMPARED", 6 * 8 * 50)
    again = tz.sample(target, seed=1, plan=result.plan, **SMALL)
    assert same(again, result)
    assert [c.name for c in again.checks()] == [c.name for c in result.checks()]


def test_exploration_keeps_to_its_seconds(target):
    budget = Budget(seconds=1e-3)
    with Progress("off") as progress:
        found = explore(jax.random.key(0), target, budget=budget, progress=progress)
    assert FEWEST - FEWEST // 3 <= found.theta.shape[1] < BLOCK
    assert found.kept_rounds == found.theta.shape[1]
    assert 0 < found.num_apart < found.theta.shape[1]


def test_everything_comes_back_from_a_file(result, tmp_path):
    again = tz.Result.load(result.save(tmp_path / "result.tz"))
    assert again.evidence_estimates.keys() == result.evidence_estimates.keys()
    assert str(again.diagnose()) == str(result.diagnose())
    assert again.choice == result.choice


def test_a_black_box_and_mixed_variables():
    space = tz.Space(on=tz.binary(3), level=tz.integers(-2, 2), colour=tz.categorical(["r", "g", "b"]))

    def plain(v):
        return float(0.5 * v["on"].sum() - 0.3 * abs(v["level"] - v["on"][0]) + 0.4 * (v["colour"] == 1))

    options = {**SMALL, "draws": 100, "training": {"num_steps": 30, "batch_size": 32}}
    options["exploration"] = {"max_rounds": 100, "num_ladders": 2}
    out = tz.sample(tz.blackbox(plain), space, seed=0, **options)
    assert out.draws["level"].min() >= -2
    assert np.isfinite(out.log_z)
    assert "R-hat between starts" in [c.name for c in out.checks()]


def test_a_value_that_is_not_a_number_is_found_while_exploring():
    def hidden(theta):
        return jnp.where(theta.sum() == 12, jnp.nan, 3.0 * jnp.sum(theta.astype(float)))

    with pytest.raises(TargetError, match="nan"):
        tz.sample(tz.Target(hidden, tz.binary(12), probe=False), seed=0, **SMALL)


# ---- what is tried, and what is chosen


def test_local_kernels_follow_the_target(target):
    assert [c.name for c in candidates(target)] == ["gibbs", "discrete_langevin"]
    lattice = tz.problems.ising_torus(8).target
    assert exploring_kernel(lattice)[0] == "coloured_gibbs"
    wide = tz.Target(lambda t: -0.01 * jnp.sum((t.astype(float) - 50.0) ** 2), tz.integers(0, 200, (3,)))
    assert exploring_kernel(wide)[0] == "slice_gibbs"
    assert [c.name for c in candidates(tz.problems.variable_selection(6, 2, noise=1.0).target)] == ["systematic_gibbs"]
    box = tz.Target(tz.blackbox(lambda t: -float(t.sum())), tz.integers(0, 5, (3,)))
    assert [c.name for c in candidates(box)] == ["discontinuous_hmc", "integer_metropolis", "gibbs"]


def test_gradients_of_linear_algebra_come_with_a_warning(monkeypatch):
    """They can make XLA wait for ever on several cores; a flag that XLA is given takes the warning away."""
    small = tz.problems.variable_selection(6, 2, noise=1.0).target
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    monkeypatch.setenv("XLA_FLAGS", "")
    options = {"sampler": "gibbs_with_gradients", "chains": 2, "draws": 4, "warmup": 2, "progress": "off"}
    with pytest.warns(RuntimeWarning, match="XLA_FLAGS="):
        tz.sample(small, seed=0, **options)
    monkeypatch.setenv("XLA_FLAGS", SAFE_FLAG)
    assert not may_hang(small)
    assert not may_hang(tz.problems.ising_torus(4).target)


def test_a_transport_that_cannot_pay_is_given_up(target, monkeypatch):
    """With a rival that nothing beats, and a divergence that says jumps are never accepted."""
    monkeypatch.setattr(learning, "ENOUGH_IS_ESS", 1.0)
    monkeypatch.setattr(learning, "can_pay", lambda checks, rival, **costs: len(checks) < 3)
    options = {name: value for name, value in SMALL.items() if name != "training"}
    found = tz.sample(target, seed=1, **options)
    stages = found.provenance["warm-up"]["training"]["stages"]
    assert stages[-1]["reason"] == learning.CANNOT_PAY
    assert "given up" in found.choice
    assert found.transport is None
    assert "weighing the transport" not in found.provenance["seconds"]
    assert found.verdict.is_trusted, found.diagnose()
    asked = tz.sample(target, seed=1, **SMALL)  # how to train was said: it is not given up
    assert asked.transport is not None


def test_no_transport_is_learned_where_single_local_moves_draw_independently(monkeypatch):
    """In limited time a jump could only add its cost; without a limit, or where draws depend on each other, it may."""
    small = tz.problems.variable_selection(6, 2, noise=1.0).target
    options = {
        "chains": 8, "draws": 200, "thin": 1, "progress": "off", "max_seconds": 99.0, "exploration": {"max_rounds": 99},
    }  # fmt: skip
    found = tz.sample(small, seed=0, **options)
    assert found.choice.startswith("1 x systematic_gibbs")
    assert pipeline.NOT_BEGUN in found.choice
    assert found.transport is None
    assert "learning from the draws" not in found.provenance["seconds"]
    assert found.verdict.is_trusted, found.diagnose()
    learned = []
    monkeypatch.setattr(
        pipeline, "learn", lambda *_, **__: learned.append(1) or learning.Learned(None, {}, {"stages": []})
    )
    for changed, limit in (({"training": {"num_steps": 4}}, 1.25), ({"max_seconds": None}, 1.25), ({}, 0.5)):
        monkeypatch.setattr(prospect, "INDEPENDENT", limit)
        tz.sample(small, seed=0, **options | changed)
    assert len(learned) == 3


def test_the_divergence_foretells_the_acceptance(target, result):
    """erfc(sqrt(J / 2) / 2) with the J of held-out draws, against the acceptance that weights give."""
    history = result.history
    divergence = 2.0 * history["held_out"][-1] + result.log_prob.mean()
    accepted = result.provenance["warm-up"]["transport"]["acceptance"]
    assert abs(expected_acceptance(divergence) - accepted) < 0.2


@pytest.mark.parametrize(("end", "expected"), [(200, 20.0), (400, 5.0), (800, 1.25)])
def test_progress_is_continued_as_a_power(end, expected):
    assert np.isclose(foretold([(50, 80.0), (100, 40.0), (200, 20.0)], end), expected)
    assert foretold([(100, 10.0), (200, 12.0)], end) == 10.0  # it never grows
    assert foretold([(100, 10.0), (200, -0.1)], end) == 0.0


@pytest.mark.parametrize("time", [15.0, 30.0])
def test_slow_chains_are_told_from_stuck_ones(time):
    """An autoregressive process relaxes in its time constant; with a shift of each chain that never goes, never."""
    rng = np.random.default_rng(0)
    keep = np.exp(-1 / time)
    x = [rng.normal(size=(64, 30))]
    for _ in range(63):
        x.append(keep * x[-1] + np.sqrt(1 - keep**2) * rng.normal(size=(64, 30)))
    slow = np.stack(x, axis=1)
    found = relaxation(slow, slow[..., 0])
    assert 0.6 * time < found < 1.6 * time
    stuck = slow + 3.0 * rng.choice([-1.0, 1.0], size=(64, 1, 1)) * (np.arange(30) < 15)
    assert relaxation(stuck, stuck[..., 0]) == np.inf


def test_what_hardly_decays_in_a_trial_counts_as_stuck():
    """A walk with a time constant far beyond its records may as well be shut in."""
    rng = np.random.default_rng(0)
    walk = rng.normal(size=(64, 1, 30)) + 0.05 * np.cumsum(rng.normal(size=(64, 64, 30)), axis=1)
    assert relaxation(walk, walk[..., 0]) == np.inf


def test_chains_that_never_met_rank_last():
    trial = Trial.__new__(Trial)
    trial.num_chains, trial.passed_over = 8, set()
    row = lambda worth, agreement, uses=False: Row("", "hybrid", {}, uses, 8.0, 1.0, worth, 1.0, 1.0, agreement)
    stuck, slow, met, through = row(1e6, APART), row(9.0, WILL_MEET), row(1.0, MET), row(5.0, APART, True)
    ordered = [met, slow, through, stuck]
    assert sorted([stuck, through, slow, met], key=trial._rank, reverse=True) == ordered


def test_compilation_is_not_counted_as_the_trial(target):
    """On one core the loops are not compiled beforehand; candidates must not lose their time to that."""
    trial = Trial.__new__(Trial)
    trial.budget = Budget(seconds=60.0)
    trial._draw = lambda *_: (time.sleep(0.1), {})
    left = trial.budget.seconds_left("local trial")
    trial._first_step(REGISTRY["hybrid"], running.Problem(target, None, {}), None, "")
    assert trial.budget.seconds_left("local trial") > left - 0.05


def test_independent_records_are_looked_at_more_closely(target, monkeypatch):
    """Steps so cheap that records are thinned from the first: the gap of independent steps is one, not the thinning."""
    rng = np.random.default_rng(0)
    trial = Trial.__new__(Trial)
    trial.target, trial.num_chains, trial.rounds, trial.seconds = target, 8, 1, 1.5
    trial.mesh = trial.init_key = trial.starts = trial.transport = None
    trial.rows, trial.done, trial.phase, trial.budget = [], 0, "local trial", Budget()
    trial.progress = SimpleNamespace(update=lambda *_, **__: None)
    monkeypatch.setattr(running, "start", lambda *_: None)
    monkeypatch.setattr(Trial, "_step_seconds", lambda *_: 1e-5)

    def independent(spec, problem, states, first, count, thin, label):
        theta, ones = rng.integers(0, 2, (8, count, 6)), np.ones((8, count))
        return states, {"theta": theta, "log_prob": theta.sum(-1), "num_evaluations": ones, "acceptance_rate": ones}

    trial._draw = independent
    assert trial._measure("", {}, uses_transport=False)[0].gap < 2
    monkeypatch.setattr(trial_module, "SATURATED", 2.0)  # never
    assert trial._measure("", {}, uses_transport=False)[0].gap > 4


def test_in_limited_time_the_most_worth_is_taken():
    """Without a limit, of two that are nearly as good, the one whose draws are less correlated."""
    trial = Trial.__new__(Trial)
    trial.num_chains, trial.passed_over = 8, set()
    row = lambda worth, gap: Row("", "hybrid", {}, False, 80.0, 1.0, worth, gap, 1.0, MET)
    trial.rows = [row(100.0, 20.0), row(95.0, 1.0)]
    trial.budget = Budget(seconds=60.0)
    assert trial._best().worth == 100.0
    trial.budget = Budget()
    assert trial._best().worth == 95.0


def test_limited_time_is_not_spent_on_a_transport_for_its_weights_alone():
    """Jumps that would be accepted, but are worth less than local moves whose chains have met."""
    checks, costs = [(50, 3.0), (100, 2.0), (200, 1.0)], {"last_step": 400, "batch_size": 128, "step_seconds": 0.1}
    met, not_met = prospect.Rival(2000.0, 32.0, local_worth=2000.0), prospect.Rival(2000.0, 32.0)
    assert not prospect.can_pay(checks, met, **costs, seconds_left=100.0)
    assert prospect.can_pay(checks, met, **costs, seconds_left=None)
    assert prospect.can_pay(checks, not_met, **costs, seconds_left=100.0)  # tempering alone is worth that much


def test_of_local_kernels_that_never_met_the_first_is_taken(monkeypatch):
    """Short trials of slow chains are noise: the order of what did best elsewhere decides, unless far slower."""
    row = lambda label, agreement, worth=1.0: Row(label, "hybrid", {}, False, 8.0, 1.0, worth, 1.0, 1.0, agreement)
    tried = lambda label, speed, agreement, worth=1.0: Tried(row(label, agreement, worth), speed, Local(label, {}, 1))
    slow = [tried("a", 15.0, APART), tried("b", 40.0, WILL_MEET), tried("c", 20.0, APART)]
    assert Trial._favourite(slow).local.name == "a"
    assert Trial._favourite([tried("a", 5.0, APART), *slow[1:]]).local.name == "b"
    assert Trial._favourite([*slow, tried("d", 1.0, MET, 3.0), tried("e", 1.0, MET, 2.0)]).local.name == "d"
    monkeypatch.setattr(trial_module, "FAR_BELOW", 1.0)  # the mutant: noise decides
    assert Trial._favourite(slow).local.name == "b"
    trial = Trial.__new__(Trial)
    trial.num_chains, trial.passed_over = 8, {"b"}
    assert trial._rank(row("b", WILL_MEET)) < trial._rank(row("a", APART))


def tempering_row(kept):
    """How the trial judges a tempering run of independent draws, `kept` of each ladder."""
    rng = np.random.default_rng(0)
    found = Explored(
        rng.integers(0, 2, (8, kept, 3)).astype(np.int8), rng.normal(size=(8, kept)), rng.normal(size=(8, kept, 2)),
        np.array([0.0, 1.0]), 1.0, None, "gibbs", {}, 1, kept, kept, 1, 1.0, 1.0, 0.1,
    )  # fmt: skip
    trial = Trial.__new__(Trial)
    trial.target = tz.Target(lambda t: 0.1 * jnp.sum(t.astype(float)), tz.binary(3))
    trial.num_chains, trial.rows = 8, []
    return trial._tempering(found)


def test_too_few_rounds_of_tempering_are_no_agreement(monkeypatch):
    """Nine draws of each ladder look independent by chance; this must not choose tempering."""
    assert tempering_row(9).agreement == APART
    assert tempering_row(64).agreement == MET
    assert tempering_row(9).ess <= 8 * 9
    monkeypatch.setattr(trial_module, "FEWEST_KEPT", 0)  # the mutant: without the rule, nine draws would do
    assert tempering_row(9).agreement == MET


def test_too_few_rounds_give_no_log_z(target, monkeypatch):
    """A standard error from ten rounds means nothing: such an estimate is not offered."""
    explored = lambda count: explore(
        jax.random.key(0), target, budget=Budget(evaluations=count), progress=Progress("off"), max_rounds=100
    )
    few = explored(1)
    assert few.log_prob.shape[1] == FEWEST - FEWEST // 3 < FEWEST_KEPT  # not what a chunk happened to hold
    assert few.evidence is None
    assert explored(10**9).evidence is not None
    monkeypatch.setattr(exploration_module, "FEWEST_KEPT", 0)  # the mutant: without the rule there would be one
    assert explored(1).evidence is not None


def test_work_is_done_meanwhile_and_its_errors_are_silent():
    done = []

    def work():
        for i in range(1000):
            done.append(i)
            time.sleep(0.005)
            yield

    with meanwhile(work()):
        time.sleep(0.2)
    count = len(done)
    time.sleep(0.05)
    assert len(done) == count < 1000
    assert count > 1 or num_cores() < 2

    def broken():
        yield
        raise ValueError("reported where it is asked for again")

    with meanwhile(broken()):
        pass


def test_what_is_compiled_ahead_is_what_runs(target, caplog):
    """A second compilation of the same loops would make the first a waste."""
    trial = Trial(
        jax.random.key(0), target, num_chains=8, mesh=devices.make_mesh(8), length=16, rounds=1, budget=Budget(),
        progress=Progress("off"),
    )  # fmt: skip

    def compiled(work):
        caplog.clear()
        with jax.log_compiles():
            work()
        told = [r.getMessage() for r in caplog.records]
        return [t for t in told if t.startswith("Finished XLA") and ("jit(draw)" in t or "jit(warm_up)" in t)]

    assert len(compiled(lambda: list(trial.compile_ahead()))) >= len(trial.candidates)
    assert not compiled(lambda: [trial._tried(local) for local in trial.candidates])


def test_the_least_ess_sees_chains_that_disagree():
    rng = np.random.default_rng(0)
    theta = rng.integers(0, 2, (8, 64, 3))
    log_prob = rng.normal(size=(8, 64))
    apart = np.where(np.arange(8)[:, None] < 4, 0, 1) * np.ones((8, 64), int)
    split = np.concatenate([theta, apart[..., None]], axis=-1)
    assert least_ess(theta, log_prob) > 200
    assert least_ess(split[..., 3:], log_prob) < 16 < least_ess(split, log_prob, is_centred=True)
    still = np.ones((8, 64, 3), int)  # one configuration: no chains agree better
    assert least_ess(still, 0 * log_prob) == least_ess(still, 0 * log_prob, is_centred=True) == 512.0
    still[:4] = 0
    assert least_ess(still, 0 * log_prob, is_centred=True) == 0.0


def test_a_worthless_transport_is_switched_off():
    """A transport that never leaves one state costs time and brings nothing."""
    blank = tz.product_transport(tz.binary(6))
    sharp = tz.Target(lambda t: 20.0 * jnp.sum(t.astype(float)), tz.binary(6))
    stuck = tz.fit(jax.random.key(0), blank, sharp, num_steps=300, learning_rate=0.1).transport
    even = tz.Target(log_prob, tz.binary(6))
    out = tz.sample(even, seed=0, transport=stuck, **{**SMALL, "training": False, "transport_options": None})
    assert "transport is switched off" in out.choice
    assert out.provenance["warm-up"]["transport"]["acceptance"] < 0.2


def test_deal_rungs_keeps_the_ends():
    betas = deal_rungs(np.array([0.0, 0.1, 1.0]), np.array([0.9, 0.1]), 9)
    assert betas[0] == 0
    assert betas[-1] == 1
    assert (np.diff(betas) > 0).all()
    assert (betas < 0.1).sum() > 5


# ---- budgets


def test_evaluations_are_kept_to(target):
    with pytest.warns(RuntimeWarning, match="of 100000 draws"):
        out = tz.sample(target, seed=0, max_evaluations=400_000, **{**SMALL, "draws": 100_000, "chains": 4})
    spent = out.sample_stats["num_evaluations"].sum()
    assert 0 < out.num_draws < 100_000
    assert spent < 400_000
    assert out.is_complete


def test_seconds_are_kept_to(target, result):
    out = tz.sample(target, seed=1, max_seconds=8.0, **SMALL)
    assert sum(out.provenance["seconds"].values()) < 30.0
    assert out.provenance["thin"] >= 1


def test_budgets_deal_out_what_is_left():
    budget = Budget(evaluations=1000)
    assert budget.evaluations_left("exploration") == pytest.approx(120)
    budget.spend_evaluations("exploration", 100)
    assert budget.evaluations_left("training") == pytest.approx(250)
    assert not budget.is_over
    budget.spend_evaluations("sampling", 900)
    assert budget.is_over
    assert not Budget().is_spent("trial")
    for seconds, exploring in ((50.0, 6.0), (200.0, 8.0), (1000.0, 30.0)):  # a long run explores a smaller share
        assert Budget(seconds=seconds).seconds_left("exploration") == pytest.approx(exploring, abs=0.1)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"max_seconds": 0}, "max_seconds"),
        ({"max_seconds": "1 min"}, "max_seconds"),
        ({"max_evaluations": -5}, "max_evaluations"),
        ({"exploration": {"rounds": 5}}, "rounds"),
        ({"exploration": {"max_rounds": 0}}, "max_rounds"),
        ({"training": {"objective": tz.reverse_kl()}}, "objective"),
        ({"sampler_options": {"num_local": 3}}, "sampler_options"),
        ({"keep_latent": True}, "keep_latent"),
        ({"sampler": "hybrid", "transport": False}, "transport"),
        ({"transport": "magic"}, "transport"),
    ],
)
def test_wrong_options(target, options, field):
    with pytest.raises((OptionError, TransportError)) as caught:
        tz.sample(target, seed=0, progress="off", **options)
    assert field in str(caught.value)
    assert len(str(caught.value).splitlines()) <= 5


# ---- what betrays a lost mode


def test_disagreement_has_its_false_alarm_rate():
    """1,000 comparisons of equal laws at alpha = 0.05: at most 0.05 + 4 s.e. = 0.078 of them alarm."""
    rng = np.random.default_rng(0)
    alarms = 0
    for _ in range(1000):
        out = disagreement(rng.normal(size=(4, 400, 5)), rng.normal(size=(8, 200, 5)), alpha=0.05)
        alarms += out.z > out.limit
    assert alarms / 1000 < 0.078


def test_disagreement_sees_a_missing_mode_but_no_rare_value():
    rng = np.random.default_rng(0)
    rare = rng.random((8, 1000, 1)) < 0.003
    never = np.zeros((8, 60, 1))
    out = disagreement(rare, never)
    assert out.z < out.limit
    mode = rng.random((8, 100, 1)) < 0.06
    out = disagreement(mode, np.zeros((8, 1000, 1)))
    assert out.z > out.limit


def test_starts_weights_and_evidence():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 300, 1))
    is_first = np.array([True, True, False, False])
    assert start_r_hat(x, is_first) < 1.01
    assert start_r_hat(x + 2.0 * is_first[:, None, None], is_first) > 1.2
    assert np.isnan(start_r_hat(x, np.ones(4, bool)))
    rare = np.zeros((16, 100, 2))
    rare[3, 40:44] = 1.0  # one chain stays four draws at a value that has a mass of 1e-5
    assert disagreement(rare, np.zeros((128, 500, 2))).z == 0.0
    rare[5:9, :40] = 1.0  # several do
    other = disagreement(rare, np.zeros((128, 500, 2)))
    assert other.z > other.limit
    same = disagreement(np.full((8, 11, 1), 1406.9317), np.full((16, 500, 1), 1406.9317 + 1e-7))
    assert same.z == 0.0  # one configuration, whose log pi two compiled functions round in two ways
    assert share_beyond(np.zeros(10), np.full((4, 100), 1e-3)) == (0.0, 0.0)
    share, error = share_beyond(np.zeros(10), np.where(rng.random((4, 100)) < 0.5, 1.0, -1.0))
    assert 0.3 < share < 0.7
    assert error > 0
    nan = float("nan")
    assert np.isnan(evidence_gap(LogZ(0.0, nan, 1.0, 0.0), LogZ(0.0, 0.1, 1.0, 0.0)))
    sharp, wide = LogZ(1.0, 0.001, 5.0, 2.0), LogZ(1.1, 0.1, nan, nan)
    found = settle_evidence({"importance": sharp, "tempering": wide}, least=0.0, is_settled=True)
    assert found[0] is wide  # the error of the other cannot be trusted
    assert settle_evidence({}, least=0.0, is_settled=True)[0] is None


def verdict_of(case, transport, seed):
    options = {"sampler": "hybrid", "sampler_options": {"num_local": 5}, "training": False}
    return tz.sample(case.target, seed=seed, transport=transport, progress="off", **options).verdict


def test_lost_modes_are_noticed_and_healthy_runs_trusted(monkeypatch):
    """20 transports that know a part of 2 to 8 modes (each at least 5 % of the mass), and 20 that know all of them."""
    monkeypatch.setattr(importlib.import_module("terrazzo.warmup.hunt"), "SECONDS", 0.2)  # forty hunts
    noticed, trusted = [], []
    for seed in range(20):
        case = Case(seed)
        assert case.target.space == tz.spaces.as_space(SPACE)
        noticed.append(not verdict_of(case, case.transport(case.part()), seed).is_trusted)
        trusted.append(verdict_of(case, case.transport(), seed).is_trusted)
    assert sum(noticed) >= 19, noticed
    assert sum(trusted) >= 19, trusted
