"""Ctrl-C and SIGTERM while a run is under way: noted at once, acted upon between chunks.

An exception that a signal raises inside compiled code or a host callback comes out as an error of XLA, or not at all.
So a first signal only sets a flag; every loop looks at it between chunks, where everything drawn so far is in order. A
second signal raises `KeyboardInterrupt` wherever the program is.
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interruption:
    """Catches signals while it is entered; outside the main thread it catches nothing, and is never requested.

    >>> with Interruption() as interruption:
    ...     interruption.is_requested()
    False
    """

    def __init__(self) -> None:
        self._is_requested = False
        self._previous: dict[signal.Signals, Any] = {}

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            for name in SIGNALS:
                self._previous[name] = signal.signal(name, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name, handler in self._previous.items():
            signal.signal(name, signal.SIG_DFL if handler is None else handler)
        self._previous = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self._is_requested:
            raise KeyboardInterrupt
        self._is_requested = True

    def is_requested(self) -> bool:
        """Whether a signal has come."""
        return self._is_requested

    def check(self) -> None:
        """Raises `KeyboardInterrupt` if a signal has come."""
        if self._is_requested:
            raise KeyboardInterrupt
