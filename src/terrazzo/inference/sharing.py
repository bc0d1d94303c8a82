"""One run of several processes: what the first one finds in warm-up, and what all of them have drawn.

The first process warms up alone, on its own devices, and tells the others what a checkpoint would hold of it: so they
begin where a resumed run would, and draw what one process alone would draw. Choices that rest on timings are made once.
Each then draws its own chains. In the end they meet in the folder of the checkpoint, or, without one, send the draws to
the first process, which makes the result and sends it back.
"""

import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.engine.kept import Kept
from terrazzo.errors import OptionError, ProcessError, UnsupportedError
from terrazzo.errors.arguments import format_bytes
from terrazzo.results.folders import open_folder
from terrazzo.results.result import Result
from terrazzo.runtime.processes import Team
from terrazzo.storage.checkpoints import Checkpoint
from terrazzo.storage.memory import Memory
from terrazzo.storage.messages import packed, packed_setup, unpacked, unpacked_setup
from terrazzo.storage.pieces import stored_arrays
from terrazzo.storage.setups import Setup
from terrazzo.targets.precision import PrecisionLoss

READY, SETUP, DRAWN, ROWS, DONE = "ready", "setup", "drawn", "rows", "done"
MOST_SENT = 2**28  # bytes of all draws that are sent to the first process; it holds them twice
PATIENCE = 5.0  # seconds after an interruption, in which a process finishes its chunk of about one
FOLDER = "give a folder that all processes see: checkpoint='run'"


def patience(is_requested: Callable[[], bool]) -> Callable[[], None]:
    """Waits for the others for some seconds after an interruption: they, too, hand in what they have drawn."""
    asked: list[float] = []

    def check() -> None:
        if is_requested():
            asked.append(time.monotonic())
            if asked[-1] - asked[0] > PATIENCE:
                raise KeyboardInterrupt

    return check


def check_size(team: Team, size: float, checkpoint: Any, max_evaluations: Any) -> None:
    """Raises where several processes cannot do what is asked for."""
    if team.size == 1:
        return
    if max_evaluations is not None:
        raise OptionError("max_evaluations", "are not counted over several processes", "use max_seconds")
    if checkpoint is None and size > MOST_SENT:
        raise OptionError("checkpoint", f"processes would send each other {format_bytes(size)}", FOLDER)


def tell_ready(team: Team, store: Checkpoint | Memory, setup: Setup | None) -> None:
    """Tells the others what warm-up found, and how the folder stands."""
    if setup is None:
        raise UnsupportedError("transport", "cannot be stored, and so not be shared by processes", "use one of ours")
    team.send(SETUP, packed_setup(setup))
    team.tell(READY, folder=store.described())


def tell_result(team: Team, result: Result) -> None:
    """Tells the others that there is nothing left to draw: the result."""
    team.send(SETUP, _bytes_of(result))
    team.tell(READY, is_result=True)


def hear_ready(team: Team, store: Checkpoint | Memory, num_chains: int, check: Callable[[], None]) -> Setup | Result:
    """What the first process found, which may be a whole result."""
    try:
        found = team.hear(READY, check=check)
    except ProcessError as error:
        if PrecisionLoss.__name__ in error.problem:
            raise PrecisionLoss from None
        raise
    data = team.receive(SETUP, check=check)
    if found.get("is_result"):
        return _result_of(data)
    store.join(found["folder"], num_chains)
    return unpacked_setup(data)


def gather(team: Team, store: Checkpoint | Memory, kept: Kept, num_chains: int, check: Callable[[], None]) -> Kept:
    """All draws, at the first process: those that all chains have. The others say what they have drawn."""
    if not team.is_first:
        if not store.is_lasting:
            team.send(ROWS, packed({}, kept.arrays()))
        team.tell(DRAWN, done=kept.done)
        return kept
    counts = [kept.done, *(team.hear(DRAWN, rank, check)["done"] for rank in range(1, team.size))]
    count = min(counts)
    if store.is_lasting:
        return kept.with_arrays(stored_parts(store, num_chains, count), count)
    parts: list[Mapping[str, np.ndarray]] = [kept.arrays()]
    parts += [unpacked(team.receive(ROWS, rank, check)).arrays for rank in range(1, team.size)]
    if not count:
        return kept.with_arrays({}, 0)
    return kept.with_arrays({name: np.concatenate([p[name][:, :count] for p in parts]) for name in parts[0]}, count)


def stored_parts(store: Checkpoint | Memory, num_chains: int, num_draws: int) -> dict[str, Any]:
    """The draws of a folder as arrays that are read when they are asked for."""
    return dict(stored_arrays(store.find_pieces(num_chains), num_chains, num_draws)) if num_draws else {}


def hand_out(team: Team, store: Checkpoint | Memory, result: Result | None, check: Callable[[], None]) -> Result:
    """The result, for all: the first process has it."""
    if team.is_first:
        assert result is not None
        if not store.is_lasting:
            team.send(ROWS, _bytes_of(result))
        team.tell(DONE)
        return result
    team.hear(DONE, check=check)
    if store.folder is not None:
        return open_folder(store.folder)
    return _result_of(team.receive(ROWS, check=check))


def _bytes_of(result: Result) -> bytes:
    with tempfile.TemporaryDirectory(prefix="terrazzo-") as folder:
        return result.changed(continuation=None).save(Path(folder) / "result").read_bytes()


def _result_of(data: bytes) -> Result:
    with tempfile.TemporaryDirectory(prefix="terrazzo-") as folder:
        path = Path(folder) / "result"
        path.write_bytes(data)
        return Result.load(path)
