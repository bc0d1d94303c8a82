"""Long work in chunks of about a second.

Between two chunks the caller shows progress, stores draws, asks its budget, and may stop. The rule for chunk sizes is
here and nowhere else: the first chunk is one unit (it compiles), each later one is what takes a second, at most eight
times the one before, and never more than the buffer of the compiled program holds. What is computed does not depend on
it. Sampling, warm-up, the trial, exploration, training and `maximize` all go by it.
"""

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

CHUNK_SECONDS = 1.0
GROWTH = 8  # times the chunk before, at most: one slow chunk must not make the next one long


class Chunk(NamedTuple):
    """One compiled call.

    Attributes:
        out: What it returned.
        first: The number of its first unit.
        size: Its units.
        seconds: Wall time.
        is_first: Whether it is the first of its loop, which may have compiled.
    """

    out: Any
    first: int
    size: int
    seconds: float
    is_first: bool


def next_size(size: int, seconds: float, *, is_first: bool, aim: float = CHUNK_SECONDS) -> int:
    """How many units take about `aim` seconds, after a chunk of `size`; nothing is concluded from the first one.

    >>> next_size(10, 0.25, is_first=False), next_size(1, 9.0, is_first=True)
    (40, 1)
    """
    if is_first:
        return max(1, size)
    return int(np.clip(size * aim / max(seconds, 1e-4), 1, GROWTH * size))


def in_chunks(
    advance: Callable[[int, int], Any],
    total: int,
    *,
    longest: int | None = None,
    chunk_size: int | None = None,
    affordable: Callable[[], int] | None = None,
    aim: float = CHUNK_SECONDS,
    is_compiled: bool = False,
) -> Iterator[Chunk]:
    """Calls `advance(first, size)` until `total` units are done; the caller may stop at any chunk.

    Args:
        advance: Takes that many units, from number `first` on.
        total: Units in all.
        longest: The most units of a chunk.
        chunk_size: Units of every chunk, if they were chosen.
        affordable: Asked before every chunk: the most units that may still be taken.
        aim: Seconds that a chunk should take.
        is_compiled: Whether the first chunk need not compile.

    >>> [(c.first, c.size) for c in in_chunks(lambda first, size: None, 10, chunk_size=4)]
    [(0, 4), (4, 4), (8, 2)]
    """
    done, wanted, is_first = 0, 1, not is_compiled
    while done < total:
        limits = [total - done, chunk_size or wanted, longest or total, total if affordable is None else affordable()]
        size = max(1, min(limits))
        tick = time.perf_counter()
        out = jax.block_until_ready(advance(done, size))
        seconds = time.perf_counter() - tick
        wanted = next_size(size, seconds, is_first=is_first, aim=aim)
        yield Chunk(out, done, size, seconds, is_first)
        done, is_first = done + size, False
