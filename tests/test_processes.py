"""One run of several processes on this machine: the draws of one process; when one dies, so do the others.

Every run is a set of processes of its own (each imports JAX and compiles), so that one script asks for several things.
"""

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import terrazzo as tz
from terrazzo.errors import ConfigurationError
from terrazzo.runtime.launching import launch
from terrazzo.runtime.processes import Team, described_by, telling_errors

MODEL = """
    import os, sys, time
    import jax, jax.numpy as jnp, numpy as np
    weights = jnp.asarray(np.random.default_rng(0).normal(size=(6, 6)) * 0.3)  # before anything of ours: as users do
    import terrazzo as tz
    from calls import sample_with

    def log_prob(theta):
        x = 2.0 * theta - 1.0
        return x @ weights @ x

    rank, out = int(os.environ.get("TERRAZZO_PROCESS_ID", 0)), sys.argv[1]
    options = dict(seed=5, chains=5, draws=24, warmup=8, chunk_size=4, progress="off")

    def keep(name, result):
        np.savez(f"{out}-{name}-{rank}.npz", theta=result.theta, log_prob=result.log_prob)
        assert str(result.verdict)
"""
SHORT = """
    keep("memory", sample_with(log_prob, tz.binary(6), sampler="metropolis", **options))
    keep("folder", sample_with(log_prob, tz.binary(6), sampler="gibbs", checkpoint=f"{out}-run", **options))
    keep("exact", tz.sample(log_prob, tz.binary(6), seed=1, chains=5, draws=20, progress="off"))
"""
KILLED = """
    from terrazzo.storage.checkpoints import Checkpoint
    real, calls = Checkpoint.save_draws, []

    def save_draws(self, *args, **kwargs):
        real(self, *args, **kwargs)
        calls.append(1)
        if rank == 1 and len(calls) == 3 and len(sys.argv) > 2:
            for _ in range(600):  # until the first process has three chunks, too
                if len(list(self.folder.glob("draws-*"))) >= 6:
                    break
                time.sleep(0.1)
            os.kill(os.getpid(), 9)
        time.sleep(0.2)  # the first process is not done before the other one dies

    Checkpoint.save_draws = save_draws
    keep("killed", sample_with(log_prob, tz.binary(6), sampler="metropolis", checkpoint=f"{out}-run", **options))
"""
HERE = Path(__file__).parent


def command(script, *arguments):
    return [sys.executable, "-c", textwrap.dedent(MODEL) + textwrap.dedent(script), *map(str, arguments)]


def run(script, num_processes, *arguments):
    """Exit status, and what was said to a person, of a script in so many processes."""
    said = []
    status = launch(command(script, *arguments), num_processes, errors=said.append)
    return status, "\n".join(said)


@pytest.fixture(autouse=True)
def _from_here(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(HERE))


def drawn(out, name, rank=0):
    with np.load(f"{out}-{name}-{rank}.npz") as arrays:
        return arrays["theta"], arrays["log_prob"]


def assert_same(one, *others, name=""):
    """The same draws; of their log pi the last bit may differ: XLA's products of matrices depend on how many rows."""
    for other in others:
        np.testing.assert_array_equal(other[0], one[0], err_msg=name)
        np.testing.assert_allclose(other[1], one[1], rtol=1e-6, atol=1e-6, err_msg=name)


def test_two_processes_draw_what_one_does(tmp_path, capfd):
    """Draws in memory, draws in a folder, and draws by enumeration; both processes hold the whole result."""
    one, two = tmp_path / "one", tmp_path / "two"
    assert run(SHORT, 1, one)[0] == 0
    status, said = run(SHORT, 2, two)
    assert status == 0, (said, capfd.readouterr().err)
    for name in ("memory", "folder", "exact"):
        assert_same(drawn(one, name), drawn(two, name), drawn(two, name, rank=1), name=name)
    files = {path.name for path in Path(f"{two}-run").glob("draws-*")}
    assert {"draws-00000-000000.tz", "draws-00000-000003.tz"} <= files  # a shard each
    opened = tz.Result.load(f"{two}-run")
    assert opened.is_complete
    np.testing.assert_array_equal(opened.theta, drawn(one, "folder")[0])


def test_a_killed_process_ends_the_others_and_any_number_goes_on(tmp_path, capfd):
    """With a message that says who; then one process goes on from what two have left."""
    status, said = run(KILLED, 2, tmp_path / "two", "die")
    assert status == 128 + signal.SIGKILL
    assert "process 1 was ended by SIGKILL" in said
    assert not Path(f"{tmp_path / 'two'}-killed-0.npz").exists()
    left = tz.Result.load(f"{tmp_path / 'two'}-run")
    assert not left.is_complete
    assert left.num_draws == 12  # three chunks of four
    assert run(KILLED, 1, tmp_path / "two")[0] == 0
    assert run(KILLED, 1, tmp_path / "one")[0] == 0
    assert_same(drawn(tmp_path / "one", "killed"), drawn(tmp_path / "two", "killed"))


def test_launch_reports_a_command_that_fails(capfd):
    assert launch([sys.executable, "-c", "import sys; sys.exit(7)"], 2, errors=lambda line: None) == 7
    said = []
    text = "import os, sys; sys.exit('no luck' if os.environ['TERRAZZO_PROCESS_ID'] == '1' else 0)"
    assert launch([sys.executable, "-c", text], 2, errors=said.append) == 1
    assert "[1] no luck" in said
    with pytest.raises(tz.errors.OptionError, match="cannot be started"):
        launch(["/nowhere/at/all"], 2)


def test_launch_gives_each_process_cores_and_gpus(capfd):
    text = "import os; print(os.environ['CUDA_VISIBLE_DEVICES'], len(os.sched_getaffinity(0)))"
    assert launch([sys.executable, "-c", text], 1, is_pinned=True, gpus_each=2) == 0
    assert capfd.readouterr().out.split() == ["0,1", str(len(os.sched_getaffinity(0)))]


# ---- what the environment says


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "4"}, None),  # a shell inside an allocation is one process
        ({"SLURM_STEP_NUM_TASKS": "4"}, {}),  # JAX finds the rest
        ({"OMPI_COMM_WORLD_SIZE": "2"}, {}),
        ({"TERRAZZO_COORDINATOR": "a:1", "TERRAZZO_NUM_PROCESSES": "1", "TERRAZZO_PROCESS_ID": "0"}, None),
        (
            {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": "2", "JAX_PROCESS_ID": "1"},
            {"coordinator_address": "a:1", "num_processes": 2, "process_id": 1},
        ),
        (
            {"MASTER_ADDR": "a", "MASTER_PORT": "7", "WORLD_SIZE": "2", "RANK": "0"},
            {"coordinator_address": "a:7", "num_processes": 2, "process_id": 0},
        ),
    ],
)
def test_the_environment_says_how_many_processes_there_are(environment, found):
    assert described_by(environment) == found


@pytest.mark.parametrize(
    ("count", "rank", "words"), [("two", "0", "NUM_PROCESSES"), ("2", "2", "2 of 2"), ("2", "", "PROCESS_ID")]
)
def test_a_wrong_environment_is_named(count, rank, words):
    environment = {"JAX_COORDINATOR_ADDRESS": "a:1", "JAX_NUM_PROCESSES": count, "JAX_PROCESS_ID": rank}
    with pytest.raises(ConfigurationError, match=words):
        described_by(environment)


class Service:
    """The part of JAX's service that teams use, for one process that talks to itself."""

    def __init__(self):
        self.values = {}

    def key_value_set_bytes(self, key, value):
        assert key not in self.values
        self.values[key] = value

    def blocking_key_value_get_bytes(self, key, timeout):
        return self.values[key]


def test_messages_of_any_length_arrive_and_rounds_do_not_mix():
    team = Team(rank=0, size=2, client=Service())
    for length in (0, 1, 2**20, 2**20 + 1, 3 * 2**20):
        team.next_round()
        data = np.random.default_rng(length).bytes(length)
        team.send("x", data)
        assert team.receive("x") == data
    with pytest.raises(ValueError, match="no"), telling_errors(team, "y"):
        raise ValueError("no")
    with pytest.raises(tz.errors.ProcessError, match="process 0 stopped: no"):
        team.hear("y")


# ---- the long ones

ALL = """
    from terrazzo.samplers import REGISTRY

    flow = tz.flow(architecture="affine", num_layers=1, width=8, context_width=4)
    for name, spec in REGISTRY.items():
        own = dict(transport=flow, training=False) if spec.has_latent else {}
        if name == "hybrid":
            own = dict(transport=tz.autoregressive(width=4, num_blocks=0), training=dict(num_steps=30, batch_size=32),
                       exploration=dict(max_rounds=60))
        keep(name, sample_with(log_prob, tz.binary(6), sampler=name, **own, **options))
    chain, quick = tz.problems.ising_chain(24).target, dict(exploration=dict(max_rounds=100), transport=False)
    given = dict(seed=5, chains=5, draws=24, progress="off", **quick)
    path = sys.argv[2]
    if rank == 0 and not os.path.exists(path):  # the choice rests on timings: one of the runs makes it
        os.environ.get("TERRAZZO_NUM_PROCESSES") == "1" and sample_with(chain, **given).save(path)
    keep("auto", sample_with(chain, plan=tz.Result.load(path).plan, **given))
"""


REALS = """
    from terrazzo.samplers import MIXED

    space = tz.Space(label=tz.binary(4), mean=tz.real(2), scale=tz.real(low=0.0))
    seen = np.array([0.3, 1.2, -0.7, 2.2])

    def log_joint(v):
        error = (seen - jnp.where(v["label"] == 1, v["mean"][1], v["mean"][0])) / v["scale"]
        return -0.5 * jnp.sum(error**2) - 5 * jnp.log(v["scale"]) - 0.5 * jnp.sum(v["mean"] ** 2) - v["scale"]

    for name in MIXED:
        target = tz.Target(log_joint, space)
        result = tz.sample(target, sampler=name, seed=5, chains=5, draws=24, warmup=20, progress="off")
        both = np.concatenate([result[part].reshape(5, 24, -1) for part in ("label", "mean", "scale")], axis=2)
        np.savez(f"{out}-{name}-{rank}.npz", theta=both, log_prob=result.log_prob)
"""


@pytest.mark.slow
def test_samplers_of_reals_draw_alike_in_one_two_and_four_processes(tmp_path):
    """The same codes; reals but for rounding, which depends on how many chains a process has (docs/scaling.md)."""
    from terrazzo.samplers import MIXED

    for count in (1, 2, 4):
        status, said = run(REALS, count, tmp_path / str(count))
        assert status == 0, said
    for name in MIXED:
        one, *others = (drawn(tmp_path / count, name)[0] for count in "124")
        for other in others:
            np.testing.assert_array_equal(other[..., :4], one[..., :4], err_msg=name)
            np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6, err_msg=name)


@pytest.mark.slow
def test_all_samplers_draw_the_same_in_one_two_and_four_processes(tmp_path):
    from terrazzo.samplers import REGISTRY

    for count in (1, 2, 4):
        status, said = run(ALL, count, tmp_path / str(count), tmp_path / "plan.tz")
        assert status == 0, said
    for name in {*REGISTRY, "auto"}:
        assert_same(*(drawn(tmp_path / count, name) for count in "124"), name=name)


@pytest.mark.slow
def test_two_processes_go_on_from_four_and_from_one(tmp_path):
    """Kills at two places: the folder changes hands from 4 to 2 to 1 processes."""
    assert run(KILLED, 4, tmp_path / "many", "die")[0] == 128 + signal.SIGKILL
    assert run(KILLED, 2, tmp_path / "many", "die")[0] in (0, 128 + signal.SIGKILL)
    assert run(KILLED, 1, tmp_path / "many")[0] == 0
    assert run(KILLED, 1, tmp_path / "one")[0] == 0
    assert_same(drawn(tmp_path / "one", "killed"), drawn(tmp_path / "many", "killed"))


@pytest.mark.slow
def test_a_dead_peer_ends_a_process_that_nobody_watches(tmp_path):
    """Without `launch`, as under a batch system: JAX's heartbeat ends the process within 30 s of the death."""
    from terrazzo.runtime.launching import free_port
    from terrazzo.runtime.processes import OWN

    address, started = f"127.0.0.1:{free_port()}", []
    for rank in range(2):
        environment = {**os.environ, **dict(zip(OWN, (address, "2", str(rank)), strict=True))}
        arguments = command(KILLED.replace("time.sleep(0.2)", "time.sleep(1 if rank else 60)"), tmp_path / "x", "die")
        started.append(subprocess.Popen(arguments, env=environment, stderr=subprocess.DEVNULL))
    try:
        assert started[1].wait(120) == -signal.SIGKILL
        assert started[0].wait(30) != 0
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert tz.Result.load(f"{tmp_path / 'x'}-run").num_chains == 5
