"""Every test runs in float64 with strict promotion, and with the types of the signatures checked."""

import jax
from jaxtyping import install_import_hook

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

with install_import_hook("terrazzo", "beartype.beartype"):
    import terrazzo  # noqa: F401
