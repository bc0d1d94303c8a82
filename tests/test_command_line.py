"""`terrazzo sample` and what reads its folders: output, files, exit codes, and what happens on a signal."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from typer.testing import CliRunner

import terrazzo as tz
from terrazzo import cli
from terrazzo.cli.models import bound
from terrazzo.cli.requests import RunRequest, load_request
from terrazzo.errors import ConfigurationError, FileFormatError, OptionError, TargetError
from terrazzo.samplers import REGISTRY

MODELS = """
import time
import jax.numpy as jnp
import numpy as np
import terrazzo as tz

def log_prob(gamma, k, X, y):
    k = k.astype(X.dtype)
    return -0.5 * jnp.sum((y - X @ gamma.astype(X.dtype)) ** 2) / k - 0.5 * len(y) * jnp.log(k)

def coins(theta):
    return 0.3 * jnp.sum(theta.astype(float))

def named(values):
    return 0.3 * jnp.sum(values["a"].astype(float)) - values["b"].astype(float)

def mixed(k, x):
    return -0.5 * (x - 2.0 * k.astype(x.dtype)) ** 2

def stuck(theta):
    return 40.0 * (jnp.sum((2.0 * theta.astype(float) - 1.0)) / 8.0) ** 2

def plain(theta):
    return float(np.sum(theta))

def slow(theta):
    time.sleep(0.002)
    return float(np.sum(theta))

target = tz.Target(coins, tz.binary(3))
number = 3
"""
QUIET = ("--progress", "off", "--chains", "4", "--draws", "60")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "models_of_cli.py").write_text(MODELS)
    rng = np.random.default_rng(0)
    X = rng.normal(size=(20, 4)).astype(np.float32)
    np.savez(tmp_path / "data.npz", X=X, y=X[:, 1])
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "models_of_cli", raising=False)
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(cli.app, list(arguments))


def sample(name, *arguments):
    return run("sample", f"models_of_cli:{name}", *QUIET, *arguments)


def test_sample_stores_what_the_others_read(folder):
    space = "gamma: binary[4], k: integers[1, 6]"
    out = sample("log_prob", "--space", space, "--data", "data.npz", "--out", "run", "--seed", "3")
    assert out.exit_code == 0, out.output
    assert "verdict: exact" in out.stdout
    result = tz.Result.load(folder / "run" / "result.tz")
    assert result["gamma"].shape == (4, 60, 4)
    assert "terrazzo sample models_of_cli:log_prob" in result.provenance["command"]
    assert "--seed 3" in result.provenance["command"]
    assert json.loads((folder / "run" / "run.json").read_text())["space"] == space
    for command in ("summary", "diagnose"):
        text = run(command, "run")
        assert text.exit_code == 0
        assert "verdict: exact" in text.stdout
        record = json.loads(run(command, "run", "--json").stdout)
        assert record["verdict"]["grade"] == "exact"
        assert record["summary"]["gamma[1]"]["mean"] == pytest.approx(result["gamma"][..., 1].mean())
        assert ("checks" in record) == (command == "diagnose")
    assert run("report", "run").stdout.strip() == "run/run.html"
    page = (folder / "run" / "run.html").read_text(encoding="utf-8")
    assert "--seed 3" in page
    assert run("report", "run/result.tz", "--out", "other.html").stdout.strip() == "other.html"


def test_spaces_with_reals_are_sampled(folder):
    out = sample("mixed", "--space", "k: binary, x: real[-9, 9]", "--sampler", "collapsed", "--out", "run")
    assert "stored in run" in out.output
    record = json.loads(run("summary", "run", "--json").stdout)
    assert record["space"] == "k: binary, x: real[-9, 9]"
    assert record["coordinates"] == 2
    assert tz.Result.load(folder / "run" / "result.tz")["x"].shape == (4, 60)


def test_the_same_command_and_seed_give_the_same_draws(folder):
    for name in ("a", "b"):
        assert sample("coins", "--space", "binary[5]", "--sampler", "gibbs", "--out", name).exit_code in (3, 4)
    a, b = (tz.Result.load(folder / name / "result.tz") for name in "ab")
    assert (a.theta == b.theta).all()


def test_resume_makes_a_run_longer(folder):
    sample("coins", "--space", "binary[5]", "--sampler", "gibbs", "--out", "run")
    first = tz.Result.load(folder / "run" / "result.tz")
    assert run("resume", "run", "--draws", "90", "--progress", "off").exit_code in (3, 4)
    longer = tz.Result.load(folder / "run" / "result.tz")
    assert longer.num_draws == 90
    assert (longer.theta[:, :60] == first.theta).all()
    assert load_request(folder / "run").draws == 90
    with pytest.raises(ConfigurationError, match="holds another run"):
        raise sample("coins", "--space", "binary[5]", "--sampler", "gibbs", "--out", "run", "--seed", "9").exception


def test_exit_codes_follow_the_verdict(folder):
    assert sample("coins", "--space", "binary[5]").exit_code == 0
    assert sample("stuck", "--space", "binary[16]", "--sampler", "gibbs", "--warmup", "0").exit_code == 3
    out = sample("coins", "--space", "binary[5]", "--sampler", "systematic_gibbs", "--draws", "600", "--json")
    assert out.exit_code == 4
    assert json.loads(out.stdout)["verdict"]["grade"] == "unchecked"


@pytest.mark.parametrize(
    "arguments",
    [
        ("named", "--space", "a: binary[3], b: integers[0, 4]"),
        ("target",),
        ("plain", "--space", "binary[4]", "--blackbox", "--sampler", "metropolis"),
        ("coins", "--space", "binary[4]", "--sampler", "gibbs", "--option", "num_updates=2"),
        ("coins", "--space", "binary[4]", "--option", "transport=false", "--max-seconds", "60"),
        ("coins", "--space", "binary[4]", "--sampler", "smc", "--out", "run"),
        ("coins", "--space", "binary[4]", "--precision", "float64", "--thin", "2"),
    ],
)
def test_functions_and_samplers_of_every_kind(folder, arguments):
    out = sample(*arguments)
    assert out.exit_code in (0, 3, 4), out.output
    assert "verdict: " in out.stdout


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        (("coins",), OptionError, "--space: is missing"),
        (("target", "--space", "binary[3]"), OptionError, "a tz.Target already"),
        (("number", "--space", "binary[3]"), TargetError, "is of type int"),
        (("nothing", "--space", "binary[3]"), OptionError, "there are coins, log_prob"),
        (("coin", "--space", "binary[3]"), OptionError, "did you mean coins"),
        (("plain", "--space", "binary[3]"), TargetError, "as it is with --blackbox"),
        (("coins", "--space", "binary[3]", "--data", "data.npz"), OptionError, "'X' is not a parameter"),
        (("coins", "--space", "binary[3]", "--data", "no.npz"), FileFormatError, "cannot be read"),
        (("coins", "--space", "binary[3]", "--data", "models_of_cli.py"), FileFormatError, "no .npz file"),
        (("log_prob", "--space", "gamma: binary[4], k: integers[1, 6]"), OptionError, "parameter 'X' is neither"),
        (("coins", "--space", "binary[3]", "--sampler", "gibs"), OptionError, "did you mean gibbs"),
        (("coins", "--space", "binary[3]", "--sampler", "gibbs", "--option", "x"), OptionError, "not name=value"),
        (("coins", "--space", "binary[3]", "--sampler", "gibbs", "--option", "x=1"), OptionError, "not an option"),
        (("coins", "--space", "binary[3]", "--option", "x=1"), OptionError, "unexpected keyword"),
        (("coins", "--space", "binary[3]", "--out", "."), OptionError, "holds other files"),
        (("coins", "--space", "binary[3]", "--out", "data.npz"), OptionError, "is a file"),
        (("coins", "--space", "binary[3]", "--precision", "half"), OptionError, "precision"),
    ],
)
def test_mistakes_have_types_and_remedies(folder, arguments, error, says):
    out = sample(*arguments)
    assert isinstance(out.exception, error), out.output
    assert says in str(out.exception)


@pytest.mark.parametrize(
    ("target", "code", "error", "says"),
    [
        ("no_such_module:f", "", OptionError, "there is no module 'no_such_module'"),
        ("models_of_cli", "", OptionError, "is not module:function"),
        (
            "broken_syntax:f",
            "def f(theta:\n",
            TargetError,
            "SyntaxError: '(' was never closed (broken_syntax.py, line 1)",
        ),
        ("broken_line:f", "x = 1\nx / 0\n", TargetError, "ZeroDivisionError: division by zero (broken_line.py, line 2"),
        ("broken_import:f", "import no_such_package\n", TargetError, "No module named 'no_such_package'"),
    ],
)
def test_a_module_that_is_missing_or_broken_is_a_short_error(folder, target, code, error, says):
    if code:
        (folder / f"{target.split(':')[0]}.py").write_text(code)
    out = CliRunner().invoke(cli.app, ["sample", target, "--space", "binary[3]", *QUIET])
    assert isinstance(out.exception, error), out.output
    assert says in str(out.exception)


def test_data_never_unpickles(folder):
    np.savez(folder / "evil.npz", X=np.array([{"a": 1}], dtype=object), allow_pickle=True)
    out = sample("coins", "--space", "binary[3]", "--data", "evil.npz")
    assert isinstance(out.exception, FileFormatError)


def test_folders_that_are_no_runs(folder):
    (folder / "empty").mkdir()
    assert isinstance(run("summary", "empty").exception, FileFormatError)
    assert isinstance(run("resume", "empty").exception, FileFormatError)
    assert isinstance(run("report", "empty").exception, OptionError)  # taken for a reproduction without records
    for text in ("{}", "nonsense", '{"kind": "terrazzo run", "version": 1, "target": 3}'):
        (folder / "empty" / "run.json").write_text(text)
        assert isinstance(run("resume", "empty").exception, FileFormatError)
    assert "terrazzo resume" in str(run("summary", "empty").exception)


def test_arguments_reach_the_function_by_name():
    space = tz.Space(a=tz.binary(), b=tz.binary())
    assert bound(lambda b, a, c=2: (a, b, c), space, {})({"a": 0, "b": 1}) == (0, 1, 2)
    assert bound(lambda v, c: (v["a"], c), space, {"c": 5})({"a": 0, "b": 1}) == (0, 5)
    assert bound(lambda v, **rest: rest, space, {"c": 5})({"a": 0, "b": 1}) == {"c": 5}
    with pytest.raises(OptionError, match="variable of the space too"):
        bound(lambda a, b: 0, space, {"a": 5})


def test_a_command_is_written_so_that_a_shell_reads_it():
    request = RunRequest("m:f", space="a: binary[3]", options=["x=[1, 2]"], seed=4, blackbox=True)
    assert request.command(None) == "terrazzo sample m:f --space 'a: binary[3]' --blackbox --option 'x=[1, 2]' --seed 4"


def test_help_opens_with_an_example():
    for command in ("sample", "resume", "summary", "diagnose", "report", "explain", "completion"):
        text = run(command, "--help").stdout
        assert "Example:" in text.splitlines()[2], command
    assert "Example:" in run("--help").stdout.splitlines()[2]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_knows_commands_options_and_samplers(shell, tmp_path):
    out = run("completion", shell)
    assert out.exit_code == 0
    for word in ("sample", "resume", "max-seconds", "swendsen_wang", *REGISTRY):
        assert word in out.stdout
    if shutil.which(shell):
        (tmp_path / "script").write_text(out.stdout)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=30)


def test_bash_completes(tmp_path):
    (tmp_path / "script").write_text(run("completion", "bash").stdout)
    ask = 'source "$0"; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _terrazzo; echo "${COMPREPLY[*]}"'

    def completed(*words):
        done = subprocess.run(
            ["bash", "-c", ask, str(tmp_path / "script"), *words],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        return done.stdout.split()

    assert completed("terrazzo", "sam") == ["sample", "samplers"]
    assert completed("terrazzo", "sample", "m:f", "--max") == ["--max-seconds"]
    assert "coloured_gibbs" in completed("terrazzo", "sample", "m:f", "--sampler", "col")


def test_an_interrupted_run_keeps_its_draws(folder):
    """SIGINT while sampling: exit code 130, draws stored, nothing but the result on stdout; `resume` ends it."""
    command = [
        sys.executable, "-m", "terrazzo", "sample", "models_of_cli:slow", "--space", "binary[6]", "--blackbox",
        "--sampler", "metropolis", "--chains", "4", "--draws", "400", "--warmup", "0", "--out", "run",
        "--progress", "plain",
    ]  # fmt: skip
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines = []
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        lines.append(process.stderr.readline())
        if lines[-1].startswith("sampling:") and "draws" in lines[-1]:
            process.send_signal(signal.SIGINT)
            break
    stdout, stderr = process.communicate(timeout=120)
    text = "".join(lines) + stderr
    assert process.returncode == 130, text
    assert "verdict: not trusted: the run was interrupted" in stdout
    assert "to go on: terrazzo resume run" in text
    kept = tz.Result.load(folder / "run" / "result.tz")
    assert not kept.is_complete
    assert 0 < kept.num_draws < 400
    assert run("resume", "run", "--draws", str(kept.num_draws + 5), "--progress", "off").exit_code in (3, 4)
    whole = tz.Result.load(folder / "run" / "result.tz")
    assert whole.is_complete
    assert (whole.theta[:, : kept.num_draws] == kept.theta).all()


def test_a_black_box_runs_in_double_precision_in_a_fresh_process():
    """Tests enable float64 everywhere; a user's process does not, and callbacks run in threads of their own."""
    script = (
        "import numpy as np, terrazzo as tz\n"
        "r = tz.sample(tz.blackbox(lambda t: float(t.sum()) / 3), tz.binary(6), seed=0, sampler='metropolis',"
        " chains=4, draws=20, warmup=0, progress='off')\n"
        "exact = r.theta.sum(axis=2) / 3\n"
        "assert r.log_prob.dtype == np.float64 and (r.log_prob == exact).all()\n"
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "JAX_ENABLE_X64": "0"}
    subprocess.run([sys.executable, "-c", script], env=environment, check=True, timeout=120)
