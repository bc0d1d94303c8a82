"""One JSON file a finished piece, with a small `.npz` beside it: written atomically, checked before it is reused."""

import contextlib
import json
import math
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.errors import ConfigurationError, FileFormatError
from terrazzo.paper.experiments.base import Piece
from terrazzo.storage.files import jsonable

FORMAT = 1
NEEDED = ("piece", "configuration", "seed", "versions", "seconds", "paper_ess", "ess", "log_prob", "verdict")


def strict(value: Any) -> Any:
    """Plain JSON types; NaN and infinities, which JSON lacks, become null.

    >>> strict({"a": float("nan"), "b": (1, 2.5)})
    {'a': None, 'b': [1, 2.5]}
    """
    value = jsonable(value)
    if isinstance(value, Mapping):
        return {k: strict(v) for k, v in value.items()}
    if isinstance(value, list):
        return [strict(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def piece_path(folder: Path, piece: Piece) -> Path:
    """Where the JSON of a piece lies."""
    return folder / piece.experiment / f"{piece.stem}.json"


def _write(path: Path, write: Callable[[Any], None]) -> None:
    """Temporary file, fsync, rename: a kill leaves the old file or the new one, never half of one."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def save_record(path: Path, record: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> None:
    """Writes the arrays first and the JSON last: where the JSON is, the piece is finished."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if arrays:
        _write(path.with_suffix(".npz"), lambda stream: np.savez_compressed(stream, allow_pickle=False, **arrays))
    text = json.dumps(strict({"format": FORMAT, **record}), indent=1, allow_nan=False)
    _write(path, lambda stream: stream.write(text.encode()))


def load_record(path: Path) -> dict[str, Any]:
    """A record from its file; `FileFormatError` if it is damaged or not one of ours."""
    try:
        record = json.loads(path.read_bytes())
        is_ours = record["format"] == FORMAT and all(name in record for name in NEEDED)
        Piece(**record["piece"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        is_ours = False
    if not is_ours:
        raise FileFormatError(str(path), "is not the record of a finished piece", "delete it and run the piece again")
    return record


def load_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays beside a record; none if there are none or they cannot be read."""
    try:
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as stored:
            return dict(stored)
    except (OSError, ValueError, KeyError, EOFError):
        return {}


def load_all(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    """All records below a folder, in the order of their names; files that are not ours are passed over."""
    for path in sorted(folder.glob("*/*.json")):
        with contextlib.suppress(FileFormatError):
            yield path, load_record(path)


def is_finished(path: Path, configuration: Mapping[str, Any], max_seconds: float | None) -> bool:
    """Whether a piece need not be run again.

    A record of another configuration in the same place is an error: two runs must not be mixed in one table. A record
    that was cut short by `max_seconds` counts unless more time is allowed now.
    """
    try:
        record = load_record(path)
    except FileFormatError:
        return False
    wanted, found = strict(configuration), record["configuration"]
    if wanted != found:
        names = [k for k in {**wanted, **found} if wanted.get(k) != found.get(k)]
        shown = "; ".join(f"{k} is {found.get(k)!r} there and {wanted.get(k)!r} here" for k in sorted(names)[:3])
        raise ConfigurationError(str(path), f"comes from another run: {shown}", "choose another folder, or delete it")
    if record.get("is_complete", True):
        return True
    before = record.get("max_seconds")
    return before is not None and max_seconds is not None and max_seconds <= before
