"""One file, no pickle: a zip of JSON and `.npy` members, sealed with a checksum, written atomically.

Any zip tool (and `numpy.load`) can open such a file. Its zip comment is `sha256:` and the digest of every byte
before it, so a flipped bit or a missing tail is seen before anything is read. Loading runs no code: arrays are read
with `allow_pickle=False`, the rest is JSON or raw bytes handed to the caller. Whoever wrote a file, reading it takes
memory in proportion to its length: what its members say of their sizes is added up before any of them is read, and may
be at most 200 times the length of the file (or 64 MiB); files of ours that deflate better than that are not deflated.
"""

import hashlib
import json
import math
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrazzo.errors import FileFormatError, OptionError
from terrazzo.storage.atomic import replacing

HEADER = "header.json"
SEAL_LENGTH = len("sha256:") + 64
CHUNK = 2**22
MOST_UNFOLDED, LEAST_LIMIT = 200, 2**26  # times its length, and bytes, that a file may unfold to
MOST_JSON = 2**24  # bytes of a header: as objects they take about 20 times as much
MEMBER = re.compile(r"header\.json|arrays/[^\\\0]+\.npy|blobs/[^\\\0]+|[^/\\\0]+\.npy")
KINDS = "biufSU"  # of arrays: no objects, no records


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
    with zipfile.ZipFile(stream, "w", method, compresslevel=1 if compress else None) as archive:

        def member(name: str) -> Any:  # a fixed date: the same contents give the same bytes
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = method
            return archive.open(info, "w", force_zip64=True)

        for name, array in contents.arrays.items():
            with member(f"arrays/{name}.npy") as file:
                np.lib.format.write_array(file, np.asarray(array), allow_pickle=False)
        for name, data in contents.blobs.items():
            with member(f"blobs/{name}") as file:
                file.write(data)
        members = {info.filename: [info.file_size, info.CRC] for info in archive.infolist()}
        header = {"kind": kind, "version": version, "members": members, "header": jsonable(contents.header)}
        text = json.dumps(header).encode()
        if len(text) > MOST_JSON:
            raise OptionError("path", f"the header takes {len(text)} bytes, more than {MOST_JSON}", "shorten names")
        with member(HEADER) as file:
            file.write(text)
        archive.comment = b" " * SEAL_LENGTH


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
    contents = Contents(dict(header), {k: np.asarray(v) for k, v in (arrays or {}).items()}, dict(blobs or {}))
    with replacing(path) as stream:
        _write_zip(stream, contents, kind, version, compress)
        if compress and _unfolded(contents) > _limit(stream.tell()):  # it could not be read back
            stream.seek(0)
            stream.truncate()
            _write_zip(stream, contents, kind, version, False)
        end = stream.seek(0, os.SEEK_END) - SEAL_LENGTH
        stream.seek(0)
        seal = _digest(stream, end)
        stream.seek(end)
        stream.write(seal.encode())
    return Path(path)


def read_file(path: Any, kind: str, version: int) -> Contents:
    """Reads a sealed file back; `FileFormatError` names the path if it is damaged, foreign or too new.

    Args:
        path: The file.
        kind: What it must be.
        version: The newest version the caller understands.
    """
    return _reading(path, kind, version, _read)


def _reading(path: Any, kind: str, version: int, reader: Any) -> Any:
    """What `reader` makes of a file; whatever is wrong with it is a `FileFormatError`."""
    name = str(path)
    try:
        with open(path, "rb") as stream:
            return reader(stream, name, kind, version)
    except FileFormatError:
        raise
    except OSError as error:
        raise FileFormatError(name, f"cannot be read ({error.strerror or error})", "check the path") from None
    except Exception as error:  # sealed, and yet not ours: written by something else
        text = " ".join(str(error).split())[:200] or type(error).__name__
        raise FileFormatError(name, f"cannot be understood ({text})", "save it again from its source") from None


def _read(stream: Any, name: str, kind: str, version: int) -> Contents:
    arrays, blobs = {}, {}
    archive, header, limit = _opened(stream, name, kind, version)
    with archive:
        for info in archive.infolist():
            folder, _, rest = info.filename.partition("/")
            if folder == "arrays":
                arrays[rest[:-4]] = _read_array(archive, info, limit)
            elif folder == "blobs":
                blobs[rest] = archive.read(info)
            elif info.filename != HEADER:
                raise ValueError(f"a member is called {info.filename!r}")
    return Contents(header, arrays, blobs)


def _opened(stream: Any, name: str, kind: str, version: int) -> tuple[zipfile.ZipFile, dict[str, Any], int]:
    """The archive of a sealed file whose seal, kind and members are right, its header, and what it may unfold to."""
    length = stream.seek(0, os.SEEK_END)
    end = length - SEAL_LENGTH
    stream.seek(0)
    is_zip = stream.read(2) == b"PK"
    stream.seek(max(end, 0))
    seal = stream.read(SEAL_LENGTH)
    if not is_zip or end < 0 or not seal.startswith(b"sha256:"):
        raise FileFormatError(name, f"is not a {kind} file, or is cut short", "save it again from its source")
    stream.seek(0)
    if _digest(stream, end).encode() != seal:
        raise FileFormatError(name, "is damaged: its checksum does not match", "restore it from a copy")
    archive = zipfile.ZipFile(stream)
    limit = _checked_members(archive, length)
    header = json.loads(archive.read(HEADER))
    if not isinstance(header, dict) or not isinstance(header.get("header"), dict):
        raise ValueError("its header is no record")
    if header["kind"] != kind:
        other = str(header["kind"])[:60]
        raise FileFormatError(name, f"holds a {other}, not a {kind}", "load it with its own loader")
    if isinstance(header["version"], bool) or not isinstance(header["version"], int) or header["version"] < 1:
        raise ValueError("its version is no number")
    if header["version"] > version:
        raise FileFormatError(name, f"has version {header['version']}", "update terrazzo")
    found = {info.filename: [info.file_size, info.CRC] for info in archive.infolist() if info.filename != HEADER}
    if header.get("members", found) != found:  # files before version 0.2 do not list them
        raise ValueError("its members are not those that its header lists")
    return archive, header["header"], limit


class Place(NamedTuple):
    """Where an array lies in a file: it can be read from there in part.

    Attributes:
        offset: Bytes before its first element.
        shape: Its shape.
        dtype: The type of its elements.
    """

    offset: int
    shape: tuple[int, ...]
    dtype: np.dtype

    def read(self, stream: Any, first: int, count: int) -> np.ndarray:
        """`count` entries along the first axis, from number `first` on, of an open file."""
        each = math.prod(self.shape[1:])
        stream.seek(self.offset + first * each * self.dtype.itemsize)
        data = stream.read(count * each * self.dtype.itemsize)
        return np.frombuffer(data, self.dtype).reshape(count, *self.shape[1:])


def read_places(path: Any, kind: str, version: int) -> tuple[dict[str, Any], dict[str, Place]]:
    """The header of a sealed file, and where its arrays lie, none of which is read into memory.

    The seal is checked over the whole file, as `read_file` does.
    """

    def places(stream: Any, name: str, kind: str, version: int) -> tuple[dict[str, Any], dict[str, Place]]:
        archive, header, limit = _opened(stream, name, kind, version)
        with archive:
            members = [info for info in archive.infolist() if info.filename.startswith("arrays/")]
            return header, {info.filename[7:-4]: _place(stream, archive, info, limit) for info in members}

    return _reading(path, kind, version, places)


def _place(stream: Any, archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> Place:
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(f"{info.filename!r} is deflated")
    shape, is_fortran, dtype, start = _described_array(archive, info, limit)
    if is_fortran and len(shape) > 1:
        raise ValueError(f"{info.filename!r} is stored by columns")
    stream.seek(info.header_offset + 26)  # the lengths of name and extra field in the member's own header
    lengths = stream.read(4)
    begin = info.header_offset + 30 + int.from_bytes(lengths[:2], "little") + int.from_bytes(lengths[2:], "little")
    return Place(begin + start, shape, dtype)


def read_arrays(stream: Any, length: int) -> dict[str, np.ndarray]:
    """The arrays of a plain `.npz` that is not deflated, by name; raises any error if there is something wrong.

    >>> import io
    >>> stream = io.BytesIO()
    >>> np.savez(stream, a=np.arange(3))
    >>> read_arrays(stream, len(stream.getvalue()))["a"].tolist()
    [0, 1, 2]
    """
    with zipfile.ZipFile(stream) as archive:
        limit = _checked_members(archive, length)
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            raise ValueError("its arrays are deflated")
        return {info.filename[:-4]: _read_array(archive, info, limit) for info in archive.infolist()}


def _limit(length: int) -> int:
    return max(MOST_UNFOLDED * length, LEAST_LIMIT)


def _unfolded(contents: Contents) -> int:
    return sum(a.nbytes + 4096 for a in contents.arrays.values()) + sum(map(len, contents.blobs.values())) + MOST_JSON


def _checked_members(archive: zipfile.ZipFile, length: int) -> int:
    """Looks at the directory of a zip file alone; returns the bytes that its members may unfold to."""
    members, limit = archive.infolist(), _limit(length)
    names = [info.filename for info in members]
    if len(set(names)) != len(names):
        raise ValueError("a member is there twice")
    for info in members:
        parts = info.filename.split("/")
        if not MEMBER.fullmatch(info.filename) or any(part in ("", ".", "..") for part in parts):
            raise ValueError(f"a member is called {info.filename[:60]!r}")
        if info.flag_bits & 1 or info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise ValueError(f"{info.filename[:60]!r} is packed in an unknown way")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise ValueError(f"{info.filename[:60]!r} has two sizes")
    if sum(info.compress_size for info in members) > length:
        raise ValueError("its members are longer than the file")
    if sum(info.file_size for info in members) > limit:
        raise ValueError(f"it would unfold to more than {limit} bytes")
    if HEADER in names and archive.getinfo(HEADER).file_size > MOST_JSON:
        raise ValueError(f"its header takes more than {MOST_JSON} bytes")
    return limit


def _described_array(
    archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int
) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """Shape, order, type and first byte of an array, if what its own header says of it agrees with what is there."""
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    with archive.open(info) as file:
        shape, is_fortran, dtype = readers[np.lib.format.read_magic(file)](file)
        start = file.tell()
    if dtype.kind not in KINDS or not dtype.itemsize or not dtype.isnative or not all(n >= 0 for n in shape):
        raise ValueError(f"{info.filename!r} holds {str(dtype)[:40]} of shape {str(shape)[:60]}")
    if start + math.prod(shape) * dtype.itemsize != info.file_size:
        raise ValueError(f"{info.filename!r} has not the size that its shape says")
    if math.prod(n for n in shape if n) > limit:  # no element at all, and yet an axis that others would walk along
        raise ValueError(f"{info.filename!r} has shape {str(shape)[:60]}")
    return shape, is_fortran, dtype, start


def _read_array(archive: zipfile.ZipFile, info: zipfile.ZipInfo, limit: int) -> np.ndarray:
    """One array."""
    _described_array(archive, info, limit)
    with archive.open(info) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
        if file.read(1):  # reading to the end also compares the member's own checksum
            raise ValueError(f"{info.filename!r} is longer than its array")
    return array
