"""How long reading a function may take: everything that is found about it, when it is found, draws on one allowance."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class OutOfTimeError(Exception):
    """The allowance is used up; whoever asked does without."""


class Allowance:
    """Seconds that may be spent.

    >>> allowance = Allowance(0.0)
    >>> with allowance.stage():
    ...     try:
    ...         allowance.check()
    ...     except OutOfTimeError:
    ...         print("without")
    without
    """

    def __init__(self, seconds: float = float("inf")):
        self.left = seconds
        self._ends: float | None = None

    @contextmanager
    def stage(self) -> Iterator[None]:
        """Time inside counts; stages inside stages count once."""
        if self._ends is not None:
            yield
            return
        began = time.monotonic()
        self._ends = began + self.left
        try:
            yield
        finally:
            self.left -= time.monotonic() - began
            self._ends = None

    def check(self) -> None:
        """Raises `OutOfTimeError` if nothing is left."""
        if self._ends is not None and time.monotonic() >= self._ends:
            raise OutOfTimeError
