"""The commands of the paper, and the list of samplers: `terrazzo demo`, `samplers`, `reproduce`."""

import textwrap
from pathlib import Path
from typing import Annotated, Any

import typer

from terrazzo.cli.app import app, echo

WIDTH = 100


@app.command(short_help="The paper's first experiment, with a picture.")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the picture.")] = Path("terrazzo-demo"),
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    mixture: Annotated[int, typer.Option(min=0, max=3, help="Which of the paper's mixtures.")] = 0,
    progress: Annotated[str, typer.Option(help="auto, rich, plain or off.")] = "auto",
) -> None:
    """The paper's first experiment: a 2-D Gaussian mixture on a 64 x 64 grid, in about a minute."""
    echo("A Gaussian mixture with 5 components on a 64 x 64 grid: train a flow, sample, compare with the exact law.")
    from terrazzo.paper.demo import run_demo

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
    picture = report.figure or "none without matplotlib: pip install 'terrazzo[plots]'"
    echo(f"picture: {picture}   ({report.seconds:.0f} s)")


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


@app.command(short_help="Runs the paper's experiments.")
def reproduce(
    experiments: Annotated[list[str], typer.Argument(help="mixture, ising, logistic, selection, or all.")],
    preset: Annotated[str, typer.Option(help="smoke (seconds), small (2 CPU cores), paper (a GPU).")] = "small",
    out: Annotated[Path, typer.Option(help="Folder of the records; a run there is continued.")] = Path("reproduction"),
    samplers: Annotated[list[str] | None, typer.Option(help="Rows to run (repeat the option).")] = None,
    settings: Annotated[list[str] | None, typer.Option(help="Targets to run (repeat the option).")] = None,
    folds: Annotated[list[int] | None, typer.Option(help="Folds to run, from 1 (repeat the option).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed, of data and chains.")] = 0,
    archive: Annotated[Path | None, typer.Option(help="Data sets as .npz, where scikit-learn is missing.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Keep what a piece has after this long.")] = None,
    progress: Annotated[str, typer.Option(help="auto, rich, plain or off.")] = "auto",
) -> None:
    """Runs the paper's experiments, one record a finished piece; `terrazzo report` turns them into tables."""
    from terrazzo.paper.experiments import Request
    from terrazzo.paper.experiments import reproduce as run_pieces

    words = lambda values: tuple(part for value in values or () for part in value.split(",") if part)
    request = Request(
        experiments=tuple(experiments), preset=preset, out=out, samplers=words(samplers), settings=words(settings),
        folds=tuple(folds or ()), seed=seed, archive=archive, max_seconds=max_seconds, progress=progress,
    )  # fmt: skip
    try:
        failures = run_pieces(request, lambda line: echo(line, err=True))
    except KeyboardInterrupt:
        echo(f"interrupted: finished pieces are kept. To continue:\n  {request.command()}", err=True)
        raise typer.Exit(130) from None
    echo(f"{len(failures)} pieces failed" if failures else f"done; now: terrazzo report {out}", err=True)
    raise typer.Exit(1 if failures else 0)
