"""Compilation: with options for each device, and kept on disk, so that a second process does not compile again.

Compiled code belongs to a group: the target that it was compiled for, apart from its data. The groups used last are
kept, and what was compiled for the others is freed, so that a process may sample any number of targets; within them
what was used longest ago is freed where the system's memory maps run short, so that it may use any number of samplers.
"""

import contextlib
import functools
import os
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Generic, ParamSpec, TypeVar

import equinox as eqx
import jax

CACHE_VARIABLE = "TERRAZZO_CACHE"
MAX_BYTES = 2**31
# On a GPU XLA times matrix products in many variants, and compiles Triton's, which takes most of its time (training the
# paper's flow on an H200: 11 s with Triton's products, 3.3 s without). What runs for seconds does without. A loop that
# draws gains from Triton's (0.135 ms a step of the paper's walk against 0.211), and no loop gains from the timing.
# A loop as one CUDA graph does not ask the host whether to go on: on 128 chains a sweep of 16 x 16 spins takes 23.4
# microseconds and not 32.2, a step of clusters on 24 x 24 sites 70 and not 91, one of the paper's walk 92 and not 103.
# XLA leaves a loop out where it cannot make a graph of it, or the driver has none.
GRAPHS = "FUSION,CUBLAS,CUBLASLT,CUSTOM_CALL,CUDNN,DYNAMIC_SLICE_FUSION"  # what XLA makes graphs of by itself
LONG_ON_GPU = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_command_buffer": f"{GRAPHS},CONDITIONAL,WHILE"}
QUICK_ON_GPU = {**LONG_ON_GPU, "xla_gpu_enable_triton_gemm": False}

# Less work for LLVM halves the time to compile a tempered round (6.7 s against 3.4 s on one core). Loops are slower by
# up to a quarter where random numbers are most of the work, and no slower where evaluations are.
BRIEF_ON_CPU = {"xla_backend_optimization_level": 1}

OPTIONS: dict[str, Any] = {"plain": None, "quick": QUICK_ON_GPU, "long": LONG_ON_GPU, "brief": BRIEF_ON_CPU}

MOST_GROUPS = 8  # targets whose compiled code is kept; each holds 500 memory maps and 25 MiB, or ten times that
MAPS = Path("/proc/self/maps")
MOST_MAPS = 30_000  # Linux allows a process 65,530, and LLVM ends it without a word beyond that
NEW_MAPS = 10_000  # that have come since code was last freed: freeing does not help where others hold the maps
COUNT_EVERY = 8  # new programs; to count 40,000 maps takes 46 ms

P = ParamSpec("P")
R = TypeVar("R")
_program_device: ContextVar[Any] = ContextVar("terrazzo_program_device", default=None)


@contextlib.contextmanager
def loose_on(host: Any, device: Any) -> Iterator[None]:
    """Inside it, operations that belong to no program run on `host`, and programs made by `jit` on `device`.

    Every loose operation is a program of its own to XLA, and a GPU takes five times as long to compile one as a CPU: a
    hundred of them took 7 of the 46 seconds of a run on an H200 (`benchmarks/structured_defaults.py glass`). What is
    committed to a device stays there.
    """
    if host is None:
        yield
        return
    token = _program_device.set((host, device))
    try:
        with jax.default_device(host):
            yield
    finally:
        _program_device.reset(token)


def host_and_device() -> tuple[Any, Any]:
    """The host and the device of `loose_on`, for another thread; None and None outside of it."""
    return _program_device.get() or (None, None)


def loose_operations_on_host(device: Any) -> contextlib.AbstractContextManager[None]:
    """`loose_on` the CPU, where the device is an accelerator and the user has chosen no default device."""
    is_chosen = getattr(jax.config, "jax_default_device", None) is not None
    if device.platform == "cpu" or is_chosen or _program_device.get() is not None:
        return contextlib.nullcontext()
    try:
        host = jax.local_devices(backend="cpu")[0]
    except RuntimeError:  # JAX_PLATFORMS leaves the CPU out
        return contextlib.nullcontext()
    return loose_on(host, device)


class _Groups:
    """Compiled functions by the group that they were compiled for; groups and functions used last are at the end."""

    def __init__(self) -> None:
        self._groups: OrderedDict[Hashable, OrderedDict[Any, Any]] = OrderedDict()
        self._lock = threading.RLock()
        self._num_new, self._num_left = 0, 0

    def get(self, group: Hashable, name: Any, make: Callable[[], Any]) -> Any:
        """The function of that name; made if the group has none."""
        with self._lock:
            functions = self._groups.setdefault(group, OrderedDict())
            self._groups.move_to_end(group)
            while len(self._groups) > MOST_GROUPS:
                _free(self._groups.popitem(last=False)[1].values())
            if name not in functions:
                functions[name] = make()
            functions.move_to_end(name)
            return functions[name]

    def made_another(self, newest: Any) -> None:
        """Frees functions where the process holds too many maps: what was used longest ago first, `newest` last."""
        with self._lock:
            self._num_new += 1
            if self._num_new % COUNT_EVERY or num_maps() <= max(MOST_MAPS, self._num_left + NEW_MAPS):
                return
            found = [f for functions in self._groups.values() for f in functions.values() if f is not newest]
            for function in (*found, newest):
                _free([function])
                self._num_left = num_maps()
                if self._num_left <= MOST_MAPS:
                    return

    def size(self, owner: Any) -> int:
        """How many programs a function has been compiled to and are kept."""
        with self._lock:
            found = [f for functions in self._groups.values() for (one, _), f in functions.items() if one is owner]
        return sum(map(_num_programs, found))


def _free(functions: Iterable[Any]) -> None:
    for function in functions:
        function._cached.clear_cache()


def _num_programs(function: Any) -> int:
    return int(function._cached._cache_size())


_groups = _Groups()


def num_maps() -> int:
    """Memory maps of this process; 0 where the system does not say."""
    try:
        return MAPS.read_bytes().count(b"\n")
    except OSError:
        return 0


def group_of(tree: Any) -> Hashable | None:
    """The group of the first object in a pytree that has one, as `compilation_group`."""
    has_group = lambda x: hasattr(type(x), "compilation_group")
    found = (x for x in jax.tree.leaves(tree, is_leaf=has_group) if has_group(x))
    return next((x.compilation_group for x in found), None)


class Jitted(Generic[P, R]):
    """`equinox.filter_jit` with options for the device: on a GPU, no search for the fastest matrix products.

    Attributes:
        plain: Without any options, for use inside other functions and for what belongs to no target.
    """

    def __init__(self, fn: Callable[P, R], *, is_long: bool = False):
        functools.update_wrapper(self, fn)
        self._fn, self._on_gpu = fn, "long" if is_long else "quick"
        self._own = {name: self._made(fn, name) for name in OPTIONS}
        self.plain: Any = self._own["plain"]

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._run("plain", args, kwargs)

    def lightly_optimised(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The same, compiled with less effort on a CPU: for loops that run no longer than they compile."""
        return self._run("brief", args, kwargs)

    def num_compiled(self) -> int:
        """How many programs it has been compiled to and are kept."""
        return _groups.size(self) + sum(map(_num_programs, self._own.values()))

    def _run(self, on_cpu: str, args: Any, kwargs: Any) -> Any:
        if any(isinstance(x, jax.core.Tracer) for x in jax.tree.leaves((args, kwargs))):  # inside another function
            return self.plain(*args, **kwargs)
        picked, (_, device) = self._pick(on_cpu, args, kwargs), host_and_device()
        before = _num_programs(picked)
        with contextlib.nullcontext() if device is None else jax.default_device(device):
            out = picked(*args, **kwargs)
        if _num_programs(picked) > before:
            _groups.made_another(picked)
        return out

    def _pick(self, on_cpu: str, args: Any, kwargs: Any) -> Any:
        name = {"cpu": on_cpu, "gpu": self._on_gpu}.get(jax.default_backend(), "plain")
        group = group_of((args, kwargs))
        if group is None:
            return self._own[name]
        return _groups.get(group, (self, name), lambda: self._made(_renewed(self._fn), name))

    @staticmethod
    def _made(fn: Callable, name: str) -> Any:
        options = OPTIONS[name]
        return eqx.filter_jit(fn) if options is None else eqx.filter_jit(fn, compiler_options=options)  # type: ignore[call-overload]

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else types.MethodType(self, instance)


def _renewed(fn: Callable) -> Callable:
    """The function as another object: compiled code is kept by object."""

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return call


def jit(fn: Callable[P, R]) -> Jitted[P, R]:
    """A function compiled for the device at hand; as a decorator, of methods too.

    >>> double = jit(lambda x: 2.0 * x)
    >>> float(double(jax.numpy.ones(()))), float(double.lightly_optimised(jax.numpy.ones(())))
    (2.0, 2.0)
    """
    return Jitted(fn)


def jit_loop(fn: Callable[P, R]) -> Jitted[P, R]:
    """The same for a loop that runs much longer than it compiles."""
    return Jitted(fn, is_long=True)


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
