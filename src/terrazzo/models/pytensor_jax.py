"""PyTensor graphs as JAX functions.

PyMC's JAX module changes two settings of the process when it is imported: it asks XLA for a hundred CPU devices, and
it turns float64 on. Both are put back: chains go to all visible devices, and the precision is the user's.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

TRUNCATED = "Explicitly requested dtype"  # float64 constants in float32 code: meant


def _import_backend() -> Any:
    flags, is_double = os.environ.get("XLA_FLAGS"), jax.config.values["jax_enable_x64"]
    try:
        import pymc.sampling.jax as backend
    finally:
        jax.config.update("jax_enable_x64", is_double)
        if flags is None:
            os.environ.pop("XLA_FLAGS", None)
        else:
            os.environ["XLA_FLAGS"] = flags
    return backend


backend = _import_backend()

from pymc.distributions.discrete import DiscreteUniformRV  # noqa: E402
from pytensor.compile import mode  # noqa: E402
from pytensor.graph.fg import FunctionGraph  # noqa: E402
from pytensor.graph.replace import clone_replace  # noqa: E402
from pytensor.graph.traversal import graph_inputs  # noqa: E402
from pytensor.link.jax.dispatch import jax_funcify  # noqa: E402
from pytensor.link.jax.dispatch.random import jax_sample_fn  # noqa: E402
from pytensor.tensor.random.type import RandomType  # noqa: E402

if DiscreteUniformRV not in jax_sample_fn.registry:  # PyTensor has no draws of it in JAX

    @jax_sample_fn.register(DiscreteUniformRV)
    def _discrete_uniform(op: Any, node: Any) -> Any:
        def draw(key: Any, size: Any, dtype: Any, low: Any, high: Any) -> Any:
            shape = jnp.broadcast_shapes(jnp.shape(low), jnp.shape(high)) if size is None else tuple(size)
            return jax.random.randint(key, shape, low, jnp.asarray(high) + 1).astype(dtype)

        return draw


def function(inputs: Sequence[Any], outputs: Sequence[Any]) -> Callable[..., tuple]:
    """The graph from inputs to outputs as a function of JAX, traced in the precision of the call."""
    return _quiet(backend.get_jaxified_graph(inputs=list(inputs), outputs=list(outputs)))


def draw_function(outputs: Sequence[Any]) -> Callable[[Any], tuple]:
    """A graph of random variables as a function of a key."""
    outputs = list(outputs)
    shared = [v for v in graph_inputs(outputs) if isinstance(v.type, RandomType)]
    own = [v.type() for v in shared]
    graph = backend._replace_shared_variables(clone_replace(outputs, replace=dict(zip(shared, own, strict=True))))
    fgraph = FunctionGraph(inputs=own, outputs=graph, clone=True)
    mode.JAX.optimizer.rewrite(fgraph)
    call = _quiet(jax_funcify(fgraph))
    return lambda key: call(*({"jax_state": k} for k in jax.random.split(key, len(own))))


def _quiet(call: Callable[..., Any]) -> Callable[..., tuple]:
    def called(*values: Any) -> tuple:
        with jax.numpy_dtype_promotion("standard"), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=TRUNCATED)
            out = call(*values)
        return tuple(out) if isinstance(out, tuple | list) else (out,)

    return called


def real_of(value: Any) -> Any:
    """A number in the precision of here and now."""
    return jnp.asarray(value).astype(jnp.result_type(float))
