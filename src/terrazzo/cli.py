"""The command line: `terrazzo demo`, `terrazzo samplers`, `terrazzo diagnose`."""

import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Draws from any unnormalised distribution over integers, exact by construction.",
)
echo = typer.echo
WIDTH = 100


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("terrazzo-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    mixture: Annotated[int, typer.Option(min=0, max=3, help="Which of the paper's mixtures.")] = 0,
    progress: Annotated[str, typer.Option(help="auto, rich, plain or off.")] = "auto",
) -> None:
    """The paper's first experiment: a 2-D Gaussian mixture on a 64 x 64 grid, in about a minute."""
    echo("A Gaussian mixture with 5 components on a 64 x 64 grid: train a flow, sample, compare with the exact law.")
    from terrazzo.demo import run_demo

    report = run_demo(out, index=mixture, seed=seed, progress=progress)
    result = report.result
    echo(f"\n{result.summary()}\n")
    echo("component        " + "".join(f"{i:>8}" for i in range(5)))
    for name, row in zip(("share of draws", "exact share"), report.component_shares, strict=True):
        echo(f"{name:<17}" + "".join(f"{v:8.4f}" for v in row))
    ratio = report.tv_draws / report.tv_independent
    echo(f"\ntotal variation from the exact law: draws {report.tv_draws:.4f}")
    echo(f"  independent draws worth the same   {report.tv_independent:.4f}   (ratio {ratio:.2f})")
    echo(f"  the flow alone                     {report.tv_flow:.4f}")
    echo(f"log Z {result.log_z:.3f} +- {result.log_z_standard_error:.3f}")
    echo(f"verdict: {result.verdict}")
    echo(f"picture: {report.figure}   ({report.seconds:.0f} s)")


@app.command()
def samplers() -> None:
    """Lists the samplers: what each needs, and where it comes from."""
    from terrazzo.samplers import REGISTRY

    names, needs = max(map(len, REGISTRY)), max(len(_needs(spec)) for spec in REGISTRY.values())
    indent = " " * (names + needs + 4)
    echo(f"{'sampler':<{names}}  {'needs':<{needs}}  what it is [reference]")
    for name, spec in REGISTRY.items():
        reference = spec.reference.replace(" ", "\xa0")  # kept on one line
        text = textwrap.wrap(f"{spec.summary} [{reference}]", WIDTH - len(indent), break_on_hyphens=False)
        text = [line.replace("\xa0", " ") for line in text]
        echo(f"{name:<{names}}  {_needs(spec):<{needs}}  {text[0]}")
        for line in text[1:]:
            echo(indent + line)


def _needs(spec: Any) -> str:
    return ", ".join(sorted(spec.needs)) or "-"


@app.command()
def diagnose(path: Annotated[Path, typer.Argument(help="A file written by Result.save.")]) -> None:
    """Prints the summary, every check and the verdict of a saved result; exits with 1 if it is not trusted."""
    from terrazzo.results import Result

    result = Result.load(path)
    echo(f"{result.summary()}\n")
    for check in result.checks():
        mark = "ok " if check.passed else "NOT"
        echo(f"{mark} {check.name}: {check.value:.4g} (threshold {check.threshold:.4g})")
        if not check.passed:
            echo(f"      -> {check.advice}")
    echo(f"verdict: {result.verdict}")
    raise typer.Exit(0 if result.verdict.is_trusted else 1)


def main() -> None:
    """The entry point: errors of ours are a few lines, not a traceback."""
    from terrazzo.errors import TerrazzoError

    try:
        app()
    except TerrazzoError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        sys.exit(130)
