"""Checkpoints: a folder that always holds a consistent prefix of a run.

`setup.tz` holds what warm-up found (parameters, transport); `draws-00000.tz`, `draws-00001.tz`, ... hold the kept
draws chunk by chunk, each with the states of all chains at its end. Every file is sealed and written atomically, so
whatever kills a run, the files form a prefix of it, and a run resumed from there gives the same draws.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import FileFormatError, OptionError
from terrazzo.storage import jsonable, read_file, write_file

SETUP_KIND, DRAWS_KIND, VERSION = "terrazzo run", "terrazzo draws", 1


class Setup(NamedTuple):
    """What warm-up left behind.

    Attributes:
        header: Anything JSON can hold.
        parameters: The frozen parameters of the sampler, by name.
        history: Training curves, by name.
        transport: The stored transport and its description, or None.
        states: The leaves of the chains' states after warm-up.
        plan: What the pipeline left, as arrays by name; empty without one.
    """

    header: dict[str, Any]
    parameters: dict[str, np.ndarray]
    history: dict[str, np.ndarray]
    transport: tuple[bytes, dict[str, Any]] | None
    states: list[np.ndarray]
    plan: dict[str, np.ndarray]


class Checkpoint:
    """A run's folder. `fingerprint` says which run it is: only the same run may continue it."""

    def __init__(self, path: Any, fingerprint: Mapping[str, Any]):
        self.folder = Path(path)
        self.fingerprint = jsonable(fingerprint)
        self.num_chunks = 0
        self.error: OSError | None = None
        if self.folder.exists() and not self.folder.is_dir():
            raise OptionError("checkpoint", f"{str(path)!r} is a file", "give a folder")
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OptionError("checkpoint", f"{str(path)!r} cannot be made ({error.strerror})", "check it") from None
        others = [p.name for p in self.folder.iterdir() if not p.name.startswith(".") and p.suffix != ".tz"]
        if others:
            raise OptionError("checkpoint", f"{str(path)!r} holds other files ({others[0]})", "give an empty folder")

    def load_setup(self) -> Setup | None:
        """The stored warm-up, or None in a fresh folder; an error if the folder belongs to another run."""
        path = self.folder / "setup.tz"
        if not path.exists():
            return None
        header, arrays, blobs = read_file(path, SETUP_KIND, VERSION)
        for name, value in self.fingerprint.items():
            if header["fingerprint"].get(name) != value:
                stored = str(header["fingerprint"].get(name))[:60]
                raise OptionError(
                    "checkpoint",
                    f"{str(self.folder)!r} belongs to a run with {name} = {stored}, not {str(value)[:60]}",
                    "use another folder, or the same options",
                )
        groups: dict[str, dict[str, np.ndarray]] = {"parameters": {}, "history": {}, "states": {}, "plan": {}}
        for name, array in arrays.items():
            group, _, rest = name.partition("/")
            groups[group][rest] = array
        transport = None if header["transport"] is None else (blobs["transport"], header["transport"])
        states = [groups["states"][str(i)] for i in range(len(groups["states"]))]
        return Setup(header["header"], groups["parameters"], groups["history"], transport, states, groups["plan"])

    def save_setup(self, setup: Setup) -> None:
        arrays = {f"parameters/{k}": np.asarray(v) for k, v in setup.parameters.items()}
        arrays |= {f"history/{k}": np.asarray(v) for k, v in setup.history.items()}
        arrays |= {f"states/{i}": v for i, v in enumerate(setup.states)}
        arrays |= {f"plan/{k}": np.asarray(v) for k, v in setup.plan.items()}
        blobs = {} if setup.transport is None else {"transport": setup.transport[0]}
        header = {
            "fingerprint": self.fingerprint,
            "header": setup.header,
            "transport": None if setup.transport is None else setup.transport[1],
        }
        self._write("setup.tz", SETUP_KIND, header, arrays, blobs)

    def load_draws(self) -> tuple[list[dict[str, np.ndarray]], list[np.ndarray] | None]:
        """All stored chunks in order, and the states' leaves after the last. A damaged tail is left out."""
        chunks: list[dict[str, np.ndarray]] = []
        states = None
        while (path := self.folder / f"draws-{len(chunks):05d}.tz").exists():
            try:
                _, arrays, _ = read_file(path, DRAWS_KIND, VERSION)
            except FileFormatError:
                break
            count = sum(name.startswith("states/") for name in arrays)
            states = [arrays[f"states/{i}"] for i in range(count)]
            chunks.append({name[5:]: a for name, a in arrays.items() if name.startswith("rows/")})
        self.num_chunks = len(chunks)
        return chunks, states

    def save_draws(self, rows: Mapping[str, np.ndarray], states: list[np.ndarray]) -> None:
        arrays = {f"rows/{k}": v for k, v in rows.items()} | {f"states/{i}": v for i, v in enumerate(states)}
        self._write(f"draws-{self.num_chunks:05d}.tz", DRAWS_KIND, {}, arrays, {})
        self.num_chunks += 1

    def _write(self, name: str, kind: str, header: Any, arrays: Any, blobs: Any) -> None:
        """Writes one file; a full disk ends checkpointing, not the run, whose draws are still in memory."""
        if self.error is not None:
            return
        try:
            write_file(self.folder / name, kind, VERSION, header=header, arrays=arrays, blobs=blobs)
        except OSError as error:
            self.error = error


def state_leaves(states: Any) -> list[np.ndarray]:
    """The leaves of a pytree of arrays, on the host."""
    return [np.asarray(x) for x in jax.tree.leaves(states)]


def restore_states(like: Any, leaves: list[np.ndarray]) -> Any:
    """States of the structure of `like` with these leaves."""
    shapes, tree = jax.tree.flatten(like)
    if [x.shape for x in shapes] != [x.shape for x in leaves]:
        raise FileFormatError("checkpoint", "its states do not fit this sampler", "use another folder")
    return jax.tree.unflatten(tree, [jnp.asarray(x, s.dtype) for x, s in zip(leaves, shapes, strict=True)])
