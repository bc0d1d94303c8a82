"""Log-probabilities that JAX cannot trace: plain Python or NumPy, evaluated on the host."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import TargetError
from terrazzo.spaces import Space


class BlackBox:
    """A plain Python or NumPy log-probability, evaluated on the host in batches. Build it with `blackbox`."""

    def __init__(self, fn: Callable, *, vectorized: bool = False, name: str | None = None):
        if not callable(fn):
            raise TargetError("blackbox", f"needs a function, got {type(fn).__name__}", "e.g. tz.blackbox(my_log_prob)")
        if name is not None and not isinstance(name, str):
            raise TargetError("blackbox.name", f"must be a string, got {name!r}"[:120], "e.g. name='model 3'")
        self.fn = fn
        self.name = name
        self.vectorized = vectorized
        self.last_error: BaseException | None = None  # a host callback cannot raise cleanly through XLA
        self.is_stopped: Callable[[], bool] = lambda: False  # asked before each evaluation

    def evaluate(self, space: Space, theta: np.ndarray) -> np.ndarray:
        """log pi of flat configurations with any leading axes; raises what the user's function raises."""
        rows = np.asarray(theta).reshape(-1, space.num_dims)
        if self.vectorized:
            values = np.asarray(self.fn(space.unflatten(rows)), float)
            if values.shape != (len(rows),):
                raise TargetError(
                    "log_prob", f"returned shape {values.shape} for {len(rows)} configurations", "one number each"
                )
        else:
            values = np.array([self._value(space, row) for row in rows])
        return values.reshape(np.shape(theta)[:-1])

    def evaluate_one(self, values: Any) -> float:
        """log pi of one configuration in the user's values; raises what the user's function raises."""
        if self.is_stopped():
            raise KeyboardInterrupt
        if self.vectorized:
            values = {k: v[None] for k, v in values.items()} if isinstance(values, dict) else values[None]
            return _as_python_float(np.asarray(self.fn(values))[0])
        return _as_python_float(self.fn(values))

    def evaluate_values(self, values: Any, count: int) -> np.ndarray:
        """log pi of a batch in the user's values; an exception is remembered and gives NaN (see `evaluate_quietly`)."""
        row = lambda i: {k: v[i] for k, v in values.items()} if isinstance(values, dict) else values[i]
        try:
            if self.vectorized:
                return np.asarray(self.fn(values), float)
            return np.array([self.evaluate_one(row(i)) for i in range(count)])
        except (Exception, KeyboardInterrupt) as error:
            self.last_error = error
            return np.full(count, np.nan)

    def _value(self, space: Space, row: np.ndarray) -> float:
        if self.is_stopped():
            raise KeyboardInterrupt
        return _as_python_float(self.fn(space.unflatten(row)))

    def evaluate_quietly(self, space: Space, theta: np.ndarray) -> np.ndarray:
        """As `evaluate`, but an exception is remembered and gives NaN: for use inside a host callback."""
        try:
            return self.evaluate(space, theta)
        except (Exception, KeyboardInterrupt) as error:
            self.last_error = error
            return np.full(np.shape(theta)[:-1], np.nan)


def _as_python_float(value: Any) -> float:
    array = np.asarray(value)
    if array.shape != () or array.dtype.kind not in "fiu":
        raise TargetError(
            "log_prob", f"returned {array.dtype} of shape {array.shape}, not a number", "return one float"
        )
    return float(array)


def blackbox(fn: Callable, *, vectorized: bool = False, name: str | None = None) -> BlackBox:
    """Marks a log-probability that JAX cannot trace (plain Python, NumPy, a call to another program).

    It is evaluated on the host, a whole batch of configurations per call. Black-box targets have no gradient.

    Args:
        fn: Takes one configuration (NumPy) and returns a number.
        vectorized: Whether `fn` takes a batch (leading axis) and returns a vector.
        name: Which function it is. A checkpoint is continued only by a black box of the same name, and of the same
            values at a few configurations.

    >>> box = blackbox(lambda theta: -float(theta.sum()))
    >>> box.vectorized
    False
    """
    return BlackBox(fn, vectorized=vectorized, name=name)


def called_back(box: BlackBox, space: Space, theta: Any) -> Any:
    """log pi of a black box inside compiled code, by a call to the host.

    The float comes back as 32-bit words: JAX makes float32 of every float64 that a callback returns in a thread in
    which float64 is not enabled, and callbacks run in threads of XLA.
    """
    dtype = np.dtype(jnp.result_type(float))
    num_words = dtype.itemsize // 4

    def call(t: Any) -> np.ndarray:
        values = box.evaluate_quietly(space, np.asarray(t)).astype(dtype)
        return np.array(values, order="C")[..., None].view(np.uint32)

    shape = jax.ShapeDtypeStruct((num_words,), jnp.uint32)
    words = jax.pure_callback(call, shape, theta, vmap_method="broadcast_all")
    return jax.lax.bitcast_convert_type(words if num_words == 2 else words[0], dtype)
