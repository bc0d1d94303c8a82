"""`sample` end to end: reproducible whatever the chunks, devices, display or interruptions; nothing drawn is lost."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from calls import sample_with
from terrazzo.engine import loop
from terrazzo.errors import OptionError, TargetError
from terrazzo.samplers import REGISTRY
from terrazzo.samplers.parts.ladders import default_ladder
from terrazzo.verdict.checks import NOTE

SMALL = {"architecture": "affine", "num_layers": 2, "width": 8, "context_width": 4}
TINY = {
    "chains": 4, "draws": 30, "warmup": 20, "progress": "off", "transport_options": SMALL,
    "training": {"num_steps": 40, "batch_size": 32},
}  # fmt: skip


def chain_log_prob(theta):
    spins = 2.0 * theta.astype(float) - 1.0
    return 0.4 * jnp.sum(spins[1:] * spins[:-1]) + 0.2 * spins[0]


@pytest.fixture(scope="module")
def target():
    return tz.Target(chain_log_prob, tz.binary(5))


@pytest.fixture(scope="module")
def reference(target):
    return sample_with(target, seed=3, sampler="latent_pcn", **TINY)


def same(a, b):
    return (np.asarray(a.theta) == np.asarray(b.theta)).all() and (a.log_prob == b.log_prob).all()


@pytest.mark.parametrize("chunk_size", [1, 7, 30])
def test_chunks_do_not_matter(target, reference, chunk_size):
    assert same(reference, sample_with(target, seed=3, sampler="latent_pcn", chunk_size=chunk_size, **TINY))


def test_progress_does_not_matter(target, reference, capfd):
    shown = sample_with(target, seed=3, sampler="latent_pcn", **{**TINY, "progress": "plain"})
    captured = capfd.readouterr()
    assert same(reference, shown)
    assert captured.out == ""
    for word in ("training", "warm-up", "sampling", "acceptance", "r hat"):
        assert word in captured.err


def test_another_seed_gives_other_draws(target, reference):
    other = sample_with(target, seed=4, sampler="latent_pcn", **TINY)
    assert not (np.asarray(other.theta) == np.asarray(reference.theta)).all()


def test_result_is_complete_and_described(target, reference):
    assert reference.draws["theta"].shape == (4, 30, 5)
    assert reference.draws["theta"].dtype == np.int64
    assert reference.codes.dtype == np.uint8
    assert reference.is_complete
    assert set(reference.sample_stats) == {"log_prob", "acceptance_rate", "num_evaluations"}
    assert set(reference.history) >= {"loss", "is_ess", "gradient_norm", "held_out"}
    assert reference.provenance["training"]["num_steps"] == 40
    log_prob = jax.jit(jax.vmap(target.log_prob))(jnp.asarray(np.asarray(reference.theta).reshape(-1, 5), jnp.int32))
    np.testing.assert_allclose(reference.log_prob.ravel(), np.asarray(log_prob), atol=1e-12)
    states = jnp.asarray(target.space.enumerate())
    exact = float(jax.scipy.special.logsumexp(jax.jit(jax.vmap(target.log_prob))(states)))
    assert abs(reference.log_z - exact) < 6 * reference.log_z_standard_error + 0.02


def test_save_and_load_with_its_transport(reference, tmp_path):
    reference.save(tmp_path / "run.tz")
    back = tz.Result.load(tmp_path / "run.tz")
    assert same(reference, back)
    z = jnp.linspace(-1.0, 1.0, 5)
    assert float(back.transport.push(z).log_volume) == float(reference.transport.push(z).log_volume)


def test_thinning_keeps_every_nth(target):
    options = {"seed": 0, "sampler": "gibbs", "chains": 2, "warmup": 0, "progress": "off"}
    every = sample_with(target, draws=24, **options)
    third = sample_with(target, draws=8, thin=3, **options)
    assert (np.asarray(third.theta) == np.asarray(every.theta)[:, 2::3]).all()


def test_latent_draws_push_to_the_draws(target):
    result = sample_with(target, seed=0, sampler="latent_pcn", keep_latent=True, **TINY)
    pushed = jax.jit(jax.vmap(jax.vmap(result.transport.push)))(jnp.asarray(result.latent)).theta
    assert (np.asarray(pushed) == np.asarray(result.theta)).all()


def test_names_dims_and_labels_reach_the_result():
    space = tz.Space(
        colour=tz.categorical(["red", "green", "blue"], 2, dims="site", coords={"site": ["a", "b"]}),
        count=tz.integers(-2, 3),
        flag=tz.binary(),
    )

    def log_prob(v):
        return 0.5 * jnp.sum(v["colour"] == 0).astype(float) - 0.1 * v["count"].astype(float) ** 2 + 0.3 * v["flag"]

    with jax.numpy_dtype_promotion("standard"):
        result = sample_with(log_prob, space, seed=0, sampler="gibbs", draws=50, chains=3, progress="off")
    assert set(np.unique(result.draws["colour"])) <= {"red", "green", "blue"}
    assert result.draws["count"].min() >= -2
    assert result.draws["flag"].shape == (3, 50)
    posterior = result.to_arviz().posterior
    assert posterior["colour"].dims == ("chain", "draw", "site")


def test_black_boxes_and_batch_functions_agree():
    def plain(theta):
        return float(np.sin(theta).sum()) * 0.5

    options = {"seed": 0, "sampler": "gibbs", "draws": 20, "chains": 2, "warmup": 5, "progress": "off"}
    one = sample_with(tz.blackbox(plain), tz.integers(0, 4, 3), **options)
    many = sample_with(tz.blackbox(lambda t: np.sin(t).sum(-1) * 0.5, vectorized=True), tz.integers(0, 4, 3), **options)
    traced = sample_with(
        lambda t: 0.5 * jnp.sin(t.astype(float)).sum(-1), tz.integers(0, 4, 3), vectorized=True, **options
    )
    assert same(one, many)
    assert (np.asarray(one.theta) == np.asarray(traced.theta)).all()


def test_black_box_that_fails_late_is_reported():
    calls = []

    def fails(theta):
        calls.append(1)
        if len(calls) > 60:
            raise RuntimeError("the disk is gone")
        return 0.0

    with pytest.raises(TargetError, match="the disk is gone"):
        sample_with(tz.blackbox(fails), tz.binary(2), seed=0, sampler="gibbs", draws=200, progress="off")


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_and_inf_are_found_with_theta(value):
    space = tz.integers(0, 40, 3)

    def log_prob(theta):
        return jnp.where(jnp.sum(theta) == 37, value, 0.0)

    with pytest.raises(TargetError, match="at theta = ") as caught:
        sample_with(log_prob, space, seed=0, sampler="metropolis", draws=5000, chains=64, warmup=0, progress="off")
    assert len(str(caught.value).splitlines()) <= 5


def test_impossible_starts_are_redrawn_or_reported():
    def rare(theta):
        return jnp.where(jnp.all(theta == 1), 0.0, -jnp.inf)

    assert tz.Target(rare, tz.binary(2)).possible_starts(jax.random.key(0), 8).min() == 1
    with pytest.raises(TargetError, match="-inf at all of"):
        sample_with(rare, tz.binary(40), seed=0, sampler="gibbs", progress="off")
    fixed = sample_with(
        rare, tz.binary(40), seed=0, sampler="gibbs", draws=3, warmup=0, init=np.ones(40), progress="off"
    )
    assert fixed.theta.min() == 1


def interrupting(monkeypatch, error, after):
    """Chains that raise instead of drawing their n-th chunk; calls for no draws only compile."""
    calls, real = [], loop.Chains.draw

    def draw(chains, key, states, first, count, thin):
        if count > 0:
            calls.append(1)
        if len(calls) > after:
            raise error
        return real(chains, key, states, first, count, thin)

    monkeypatch.setattr(loop.Chains, "draw", draw)


def test_ctrl_c_returns_what_was_drawn(target, reference, monkeypatch):
    interrupting(monkeypatch, KeyboardInterrupt(), 3)
    result = sample_with(target, seed=3, sampler="latent_pcn", chunk_size=5, **TINY)
    assert not result.is_complete
    assert not result.verdict.is_trusted
    assert (np.asarray(result.theta) == np.asarray(reference.theta)[:, :15]).all()


def test_an_error_carries_what_was_drawn(target, reference, monkeypatch):
    interrupting(monkeypatch, RuntimeError("device lost"), 2)
    with pytest.raises(RuntimeError, match="device lost") as caught:
        sample_with(target, seed=3, sampler="latent_pcn", chunk_size=5, **TINY)
    assert (np.asarray(caught.value.partial_result.theta) == np.asarray(reference.theta)[:, :10]).all()


def test_resume_gives_the_same_draws(target, reference, monkeypatch, tmp_path):
    options = {"seed": 3, "sampler": "latent_pcn", "checkpoint": tmp_path / "run", "chunk_size": 5, **TINY}
    with monkeypatch.context() as patch:
        interrupting(patch, RuntimeError("killed"), 2)
        with pytest.raises(RuntimeError):
            sample_with(target, **options)
    (tmp_path / "run" / "draws-00001.tz").write_bytes(b"torn")  # the last file was half written
    resumed = sample_with(target, **options)
    assert same(reference, resumed)
    assert same(reference, sample_with(target, **options))  # a finished run is read back
    with pytest.raises(OptionError, match="belongs to a run with seed"):
        sample_with(target, **{**options, "seed": 4})


def test_a_full_disk_does_not_end_the_run(target, reference, monkeypatch, tmp_path):
    from terrazzo.storage import checkpoints

    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "write_file", full)
    with pytest.warns(RuntimeWarning, match=r"setup\.tz.*No space left"):
        result = sample_with(target, seed=3, sampler="latent_pcn", checkpoint=tmp_path / "run", **TINY)
    assert same(reference, result)
    assert "No space left" in result.provenance["checkpoint_error"]
    failed = next(check for check in result.checks() if check.name == "checkpoints written")
    assert not failed.passed
    assert failed.grade == NOTE


def test_double_precision_on_request():
    with jax.enable_x64(False):
        result = sample_with(
            lambda t: jnp.sum(t.astype(float)), tz.binary(2), seed=0, sampler="gibbs", draws=5, precision="float64",
            progress="off",
        )  # fmt: skip
    assert result.log_prob.dtype == np.float64


LOCAL = sorted(name for name, spec in REGISTRY.items() if "transport" not in spec.needs)


@pytest.mark.parametrize("name", LOCAL)
def test_local_samplers_through_the_one_call(target, name, tmp_path):
    """Each of them runs, says what was tuned, and is read back from its checkpoint."""
    options = {"sampler": name, "draws": 6, "chains": 2, "warmup": 5, "progress": "off", "checkpoint": tmp_path / "run"}
    coupled = tz.problems.ising_chain(5).target if "pairwise" in REGISTRY[name].needs else target
    result = sample_with(coupled, seed=0, **options)
    assert result.theta.shape == (2, 6, 5)
    again = sample_with(coupled, seed=0, **options)
    assert same(result, again)
    assert str(again.provenance["tuned"]) == str(result.provenance["tuned"])
    assert bool(result.provenance["tuned"]) == (REGISTRY[name].tuning is not None)


def test_tempering_gives_the_evidence(target):
    """log Z of the Ising chain from all temperatures, within five standard errors."""
    result = sample_with(target, seed=0, sampler="parallel_tempering", draws=400, warmup=100, progress="off")
    exact = float(
        jax.scipy.special.logsumexp(jax.jit(jax.vmap(target.log_prob))(jnp.asarray(target.space.enumerate())))
    )
    assert abs(result.log_z - exact) < 5 * result.log_z_standard_error
    assert result.log_z_standard_error < 0.1


def test_tempering_with_an_exploration_says_what_it_ran_on(target):
    """Its ladder is the default one then, which no tuning found and no user gave."""
    sampler = tz.samplers.parallel_tempering(
        num_temperatures=4, kernel="systematic_gibbs", exploration=tz.Exploration(max_rounds=50)
    )
    result = tz.sample(target, seed=0, sampler=sampler, draws=40, progress="off")
    np.testing.assert_allclose(result.replicas.inverse_temperatures, default_ladder(4))
    assert result.replicas.log_prob.shape[2] == 4


def test_hybrid_through_the_one_call(target):
    options = {**TINY, "transport_options": {"width": 8}}
    result = sample_with(target, seed=0, sampler="hybrid", transport="autoregressive", **options)
    assert result.theta.shape == (4, 30, 5)
    assert "transport" in REGISTRY["hybrid"].needs


def test_defaults_are_documented():
    for field in dataclasses.fields(tz.Training):
        assert field.name in tz.fit.__doc__
