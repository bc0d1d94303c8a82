"""What a run of the command line was asked for, and the folder that keeps it.

A folder holds `run.json` (what was asked for), `checkpoint/` (the run as it goes) and `result.tz`. `run.json` is JSON
that a person can read; nothing in it is evaluated.
"""

import json
import shlex
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from terrazzo.errors import ConfigurationError, FileFormatError, OptionError
from terrazzo.storage.atomic import write_text

REQUEST, RESULT, CHECKPOINT, PAGE = "run.json", "result.tz", "checkpoint", "run.html"
KIND, VERSION = "terrazzo run", 1
MAY_CHANGE = ("draws", "max_seconds", "directory")  # a run with other values of these continues the same run


@dataclass(frozen=True)
class RunRequest:
    """What was typed.

    Attributes:
        target: `module:function`.
        space: The space as text, or None.
        data: An .npz file, or None.
        blackbox: Whether JAX cannot trace the function.
        sampler: The name of a sampler, "auto" for the default.
        options: Its options, as `name=value`.
        seed: The random seed.
        chains: Chains.
        draws: Draws a chain.
        warmup: Warm-up steps, or None.
        thin: Steps a kept draw, or None.
        max_seconds: A limit of time, or None.
        precision: "auto", "float32" or "float64".
        directory: Where the module and the data are looked for.
    """

    target: str
    space: str | None = None
    data: str | None = None
    blackbox: bool = False
    sampler: str = "auto"
    options: list[str] = field(default_factory=list)
    seed: int = 0
    chains: int = 8
    draws: int = 1000
    warmup: int | None = None
    thin: int | None = None
    max_seconds: float | None = None
    precision: str = "auto"
    directory: str = "."

    def command(self, out: Path | None) -> str:
        """The command that asks for this."""
        words = ["terrazzo", "sample", self.target]
        default = RunRequest(self.target)
        for entry in fields(self):
            value, name = getattr(self, entry.name), "--" + entry.name.replace("_", "-")
            if entry.name in ("target", "directory") or (
                value == getattr(default, entry.name) and entry.name != "seed"
            ):
                continue
            if isinstance(value, list):
                words += [word for item in value for word in ("--option", item)]
            else:
                words += [name] if value is True else [name, str(value)]
        return shlex.join(words if out is None else [*words, "--out", str(out)])


def save_request(folder: Path, request: RunRequest) -> None:
    """Writes what was asked for; an error if the folder belongs to another run."""
    if folder.exists() and not folder.is_dir():
        raise OptionError("--out", f"{str(folder)!r} is a file", "give a folder")
    if (folder / REQUEST).exists():
        known = load_request(folder)
        same = {name: getattr(request, name) for name in MAY_CHANGE}
        if replace(known, **same) != request:
            raise ConfigurationError("--out", f"{str(folder)!r} holds another run", "give another folder")
    elif folder.is_dir() and any(p for p in folder.iterdir() if not p.name.startswith(".")):
        raise OptionError("--out", f"{str(folder)!r} holds other files", "give an empty folder")
    folder.mkdir(parents=True, exist_ok=True)
    record = {"kind": KIND, "version": VERSION, **asdict(request)}
    write_text(folder / REQUEST, json.dumps(record, indent=1) + "\n")


def load_request(folder: Path) -> RunRequest:
    """What the run of a folder was asked for."""
    path = folder / REQUEST
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        if record.pop("kind") != KIND or record.pop("version") != VERSION:
            raise ValueError("it is of another kind or version")
        request = RunRequest(**record)
        for entry in fields(RunRequest):
            value, default = getattr(request, entry.name), getattr(RunRequest(""), entry.name)
            if default is not None and type(value) is not type(default):
                raise ValueError(f"{entry.name} is {value!r}"[:80])
        return request
    except OSError as error:
        remedy = "give the folder of a run: terrazzo sample ... --out folder"
        raise FileFormatError(str(path), f"cannot be read ({error.strerror or error})", remedy) from None
    except Exception as error:  # whatever someone wrote into it
        text = " ".join(str(error).split())[:120]
        raise FileFormatError(str(path), f"is not what terrazzo wrote ({text})", "use another folder") from None


def is_run(path: Path) -> bool:
    """Whether a folder is that of a run of the command line."""
    return path.is_dir() and ((path / RESULT).exists() or (path / REQUEST).exists())


def result_path(path: Path) -> Path:
    """The file of a result: the path itself, or that of a run's folder."""
    if not path.is_dir():
        return path
    if (path / RESULT).exists():
        return path / RESULT
    remedy = f"terrazzo resume {path}" if (path / REQUEST).exists() else "give a file of Result.save, or a run's folder"
    raise FileFormatError(str(path), "holds no result", remedy)


def parsed_options(texts: list[str]) -> dict[str, Any]:
    """Options of a sampler: `name=value`, where a value is JSON if it can be, else text.

    >>> parsed_options(["num_updates=4", "transport=false", "local=gibbs", "scale=0.5"])
    {'num_updates': 4, 'transport': False, 'local': 'gibbs', 'scale': 0.5}
    """
    found: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name.strip().isidentifier():
            raise OptionError("--option", f"{text!r} is not name=value", "e.g. --option num_updates=4")
        try:
            found[name.strip()] = json.loads(value)
        except ValueError:
            found[name.strip()] = value
    return found
