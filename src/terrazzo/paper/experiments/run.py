"""`python -m terrazzo.paper.experiments.run`: the experiments where only JAX and its friends are installed.

The same as `terrazzo reproduce`, by argparse alone: no typer, rich, matplotlib or scikit-learn (give the data sets with
`--archive`, written elsewhere by `--write-archive`). The report is made elsewhere too, from the folder of records.

    python -m terrazzo.paper.experiments.run logistic --preset paper --out runs --archive data.npz
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from terrazzo.errors import TerrazzoError
from terrazzo.paper.experiments.logistic import save_archive
from terrazzo.paper.experiments.presets import EXPERIMENTS, PRESETS
from terrazzo.paper.experiments.runner import Request, reproduce
from terrazzo.paper.experiments.schedule import reproduce_within


def tell(line: str) -> None:
    """A line on stderr, at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m terrazzo.paper.experiments.run", description="The paper's experiments."
    )
    parser.add_argument("experiments", nargs="*", help=f"{', '.join(EXPERIMENTS)}, or all (the default)")
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--out", type=Path, default=Path("reproduction"), help="folder of the records")
    parser.add_argument("--samplers", nargs="+", default=[], help="rows to run, or their common beginning")
    parser.add_argument("--settings", nargs="+", default=[], help="targets to run")
    parser.add_argument("--folds", nargs="+", type=int, default=[], help="folds to run, from 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--archive", type=Path, help="npz with the data sets")
    parser.add_argument("--max-seconds", type=float, help="keep what a piece has after this long")
    parser.add_argument(
        "--total-seconds", type=float,
        help="run missing pieces in order of priority, each with its own limit and only if time is left to finish it",
    )  # fmt: skip
    parser.add_argument("--progress", default="auto", choices=["auto", "plain", "off"])
    parser.add_argument("--write-archive", type=Path, help="write the data sets into this npz and end")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what was asked for; 0 if every piece is there, 1 if some failed, 2 for a mistake, 130 after Ctrl-C."""
    options = parse(arguments)
    try:
        if options.write_archive is not None:
            save_archive(options.write_archive)
            return 0
        request = Request(
            experiments=tuple(options.experiments or ["all"]), preset=options.preset, out=options.out,
            samplers=tuple(options.samplers), settings=tuple(options.settings), folds=tuple(options.folds),
            seed=options.seed, archive=options.archive, max_seconds=options.max_seconds, progress=options.progress,
        )  # fmt: skip
        if options.total_seconds is None:
            failures = reproduce(request, tell)
        else:
            failures = reproduce_within(request, options.total_seconds, tell)
        return 1 if failures else 0
    except TerrazzoError as error:
        tell(f"error: {error}")
        return 2
    except KeyboardInterrupt:
        tell("interrupted: finished pieces are kept, and the same command goes on from there")
        return 130


if __name__ == "__main__":
    sys.exit(main())
