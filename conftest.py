"""Every test runs in float64 with strict promotion, with the types of the signatures checked, and without the cache.

Doctests run as users do, in float32. One folder of compiled code is shared by all processes of a session, and goes with
it: what one of them has compiled the others load, and so does the same process after it has let go of code. With
JAX_COMPILATION_CACHE_DIR set the folder stays, and the next session compiles only what has changed.

Most of the time goes to XLA, which is asked for less optimised code (25 to 40 % less CPU time), where its version knows
the flags. `make study` runs with XLA's own settings (`XLA_FLAGS=`), as users do.
"""

import atexit
import gc
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("TERRAZZO_CACHE", "off")  # a test must not depend on what earlier runs left behind
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES", "-1")
QUICK = "--xla_cpu_use_fusion_emitters=false --xla_backend_optimization_level=1"
if "XLA_FLAGS" not in os.environ:  # an XLA that does not know a flag ends the process
    command = [sys.executable, "-c", "import jax; jax.devices()"]
    is_known = subprocess.run(command, env={**os.environ, "XLA_FLAGS": QUICK}, capture_output=True, check=False)
    os.environ["XLA_FLAGS"] = QUICK if is_known.returncode == 0 else ""
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:  # the first process of the session; the others inherit it
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="terrazzo-tests-")
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)

import jax
import pytest
from jaxtyping import install_import_hook
from xdist.scheduler import LoadScopeScheduling

jax.config.update("jax_enable_x64", True)  # while tests are collected, too
jax.config.update("jax_numpy_dtype_promotion", "strict")


def pytest_configure(config):
    """Types of signatures are checked. The process that hands out tests (pytest -n) does not import the library."""
    if not config.getoption("numprocesses", None):
        with install_import_hook("terrazzo", "beartype.beartype"):
            import terrazzo  # noqa: F401


TOGETHER = {
    "test_devices.py",
    "test_distributed_mutants.py",
    "test_experiments.py",
    "test_inference.py",
    "test_sharded_sites.py",
    "test_site.py",
    "test_warmup.py",
}  # their tests look at one long run
BY_SAMPLER = {"test_discrete_laws.py"}  # the tests of a sampler share its transition matrices
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


@pytest.fixture(autouse=True)
def _doctests_as_users_run(request):
    """In float32 and with JAX's own promotion, in all threads."""
    is_doctest = isinstance(request.node, pytest.DoctestItem)
    jax.config.update("jax_enable_x64", not is_doctest)
    jax.config.update("jax_numpy_dtype_promotion", "standard" if is_doctest else "strict")


class TogetherScheduling(LoadScopeScheduling):
    """Each test goes to the process that is free, but those that share long computations all go to one."""

    def _split_scope(self, nodeid):
        file, _, test = nodeid.partition("::")
        if Path(file).name in BY_SAMPLER and "[" in test:
            return f"{file}::{test.partition('[')[2].rstrip(']').split('-')[0]}"
        return file if Path(file).name in TOGETHER else nodeid


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    return TogetherScheduling(config, log)
