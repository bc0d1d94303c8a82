"""The draws of a run as pieces on disk, each of some chains and consecutive draws; together they read as one array.

A process writes a piece with every chunk that it draws: `draws-00000.tz` where it draws all chains,
`draws-00000-000004.tz` where its first chain is number 4. Each piece says which chains and draws it holds, and the
states of its chains after them. The pieces that count are those that follow one another without a gap in each chain;
processes need not keep step, and the next run may have more or fewer of them.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrazzo.errors import ConfigurationError, FileFormatError
from terrazzo.storage.files import Place, read_places

KIND, VERSION = "terrazzo draws", 2
NAME = re.compile(r"draws-(\d{5,})(?:-(\d{6,}))?\.tz")
READ_BYTES = 2**25  # that the least and largest values are looked for in at a time
NEEDED = {"theta", "log_prob", "num_evaluations"}


class Piece(NamedTuple):
    """A file of draws.

    Attributes:
        path: Where it is.
        number: The number in its name.
        chains: The chains that it holds.
        first: The number of its first draw.
        length: Draws a chain.
        rows: Where its arrays lie, (draw, chain, ...), by name.
        states: Where the leaves of the chains' states lie.
    """

    path: Path
    number: int
    chains: range
    first: int
    length: int
    rows: dict[str, Place]
    states: list[Place]

    def read_states(self, chains: range) -> list[np.ndarray]:
        """The leaves of the states of some of its chains, after its last draw."""
        with open(self.path, "rb") as stream:
            return [p.read(stream, chains.start - self.chains.start, len(chains)) for p in self.states]


class Segment(NamedTuple):
    """Chains that have come equally far, and where they stand.

    Attributes:
        chains: Which ones.
        done: Their kept draws.
        leaves: The leaves of their states; None where they have not begun.
    """

    chains: range
    done: int
    leaves: list[np.ndarray] | None


def piece_name(index: int, first_chain: int | None) -> str:
    """What a piece is called; `first_chain` is None where it holds all chains."""
    return f"draws-{index:05d}.tz" if first_chain is None else f"draws-{index:05d}-{first_chain:06d}.tz"


def numbered(folder: Path) -> list[tuple[int, str]]:
    """The numbers and names of the files that are named like pieces."""
    found = (NAME.fullmatch(path.name) for path in folder.iterdir())
    return sorted((int(match[1]), match[0]) for match in found if match)


def consistent_pieces(folder: Path, run: str, num_chains: int | None) -> list[Piece]:
    """The pieces of a run that follow one another in all their chains; of a damaged one, and what follows it, none.

    Raises:
        ConfigurationError: If a piece is of another run.
    """
    found = [piece for _, name in numbered(folder) if (piece := _piece(folder / name, run, num_chains)) is not None]
    done: dict[int, int] = {}
    kept = []
    for piece in sorted(found, key=lambda p: (p.first, p.number, p.chains.start)):
        if all(done.get(chain, 0) == piece.first for chain in piece.chains):
            done |= {chain: piece.first + piece.length for chain in piece.chains}
            kept.append(piece)
    return kept


def _piece(path: Path, run: str, num_chains: int | None) -> Piece | None:
    try:
        header, places = read_places(path, KIND, VERSION)
    except FileFormatError:
        return None
    if header.get("run") != run:
        raise ConfigurationError(
            "checkpoint", f"{str(path)!r} belongs to another run", "remove the file, or use another folder"
        )
    rows = {name[5:]: place for name, place in places.items() if name.startswith("rows/")}
    states = [places[f"states/{i}"] for i in range(sum(name.startswith("states/") for name in places))]
    numbers = [header.get(name) for name in ("index", "first", "count")]
    if not rows.keys() >= NEEDED or not all(isinstance(n, int) and n >= 0 for n in numbers):
        return None
    number, first, count = (int(str(n)) for n in numbers)
    start, width = header.get("first_chain", 0), rows["log_prob"].shape[-1:]
    is_placed = piece_name(number, header.get("first_chain")) == path.name and count > 0 and len(width) == 1
    is_whole = isinstance(start, int) and start >= 0 and all(p.shape[:2] == (count, *width) for p in rows.values())
    if not is_placed or not is_whole or any(p.shape[:1] != width for p in states):
        return None
    chains = range(start, start + width[0])
    if num_chains is not None and chains.stop > num_chains:
        return None
    return Piece(path=path, number=number, chains=chains, first=first, length=count, rows=rows, states=states)


def segments(pieces: Sequence[Piece], part: range) -> list[Segment]:
    """Where the chains of a part stand, in the order of the chains."""
    last: dict[int, Piece | None] = dict.fromkeys(part)
    for piece in pieces:
        last |= {chain: piece for chain in piece.chains if chain in part}
    out, start = [], part.start
    for chain in part:
        if chain + 1 not in part or last[chain + 1] is not last[chain]:
            chains, found = range(start, chain + 1), last[chain]
            done, leaves = (0, None) if found is None else (found.first + found.length, found.read_states(chains))
            out.append(Segment(chains, done, leaves))
            start = chain + 1
    return out


def num_common(pieces: Sequence[Piece], num_chains: int) -> int:
    """The draws that all chains have."""
    done = np.zeros(num_chains, int)
    for piece in pieces:
        done[piece.chains.start : piece.chains.stop] = piece.first + piece.length
    return int(done.min()) if num_chains else 0


class StoredArray:
    """An array (chain, draw, ...) that lies in pieces on disk: what is indexed is read, and nothing else.

    Indices are slices and numbers along the first two axes, and anything along the others. `np.asarray` reads it whole.

    Args:
        pieces: The pieces.
        name: Which of their arrays.
        shape: Chains and draws.
    """

    def __init__(self, pieces: Sequence[Piece], name: str, shape: tuple[int, int]):
        place = pieces[0].rows[name]
        self._pieces, self._name = tuple(pieces), name
        self.shape, self.dtype = (*shape, *place.shape[2:]), place.dtype

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        return self.size * self.itemsize

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        whole = self[...]
        return whole if dtype is None else whole.astype(dtype, copy=False)

    def __getitem__(self, key: Any) -> Any:
        keys = list(key) if isinstance(key, tuple) else [key]
        if Ellipsis in [k for k in keys if not isinstance(k, np.ndarray)]:
            at = next(i for i, k in enumerate(keys) if k is Ellipsis)
            keys[at : at + 1] = [slice(None)] * (self.ndim - len(keys) + 1)
        keys += [slice(None)] * (self.ndim - len(keys))
        chains, draws = (range(n)[k] for n, k in zip(self.shape, keys[:2], strict=False))
        squeezed = tuple(0 if isinstance(r, int) else slice(None) for r in (chains, draws))
        picked = [range(r, r + 1) if isinstance(r, int) else r for r in (chains, draws)]
        return self._read(picked[0], picked[1], tuple(keys[2:]))[squeezed]

    def _read(self, chains: range, draws: range, rest: tuple[Any, ...]) -> np.ndarray:
        like = np.empty((0, *self.shape[2:]), self.dtype)[(slice(None), *rest)]
        out = np.empty((len(chains), len(draws), *like.shape[1:]), self.dtype)
        for piece in self._pieces:
            columns, place = _inside(chains, piece.chains.start, len(piece.chains)), piece.rows[self._name]
            if not columns:
                continue
            rows = _inside(draws, piece.first, piece.length)
            if rows and out.size:  # mapped, so that only the part that is wanted is read
                mapped = np.memmap(piece.path, place.dtype, "r", place.offset, place.shape)
                picked = mapped[_picked(draws, rows, piece.first)]
                picked = picked[:, _picked(chains, columns, piece.chains.start)][(slice(None),) * 2 + rest]
                out[columns.start : columns.stop, rows.start : rows.stop] = np.moveaxis(picked, 0, 1)
        return out

    def min(self, axis: tuple[int, int] = (0, 1)) -> np.ndarray:
        """The least value of every coordinate over chains and draws, piece by piece."""
        return self._reduced(np.min, np.minimum, axis)

    def max(self, axis: tuple[int, int] = (0, 1)) -> np.ndarray:
        """The largest value of every coordinate over chains and draws, piece by piece."""
        return self._reduced(np.max, np.maximum, axis)

    def _reduced(self, within: Any, between: Any, axis: tuple[int, int]) -> np.ndarray:
        if axis != (0, 1):
            raise NotImplementedError(f"over chains and draws only, not {axis}")
        out = None
        for first in range(0, self.shape[1], step := max(1, READ_BYTES * self.shape[1] // max(self.nbytes, 1))):
            found = within(self[:, first : first + step], axis=(0, 1))
            out = found if out is None else between(out, found)
        return np.asarray(out)

    def __repr__(self) -> str:
        return f"StoredArray({self.shape}, {self.dtype})"


def _inside(wanted: range, first: int, count: int) -> range:
    """The places in `wanted` whose numbers lie in [first, first + count).

    >>> _inside(range(1, 20, 3), 4, 6), _inside(range(19, 0, -3), 4, 6)
    (range(1, 3), range(4, 6))
    """
    low, high = (first, first + count) if wanted.step > 0 else (first + count - 1, first - 1)
    start, stop = (-((wanted.start - n) // wanted.step) for n in (low, high))
    return range(len(wanted))[max(start, 0) : max(stop, 0)]


def _picked(wanted: range, places: range, offset: int) -> slice:
    """The numbers at some places of `wanted`, counted from `offset`, as a slice."""
    numbers = wanted[places.start : places.stop]
    stop = numbers[-1] - offset + (1 if wanted.step > 0 else -1)
    return slice(numbers[0] - offset, stop if stop >= 0 else None, wanted.step)


def stored_arrays(pieces: Sequence[Piece], num_chains: int, num_draws: int) -> Mapping[str, StoredArray]:
    """All arrays of the pieces by name, cut to the draws that are wanted."""
    names = pieces[0].rows if pieces else {}
    return {name: StoredArray(pieces, name, (num_chains, num_draws)) for name in names}
