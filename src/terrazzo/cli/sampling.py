"""The commands that draw: `terrazzo sample` and `terrazzo resume`."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from terrazzo.cli.app import INTERRUPTED, app, echo
from terrazzo.cli.requests import CHECKPOINT, RESULT, RunRequest, load_request, parsed_options, save_request

SAMPLE = """\b
Example:
  terrazzo sample models:log_prob --space "gamma: binary[100], k: integers[1, 10]" --data data.npz --out run

Draws from a log-probability, and says how far to trust the draws.

\b
models.py holds a function of one configuration, written with jax.numpy:
  def log_prob(gamma, k, X, y): ...
Its parameters are the variables of the space, by name, and the arrays of the data file. A function of one parameter
gets an array (or a dict of arrays, where variables have names). --space may be left out for a tz.Target.

\b
Kinds of variables, with their shapes:
  binary[28, 28]    integers[-8, 7; 3, 5]    categorical[red, green, blue; 4, 4]    categorical[5]
  real[3]    real[0, 1]    real[0, inf; 4]    simplex[3]    ordered[4]
"""
RESUME = """\b
Example:
  terrazzo resume run --draws 5000

Goes on with a run where it stopped, or makes it longer. The draws are those of one long run.
"""


@app.command(help=SAMPLE, short_help="Draws from a log-probability.")
def sample(
    target: Annotated[str, typer.Argument(help="module:function, or module:target for a tz.Target.")],
    space: Annotated[str | None, typer.Option(help='The space, e.g. "gamma: binary[100], k: integers[1, 10]".')] = None,
    data: Annotated[str | None, typer.Option(help="An .npz file; its arrays are arguments of the function.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder: checkpoint and result.")] = None,
    sampler: Annotated[str, typer.Option(help="A name of `terrazzo samplers`; auto decides itself.")] = "auto",
    option: Annotated[list[str] | None, typer.Option(help="name=value of the sampler (repeat it).")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    chains: Annotated[int, typer.Option(min=1, help="Chains.")] = 8,
    draws: Annotated[int, typer.Option(min=1, help="Draws a chain.")] = 1000,
    warmup: Annotated[int | None, typer.Option(min=0, help="Warm-up steps.")] = None,
    thin: Annotated[int | None, typer.Option(min=1, help="Steps a kept draw.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Keep what there is after this long.")] = None,
    precision: Annotated[str, typer.Option(help="auto, float32 or float64.")] = "auto",
    blackbox: Annotated[bool, typer.Option("--blackbox", help="The function is plain Python or NumPy.")] = False,
    progress: Annotated[str, typer.Option(help="auto, rich, plain or off.")] = "auto",
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Draws from a log-probability."""
    request = RunRequest(
        target=target, space=space, data=data, blackbox=blackbox, sampler=sampler, options=list(option or ()),
        seed=seed, chains=chains, draws=draws, warmup=warmup, thin=thin, max_seconds=max_seconds, precision=precision,
        directory=str(Path.cwd()),
    )  # fmt: skip
    _run(request, out, progress, is_json)


@app.command(help=RESUME, short_help="Goes on with a run, or makes it longer.")
def resume(
    folder: Annotated[Path, typer.Argument(help="The folder that `terrazzo sample --out` wrote.")],
    draws: Annotated[int | None, typer.Option(min=1, help="Draws a chain, in all.")] = None,
    max_seconds: Annotated[float | None, typer.Option(help="Keep what there is after this long.")] = None,
    progress: Annotated[str, typer.Option(help="auto, rich, plain or off.")] = "auto",
    is_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Goes on with a run."""
    known = load_request(folder)
    request = replace(known, draws=known.draws if draws is None else draws, max_seconds=max_seconds)
    _run(request, folder, progress, is_json)


def _run(request: RunRequest, out: Path | None, progress: str, is_json: bool) -> None:
    """Samples, stores, prints, and ends with the code of the verdict."""
    from terrazzo import sample as draw
    from terrazzo.cli.models import load_target
    from terrazzo.cli.output import as_json, sampling_code
    from terrazzo.samplers import PROGRAMS

    target = load_target(
        request.target, request.space, request.data, is_blackbox=request.blackbox, folder=Path(request.directory)
    )
    sampler = _sampler(request)
    if out is not None:
        save_request(out, request)
    checkpoint = None if out is None or request.sampler in PROGRAMS else out / CHECKPOINT
    try:
        result = draw(
            target, seed=request.seed, sampler=sampler, chains=request.chains, draws=request.draws,
            warmup=request.warmup, thin=request.thin, max_seconds=request.max_seconds, precision=request.precision,
            checkpoint=checkpoint, progress=progress,
        )  # fmt: skip
    except KeyboardInterrupt:
        echo(f"interrupted before the first draw{_how_to_go_on(out)}", err=True)
        raise typer.Exit(INTERRUPTED) from None
    result = result.changed(provenance={**result.provenance, "command": request.command(out)})
    if out is not None:
        result.save(out / RESULT)
    if is_json:
        echo(as_json(result))
    else:
        echo(result._with_verdict.to_string())
        if result.log_z is not None:
            echo(f"log Z {result.log_z:.6g} +- {result.log_z_standard_error:.2g} ({result.log_z_verdict})")
    if not result.is_complete:
        echo(f"interrupted: {result.num_draws} of {request.draws} draws a chain are kept{_how_to_go_on(out)}", err=True)
    elif out is not None:
        echo(f"stored in {out}; for a page of it: terrazzo report {out}", err=True)
    raise typer.Exit(sampling_code(result))


def _how_to_go_on(out: Path | None) -> str:
    return "" if out is None else f"\nto go on: terrazzo resume {out}"


def _sampler(request: RunRequest) -> Any:
    """The sampler with its options; a wrong option is an error that names it."""
    from terrazzo import Auto, samplers
    from terrazzo.errors import OptionError

    options = parsed_options(request.options)
    factory = Auto if request.sampler == "auto" else samplers.get(request.sampler, "--sampler")
    try:
        return factory(**options)
    except TypeError as error:
        text = str(error).split("() ")[-1]
        raise OptionError("--option", f"{request.sampler!r}: {text}", "see the sampler's arguments") from None
