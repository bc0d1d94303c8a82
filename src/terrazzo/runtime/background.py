"""Compiling what runs next in threads, on cores that have nothing to do."""

import contextlib
import os
import threading
from collections.abc import Iterator
from itertools import chain
from typing import Any

import jax

from terrazzo.runtime.compilation import host_and_device, loose_on

CORES_A_THREAD = 4  # compiling takes one core most of the time, and the work in front needs some


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def compile_in_background(*work: Iterator[Any]) -> Iterator[None]:
    """Takes the steps of `work` in threads while the body of the `with` runs, where there is a second core.

    Each part has a thread where there are `CORES_A_THREAD` cores for it; else one thread takes them in turn.

    The body's end waits for the steps that are under way, also for what they yield to be computed, and leaves the
    others out: nothing of it is left to run beside what is timed afterwards. An error ends its part silently: it only
    prepares what will be asked for again, and there the error is reported.

    >>> done = []
    >>> with compile_in_background(done.append(i) for i in range(3)):
    ...     pass
    >>> done in ([], [0], [0, 1], [0, 1, 2])
    True
    """
    if num_cores() < 2:
        yield
        return
    parts = work if num_cores() >= CORES_A_THREAD * len(work) else (chain(*work),)
    is_over, is_double, places = threading.Event(), jax.config.read("jax_enable_x64"), host_and_device()

    def run(part: Iterator[Any]) -> None:
        # the precision, and where operations run, belong to a thread
        with contextlib.suppress(Exception), jax.enable_x64(is_double), loose_on(*places):
            for made in part:
                jax.block_until_ready(made)
                if is_over.is_set():
                    return

    threads = [threading.Thread(target=run, args=(part,), name="terrazzo-compilation") for part in parts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
