"""A checkpoint folder holds a prefix of one run: nothing else is continued, and nothing else gets between."""

import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from calls import sample_with
from terrazzo.engine import loop
from terrazzo.errors import ConfigurationError, FileFormatError, OptionError
from terrazzo.storage.checkpoints import Checkpoint

SPACE = tz.binary(4)
WEIGHTS = np.array([0.3, -0.2, 0.5, 0.1])
OPTIONS = {
    "seed": 3,
    "sampler": "metropolis",
    "chains": 3,
    "draws": 20,
    "warmup": 10,
    "chunk_size": 4,
    "progress": "off",
}


def make(weights=WEIGHTS, scale=0.7):
    return lambda t: scale * jnp.sum(t.astype(float) * jnp.asarray(weights))


def run(folder, log_prob=None, **options):
    given = {**OPTIONS, **options}
    return sample_with(make() if log_prob is None else log_prob, SPACE, checkpoint=folder, **given)


def same(a, b):
    return (np.asarray(a.theta) == np.asarray(b.theta)).all() and (a.log_prob == b.log_prob).all()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A finished run and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return run(folder), folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole[1], tmp_path / "run")


# ---- another run


def transport(scale):
    return tz.transports.product_transport(tz.Space(SPACE), logits=scale * jnp.ones((4, 2)))


LATENT = {"sampler": "latent_pcn", "training": False, "sampler_options": None}
OTHERS = {
    "computation": ({}, {"log_prob": lambda t: jnp.cos(jnp.sum(t.astype(float)))}, "another target's computation"),
    "data": ({}, {"log_prob": make(2 * WEIGHTS)}, "another target's data"),
    "number": ({}, {"log_prob": make(scale=0.8)}, "another target's data"),
    "module": ({}, {"log_prob": tz.Target(make(), SPACE, colours=[0, 1, 0, 1]), "space": None}, "computation"),
    "black box": ({"log_prob": tz.blackbox(lambda t: 0.0)}, {"log_prob": tz.blackbox(lambda t: 1.0 * t[0])}, "data"),
    "init": ({}, {"init": np.ones(4)}, "init"),
    "another init": ({"init": np.zeros(4)}, {"init": np.ones(4)}, "another init"),
    "transport": (
        {**LATENT, "transport": transport(0.0)}, {**LATENT, "transport": transport(1.0)}, "another transport"),
    "transport_options": (
        {**LATENT, "transport_options": {"width": 8}}, {**LATENT, "transport_options": {"width": 16}}, "transport"),
    "option": (
        {"sampler": "gibbs", "sampler_options": {"num_updates": 2}},
        {"sampler": "gibbs", "sampler_options": {"num_updates": 3}}, r"num_updates'\] = 2, not 3"),
    "array option": (
        {"sampler": "parallel_tempering", "sampler_options": {"inverse_temperatures": np.linspace(0.0, 1.0, 5)}},
        {"sampler": "parallel_tempering", "sampler_options": {"inverse_temperatures": np.linspace(0.0, 1.0, 5) ** 2}},
        "another options.'inverse_temperatures'"),
    "seed": ({}, {"seed": 4}, "seed = 3, not 4"),
    "thin": ({}, {"thin": 2}, "thin = None, not 2"),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_another_run_is_refused_and_the_difference_named(name, tmp_path):
    first, second, words = OTHERS[name]
    small = {"draws": 4, "warmup": 2}

    def go(log_prob=None, space=SPACE, **options):
        return sample_with(log_prob or make(), space, checkpoint=tmp_path / "run", **{**OPTIONS, **small, **options})

    before = go(**first)
    with pytest.raises(ConfigurationError, match=words) as caught:
        go(**second)
    assert len(str(caught.value).splitlines()) <= 5
    assert same(before, go(**first))


def test_the_same_function_written_anew_continues(whole, folder):
    longer = run(folder, make(WEIGHTS.copy()), draws=28, chunk_size=5, max_seconds=100)
    assert longer.num_draws == 28
    assert (np.asarray(longer.theta)[:, :20] == np.asarray(whole[0].theta)).all()
    assert same(longer, run(folder.parent / "other", draws=28))
    assert (np.asarray(run(folder, draws=7).theta) == np.asarray(longer.theta)[:, :7]).all()


# ---- one at a time


def test_a_second_run_in_the_folder_is_refused_at_once(tmp_path, monkeypatch):
    real, refused = loop.Chains.draw, []

    def second(folder):
        with pytest.raises(ConfigurationError, match="in use"):
            Checkpoint(folder, {})
        refused.append(folder)  # while the first run waits for this thread

    def draw(*args):
        if not refused:
            thread = threading.Thread(target=second, args=(tmp_path / "run",))
            thread.start()
            thread.join()
        return real(*args)

    monkeypatch.setattr(loop.Chains, "draw", draw)
    run(tmp_path / "run")
    assert refused
    run(tmp_path / "run")  # free again


def test_the_lock_goes_with_an_error_and_with_the_process(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(loop.Chains, "draw", lambda *_: (_ for _ in ()).throw(RuntimeError("device lost")))
        with pytest.raises(RuntimeError, match="device lost"):
            run(tmp_path / "run")
    text = f"from terrazzo.storage.checkpoints import Checkpoint as C; c = C({str(tmp_path / 'run')!r}, {{}})"
    child = subprocess.Popen([sys.executable, "-c", f"{text}; print(1, flush=True); input()"], stdin=-1, stdout=-1)
    assert child.stdout.readline()
    with pytest.raises(ConfigurationError, match="in use"):
        run(tmp_path / "run")
    child.kill()
    child.communicate()
    assert run(tmp_path / "run").num_draws == 20


# ---- files in the wrong place


def chunk(folder, index):
    return folder / f"draws-{index:05d}.tz"


def swap(folder):
    chunk(folder, 1).rename(folder / ".x")
    chunk(folder, 2).rename(chunk(folder, 1))
    (folder / ".x").rename(chunk(folder, 2))


def flip(folder):
    data = bytearray(chunk(folder, 2).read_bytes())
    data[len(data) // 2] ^= 1
    chunk(folder, 2).write_bytes(bytes(data))


DAMAGE = {
    "swapped": swap,
    "copied": lambda f: shutil.copy(chunk(f, 0), chunk(f, 2)),
    "copied to the end": lambda f: shutil.copy(chunk(f, 4), chunk(f, 5)),
    "renamed": lambda f: chunk(f, 3).rename(chunk(f, 5)),
    "a gap": lambda f: chunk(f, 1).unlink(),
    "flipped": flip,
    "torn": lambda f: chunk(f, 4).write_bytes(chunk(f, 4).read_bytes()[:100]),
    "empty": lambda f: chunk(f, 0).write_bytes(b""),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_what_is_not_in_its_place_is_drawn_again(name, whole, folder):
    DAMAGE[name](folder)
    assert same(whole[0], run(folder, chunk_size=3))


def test_stale_chunks_never_follow_new_ones(whole, folder, monkeypatch):
    """A chunk is damaged, the run begins again from there in other pieces, and is killed: the old tail must be gone."""
    flip(folder)
    calls, real = [], loop.Chains.draw

    def draw(*args):
        calls.append(1)
        if len(calls) > 1:
            raise KeyboardInterrupt
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Chains, "draw", draw)
        assert run(folder, chunk_size=1).num_draws == 9
    assert not chunk(folder, 3).exists()
    assert same(whole[0], run(folder))


def test_files_of_other_runs_are_refused(whole, folder, tmp_path):
    other = run(tmp_path / "other", seed=4)
    shutil.copy(chunk(tmp_path / "other", 1), chunk(folder, 1))
    with pytest.raises(ConfigurationError, match=r"draws-00001\.tz.*another run"):
        run(folder)
    (tmp_path / "other" / "setup.tz").unlink()
    with pytest.raises(ConfigurationError, match=r"no setup\.tz"):
        run(tmp_path / "other", seed=4)
    assert other.num_draws == 20
    (folder / "notes.tz").write_bytes(b"")
    with pytest.raises(OptionError, match=r"notes\.tz"):
        run(folder)


def test_a_damaged_setup_is_an_error(folder):
    data = bytearray((folder / "setup.tz").read_bytes())
    data[200] ^= 4
    for damaged in (bytes(data), b"", bytes(data[:300])):
        (folder / "setup.tz").write_bytes(damaged)
        with pytest.raises(FileFormatError, match=r"setup\.tz"):
            run(folder)


# ---- the disk


def test_a_folder_that_vanishes_is_reported_at_once(tmp_path, monkeypatch):
    real = loop.Chains.draw

    def draw(*args):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        return real(*args)

    monkeypatch.setattr(loop.Chains, "draw", draw)
    with pytest.warns(RuntimeWarning, match=r"draws-00000\.tz.*cannot be written"):
        result = run(tmp_path / "run")
    assert result.num_draws == 20
    assert "checkpoints written" in str(result.diagnose())


# ---- kills

KILLED = """
    import os, sys
    import jax, jax.numpy as jnp, numpy as np
    jax.config.update("jax_enable_x64", True)
    import terrazzo as tz
    from calls import sample_with
    from terrazzo.runtime.progress import Progress

    weights = jnp.asarray(np.random.default_rng(0).normal(size=(6, 6)))

    def log_prob(theta):
        x = 2.0 * theta.astype(float) - 1.0
        return 0.3 * x @ weights @ x

    folder, phase, nth = sys.argv[1], sys.argv[2], int(sys.argv[3])
    seen = [0]

    def killing(name, real):
        def method(self, *args, **kwargs):
            out = real(self, *args, **kwargs)
            if name == "phase":
                self.at = args[0]
            if getattr(self, "at", "") == phase:
                seen[0] += 1
                if seen[0] > nth:
                    os.kill(os.getpid(), 9)
            return out
        return method

    for name in ("phase", "update"):
        setattr(Progress, name, killing(name, getattr(Progress, name)))
    options = OPTIONS_HERE
    result = sample_with(log_prob, tz.binary(6), checkpoint=folder or None, progress="off", **options)
    np.savez(sys.argv[4], theta=result.theta, log_prob=result.log_prob)
    if len(sys.argv) > 5:
        again = sample_with(log_prob, tz.binary(6), plan=result.plan, progress="off", **options)
        np.savez(sys.argv[5], theta=again.theta, log_prob=again.log_prob)
"""
LOCAL = {"seed": 5, "sampler": "metropolis", "chains": 2, "draws": 12, "warmup": 8, "chunk_size": 3}
LEARNED = {
    "seed": 5, "sampler": "hybrid", "chains": 4, "draws": 24, "warmup": 8, "chunk_size": 4,
    "transport_options": {"width": 8}, "training": {"num_steps": 60, "batch_size": 32, "check_every": 20},
    "exploration": {"num_ladders": 2, "max_rounds": 60}, "max_evaluations": 2_000_000,
}  # fmt: skip


def killed_run(options, folder, phase, nth, *outs):
    """Runs in another process, which kills itself when it comes to the n-th report of a phase; its exit status.

    The first of `outs` takes the draws, a second one those of a run that follows the first one's plan.
    """
    text = textwrap.dedent(KILLED).replace("OPTIONS_HERE", repr(options))
    arguments = [str(folder), phase, str(nth), *map(str, outs)]
    command = [sys.executable, "-c", text, *arguments]
    return subprocess.run(command, check=False, timeout=600, cwd=Path(__file__).parent).returncode


def drawn(path):
    with np.load(path) as arrays:
        return arrays["theta"].tobytes(), arrays["log_prob"].tobytes()


def test_two_kills_resume_to_the_same_draws(tmp_path):
    assert killed_run(LOCAL, "", "never", 0, tmp_path / "whole.npz") == 0
    for phase, nth in (("warm-up", 1), ("sampling", 2)):
        assert killed_run(LOCAL, tmp_path / "run", phase, nth, tmp_path / "no.npz") == -signal.SIGKILL
    assert not (tmp_path / "no.npz").exists()
    assert killed_run(LOCAL, tmp_path / "run", "never", 0, tmp_path / "resumed.npz") == 0
    assert drawn(tmp_path / "whole.npz") == drawn(tmp_path / "resumed.npz")


LEARNING = ("learning from the draws", "learning from the target", "weighing the transport")
TRYING = ("trying local moves", "trying the transport")
LAST = ("burn-in", "looking elsewhere", "sampling", "comparing with the exploration")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "kills"),
    [
        ("hybrid", [("exploring", 0), ("exploring", 1), ("exploring", 2), *((phase, 0) for phase in LEARNING),
                    (LEARNING[0], 1), (LEARNING[1], 1), ("burn-in", 0), ("burn-in", 1), (LAST[1], 0), ("sampling", 0),
                    ("sampling", 1), ("sampling", 2), (LAST[3], 0)]),
        ("auto", [("exploring", 1), *((phase, 0) for phase in (*TRYING, *LEARNING[:1], *LAST))]),
    ],
)  # fmt: skip
def test_twenty_kills_in_all_phases_resume_to_the_same_draws(sampler, kills, tmp_path, monkeypatch):
    """The default sampler's choice rests on timings: it is held against a whole run that follows its plan."""
    monkeypatch.setenv("TERRAZZO_CACHE", str(tmp_path / "cache"))
    options = {**LEARNED, "sampler": sampler, "transport": "autoregressive"}
    assert killed_run(options, "", "never", 0, tmp_path / "whole.npz") == 0
    done = [
        killed_run(options, tmp_path / "run", phase, nth, tmp_path / "no.npz") == -signal.SIGKILL
        for phase, nth in kills
    ]
    assert all(done), list(zip(kills, done, strict=True))
    outs = (tmp_path / "run.npz", tmp_path / "again.npz")
    assert killed_run(options, tmp_path / "run", "never", 0, *outs) == 0
    assert drawn(outs[0]) == drawn(outs[1] if sampler == "auto" else tmp_path / "whole.npz")
