"""The command line: sampling for people who do not write scripts, and the paper's experiments.

Results go to stdout, progress and messages to stderr. Exit codes: 0 exact or trusted, 3 not trusted, 4 unchecked,
1 an error, 2 a mistake in what was typed, 130 interrupted (draws are kept).
"""

import sys
import warnings
from typing import Any

import typer

from terrazzo.cli import completion, launching, paper, reading, sampling
from terrazzo.cli.app import ERROR, INTERRUPTED, USAGE, app

__all__ = ["app", "completion", "launching", "main", "paper", "reading", "sampling"]


def main() -> None:
    """The entry point: errors of ours are a few lines, not a traceback."""
    from terrazzo.errors import OptionError, SpaceError, TerrazzoError

    warnings.showwarning = _show_warning
    try:
        app()
    except TerrazzoError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(USAGE if isinstance(error, OptionError | SpaceError) else ERROR)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    typer.echo(f"warning: {message}", err=True)
