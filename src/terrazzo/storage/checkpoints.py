"""Checkpoints: a folder that always holds a consistent prefix of a run.

`setup.tz` holds what warm-up found (parameters, transport); `draws-00000.tz`, `draws-00001.tz`, ... hold the kept
draws chunk by chunk, each with the states of its chains at its end (`storage.pieces`); `result.tz` holds what a
finished run found besides them. Every file is sealed and written atomically, and names its run, its place and its
draws, so whatever kills a run, the files form a prefix of it, and a run resumed from there gives the same draws. Locks
keep every other run out of the folder for as long as one is at work in it: one lock for each of its processes.
"""

import contextlib
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from filelock import FileLock, Timeout

from terrazzo.errors import ConfigurationError, FileFormatError, OptionError
from terrazzo.spaces import Space
from terrazzo.storage.files import jsonable, read_file, read_places, write_file
from terrazzo.storage.pieces import KIND, NAME, Piece, Segment, consistent_pieces, numbered, piece_name, segments
from terrazzo.storage.setups import Setup
from terrazzo.storage.spaces import space_to_json

SETUP_KIND, DRAWS_KIND, VERSION = "terrazzo run", KIND, 2
SETUP, RESULT, LOCK = "setup.tz", "result.tz", ".lock"
SHOWN = 60  # letters of a value in a message


class Checkpoint:
    """A run's folder, locked from here until `close`. Only the run that `fingerprint` describes may continue it.

    Args:
        path: The folder; made if it does not exist.
        fingerprint: What must be the same for a run to continue another, by name.
        space: The space of the draws, written down for whoever opens the folder.
        rank: The number of this process among those of the run: the first one opens the folder, the others `join` it.

    Attributes:
        error: What ended the writing, if anything did; the run itself goes on.
        pieces: The draws that were stored when the folder was looked at.
        is_only_copy: Whether draws are kept nowhere else: then a file that cannot be written ends the run.
    """

    is_lasting = True

    def __init__(self, path: Any, fingerprint: Mapping[str, Any], *, space: Space | None = None, rank: int = 0):
        self.folder = Path(path)
        self.fingerprint = {"format": VERSION, **jsonable(fingerprint)}
        self.pieces: list[Piece] = []
        self._next, self._space, self.is_only_copy = 0, space, False
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
        self._lock = FileLock(self.folder / (LOCK if rank == 0 else f"{LOCK}-{rank}"))
        if rank == 0:
            self._acquire()

    def _acquire(self) -> None:
        """Takes the lock of this process; the first one also sees to it that nobody else is at work."""
        is_first = Path(self._lock.lock_file).name == LOCK
        try:
            self._lock.acquire(timeout=0)
            for path in self.folder.glob(f"{LOCK}-*") if is_first else ():  # a first process may have died alone
                with FileLock(path).acquire(timeout=0):
                    pass
        except Timeout:
            self._lock.release()
            text = f"{str(self.folder)!r} is in use by another run"
            raise ConfigurationError("checkpoint", text, "wait until it ends, or use another folder") from None
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
            if numbered(self.folder):
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
        space = None if self._space is None else space_to_json(self._space)
        own = {"fingerprint": self.fingerprint, "run": self._run, "space": space}
        self._write(SETUP, SETUP_KIND, {**own, **header}, arrays, blobs)

    # ---- the draws

    def find_pieces(self, num_chains: int | None = None) -> list[Piece]:
        """The stored draws, as pieces that follow one another.

        What follows a gap, a damaged file or one that is not in its place is deleted: it will be drawn again, the same,
        and must not come after draws that it does not follow.
        """
        self.pieces = consistent_pieces(self.folder, self._run, num_chains)
        used = {piece.path.name for piece in self.pieces}
        for _, name in numbered(self.folder):
            if name not in used:
                try:
                    (self.folder / name).unlink(missing_ok=True)
                except OSError as error:
                    self._fail(name, error)
                    break
        self._next = 1 + max((piece.number for piece in self.pieces), default=-1)
        return self.pieces

    def segments(self, part: range) -> list[Segment]:
        """Where the chains of a part stand, in the order of the chains."""
        return segments(self.pieces, part)

    def stored_rows(self, part: range) -> Iterator[tuple[range, int, dict[str, np.ndarray]]]:
        """Chains, number of the first draw and rows of what is stored of a part, piece by piece."""
        for piece in self.pieces:
            chains = range(max(piece.chains.start, part.start), min(piece.chains.stop, part.stop))
            if chains:
                columns = slice(chains.start - piece.chains.start, chains.stop - piece.chains.start)
                with open(piece.path, "rb") as stream:
                    rows = {name: p.read(stream, 0, piece.length)[:, columns] for name, p in piece.rows.items()}
                yield chains, piece.first, rows

    def save_draws(
        self, rows: Mapping[str, np.ndarray], states: list[np.ndarray], *, first: int, chains: range | None = None
    ) -> None:
        """Stores a chunk: rows (draw, chain, ...) from draw number `first` on, of some chains or of all (None)."""
        given = {f"rows/{k}": v for k, v in rows.items()} | {f"states/{i}": v for i, v in enumerate(states)}
        arrays = {name: np.ascontiguousarray(array) for name, array in given.items()}
        header = {"run": self._run, "index": self._next, "first": first, "count": len(rows["log_prob"])}
        if chains is not None:
            header["first_chain"] = chains.start
        name = piece_name(self._next, None if chains is None else chains.start)
        self._write(name, DRAWS_KIND, header, arrays, {})
        self._next += 1

    # ---- the result

    def forget_result(self) -> None:
        """Deletes what an earlier run made of fewer draws: the run goes on."""
        with contextlib.suppress(OSError):
            (self.folder / RESULT).unlink(missing_ok=True)

    def save_result(self, save: Callable[[Path], Any]) -> None:
        """Stores what a run found besides its draws."""
        if self.error is None:
            try:
                save(self.folder / RESULT)
            except (OSError, OptionError) as error:
                self._fail(RESULT, error)

    # ---- several processes

    def described(self) -> dict[str, Any]:
        """What the other processes of a run must know of its folder."""
        return {"run": self._run, "next": self._next}

    def join(self, described: Mapping[str, Any], num_chains: int) -> None:
        """Goes on in the folder that the first process of this run has opened and described."""
        self._acquire()
        self._run = str(described["run"])
        self.pieces = consistent_pieces(self.folder, self._run, num_chains)
        self._next = int(described["next"])

    # ---- the disk

    def _write(self, name: str, kind: str, header: Any, arrays: Any, blobs: Any) -> None:
        """Writes one file; a full disk ends checkpointing, not the run, whose draws are still in memory."""
        if self.error is not None:
            return
        try:
            write_file(self.folder / name, kind, VERSION, header=header, arrays=arrays, blobs=blobs)
        except (OSError, OptionError) as error:  # the folder itself may be gone
            if self.is_only_copy:
                raise ConfigurationError(
                    "checkpoint", f"{str(self.folder / name)!r} cannot be written ({error})",
                    "make room and run again: what is stored is continued",
                ) from None  # fmt: skip
            self._fail(name, error)

    def _fail(self, name: str, error: Exception) -> None:
        self.error = error
        warnings.warn(
            f"checkpoint: {str(self.folder / name)!r} cannot be written ({error})\n"
            "  -> the run goes on without a checkpoint: save its result elsewhere",
            RuntimeWarning,
            stacklevel=2,
        )


def read_run(folder: Path) -> tuple[str, Any, int]:
    """The run that a folder belongs to, its space as JSON, and its number of chains."""
    path = folder / SETUP
    if not path.exists():
        raise FileFormatError(str(folder), f"holds no {SETUP}", "give the folder of a checkpoint")
    header, _ = read_places(path, SETUP_KIND, VERSION)
    try:
        return str(header["run"]), header["space"], int(header["fingerprint"]["chains"])
    except (KeyError, TypeError, ValueError) as error:
        raise FileFormatError(str(path), f"lacks what a run needs ({error})", "use another folder") from None


def _is_ours(name: str) -> bool:
    return name in (SETUP, RESULT) or NAME.fullmatch(name) is not None


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
