"""One file, no pickle: a zip of JSON and `.npy` members, sealed with a checksum, written atomically.

Any zip tool (and `numpy.load`) can open such a file. Its zip comment is `sha256:` and the digest of every byte
before it, so a flipped bit or a missing tail is seen before anything is read. Loading runs no code: arrays are read
with `allow_pickle=False`, the rest is JSON or raw bytes handed to the caller.
"""

import contextlib
import hashlib
import io
import json
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrazzo.errors import FileFormatError, OptionError
from terrazzo.spaces import Space, Variable

HEADER = "header.json"
SEAL_LENGTH = len("sha256:") + 64
CHUNK = 2**22


class Contents(NamedTuple):
    """What a file holds: a JSON header, named arrays, named raw bytes."""

    header: dict[str, Any]
    arrays: dict[str, np.ndarray]
    blobs: dict[str, bytes]


def jsonable(value: Any) -> Any:
    """The value as plain JSON types: NumPy scalars and arrays become numbers and lists, anything else its `str`."""
    if isinstance(value, Mapping):
        return {str(k): jsonable(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(v) for v in value]
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if hasattr(value, "__array__"):
        return np.asarray(value).tolist()
    return str(value)


def _digest(stream: Any, length: int) -> str:
    digest = hashlib.sha256()
    while length > 0:
        block = stream.read(min(CHUNK, length))
        if not block:
            break
        digest.update(block)
        length -= len(block)
    return f"sha256:{digest.hexdigest()}"


def _write_zip(stream: Any, contents: Contents, kind: str, version: int, compress: bool) -> None:
    method = zipfile.ZIP_DEFLATED if compress else zipfile.ZIP_STORED
    header = {"kind": kind, "version": version, "header": jsonable(contents.header)}
    with zipfile.ZipFile(stream, "w", method, compresslevel=1 if compress else None) as archive:

        def member(name: str) -> Any:  # a fixed date: the same contents give the same bytes
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            return archive.open(info, "w", force_zip64=True)

        with member(HEADER) as file:
            file.write(json.dumps(header).encode())
        for name, array in contents.arrays.items():
            with member(f"arrays/{name}.npy") as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
        for name, data in contents.blobs.items():
            with member(f"blobs/{name}") as file:
                file.write(data)
        archive.comment = b" " * SEAL_LENGTH


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system lets a folder be opened
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_file(
    path: Any,
    kind: str,
    version: int,
    *,
    header: Mapping[str, Any],
    arrays: Mapping[str, Any] | None = None,
    blobs: Mapping[str, bytes] | None = None,
    compress: bool = False,
) -> Path:
    """Writes a sealed file: temporary file, fsync, rename, fsync of the folder. A crash leaves the old file or the new.

    Args:
        path: Where to write.
        kind: What the file is, e.g. "terrazzo result"; `read_file` must ask for the same.
        version: The version of that kind.
        header: Anything JSON can hold (NumPy numbers are converted).
        arrays: Arrays by name, any numeric or string dtype.
        blobs: Raw bytes by name.
        compress: Whether to deflate the members.
    """
    target = Path(path)
    folder = target.parent
    if not folder.is_dir():
        raise OptionError("path", f"folder {str(folder)!r} does not exist", "create it first")
    if target.is_dir():
        raise OptionError("path", f"{str(target)!r} is a folder", "give a file name")
    contents = Contents(dict(header), {k: np.asarray(v) for k, v in (arrays or {}).items()}, dict(blobs or {}))
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=folder)
    try:
        with os.fdopen(descriptor, "w+b") as stream:
            _write_zip(stream, contents, kind, version, compress)
            end = stream.seek(0, os.SEEK_END) - SEAL_LENGTH
            stream.seek(0)
            seal = _digest(stream, end)
            stream.seek(end)
            stream.write(seal.encode())
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
    return target


def read_file(path: Any, kind: str, version: int) -> Contents:
    """Reads a sealed file back; `FileFormatError` names the path if it is damaged, foreign or too new.

    Args:
        path: The file.
        kind: What it must be.
        version: The newest version the caller understands.
    """
    name = str(path)
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise FileFormatError(name, f"cannot be read ({error.strerror})", "check the path") from None
    end = len(data) - SEAL_LENGTH
    if not data.startswith(b"PK") or end < 0 or not data[end:].startswith(b"sha256:"):
        raise FileFormatError(name, f"is not a {kind} file, or is cut short", "save it again from its source")
    if _digest(io.BytesIO(data[:end]), end).encode() != data[end:]:
        raise FileFormatError(name, "is damaged: its checksum does not match", "restore it from a copy")
    arrays, blobs = {}, {}
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            header = json.loads(archive.read(HEADER))
            if header["kind"] != kind:
                raise FileFormatError(name, f"holds a {header['kind']}, not a {kind}", "load it with its own loader")
            if int(header["version"]) > version:
                raise FileFormatError(name, f"has version {header['version']}", "update terrazzo")
            for member in archive.namelist():
                folder, _, rest = member.partition("/")
                if folder == "arrays" and rest.endswith(".npy"):
                    with archive.open(member) as file:
                        arrays[rest[:-4]] = np.lib.format.read_array(file, allow_pickle=False)
                elif folder == "blobs":
                    blobs[rest] = archive.read(member)
    except FileFormatError:
        raise
    except Exception as error:  # sealed, and yet not ours: written by something else
        raise FileFormatError(name, f"cannot be understood ({error})", "save it again from its source") from None
    return Contents(header["header"], arrays, blobs)


def space_to_json(space: Space) -> dict[str, Any]:
    """A space as plain JSON."""
    variables = [
        {
            "name": name,
            "kind": v.kind,
            "low": v.low,
            "size": v.size,
            "shape": list(v.shape),
            "labels": None if v.labels is None else jsonable(v.labels),
            "dims": None if v.dims is None else list(v.dims),
            "coords": [[dim, jsonable(names)] for dim, names in v.coords],
        }
        for name, v in space.variables
    ]
    return {"is_plain": space.is_plain, "variables": variables}


def space_from_json(data: Mapping[str, Any]) -> Space:
    """The space that `space_to_json` described."""
    variables = {
        v["name"]: Variable(
            v["kind"],
            v["low"],
            v["size"],
            tuple(v["shape"]),
            None if v["labels"] is None else tuple(v["labels"]),
            None if v["dims"] is None else tuple(v["dims"]),
            tuple((dim, tuple(names)) for dim, names in v["coords"]),
        )
        for v in data["variables"]
    }
    return Space(variables["theta"]) if data["is_plain"] else Space(**variables)
