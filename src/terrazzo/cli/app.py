"""The application that commands register with, and what they share: output, exit codes."""

from typing import Any

import typer
from typer.core import TyperGroup

ERROR, USAGE, NOT_TRUSTED, UNCHECKED, INTERRUPTED = 1, 2, 3, 4, 130
HELP = """\b
Example:
  terrazzo sample models:log_prob --space "gamma: binary[100], k: integers[1, 10]" --data data.npz --out run
  terrazzo report run

Draws from any unnormalised distribution over integers, exact by construction.

\b
Exit codes: 0 exact or trusted, 3 not trusted, 4 unchecked, 1 error, 2 usage, 130 interrupted (draws are kept).
"""

ORDER = (
    "sample", "resume", "summary", "diagnose", "report", "explain", "samplers", "launch", "completion", "demo",
    "reproduce",
)  # fmt: skip


class Commands(TyperGroup):
    """Commands in the order in which a person needs them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Their names; one that has no place comes last."""
        return sorted(super().list_commands(ctx), key=lambda name: (*ORDER, name).index(name))


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help=HELP,
)
echo = typer.echo
