"""Balancing functions g, with g(t) = t g(1/t), on the log scale.

Weights g(pi(y) / pi(x)) make pi(x) g(pi(y) / pi(x)) symmetric in x and y: the balance behind all informed kernels here
(Zanella 2020). With D = log t: sqrt D / 2, Barker -log(1 + e^-D), min min(D, 0), max max(D, 0).
Barker's and min are bounded by 1, which is what keeps a chain calm far from stationarity.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array

from terrazzo.errors import OptionError

BALANCING: dict[str, Callable[[Array], Array]] = {
    "sqrt": lambda log_ratio: 0.5 * log_ratio,
    "barker": jax.nn.log_sigmoid,
    "min": lambda log_ratio: jnp.minimum(log_ratio, 0.0),
    "max": lambda log_ratio: jnp.maximum(log_ratio, 0.0),
}


def balancing_function(name: str) -> Callable[[Array], Array]:
    """The logarithm of a balancing function as a function of the log-ratio.

    >>> float(balancing_function("sqrt")(jnp.array(3.0)))
    1.5
    """
    if name not in BALANCING:
        raise OptionError("balancing", f"{name!r} is unknown", f"one of {', '.join(BALANCING)}")
    return BALANCING[name]
