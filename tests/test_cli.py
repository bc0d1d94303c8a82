"""The command line and the demonstration, with tiny options."""

import os
import subprocess
import sys

import jax.numpy as jnp
import numpy as np
import pytest
from typer.testing import CliRunner

import terrazzo as tz
from terrazzo import cli
from terrazzo.paper.demo import run_demo
from terrazzo.samplers import REGISTRY

TINY = {
    "chains": 4,
    "draws": 40,
    "warmup": 10,
    "thin": 1,
    "sampler": tz.samplers.latent_random_walk(
        transport=tz.flow(architecture="affine", num_layers=1, width=8, context_width=4),
        training=tz.Training(num_steps=20, batch_size=16),
    ),
}


def run(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("cli") / "result.tz"
    target = tz.Target(lambda theta: 0.2 * jnp.sum(theta.astype(float)), tz.binary(3))
    result = tz.sample(target, seed=0, sampler="systematic_gibbs", chains=8, draws=400, warmup=20, progress="off")
    result.save(path)
    return result, path


def test_samplers_lists_them_all():
    out = run("samplers")
    assert out.exit_code == 0
    lines = out.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:] if not line.startswith(" ")] == list(REGISTRY)
    assert max(map(len, lines)) <= 100
    assert all(f"[{spec.reference}]" in out.stdout for spec in REGISTRY.values())


def test_no_arguments_is_help():
    assert "diagnose" in run().output


def test_diagnose_says_what_the_result_says(saved):
    result, path = saved
    out = run("diagnose", str(path))
    assert out.exit_code == {"not trusted": 3, "unchecked": 4}.get(result.verdict.grade, 0)
    assert f"verdict: {result.verdict}" in out.stdout
    for check in result.checks():
        assert check.name in out.stdout


def test_an_untrusted_result_exits_with_3(tmp_path):
    target = tz.Target(lambda theta: 20.0 * (theta[0] == theta[1]).astype(float), tz.binary(2))
    result = tz.sample(target, seed=0, sampler="gibbs", chains=4, draws=20, warmup=0, progress="off")
    assert not result.verdict.is_trusted
    result.save(tmp_path / "bad.tz")
    out = run("diagnose", str(tmp_path / "bad.tz"))
    assert out.exit_code == 3
    assert "NOT" in out.stdout


def test_errors_are_a_line_and_exit_code_1(tmp_path):
    """A file that is no result, in a process of its own: no traceback, nothing on stdout."""
    path = tmp_path / "not-a-result.tz"
    path.write_bytes(b"nonsense")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu"}
    out = subprocess.run(
        [sys.executable, "-c", "from terrazzo.cli import main; main()", "diagnose", str(path)],
        capture_output=True, text=True, env=environment, timeout=120, check=False,
    )  # fmt: skip
    assert out.returncode == 1
    assert out.stdout == ""
    assert out.stderr.startswith("error: ")
    assert "Traceback" not in out.stderr
    assert len(out.stderr.splitlines()) <= 5


def test_bad_options_exit_with_2():
    assert run("demo", "--mixture", "9").exit_code == 2
    assert run("no-such-command").exit_code == 2


def test_demo_compares_with_the_exact_law(tmp_path):
    report = run_demo(tmp_path / "made", seed=1, progress="off", **TINY)
    assert report.figure.read_bytes().startswith(b"\x89PNG")
    assert report.figure.parent == tmp_path / "made"
    assert report.result.theta.shape == (4, 40, 2)
    for distance in (report.tv_draws, report.tv_independent, report.tv_flow):
        assert 0 < distance < 1
    np.testing.assert_allclose(report.component_shares.sum(axis=1), 1.0)


def test_demo_command_prints_the_report(tmp_path, monkeypatch):
    import terrazzo.paper.demo

    report = run_demo(tmp_path, seed=1, progress="off", **TINY)
    monkeypatch.setattr(terrazzo.paper.demo, "run_demo", lambda *args, **options: report)
    out = run("demo", "--out", str(tmp_path), "--progress", "off")
    assert out.exit_code == 0
    for words in ("total variation", "verdict: ", "log Z", str(report.figure), "exact share"):
        assert words in out.stdout


def test_explain_reads_a_target_of_a_module(tmp_path, monkeypatch):
    (tmp_path / "models_to_explain.py").write_text(
        "import terrazzo as tz\nnumber = 3\n"
        "chain = tz.Target(lambda t: 0.5 * (t[1:] * t[:-1]).sum().astype(float), tz.binary(30))\n"
    )
    monkeypatch.chdir(tmp_path)
    out = run("explain", "models_to_explain:chain")
    assert out.exit_code == 0
    assert "29 terms on at most 2 sites" in out.stdout
    assert "exact answers by elimination" in out.stdout
    assert isinstance(run("explain", "models_to_explain:number").exception, tz.errors.TargetError)
    for mistyped in ("models_to_explain:other", "no_such_models:chain", "chain", ":"):
        assert isinstance(run("explain", mistyped).exception, tz.errors.OptionError)
