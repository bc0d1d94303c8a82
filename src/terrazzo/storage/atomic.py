"""Files that are there as a whole or not at all: written beside their place, then renamed into it."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from terrazzo.errors import OptionError


@contextlib.contextmanager
def replacing(path: Any) -> Iterator[IO[bytes]]:
    """A stream whose bytes become the file when the block ends: fsync, rename, fsync of the folder.

    A crash, or an error in the block, leaves the old file.
    """
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise OptionError("path", f"folder {str(folder)!r} does not exist", "create it first")
    if target.is_dir():
        raise OptionError("path", f"{str(target)!r} is a folder", "give a file name")
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=folder)
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        mask = os.umask(0)
        os.umask(mask)
        os.chmod(temporary, 0o666 & ~mask)  # as an ordinary new file; mkstemp makes private ones
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
    _sync_folder(folder)


def write_text(path: Any, text: str) -> Path:
    """Writes a text as UTF-8."""
    with replacing(path) as stream:
        stream.write(text.encode())
    return Path(path)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
