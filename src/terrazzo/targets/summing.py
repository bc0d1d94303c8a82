"""Log-probabilities that are given as their terms: a vector whose sum is log pi."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from terrazzo.errors import TargetError
from terrazzo.targets.black_boxes import BlackBox


def summed(terms_fn: Callable | BlackBox, *, vectorized: bool) -> Any:
    """log pi from a function that returns its terms; of a black box only the sum is used.

    >>> import terrazzo as tz
    >>> target = tz.Target(lambda theta: theta[1:] * theta[:-1] * 0.5, tz.binary(4), terms=True)
    >>> float(target.log_prob(jnp.array([1, 1, 1, 0])))
    1.0
    """
    if not isinstance(terms_fn, BlackBox):

        def total(values: Any) -> Array:
            found = jnp.asarray(terms_fn(values))
            _check(found.shape, vectorized)
            return jnp.sum(found, axis=-1)

        return total
    fn, is_batched = terms_fn.fn, terms_fn.vectorized

    def log_prob(values: Any) -> Any:
        found = np.asarray(fn(values), float)
        _check(found.shape, is_batched)
        return found.sum(axis=-1)

    return BlackBox(log_prob, vectorized=is_batched, name=terms_fn.name)


def _check(shape: tuple[int, ...], is_batched: bool) -> None:
    if len(shape) != 1 + is_batched:
        wanted = "an array (configuration, term)" if is_batched else "a vector of terms"
        raise TargetError("log_prob", f"returned shape {shape} with terms=True", f"return {wanted}")
