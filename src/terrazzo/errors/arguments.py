"""Checks of what users pass: counts, numbers, flags, keys, seeds and objects, each with a typed error.

Every check names the argument, shows its value and says what to do. All of them run before any work starts.
"""

import contextlib
import math
import numbers
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Array

from terrazzo.errors import OptionError

MOST = 2**31 - 1  # counts reach compiled code as 32-bit integers
SEEDS = 2**64
DEFAULT = "leave it out for the default"


def shown(value: Any, most: int = 80) -> str:
    """A value on one line, cut to a readable length.

    >>> shown([1, 2])
    '[1, 2]'
    """
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an object may fail at describing itself
        text = f"an object of type {type(value).__name__}"
    return text if len(text) <= most else f"{text[: most - 3]}..."


def is_integer(value: Any) -> bool:
    """Whether a value is a whole number by its type; True and False are not."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def count(name: str, value: Any, *, low: int = 1, high: int = MOST, remedy: str = DEFAULT) -> int:
    """An integer between `low` and `high`.

    >>> count("draws", 3)
    3
    """
    if not is_integer(value) or value < low:
        raise OptionError(name, f"must be an integer of at least {low}, got {shown(value)}", remedy)
    if value > high:
        raise OptionError(name, f"must be at most {high}, got {shown(value)}", "give a smaller number")
    return int(value)


def optional_count(name: str, value: Any, *, low: int = 1, high: int = MOST) -> int | None:
    """As `count`, or None."""
    return None if value is None else count(name, value, low=low, high=high)


def number(name: str, value: Any, *, above: float = 0.0, at_most: float = math.inf, remedy: str = DEFAULT) -> float:
    """A finite real number in (above, at_most].

    >>> number("max_seconds", 2)
    2.0
    """
    is_real = isinstance(value, numbers.Real | np.integer | np.floating) and not isinstance(value, bool | np.bool_)
    if not is_real or not math.isfinite(value) or not above < value <= at_most:
        limits = ("" if above == -math.inf else f" above {above:g}") + (
            "" if at_most == math.inf else f" up to {at_most:g}"
        )
        raise OptionError(name, f"must be a finite number{limits}, got {shown(value)}", remedy)
    return float(value)


def finite(name: str, value: Any) -> float:
    """Any finite real number."""
    return number(name, value, above=-math.inf)


def array(name: str, value: Any, ndim: int, remedy: str) -> np.ndarray:
    """Finite real numbers, as an array of so many axes."""
    try:
        found = np.asarray(value, float)
    except (TypeError, ValueError):
        found = np.full(1, np.nan)
    if not np.isfinite(found).all() or found.ndim != ndim or not found.size:
        raise OptionError(name, f"must be finite numbers with {ndim} axes, got {shown(value)}", remedy)
    return found


def flag(name: str, value: Any) -> bool:
    """True or False, and nothing that only looks like it."""
    if not isinstance(value, bool | np.bool_):
        raise OptionError(name, f"must be True or False, got {shown(value)}", f"e.g. {name}=True")
    return bool(value)


def choice(name: str, value: Any, allowed: tuple[str, ...]) -> str:
    """One of several words."""
    if not isinstance(value, str) or value not in allowed:
        raise OptionError(
            name, f"must be one of {', '.join(allowed)}, got {shown(value)}", f"e.g. {name}={allowed[0]!r}"
        )
    return value


def options(name: str, value: Any) -> dict[str, Any]:
    """Options by name; none for None."""
    if value is None:
        return {}
    if not hasattr(value, "keys") or not all(isinstance(k, str) for k in value):
        raise OptionError(name, f"must be a dict of options, got {shown(value)}", "e.g. {'scale': 0.3}")
    return dict(value)


def instance(name: str, value: Any, kind: type, remedy: str, error: type = OptionError) -> Any:
    """An object of a class: a `Target` where a target is wanted, say."""
    if not isinstance(value, kind):
        raise error(name, f"must be a {kind.__name__}, got {shown(value)}", remedy)
    return value


def available_memory() -> float:
    """Bytes that this process may still take: of the machine, its control group or its own limit (`ulimit -v`)."""
    found = [math.inf]
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        found.append(1024.0 * float(lines["MemAvailable"].split()[0]))
    except (OSError, KeyError, ValueError):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append(float(os.sysconf("SC_AVPHYS_PAGES")) * os.sysconf("SC_PAGE_SIZE"))
    with contextlib.suppress(OSError, ValueError):  # no control group, or no limit ("max")
        folder = Path("/sys/fs/cgroup")
        limit, used = (float((folder / name).read_text()) for name in ("memory.max", "memory.current"))
        found.append(max(limit - used, 0.0))
    with contextlib.suppress(OSError, ValueError, ImportError):
        import resource  # not on every system

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        if most != resource.RLIM_INFINITY:
            pages = int(Path("/proc/self/statm").read_text().split()[0])
            found.append(max(float(most - pages * resource.getpagesize()), 0.0))
    return min(found)


def format_bytes(count: float) -> str:
    """Bytes for a person.

    >>> format_bytes(3.2e9)
    '3.2 GB'
    """
    for unit, size in (("PB", 1e15), ("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1e18 else f"{count:.1e} bytes"
    return f"{count / 1e3:.3g} kB"


def memory(what: str, peak: float | int, remedy: str = "ask for less") -> None:
    """Raises unless so many bytes fit into the memory that is left."""
    left = available_memory()
    if peak > left:
        raise OptionError("memory", f"{what} take {format_bytes(peak)}, and {format_bytes(left)} are left", remedy)


def random_key(key: Any) -> Array:
    """A single JAX key (traced ones are fine)."""
    if isinstance(key, jax.Array):
        is_typed = jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key) and key.shape == ()
        is_raw = key.dtype == np.uint32 and key.ndim == 1 and key.shape[0] in (2, 4)
        if is_typed or is_raw:
            return key
    if is_integer(key):
        raise OptionError("key", f"must be a JAX key, got the number {shown(key)}", f"jax.random.key({shown(key)})")
    raise OptionError("key", f"must be one JAX key, got {shown(key)}", "e.g. jax.random.key(0)")


def seed_number(seed: Any) -> int:
    """A seed: any integer of 64 bits, not negative."""
    if not is_integer(seed) or not 0 <= int(seed) < SEEDS:
        raise OptionError("seed", f"must be an integer from 0 to 2^64 - 1, got {shown(seed)}", "e.g. seed=0")
    return int(seed)


def key_of_seed(seed: int) -> Array:
    """The JAX key of a seed of up to 64 bits, the same in single and double precision.

    `jax.random.key` drops the upper 32 bits unless 64-bit types are on, so that they are folded in here where there are
    any. Seeds below 2^32 give the key that `jax.random.key` gives.

    >>> bool((jax.random.key_data(key_of_seed(7)) == jax.random.key_data(jax.random.key(7))).all())
    True
    """
    seed = seed_number(seed)
    key = jax.random.key(seed % 2**32)
    return key if seed < 2**32 else jax.random.fold_in(key, np.uint32(seed >> 32))
