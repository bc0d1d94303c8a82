"""`explain`: what Terrazzo finds in a log-probability, before anything is sampled."""

from typing import Any

from terrazzo.errors import UnsupportedError
from terrazzo.targets.reading import structure_of
from terrazzo.targets.structure import MAX_SECONDS, Explanation
from terrazzo.targets.target import as_target


def explain(log_prob: Any, space: Any = None) -> Explanation:
    """Reads a log-probability and says what was found: terms, colours, treewidth, and which methods this opens.

        log pi(theta) = constant + sum_t f_t(theta at the sites of t)

    Args:
        log_prob: Takes one configuration and returns a scalar; or a `tz.Target`.
        space: A `tz.Space`, or a single variable (left out for a `tz.Target`).

    Returns:
        An `Explanation`: numbers by name, and `print` shows them in words. Where terms hold many sites, it names the
        line of code that brought them together.

    >>> import jax.numpy as jnp, terrazzo as tz
    >>> found = tz.explain(lambda theta: 0.5 * jnp.sum(theta[1:] == theta[:-1]), tz.categorical(3, shape=50))
    >>> found.num_terms, found.num_colours, found.treewidth
    (49, 2, 1)
    >>> print(str(found).splitlines()[0])
    log pi of 50 sites = constant + 49 terms on at most 2 sites
    """
    structure = structure_of(as_target(log_prob, space), max_seconds=MAX_SECONDS)
    if structure is None:
        raise UnsupportedError(
            "log_prob", "cannot be read: it is a black box, or JAX cannot trace it", "write it with jax.numpy"
        )
    return structure.explain()
