"""Progress on stderr: phase, rate, remaining time and a few figures, and never more than two seconds of silence.

A `Progress` hears of work between compiled chunks (`update`). While it hears nothing, during compilation above all, a
ticker thread keeps the line moving. On a terminal one live line (rich); elsewhere plain lines; or nothing at all.
"""

import math
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from terrazzo.errors.arguments import choice

MODES = ("auto", "rich", "plain", "off")
PLAIN_INTERVAL = 1.5  # seconds: a line at least every two, on a busy machine too
LIVE_RATE = 5.0  # refreshes a second of the live line


@dataclass
class Phase:
    """One stretch of work.

    Attributes:
        name: What is being done.
        total: How many units it takes, if known.
        unit: What is counted.
        done: How many are done.
        seconds: How long it took (so far).
        first_seconds: Until the first `update`: compilation, mostly.
    """

    name: str
    total: int | None = None
    unit: str = "steps"
    done: int = 0
    seconds: float = 0.0
    first_seconds: float | None = None
    figures: dict[str, Any] = field(default_factory=dict)
    started: float = field(default=0.0, repr=False)
    is_ended: bool = False
    first_done: int = field(default=0, repr=False)

    def rate(self, now: float) -> float | None:
        """Units a second; the time before the first update (compilation) is left out where that is possible."""
        if self.first_seconds is None or not self.done:
            return None
        if self.done > self.first_done:
            return (self.done - self.first_done) / max(now - self.started - self.first_seconds, 1e-9)
        return self.done / max(self.first_seconds, 1e-9)


def format_seconds(seconds: float) -> str:
    """Seconds for a person: `4 s`, `2 min 05 s`, `3 h 10 min`.

    >>> format_seconds(125.0)
    '2 min 05 s'
    """
    if not math.isfinite(seconds):
        return "?"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 100:
        return f"{whole} s"
    if whole < 6000:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def _format_figure(name: str, value: Any) -> str:
    words = name.replace("_", " ")
    if isinstance(value, str):
        return f"{words} {value}"
    if isinstance(value, bool | int):
        return f"{words} {value}"
    number = float(value)
    return f"{words} {number:.3f}" if 0.1 <= abs(number) < 100 else f"{words} {number:.4g}"


def format_line(phase: Phase, now: float) -> str:
    """The line for a phase as it stands at time `now`."""
    elapsed = phase.seconds if phase.is_ended else now - phase.started
    if phase.is_ended:
        count = f"{phase.done} {phase.unit} in " if phase.total is not None or phase.done else ""
        parts = [f"{phase.name}: {count}{format_seconds(elapsed)}"]
    elif phase.first_seconds is None:
        return f"{phase.name}: compiling ... {format_seconds(elapsed)}"
    else:
        whole = "" if phase.total is None else f"/{phase.total}"
        parts = [f"{phase.name}: {phase.done}{whole} {phase.unit}"]
        if phase.total:
            parts[0] += f" ({100 * phase.done / phase.total:.0f} %)"
    rate = phase.rate(now if not phase.is_ended else phase.started + phase.seconds)
    if rate is not None and math.isfinite(rate):
        parts.append(f"{rate:.4g}/s" if rate < 1000 else f"{rate:.0f}/s")
        if phase.total is not None and not phase.is_ended and rate > 0:
            parts.append(f"{format_seconds((phase.total - phase.done) / rate)} left")
    parts += [_format_figure(name, value) for name, value in phase.figures.items() if value is not None]
    return ", ".join(parts)


class Progress:
    """Shows how a run proceeds; a context manager.

    Args:
        mode: "auto" (live on a terminal, else plain lines), "rich", "plain" or "off"; True is "auto", False "off".
        stream: Where to write; stderr if None.
        on_update: Called after every update: a place to stop at that all loops pass.

    Example::

        with Progress("auto") as progress:
            progress.phase("sampling", total=1000, unit="draws")
            for done in range(100, 1001, 100):
                ...
                progress.update(done, acceptance=0.3, worst_r_hat=1.02)
        progress.phases  # seconds per phase

    >>> with Progress("off") as progress:
    ...     _ = progress.phase("sampling", total=10, unit="draws")
    ...     progress.update(10)
    >>> progress.phases[0].name
    'sampling'
    """

    def __init__(self, mode: str | bool = "auto", *, stream: Any = None, on_update: Callable[[], None] | None = None):
        if isinstance(mode, bool):
            mode = "auto" if mode else "off"
        mode = choice("progress", mode, MODES)
        self._stream = sys.stderr if stream is None else stream
        if mode == "auto":
            is_terminal = getattr(self._stream, "isatty", lambda: False)()
            mode = "rich" if is_terminal else "plain"
        self.mode = mode
        self.phases: list[Phase] = []
        self._lock = threading.RLock()
        self._stop = threading.Event()
        self._ticker: threading.Thread | None = None
        self._live: Any = None
        self._last_print = 0.0
        self._on_update = on_update

    def __enter__(self) -> "Progress":
        self._stop.clear()
        if self.mode == "plain":
            self._ticker = threading.Thread(target=self._tick, name="terrazzo-progress", daemon=True)
            self._ticker.start()
        elif self.mode == "rich":
            from rich.console import Console
            from rich.live import Live

            console = Console(file=self._stream, soft_wrap=False)
            self._live = Live(_LiveLine(self), console=console, refresh_per_second=LIVE_RATE, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the current phase and the display; may be called twice."""
        self._end_phase()
        self._stop.set()
        if self._ticker is not None:
            self._ticker.join()
            self._ticker = None
        if self._live is not None:
            live, self._live = self._live, None
            live.stop()

    @property
    def current(self) -> Phase | None:
        """The phase under way."""
        return self.phases[-1] if self.phases and not self.phases[-1].is_ended else None

    @property
    def seconds(self) -> dict[str, float]:
        """Seconds by phase name (phases of one name are added up)."""
        out: dict[str, float] = {}
        now = time.perf_counter()
        for phase in self.phases:
            out[phase.name] = out.get(phase.name, 0.0) + (phase.seconds if phase.is_ended else now - phase.started)
        return out

    def phase(self, name: str, total: int | None = None, unit: str = "steps") -> Phase:
        """Begins a phase and ends the one before.

        Args:
            name: What is being done, e.g. "training".
            total: How many units it takes, if known.
            unit: What is counted, e.g. "iterations".
        """
        self._end_phase()
        phase = Phase(name, total, unit, started=time.perf_counter())
        with self._lock:
            self.phases.append(phase)
        self._print()
        return phase

    def update(self, done: int, **figures: Any) -> None:
        """Tells how far the phase is, and any figures worth showing (acceptance, worst_r_hat, loss, ...)."""
        now = time.perf_counter()
        with self._lock:
            phase = self.current
            if phase is None:
                return
            if phase.first_seconds is None:
                phase.first_seconds, phase.first_done = now - phase.started, int(done)
            phase.done = int(done)
            phase.figures.update(figures)
        if self.mode == "plain" and now - self._last_print >= PLAIN_INTERVAL:
            self._print()
        if self._on_update is not None:
            self._on_update()

    def _end_phase(self) -> None:
        with self._lock:
            phase = self.current
            if phase is None:
                return
            phase.seconds = time.perf_counter() - phase.started
            phase.is_ended = True
        if self._live is not None:
            self._live.console.print(format_line(phase, time.perf_counter()), markup=False, highlight=False)
        else:
            self._print(phase)

    def _print(self, phase: Phase | None = None) -> None:
        if self.mode != "plain":
            return
        with self._lock:
            phase = phase or self.current
            if phase is None:
                return
            self._last_print = time.perf_counter()
            try:
                self._stream.write(format_line(phase, self._last_print) + "\n")
                self._stream.flush()
            except (OSError, ValueError):  # a closed stream must not end the run
                self.mode = "off"

    def _tick(self) -> None:
        while not self._stop.wait(PLAIN_INTERVAL / 6):
            if time.perf_counter() - self._last_print >= PLAIN_INTERVAL:
                self._print()


class _LiveLine:
    """The renderable of the live line: asked again at every refresh, so that the clock moves by itself."""

    def __init__(self, progress: Progress):
        self._progress = progress

    def __rich__(self) -> Any:
        from rich.text import Text

        phase = self._progress.current
        return Text("" if phase is None else format_line(phase, time.perf_counter()), no_wrap=True, overflow="ellipsis")
