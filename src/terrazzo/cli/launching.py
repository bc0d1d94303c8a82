"""`terrazzo launch`: one script in several processes."""

import sys
from typing import Annotated

import typer

from terrazzo.cli.app import app


@app.command(
    short_help="Runs a script in several processes of this machine.",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def launch(
    context: typer.Context,
    processes: Annotated[int, typer.Option(min=1, help="How many processes share the chains.")] = 2,
    pin: Annotated[bool, typer.Option("--pin", help="Give every process cores of its own.")] = False,
    gpus_each: Annotated[int | None, typer.Option(min=1, help="GPUs of each process; all by default.")] = None,
) -> None:
    r"""Runs a script in several processes of this machine: they share the chains of every tz.sample in it.

    \b
    Example:
      terrazzo launch --processes 2 -- python my_run.py

    All processes run the same script; the draws are those of one process. Give tz.sample a checkpoint folder where
    draws are many. When a process dies the others are ended, and the same command goes on from the checkpoint.
    """
    from terrazzo.errors import OptionError
    from terrazzo.runtime.launching import launch as start

    if not context.args:
        raise OptionError("command", "is missing", "terrazzo launch --processes 2 -- python my_run.py")
    say = lambda line: typer.echo(line, err=True)
    sys.exit(start(context.args, processes, is_pinned=pin, gpus_each=gpus_each, errors=say))
