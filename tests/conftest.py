"""Every test runs in float64 with strict promotion, with the types of the signatures checked, and without the cache."""

import gc
import os
from pathlib import Path

os.environ.setdefault("TERRAZZO_CACHE", "off")  # a test must not depend on what earlier runs left behind

import jax
import pytest
from jaxtyping import install_import_hook
from xdist.scheduler import LoadScopeScheduling

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")

with install_import_hook("terrazzo", "beartype.beartype"):
    import terrazzo  # noqa: F401

TOGETHER = {"test_experiments.py", "test_inference.py", "test_warmup.py"}  # their tests look at one long run
MAPS = Path("/proc/self/maps")
MOST_MAPS = 45_000  # Linux allows 65,530 by default, and LLVM dies without a word beyond that
_kept = [0]  # maps that were left when compiled code was last let go of


@pytest.fixture(autouse=True)
def _forget_compiled_code():
    """Every compiled function holds memory maps; a long session must let go of them before the system runs out."""
    yield
    count = MAPS.read_bytes().count(b"\n") if MAPS.exists() else 0
    if count > max(MOST_MAPS, _kept[0] + 5000):
        jax.clear_caches()
        gc.collect()
        _kept[0] = MAPS.read_bytes().count(b"\n")


class TogetherScheduling(LoadScopeScheduling):
    """Each test goes to the process that is free, but those of some files all go to one."""

    def _split_scope(self, nodeid):
        file = nodeid.split("::")[0]
        return file if Path(file).name in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return TogetherScheduling(config, log)
