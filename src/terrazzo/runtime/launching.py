"""Several processes of one script on one machine: started together, ended together."""

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from terrazzo.errors import OptionError
from terrazzo.runtime.processes import OWN

POLL = 0.1  # seconds between two looks at the processes
GRACE = 10.0  # seconds that processes have to end by themselves once one of them has died


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def launch(
    command: Sequence[str], num_processes: int, *, is_pinned: bool = False, gpus_each: int | None = None,
    errors: Any = None,
) -> int:  # fmt: skip
    """Runs a command in several processes of one run, and waits for all of them.

    Process 0 writes where this process does; of the others the standard error is shown, each line after the number of
    its process. When one ends with an error, so do the others, within `GRACE` seconds.

    Args:
        command: The command and its arguments.
        num_processes: How many.
        is_pinned: Whether each has cores of its own, as far as they go round.
        gpus_each: GPUs of each process, in their order; all see all of them if None.
        errors: Called with each line for a person to read.

    Returns:
        The exit status: that of the process which ended first with an error, else 0.
    """
    say = errors or (lambda line: None)
    address = f"127.0.0.1:{free_port()}"
    places = [_place(rank, num_processes, is_pinned, gpus_each) for rank in range(num_processes)]
    started: list[subprocess.Popen] = []
    readers = []
    try:
        for rank, (variables, cores) in enumerate(places):
            own = dict(zip(OWN, (address, str(num_processes), str(rank)), strict=True))
            process = _start(command, {**os.environ, **variables, **own}, is_first=rank == 0)
            started.append(process)
            if cores:
                os.sched_setaffinity(process.pid, cores)
            if rank:
                readers.append(threading.Thread(target=_forward, args=(process, rank, say), daemon=True))
                readers[-1].start()
        return _watched(started, say)
    finally:
        _end(started)
        for reader in readers:
            reader.join(1.0)


def _place(rank: int, size: int, is_pinned: bool, gpus_each: int | None) -> tuple[dict[str, str], set[int]]:
    """Environment variables and cores of a process."""
    variables, cores = {}, set()
    if gpus_each is not None:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(str(n) for n in range(rank * gpus_each, (rank + 1) * gpus_each))
    if is_pinned:
        if not hasattr(os, "sched_getaffinity"):
            raise OptionError("pin", "is not possible on this system", "leave it out")
        all_cores = sorted(os.sched_getaffinity(0))
        each = max(1, len(all_cores) // size)
        first = rank * each % len(all_cores)
        cores = set(all_cores[first : first + each])
    return variables, cores


def _start(command: Sequence[str], environment: Mapping[str, str], *, is_first: bool) -> subprocess.Popen:
    others: dict[str, Any] = {} if is_first else {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    try:
        return subprocess.Popen(list(command), env=dict(environment), stdin=subprocess.DEVNULL, **others)
    except OSError as error:
        text = f"{command[0]!r} cannot be started ({error.strerror or error})"
        raise OptionError("command", text, "e.g. terrazzo launch --processes 2 -- python my_run.py") from None


def _forward(process: subprocess.Popen, rank: int, say: Any) -> None:
    assert process.stderr is not None
    with process.stderr as lines:
        for line in lines:
            say(f"[{rank}] {line.decode(errors='replace').rstrip()}")


def _watched(started: list[subprocess.Popen], say: Any) -> int:
    """Waits until all have ended, or one has with an error; Ctrl-C reaches all of them by itself."""
    while True:
        try:
            codes = [process.poll() for process in started]
            failed = next(((rank, code) for rank, code in enumerate(codes) if code), None)
            if failed is not None:
                rank, code = failed
                say(f"process {rank} {_ending(code)}: the others are ended; what is in a checkpoint is continued from")
                return code if code > 0 else 128 - code
            if all(code == 0 for code in codes):
                return 0
            time.sleep(POLL)
        except KeyboardInterrupt:
            continue  # every process of the terminal's group was told, and ends in its own way


def _ending(code: int) -> str:
    return f"ended with status {code}" if code > 0 else f"was ended by {signal.Signals(-code).name}"


def _end(started: list[subprocess.Popen]) -> None:
    """Asks what still runs to end, then ends it."""
    for process in started:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + GRACE
    for process in started:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
