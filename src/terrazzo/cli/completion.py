"""Shell completion: `terrazzo completion bash` prints a script that knows all commands and options.

The script is plain words, written once: pressing Tab starts no Python.
"""

from enum import StrEnum
from typing import Annotated, Any, NamedTuple

import typer

from terrazzo.cli.app import app, echo

COMPLETION = """\b
Example:
  terrazzo completion bash > ~/.local/share/bash-completion/completions/terrazzo
  terrazzo completion zsh > ~/.zfunc/_terrazzo          (with fpath+=~/.zfunc before compinit)
  terrazzo completion fish > ~/.config/fish/completions/terrazzo.fish

Prints a script that completes commands, options and samplers.
"""


class Shell(StrEnum):
    """Shells that a script can be written for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


class Words(NamedTuple):
    """A command with its options (and what each says)."""

    name: str
    about: str
    options: tuple[tuple[str, str], ...]


@app.command(help=COMPLETION, short_help="Prints a script that completes commands in bash, zsh or fish.")
def completion(shell: Annotated[Shell, typer.Argument(help="bash, zsh or fish.")]) -> None:
    """Prints a script of shell completion."""
    from terrazzo.samplers import PROGRAMS, REGISTRY

    values = {
        "--sampler": ["auto", *REGISTRY, *PROGRAMS],
        "--precision": ["auto", "float32", "float64"],
        "--progress": ["auto", "rich", "plain", "off"],
        "--preset": ["smoke", "small", "paper"],
    }
    echo({Shell.bash: bash, Shell.zsh: zsh, Shell.fish: fish}[shell](_commands(), values))


def _commands() -> list[Words]:
    group: Any = typer.main.get_command(app)
    found = []
    for name, command in sorted(group.commands.items()):
        options = [
            (option, _short(getattr(parameter, "help", None)))
            for parameter in command.params
            for option in parameter.opts
            if option.startswith("--")
        ]
        lines = (command.callback.__doc__ or "").strip().splitlines()
        found.append(Words(name, _short(lines[0] if lines else ""), (*options, ("--help", "Show help"))))
    return found


def _short(text: str | None) -> str:
    """A few words without anything that a shell would read."""
    return "".join(c for c in (text or "").splitlines()[0] if c.isalnum() or c in " ,.-=;()")[:60] if text else ""


def bash(commands: list[Words], values: dict[str, list[str]]) -> str:
    """For bash: options of the command that was typed, names of files otherwise."""
    cases = "\n".join(f'    {c.name}) words="{" ".join(o for o, _ in c.options)}" ;;' for c in commands)
    valued = "\n".join(
        f'    {name}) COMPREPLY=($(compgen -W "{" ".join(v)}" -- "$word")); return ;;' for name, v in values.items()
    )
    names = " ".join(c.name for c in commands)
    return f"""_terrazzo() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=""
  if [ "$COMP_CWORD" -eq 1 ]; then COMPREPLY=($(compgen -W "{names} --help" -- "$word")); return; fi
  case "$before" in
{valued}
  esac
  case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -- "$word")) ;;
  esac
}}
complete -o filenames -F _terrazzo terrazzo"""


def zsh(commands: list[Words], values: dict[str, list[str]]) -> str:
    """For zsh, with a few words about each."""
    names = "\n".join(f"    '{c.name}:{c.about}'" for c in commands)
    cases = []
    for c in commands:
        options = " ".join(
            f"'{name}[{about}]" + (f":value:({' '.join(values[name])})'" if name in values else "'")
            for name, about in c.options
        )
        cases.append(f"    {c.name}) _arguments {options} '*:file:_files' ;;")
    return f"""#compdef terrazzo
_terrazzo() {{
  local -a commands=(
{names}
  )
  if (( CURRENT == 2 )); then _describe command commands; return; fi
  local command="$words[2]"
  shift words; (( CURRENT-- ))
  case "$command" in
{chr(10).join(cases)}
  esac
}}
if [ "$funcstack[1]" = "_terrazzo" ]; then _terrazzo "$@"; else compdef _terrazzo terrazzo; fi"""


def fish(commands: list[Words], values: dict[str, list[str]]) -> str:
    """For fish, with a few words about each."""
    lines = ["complete -c terrazzo -e"]
    for c in commands:
        lines.append(f"complete -c terrazzo -n __fish_use_subcommand -f -a {c.name} -d '{c.about}'")
        for name, about in c.options:
            given = f" -x -a '{' '.join(values[name])}'" if name in values else ""
            lines.append(
                f"complete -c terrazzo -n '__fish_seen_subcommand_from {c.name}' -l {name[2:]} -d '{about}'{given}"
            )
    return "\n".join(lines)
