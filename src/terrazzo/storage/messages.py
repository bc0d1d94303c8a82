"""What files hold, as bytes: for processes that tell each other of arrays."""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from terrazzo.storage.files import Contents, read_file, write_file
from terrazzo.storage.setups import Setup

KIND, VERSION = "terrazzo message", 1


def packed(header: Mapping[str, Any], arrays: Mapping[str, Any], blobs: Mapping[str, bytes] | None = None) -> bytes:
    """A sealed file as bytes."""
    with tempfile.TemporaryDirectory(prefix="terrazzo-") as folder:
        path = write_file(Path(folder) / "message", KIND, VERSION, header=header, arrays=arrays, blobs=blobs)
        return path.read_bytes()


def unpacked(data: bytes) -> Contents:
    """What `packed` made bytes of.

    >>> import numpy as np
    >>> unpacked(packed({"a": 1}, {"x": np.arange(3)})).arrays["x"].tolist()
    [0, 1, 2]
    """
    with tempfile.TemporaryDirectory(prefix="terrazzo-") as folder:
        path = Path(folder) / "message"
        path.write_bytes(data)
        return read_file(path, KIND, VERSION)


def packed_setup(setup: Setup) -> bytes:
    """A set-up as bytes."""
    return packed(*setup.to_parts())


def unpacked_setup(data: bytes) -> Setup:
    """What `packed_setup` made bytes of."""
    return Setup.from_parts(*unpacked(data))
