"""Compilation: with options for each device, and kept on disk, so that a second process does not compile anew."""

import functools
import os
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import equinox as eqx
import jax

CACHE_VARIABLE = "TERRAZZO_CACHE"
MAX_BYTES = 2**31
# Timing every matrix product in many variants takes XLA most of the time it needs to compile for a GPU (measured: 5.9 s
# against 0.3 s for one pass through a transport) and gains nothing on loops of small ones.
QUICK_ON_GPU = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}

# Less work for LLVM halves the time to compile a tempered round (6.7 s against 3.4 s on one core). Loops are slower by
# up to a quarter where random numbers are most of the work, and no slower where evaluations are.
BRIEF_ON_CPU = {"xla_backend_optimization_level": 1}

P = ParamSpec("P")
R = TypeVar("R")


class Jitted(Generic[P, R]):
    """`equinox.filter_jit` with options for the device: on a GPU, no search for the fastest matrix products.

    Attributes:
        plain: Without any options.
    """

    def __init__(self, fn: Callable[P, R]):
        functools.update_wrapper(self, fn)
        self.plain: Any = eqx.filter_jit(fn)
        self._on_gpu: Any = eqx.filter_jit(fn, compiler_options=QUICK_ON_GPU)  # type: ignore[call-overload]
        self._brief: Any = eqx.filter_jit(fn, compiler_options=BRIEF_ON_CPU)  # type: ignore[call-overload]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._pick(self.plain, args, kwargs)(*args, **kwargs)

    def briefly(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same, compiled with less effort on a CPU: for loops that run no longer than they compile."""
        return self._pick(self._brief, args, kwargs)(*args, **kwargs)

    def _pick(self, on_cpu: Any, args: Any, kwargs: Any) -> Any:
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))):  # inside another function
            return self.plain
        return {"cpu": on_cpu, "gpu": self._on_gpu}.get(jax.default_backend(), self.plain)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def jit(fn: Callable[P, R]) -> Jitted[P, R]:
    """A function compiled for the device at hand; as a decorator, of methods too.

    >>> double = jit(lambda x: 2.0 * x)
    >>> float(double(jax.numpy.ones(()))), float(double.briefly(jax.numpy.ones(())))
    (2.0, 2.0)
    """
    return Jitted(fn)


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
