"""Draws on disk read as one array, whichever pieces they lie in, and damaged pieces are not read at all."""

import itertools
import shutil
import subprocess
import sys
import textwrap

import jax.numpy as jnp
import numpy as np
import pytest

import terrazzo as tz
from terrazzo.engine import kept as keeping
from terrazzo.errors import ConfigurationError, FileFormatError, OptionError
from terrazzo.inference import call, drawing
from terrazzo.results import folders
from terrazzo.runtime.processes import Team
from terrazzo.storage import pieces
from terrazzo.storage.checkpoints import Checkpoint
from terrazzo.storage.pieces import StoredArray, consistent_pieces, num_common, segments, stored_arrays
from terrazzo.storage.setups import Setup

CHAINS, DRAWS, DIMS = 5, 23, 4
THETA = np.random.default_rng(0).integers(0, 9, (CHAINS, DRAWS, DIMS)).astype(np.uint8)
CUTS = {  # by chains: where their chunks end, as two processes would have it, and one that takes over from both
    range(0, 3): (1, 4, 11),
    range(3, 5): (2, 9, 11),
    range(0, 5): (17, 23),
}
KEYS = [
    ..., 2, -1, slice(1, 4), (slice(None), 5), (slice(None), slice(2, 20, 3)), (slice(None), slice(None, None, -1)),
    (slice(4, 0, -2), slice(21, 3, -4), slice(1, 3)), (..., 2), (..., [0, 3]), (slice(None), slice(30, 40)), (1, 7, 2),
]  # fmt: skip


def write(folder, cuts=CUTS):
    """A run whose processes were stopped and restarted as `cuts` say."""
    store = Checkpoint(folder, {"chains": CHAINS}, space=tz.Space(tz.integers(0, 8, DIMS)))
    with store:
        store.save_setup(Setup({"thin": 1}, {}, {}, None, [], {}))
        start = dict.fromkeys(range(CHAINS), 0)
        for chains, ends in cuts.items():
            store._next = 0 if chains.start or len(chains) < CHAINS else 50
            for end in ends:
                part = THETA[chains.start : chains.stop, start[chains.start] : end]
                rows = {"theta": np.moveaxis(part, 1, 0), "log_prob": np.moveaxis(part.sum(axis=2) * 0.5, 1, 0)}
                rows["num_evaluations"] = np.ones(rows["log_prob"].shape, np.int32)
                where = None if len(chains) == CHAINS else chains
                states = [np.full(len(chains), end), np.arange(chains.start, chains.stop)]
                store.save_draws(rows, states, first=start[chains.start], chains=where)
                start |= dict.fromkeys(chains, end)
    return store


@pytest.fixture
def found(tmp_path):
    store = write(tmp_path / "run")
    return consistent_pieces(store.folder, store._run, CHAINS)


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_any_part_is_read_as_numpy_would(key, found):
    array = stored_arrays(found, CHAINS, DRAWS)["theta"]
    np.testing.assert_array_equal(array[key], THETA[key])


def test_all_slices_pick_what_ranges_do():
    for start, stop, step, first, count in itertools.product(
        (0, 3, 9), (0, 5, 10), (1, 2, 3, -1, -2, -3), (0, 4), (1, 5)
    ):
        wanted = range(start, stop, step)
        right = [i for i, n in enumerate(wanted) if first <= n < first + count]
        assert list(pieces._inside(wanted, first, count)) == right


def test_a_stored_array_is_an_array(found, monkeypatch):
    monkeypatch.setattr(pieces, "READ_BYTES", 50)
    array = StoredArray(found, "theta", (CHAINS, 20))
    whole = np.asarray(array)
    np.testing.assert_array_equal(whole, THETA[:, :20])
    assert (array.shape, array.size, array.nbytes, array.ndim, len(array)) == (
        whole.shape,
        whole.size,
        whole.nbytes,
        3,
        5,
    )
    np.testing.assert_array_equal(array.min(axis=(0, 1)), whole.min(axis=(0, 1)))
    np.testing.assert_array_equal(array.max(axis=(0, 1)), whole.max(axis=(0, 1)))


def test_chains_stand_where_their_last_piece_ends(tmp_path):
    cuts = {range(0, 3): (1, 4), range(3, 5): (2, 9, 11)}
    store = write(tmp_path / "run", cuts)
    found = consistent_pieces(store.folder, store._run, CHAINS)
    assert num_common(found, CHAINS) == 4
    one = segments(found, range(0, 5))
    assert [(s.chains, s.done) for s in one] == [(range(0, 3), 4), (range(3, 5), 11)]
    assert one[1].leaves[1].tolist() == [3, 4]
    assert [(s.chains, s.done) for s in segments(found, range(2, 4))] == [(range(2, 3), 4), (range(3, 4), 11)]
    some = segments(found[:1], range(0, 5))  # a process that died before its first chunk
    assert [(s.chains, s.done, s.leaves is None) for s in some] == [(range(0, 3), 1, False), (range(3, 5), 0, True)]


@pytest.mark.parametrize("victim", range(8))
def test_what_follows_a_missing_piece_is_left_out_and_never_wrong(victim, tmp_path):
    """Whichever file is damaged, what is left is a prefix in every chain."""
    store = write(tmp_path / "run")
    names = [name for _, name in pieces.numbered(store.folder)]
    (store.folder / names[victim]).write_bytes(b"torn")
    found = consistent_pieces(store.folder, store._run, CHAINS)
    count = num_common(found, CHAINS)
    assert count < DRAWS
    if count:
        np.testing.assert_array_equal(np.asarray(StoredArray(found, "theta", (CHAINS, count))), THETA[:, :count])
    with Checkpoint(store.folder, {"chains": CHAINS}) as again:
        again.load_setup()
        assert [p.path for p in again.find_pieces(CHAINS)] == [p.path for p in found]
    assert len(pieces.numbered(store.folder)) == len(found)


def test_a_folder_opens_as_a_result_while_the_run_is_not_done(tmp_path):
    store = write(tmp_path / "run")
    result = tz.Result.load(store.folder)
    assert not result.is_complete
    np.testing.assert_array_equal(result.theta, THETA)
    with pytest.raises(FileFormatError, match=r"no setup\.tz"):
        tz.Result.load(tmp_path)


def log_prob(theta):
    return 0.3 * jnp.sum(theta.astype(float) * jnp.arange(6.0))


OPTIONS = {"seed": 1, "sampler": "metropolis", "chains": 3, "draws": 40, "warmup": 5, "progress": "off"}


def test_draws_on_disk_give_the_same_result(tmp_path, monkeypatch):
    """With a limit of no bytes everything stays on disk: draws, summary and verdict must be what memory gives."""
    inside = tz.sample(log_prob, tz.binary(6), checkpoint=tmp_path / "a", **OPTIONS)
    for module in (drawing, call, keeping):
        monkeypatch.setattr(module, "STORED_BYTES", 0)
    monkeypatch.setattr(folders, "IN_MEMORY", 0)
    outside = tz.sample(log_prob, tz.binary(6), checkpoint=tmp_path / "b", **OPTIONS)
    opened = tz.Result.load(tmp_path / "b")
    shutil.copytree(tmp_path / "b", tmp_path / "c")
    for result in (outside, opened, tz.Result.load(tmp_path / "c")):
        assert isinstance(result.codes, StoredArray)
        assert isinstance(result.log_prob, StoredArray)
        np.testing.assert_array_equal(result.theta, inside.theta)
        np.testing.assert_array_equal(result.log_prob, inside.log_prob)
        assert str(result.summary()) == str(inside.summary())
        assert str(result.verdict) == str(inside.verdict)
        assert result.constant == inside.constant
        np.testing.assert_array_equal(result["theta"], inside["theta"])
    saved = tz.Result.load(opened.save(tmp_path / "whole.tz"))
    np.testing.assert_array_equal(saved.theta, inside.theta)


def test_a_run_on_disk_ends_when_the_disk_does(tmp_path, monkeypatch):
    """There is no other copy of its draws: going on would lose them."""
    monkeypatch.setattr(drawing, "STORED_BYTES", 0)
    real = Checkpoint._write

    def write_file(self, name, *args):
        if name.startswith("draws-00001"):
            shutil.rmtree(self.folder)
        return real(self, name, *args)

    monkeypatch.setattr(Checkpoint, "_write", write_file)
    with pytest.raises(ConfigurationError, match="cannot be written"):
        tz.sample(log_prob, tz.binary(6), checkpoint=tmp_path / "run", **OPTIONS)


def test_a_run_that_does_not_fit_is_told_of_the_checkpoint(monkeypatch, tmp_path):
    from terrazzo.errors import arguments

    monkeypatch.setattr(arguments, "available_memory", lambda: 3.0 * 2**27)
    large = {**OPTIONS, "draws": 10**9}
    with pytest.raises(OptionError, match="checkpoint='folder'"):
        tz.sample(log_prob, tz.binary(6), **large)
    with pytest.warns(RuntimeWarning, match="used up"):
        result = tz.sample(log_prob, tz.binary(6), checkpoint=tmp_path / "run", max_seconds=0.2, **large)
    assert 0 < result.num_draws < 10**9


def test_chains_are_shared_out_evenly():
    parts = [Team(rank=rank, size=3).part(8) for rank in range(3)]
    assert parts == [range(0, 3), range(3, 6), range(6, 8)]
    with pytest.raises(ConfigurationError, match="3 for 4 processes"):
        Team(rank=0, size=4).part(3)


@pytest.mark.parametrize("left", [{range(0, 2): 2}, {range(0, 1): 1, range(1, 3): 3}, {range(2, 3): 4}])
def test_chains_that_are_behind_catch_up(left, tmp_path, monkeypatch):
    """What processes leave that were ended in the middle, some before their first chunk: one goes on from it."""
    monkeypatch.setattr(call, "CHUNK_SIZE", 7)
    folder = tmp_path / "run"
    whole = tz.sample(log_prob, tz.binary(6), checkpoint=folder, **OPTIONS)
    with Checkpoint(folder, {}) as store:
        store._run = pieces.read_places(folder / "draws-00000.tz", pieces.KIND, pieces.VERSION)[0]["run"]
        found = store.find_pieces(3)
        kept = [
            (piece.first, chains, next(rows for c, first, rows in store.stored_rows(chains) if first == piece.first),
             piece.read_states(chains))
            for chains, count in left.items() for piece in found[:count]
        ]  # fmt: skip
        for piece in found:
            piece.path.unlink()
        for number, (first, chains, rows, states) in enumerate(kept):
            store._next = number
            store.save_draws(rows, states, first=first, chains=chains)
    again = tz.sample(log_prob, tz.binary(6), checkpoint=folder, **OPTIONS)
    np.testing.assert_array_equal(again.theta, whole.theta)
    np.testing.assert_array_equal(again.log_prob, whole.log_prob)
    np.testing.assert_array_equal(tz.Result.load(folder).theta, whole.theta)


LIMITED = """
    import resource, sys
    import jax.numpy as jnp
    import terrazzo as tz
    from terrazzo.errors.arguments import available_memory

    target = tz.Target(lambda t: 0.1 * jnp.sum(t), tz.binary(4000))
    options = dict(seed=0, chains=8, warmup=5, sampler=tz.samplers.metropolis, progress="off")
    tz.sample(target, draws=2000, checkpoint=sys.argv[1] + "-first", **options)  # compiled, with all threads started
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + int(sys.argv[2]), -1))
    assert available_memory() <= int(sys.argv[2])
    result = tz.sample(target, draws=int(sys.argv[3]), checkpoint=sys.argv[1], **options)
    print(type(result.codes).__name__, result.codes.nbytes, len(result.summary()), str(result.verdict))
"""


@pytest.mark.slow
def test_a_run_four_times_larger_than_a_limit_of_memory_completes(tmp_path):
    """1 GiB of draws, drawn and diagnosed in a process that may take 256 MiB more than one that has just started."""
    limit = 2**28
    draws = 4 * limit // (8 * 4000) + 1
    command = [sys.executable, "-c", textwrap.dedent(LIMITED), str(tmp_path / "run"), str(limit), str(draws)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    kind, size, rows, *_ = done.stdout.split()
    assert (kind, int(rows)) == ("StoredArray", 4001)
    assert int(size) >= 4 * limit
