"""Every test runs in float64 with strict promotion, with the types of the signatures checked, and without the cache."""

import os

os.environ.setdefault("TERRAZZO_CACHE", "off")  # a test must not depend on what earlier runs left behind

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

with install_import_hook("terrazzo", "beartype.beartype"):
    import terrazzo  # noqa: F401
