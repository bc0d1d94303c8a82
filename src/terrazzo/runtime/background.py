"""Compiling what runs next in a thread, on a core that has nothing to do."""

import contextlib
import os
import threading
from collections.abc import Iterator
from typing import Any

import jax

from terrazzo.runtime.compilation import host_and_device, loose_on


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def compile_in_background(work: Iterator[Any]) -> Iterator[None]:
    """Takes the steps of `work` in a thread while the body of the `with` runs, where there is a second core.

    The body's end waits for the step that is under way, also for what it yields to be computed, and leaves the others
    out: nothing of it is left to run beside what is timed afterwards. An error in `work` ends it silently: it only
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
    is_over, is_double, places = threading.Event(), jax.config.read("jax_enable_x64"), host_and_device()

    def run() -> None:
        # the precision, and where operations run, belong to a thread
        with contextlib.suppress(Exception), jax.enable_x64(is_double), loose_on(*places):
            for made in work:
                jax.block_until_ready(made)
                if is_over.is_set():
                    return

    thread = threading.Thread(target=run, name="terrazzo-compilation")
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()
