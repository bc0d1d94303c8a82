"""Runs the scripts of the gallery and stores what they print and draw.

    python gallery/run.py                   # all of them, into docs/gallery
    python gallery/run.py asia sudoku       # these
    python gallery/run.py asia --quick --out quick

Each script runs in a process of its own, in an empty folder, as a reader would run it. Kept are NAME.txt (its stdout),
NAME.png (reduced to a palette) and NAME.json (seconds of the clock and of all cores, date, versions). `--quick` draws
less and stops early, to see that a script runs; its answers mean nothing.
"""

import argparse
import datetime
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
MAX_BYTES = 60_000
QUICK = """
import runpy, sys, terrazzo
whole, best = terrazzo.sample, terrazzo.maximize
def sample(*args, **options):
    return whole(*args, **{**options, "chains": 4, "draws": 40, "max_seconds": 8.0, "progress": "off"})
def maximize(*args, **options):
    return best(*args, **{**options, "num_rounds": 20, "progress": "off"})
terrazzo.sample, terrazzo.maximize = sample, maximize
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def scripts() -> list[Path]:
    """All worked problems, by name."""
    return sorted(path for path in HERE.glob("*.py") if path.name != Path(__file__).name)


def run(script: Path, out: Path, *, quick: bool = False) -> dict:
    """Runs one script and stores its output; raises `RuntimeError` with its last words if it fails."""
    command = [sys.executable, "-W", "ignore", *(("-c", QUICK) if quick else ()), str(script.resolve())]
    with tempfile.TemporaryDirectory() as folder:
        begin, cpu_before = time.monotonic(), _cpu_seconds()
        environment = {**os.environ, "MPLBACKEND": "agg", "COLUMNS": "100"}
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
        seconds, cpu_seconds = time.monotonic() - begin, _cpu_seconds() - cpu_before
        if done.returncode:
            raise RuntimeError(f"{script.name} failed:\n{done.stderr[-3000:]}")
        picture = Image.open(Path(folder) / f"{script.stem}.png").convert("RGB")
        out.mkdir(parents=True, exist_ok=True)
        for colours in (256, 128, 64, 32):
            path = out / f"{script.stem}.png"
            picture.quantize(colours, dither=Image.Dither.NONE).save(path, optimize=True)
            if path.stat().st_size <= MAX_BYTES:
                break
    text = "\n".join(line.rstrip() for line in done.stdout.splitlines()) + "\n"
    (out / f"{script.stem}.txt").write_text(text, encoding="utf-8")
    record = {
        "seconds": round(seconds),
        "cpu_seconds": round(cpu_seconds),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {name: version(name) for name in ("terrazzo", "jax", "numpy")},
        "cpus": os.cpu_count(),
        "size": picture.size,
    }
    (out / f"{script.stem}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    return record


def _cpu_seconds() -> float:
    """What finished child processes have taken on all cores; on a busy machine this says more than the clock."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="scripts without .py; by default all")
    parser.add_argument("--quick", action="store_true", help="few draws, to see that they run")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "gallery")
    options = parser.parse_args()
    unknown = set(options.names) - {script.stem for script in scripts()}
    if unknown:
        parser.error(f"no script is called {', '.join(sorted(unknown))}")
    failed = []
    for script in scripts():
        if options.names and script.stem not in options.names:
            continue
        try:
            record = run(script, options.out, quick=options.quick)
            print(f"{script.stem}: {record['seconds']} s", flush=True)
        except RuntimeError as error:
            failed.append(script.stem)
            print(error, flush=True)
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
