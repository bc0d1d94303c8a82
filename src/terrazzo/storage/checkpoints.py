"""Checkpoints: a folder that always holds a consistent prefix of a run.

`setup.tz` holds what warm-up found (parameters, transport); `draws-00000.tz`, `draws-00001.tz`, ... hold the kept
draws chunk by chunk, each with the states of all chains at its end. Every file is sealed and written atomically, and
names its run, its place and its draws, so whatever kills a run, the files form a prefix of it, and a run resumed from
there gives the same draws. A lock keeps every other run out of the folder for as long as one is at work in it.
"""

import re
import secrets
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from filelock import FileLock, Timeout

from terrazzo.errors import ConfigurationError, FileFormatError, OptionError
from terrazzo.storage.files import jsonable, read_file, write_file
from terrazzo.storage.setups import Setup

SETUP_KIND, DRAWS_KIND, VERSION = "terrazzo run", "terrazzo draws", 2
SETUP, LOCK = "setup.tz", ".lock"
CHUNK_NAME = re.compile(r"draws-(\d{5,})\.tz")
SHOWN = 60  # letters of a value in a message


class Checkpoint:
    """A run's folder, locked from here until `close`. Only the run that `fingerprint` describes may continue it.

    Args:
        path: The folder; made if it does not exist.
        fingerprint: What must be the same for a run to continue another, by name.

    Attributes:
        error: What ended the writing, if anything did; the run itself goes on.
        num_chunks: Chunks that are stored.
        num_draws: Kept draws a chain in them.
    """

    is_lasting = True

    def __init__(self, path: Any, fingerprint: Mapping[str, Any]):
        self.folder = Path(path)
        self.fingerprint = {"format": VERSION, **jsonable(fingerprint)}
        self.num_chunks, self.num_draws = 0, 0
        self.error: Exception | None = None
        self._run = secrets.token_hex(16)
        if self.folder.exists() and not self.folder.is_dir():
            raise OptionError("checkpoint", f"{str(path)!r} is a file", "give a folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError("checkpoint", f"{str(path)!r} cannot be made ({error.strerror})", "check it") from None
        others = [p.name for p in self.folder.iterdir() if not p.name.startswith(".") and not _is_ours(p.name)]
        if others:
            raise OptionError("checkpoint", f"{str(path)!r} holds other files ({others[0]})", "give an empty folder")
        self._lock = FileLock(self.folder / LOCK)
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise ConfigurationError(
                "checkpoint", f"{str(path)!r} is in use by another run", "wait until it ends, or use another folder"
            ) from None
        except (OSError, NotImplementedError) as error:  # no place to write, or a file system without locks
            self._fail(LOCK, error)

    def close(self) -> None:
        """Lets other runs into the folder. The end of the process does the same, however it comes."""
        self._lock.release()

    def __enter__(self) -> "Checkpoint":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    # ---- what warm-up found

    def load_setup(self) -> Setup | None:
        """The stored warm-up, or None in a fresh folder; an error if the folder belongs to another run."""
        path = self.folder / SETUP
        if not path.exists():
            if self._chunks():
                raise ConfigurationError(
                    "checkpoint", f"{str(self.folder)!r} holds draws but no {SETUP}", "use an empty folder"
                )
            return None
        header, arrays, blobs = read_file(path, SETUP_KIND, VERSION)
        try:
            self._check(header["fingerprint"])
            self._run = str(header["run"])
            return Setup.from_parts(header, arrays, blobs)
        except (KeyError, TypeError, AttributeError) as error:
            raise FileFormatError(str(path), f"lacks what a run needs ({error})", "use another folder") from None

    def _check(self, stored: Mapping[str, Any]) -> None:
        """Raises if another run wrote the folder, and says what is different."""
        if stored.get("format") != VERSION:
            raise ConfigurationError(
                "checkpoint",
                f"{str(self.folder)!r} was written in format {stored.get('format')}, not {VERSION}",
                "finish it with the version of terrazzo that began it, or use another folder",
            )
        names = [*self.fingerprint, *(name for name in stored if name not in self.fingerprint)]
        found = [(n, stored.get(n), self.fingerprint.get(n)) for n in names]
        differences = [_difference(*each) for each in found if each[1] != each[2]]
        if differences:
            raise ConfigurationError(
                "checkpoint",
                f"{str(self.folder)!r} belongs to a run with {'; '.join(differences[:4])}",
                "use another folder, or the same target and options",
            )

    def save_setup(self, setup: Setup) -> None:
        header, arrays, blobs = setup.to_parts()
        self._write(SETUP, SETUP_KIND, {"fingerprint": self.fingerprint, "run": self._run, **header}, arrays, blobs)

    # ---- the draws

    def load_draws(self) -> tuple[list[dict[str, np.ndarray]], list[np.ndarray] | None]:
        """All stored chunks in order, and the states' leaves after the last.

        What follows a gap, a damaged file or one that is not in its place is deleted: it will be drawn again, the same,
        and must not come after draws that it does not follow.
        """
        chunks: list[dict[str, np.ndarray]] = []
        states, self.num_draws = None, 0
        while (path := self.folder / f"draws-{len(chunks):05d}.tz").exists():
            try:
                header, arrays, _ = read_file(path, DRAWS_KIND, VERSION)
                rows, leaves = self._checked_chunk(path, len(chunks), header, arrays)
            except FileFormatError:
                break
            states = leaves
            chunks.append(rows)
            self.num_draws += int(header["count"])
        self.num_chunks = len(chunks)
        self._drop(self.num_chunks)
        return chunks, states

    def _checked_chunk(
        self, path: Path, index: int, header: Any, arrays: dict[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], list[np.ndarray]]:
        """The rows and states of a chunk that is in its place."""
        if header.get("run") != self._run:
            raise ConfigurationError(
                "checkpoint", f"{str(path)!r} belongs to another run", "remove the file, or use another folder"
            )
        rows = {name[5:]: a for name, a in arrays.items() if name.startswith("rows/")}
        num_states = sum(name.startswith("states/") for name in arrays)
        count = header.get("count")
        is_placed = header.get("index") == index and header.get("first") == self.num_draws
        is_whole = {"theta", "log_prob", "num_evaluations"} <= rows.keys() and isinstance(count, int) and count > 0
        if not is_placed or not is_whole or any(a.shape[:1] != (count,) for a in rows.values()):
            raise FileFormatError(str(path), "is not in its place", "leave the folder as it was written")
        return rows, [arrays[f"states/{i}"] for i in range(num_states)]

    def _chunks(self) -> list[int]:
        found = (CHUNK_NAME.fullmatch(p.name) for p in self.folder.iterdir())
        return sorted(int(match[1]) for match in found if match)

    def _drop(self, first: int) -> None:
        """Deletes the chunks from `first` on."""
        for index in self._chunks():
            if index >= first:
                name = f"draws-{index:05d}.tz"
                try:
                    (self.folder / name).unlink(missing_ok=True)
                except OSError as error:
                    self._fail(name, error)
                    return

    def save_draws(self, rows: Mapping[str, np.ndarray], states: list[np.ndarray]) -> None:
        arrays = {f"rows/{k}": v for k, v in rows.items()} | {f"states/{i}": v for i, v in enumerate(states)}
        count = len(rows["log_prob"])
        header = {"run": self._run, "index": self.num_chunks, "first": self.num_draws, "count": count}
        self._write(f"draws-{self.num_chunks:05d}.tz", DRAWS_KIND, header, arrays, {})
        self.num_chunks += 1
        self.num_draws += count

    # ---- the disk

    def _write(self, name: str, kind: str, header: Any, arrays: Any, blobs: Any) -> None:
        """Writes one file; a full disk ends checkpointing, not the run, whose draws are still in memory."""
        if self.error is not None:
            return
        try:
            write_file(self.folder / name, kind, VERSION, header=header, arrays=arrays, blobs=blobs)
        except (OSError, OptionError) as error:  # the folder itself may be gone
            self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        self.error = error
        warnings.warn(
            f"checkpoint: {str(self.folder / name)!r} cannot be written ({error})\n"
            "  -> the run goes on without a checkpoint: save its result elsewhere",
            RuntimeWarning,
            stacklevel=2,
        )


def _is_ours(name: str) -> bool:
    return name == SETUP or CHUNK_NAME.fullmatch(name) is not None


def _difference(name: str, stored: Any, ours: Any) -> str:
    """One difference in words: plain values are shown, digests only named."""
    texts = [str(value) for value in (stored, ours)]
    if any(re.search(r"\b[0-9a-f]{32}", text) for text in texts):
        return f"another {name}"
    return f"{name} = {texts[0][:SHOWN]}, not {texts[1][:SHOWN]}"


def state_leaves(states: Any) -> list[np.ndarray]:
    """The leaves of a pytree of arrays, on the host."""
    return [np.asarray(x) for x in jax.tree.leaves(states)]


def restore_states(like: Any, leaves: list[np.ndarray]) -> Any:
    """States of the structure of `like` with these leaves."""
    shapes, tree = jax.tree.flatten(like)
    if [(x.shape, x.dtype) for x in shapes] != [(x.shape, x.dtype) for x in leaves]:
        raise FileFormatError("checkpoint", "its states do not fit this sampler", "use another folder")
    return jax.tree.unflatten(tree, [jnp.asarray(x, s.dtype) for x, s in zip(leaves, shapes, strict=True)])
