"""What a step costs, measured once and remembered.

Choices in warm-up weigh effective draws against seconds. Timings vary from run to run, and a choice made from fresh
ones would make draws depend on them. So each timing is measured once and kept, in this process and in a small file next
to the compilation cache: the same seed makes the same choices, and so the same draws, as long as that file is there.
A key says what was timed: the target's own computation, the sampler and its options, the number of chains, the device.
"""

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from filelock import FileLock, Timeout

from terrazzo.compilation import cache_folder
from terrazzo.targets import Target

FILE_NAME = "costs.json"
MAX_ENTRIES = 4096
_memory: dict[str, float] = {}


def _shapes(tree: Any) -> str:
    arrays, static = eqx.partition(tree, eqx.is_array)
    return str(jax.tree.map(lambda x: (x.shape, str(x.dtype)), arrays)) + re.sub(r"0x[0-9a-f]+", "", str(static))


def cost_key(target: Target, *parts: Any) -> str:
    """A key for a timing on this target: its computation (not its data), the device, and whatever else matters.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: -0.5 * theta.sum(), tz.binary(3))
    >>> cost_key(target, "gibbs", 8) == cost_key(target, "gibbs", 8) != cost_key(target, "gibbs", 9)
    True
    """
    theta = jax.ShapeDtypeStruct((target.space.num_dims,), jnp.int32)
    computation = re.sub(r"0x[0-9a-f]+", "", str(jax.make_jaxpr(target.log_prob)(theta)))
    device = str(jax.devices()[0].device_kind)  # not how many: the choice, and so the draws, must not depend on it
    text = "\n".join([computation, device, jax.__version__, *map(_shapes, parts)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def remembered(key: str, measure: Callable[[], float]) -> float:
    """The timing kept under `key`; measured and kept if there is none."""
    if key not in _memory:
        stored = _read().get(key)
        _memory[key] = float(measure()) if stored is None else stored
        if stored is None:
            _store(key, _memory[key])
    return _memory[key]


def _path() -> Path | None:
    folder = cache_folder()
    return None if folder is None else folder / FILE_NAME


def _read() -> dict[str, float]:
    path = _path()
    try:
        entries = {} if path is None else json.loads(path.read_text())
        return {str(k): float(v) for k, v in entries.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}


def _store(key: str, seconds: float) -> None:
    """Adds one entry; a cache that cannot be written is no reason to fail."""
    path = _path()
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(path.with_suffix(".lock"), timeout=5):
            entries = _read()
            entries[key] = seconds
            kept = dict(list(entries.items())[-MAX_ENTRIES:])
            part = path.with_suffix(".part")
            part.write_text(json.dumps(kept))
            part.replace(path)
    except (OSError, Timeout):
        return
