"""The persistent compilation cache: the second process does not compile what the first one did."""

import os
from pathlib import Path

import jax

CACHE_VARIABLE = "TERRAZZO_CACHE"
MAX_BYTES = 2**31


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
