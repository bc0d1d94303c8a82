"""Progress: never silent, never in the way, nothing left running."""

import io
import threading
import time

import pytest

from terrazzo.errors import OptionError
from terrazzo.runtime import progress as module
from terrazzo.runtime.progress import Phase, Progress, format_line, format_seconds


class Terminal(io.StringIO):
    def isatty(self):
        return True


def threads():
    return [t for t in threading.enumerate() if t.name == "terrazzo-progress"]


def wait_until(is_true):
    """For as long as a loaded machine may need."""
    end = time.monotonic() + 120
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_plain_lines_come_without_updates(monkeypatch):
    monkeypatch.setattr(module, "PLAIN_INTERVAL", 0.05)
    stream = io.StringIO()
    with Progress("plain", stream=stream) as progress:
        progress.phase("training", total=100, unit="iterations")
        wait_until(lambda: len(stream.getvalue().splitlines()) >= 3)  # as if compiling
        silent = stream.getvalue().splitlines()
        progress.update(50, loss=1.25, acceptance=0.3)
        wait_until(lambda: "50/100" in stream.getvalue())
    assert all("training: compiling ..." in line for line in silent)
    lines = stream.getvalue().splitlines()
    assert any("50/100 iterations (50 %)" in line and "loss 1.250" in line and "left" in line for line in lines)
    assert lines[-1].startswith("training: 50 iterations in ")
    assert not threads()


def test_default_interval_is_below_two_seconds():
    assert module.PLAIN_INTERVAL * (1 + 1 / 6) < 2.2
    assert module.PLAIN_INTERVAL < 2


def test_plain_lines_are_rare():
    stream = io.StringIO()
    with Progress("plain", stream=stream) as progress:
        progress.phase("sampling", total=1000, unit="draws")
        for done in range(1000):
            progress.update(done)
    assert len(stream.getvalue().splitlines()) <= 3


def test_thread_stops_on_exceptions():
    progress = Progress("plain", stream=io.StringIO())

    def interrupted():
        with progress:
            progress.phase("sampling", total=10)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not threads()
    assert progress.phases[0].is_ended
    progress.close()


def test_off_is_silent_but_counts(capsys):
    with Progress("off") as progress:
        progress.phase("training", total=10, unit="iterations")
        progress.update(10)
        progress.phase("sampling", total=5, unit="draws")
        time.sleep(0.02)
        progress.update(5)
        progress.phase("sampling", total=5, unit="draws")
    assert capsys.readouterr() == ("", "")
    assert [p.name for p in progress.phases] == ["training", "sampling", "sampling"]
    assert progress.phases[1].seconds >= 0.02
    assert progress.phases[1].first_seconds >= 0.02
    assert set(progress.seconds) == {"training", "sampling"}
    assert progress.current is None


def test_auto_follows_the_stream():
    assert Progress("auto", stream=io.StringIO()).mode == "plain"
    assert Progress("auto", stream=Terminal()).mode == "rich"
    assert Progress(True, stream=Terminal()).mode == "rich"
    assert Progress(False).mode == "off"
    with pytest.raises(OptionError, match="auto, rich, plain, off"):
        Progress("loud")


def test_rich_writes_and_stops():
    stream = Terminal()
    with Progress("rich", stream=stream) as progress:
        progress.phase("sampling", total=10, unit="draws")
        wait_until(lambda: "compiling" in stream.getvalue())
        progress.update(4, worst_r_hat=1.02)
        wait_until(lambda: "worst r hat 1.020" in stream.getvalue())
        progress.phase("saving [bold]", total=None)
    text = stream.getvalue()
    assert "compiling" in text
    assert "worst r hat 1.020" in text
    assert "sampling: 4 draws in" in text
    assert "saving [bold]" in text
    before = threading.active_count()
    time.sleep(0.05)
    assert threading.active_count() <= before


def test_closed_stream_does_not_end_the_run():
    stream = io.StringIO()
    with Progress("plain", stream=stream) as progress:
        progress.phase("a", total=1)
        stream.close()
        progress.phase("b", total=1)
        progress.update(1)
    assert len(progress.phases) == 2


def test_update_without_a_phase_is_ignored():
    with Progress("off") as progress:
        progress.update(3)
    assert progress.phases == []


def test_lines():
    phase = Phase("sampling", 1000, "draws", done=500, first_seconds=2.0, first_done=100, started=10.0)
    phase.figures = {"worst_r_hat": 1.0123, "acceptance": 0.25, "is_ess": 1234.5, "nothing": None}
    line = format_line(phase, 16.0)
    assert line == (
        "sampling: 500/1000 draws (50 %), 100/s, 5.0 s left, worst r hat 1.012, acceptance 0.250, is ess 1234"
    )
    assert [format_seconds(s) for s in (0.04, 59.0, 61.0, 3700.0, 7300.0, float("inf"))] == [
        "0.0 s", "59 s", "61 s", "61 min 40 s", "2 h 01 min", "?",
    ]  # fmt: skip
