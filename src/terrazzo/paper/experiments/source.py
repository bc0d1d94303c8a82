"""Which source code made a record: Git's own name of the tree of files, found without Git."""

import functools
import hashlib
from pathlib import Path


def tree_name(folder: Path) -> str:
    """What `git rev-parse COMMIT:folder` prints for a folder whose files are those of a commit.

    Works where there is no repository (an installed package, a copy). `__pycache__` and empty folders are left out, as
    in a repository; executable files and links are not expected.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as empty:
    ...     tree_name(Path(empty))
    '4b825dc642cb6eb9a060e54bf8d69288fbee4904'
    """
    return _tree(folder).hex()


def _object(kind: str, data: bytes) -> bytes:
    return hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).digest()


def _tree(folder: Path) -> bytes:
    entries = {}
    for path in folder.iterdir():
        if path.is_file():
            entries[path.name] = b"100644 " + path.name.encode() + b"\0" + _object("blob", path.read_bytes())
        elif path.name != "__pycache__" and any(file.is_file() for file in path.rglob("*")):
            entries[path.name + "/"] = b"40000 " + path.name.encode() + b"\0" + _tree(path)
    return _object("tree", b"".join(entry for _, entry in sorted(entries.items())))


@functools.cache
def own_source() -> str:
    """The name of the tree of this package's files."""
    return tree_name(Path(__file__).parents[2])
