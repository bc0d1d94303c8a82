"""Compilation: with options for each device, and kept on disk, so that a second process does not compile anew."""

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import equinox as eqx
import jax

CACHE_VARIABLE = "TERRAZZO_CACHE"
MAX_BYTES = 2**31
# Timing every matrix product in many variants takes XLA most of the time it needs to compile for a GPU (measured: 5.9 s
# against 0.3 s for one pass through a transport) and gains nothing on loops of small ones.
QUICK_ON_GPU = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}

P = ParamSpec("P")
R = TypeVar("R")


def jit(fn: Callable[P, R]) -> Callable[P, R]:
    """`equinox.filter_jit`, without the search for the fastest matrix products on a GPU; `plain` is the one with it.

    >>> float(jit(lambda x: 2.0 * x)(jax.numpy.ones(())))
    2.0
    """
    plain = eqx.filter_jit(fn)
    quick = eqx.filter_jit(fn, compiler_options=QUICK_ON_GPU)  # type: ignore[call-overload]

    @functools.wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        is_inside_another = any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs)))
        chosen: Any = plain if is_inside_another or jax.default_backend() != "gpu" else quick
        return chosen(*args, **kwargs)

    call.plain = plain  # type: ignore[attr-defined]
    return call


def cache_folder() -> Path | None:
    """Where compiled code is kept: `$TERRAZZO_CACHE`, else the user's cache directory; None if it is `off`."""
    chosen = os.environ.get(CACHE_VARIABLE, "")
    if chosen.lower() in ("off", "0", "false", "no"):
        return None
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "terrazzo" / "xla"


def enable_compilation_cache() -> None:
    """Turns JAX's persistent cache on, unless it is already configured or cannot be written."""
    folder = cache_folder()
    if folder is None or getattr(jax.config, "jax_compilation_cache_dir", None):
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    jax.config.update("jax_compilation_cache_dir", str(folder))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.05)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.config.update("jax_compilation_cache_max_size", MAX_BYTES)
