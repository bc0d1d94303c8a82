"""The commands that read: `terrazzo summary`, `diagnose`, `report`, `explain`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from terrazzo.cli.app import app, echo
from terrazzo.cli.requests import PAGE, is_run, result_path

RUN = "The folder of a run, or a file written by Result.save."
CODES = "Exits with 0 if the result is exact or trusted, 3 if it is not trusted, 4 if it is unchecked."
SUMMARY = f"""\b
Example:
  terrazzo summary run

Prints mean, sd, errors, effective sample sizes and R-hat of every coordinate, and the verdict. {CODES}
"""
DIAGNOSE = f"""\b
Example:
  terrazzo diagnose run

Prints the summary, every check with its number and what to do, and the verdict. {CODES}
"""
REPORT = """\b
Example:
  terrazzo report run

Writes the page of a run: one HTML file with the verdict, modes, posterior, traces, evidence and costs. For a folder
that `terrazzo reproduce` wrote, writes tables, figures and the page of the paper's experiments.
"""
EXPLAIN = """\b
Example:
  terrazzo explain models:log_prob --space "binary[100]"

Says what can be read from a log-probability: terms, colours, treewidth, and what this opens.
"""
JSON = typer.Option("--json", help="Print JSON.")


def _load(path: Path) -> Any:
    from terrazzo.results.result import Result

    return Result.load(result_path(path))


@app.command(help=SUMMARY, short_help="Prints the table of a result, and the verdict.")
def summary(
    path: Annotated[Path, typer.Argument(help=RUN)],
    rows: Annotated[int | None, typer.Option(min=2, help="Rows to print at most.")] = None,
    is_json: Annotated[bool, JSON] = False,
) -> None:
    """Prints the table of a result."""
    from terrazzo.cli.output import as_json, exit_code
    from terrazzo.verdict.summaries import MAX_PRINTED_ROWS

    result = _load(path)
    echo(as_json(result) if is_json else result._with_verdict.to_string(rows or MAX_PRINTED_ROWS))
    raise typer.Exit(exit_code(result))


@app.command(help=DIAGNOSE, short_help="Prints every check, and what to do.")
def diagnose(path: Annotated[Path, typer.Argument(help=RUN)], is_json: Annotated[bool, JSON] = False) -> None:
    """Prints the summary, every check and the verdict of a result."""
    from terrazzo.cli.output import as_json, exit_code

    result = _load(path)
    if is_json:
        echo(as_json(result, has_checks=True))
    else:
        echo(f"{result._with_verdict.to_string()}\n")
        echo(str(result.diagnose()))
    raise typer.Exit(exit_code(result))


@app.command(help=REPORT, short_help="Writes the page of a run.")
def report(
    path: Annotated[Path, typer.Argument(help="The folder of a run or of a reproduction, or a result's file.")],
    out: Annotated[Path | None, typer.Option(help="The page of a run; beside the result if left out.")] = None,
) -> None:
    """Writes the page of a run, or the report of a reproduction."""
    if path.is_dir() and not is_run(path):
        from terrazzo.errors import OptionError
        from terrazzo.paper.report import write_report

        if out is not None:
            raise OptionError("--out", "is for the page of a run", "a reproduction's report is written into its folder")
        written = write_report(path)
        for part in (written.page, written.markdown, written.latex, *written.figures):
            echo(str(part))
        return
    page = path / PAGE if path.is_dir() else path.with_suffix(".html")
    echo(str(_load(path).report(page if out is None else out)))


@app.command(help=EXPLAIN, short_help="Says what can be read from a log-probability.")
def explain(
    target: Annotated[str, typer.Argument(help="module:function, or module:target for a tz.Target.")],
    space: Annotated[str | None, typer.Option(help='The space, e.g. "binary[100]".')] = None,
    data: Annotated[str | None, typer.Option(help="An .npz file; its arrays are arguments of the function.")] = None,
) -> None:
    """Says what can be read from a target's log-probability."""
    from terrazzo import explain as read_and_explain
    from terrazzo.cli.models import load_target

    echo(str(read_and_explain(load_target(target, space, data))))
