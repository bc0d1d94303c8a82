"""The Ising chain: spins on a line or a ring, with fields; exact at any length by its 2 x 2 transfer matrices.

log pi(s) = J sum_i s_i s_{i+1} + sum_i h_i s_i,    s = 2 theta - 1 in {-1, 1}
"""

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from terrazzo.errors import arguments
from terrazzo.problems.base import Problem, as_floats
from terrazzo.spaces import binary
from terrazzo.targets.target import Target


class IsingRing(eqx.Module):
    """log pi of a ring of spins."""

    coupling: Float[Array, ""]
    field: Float[Array, " dim"]

    def __call__(self, theta: Any) -> Float[Array, ""]:
        spins = 2 * theta.astype(self.field.dtype) - 1
        return jnp.sum(self.coupling * spins * jnp.roll(spins, -1) + self.field * spins)


def ring_answers(coupling: float, field: np.ndarray) -> tuple[float, np.ndarray]:
    """Log Z and P(theta_i = 1) of the ring, from products of transfer matrices scaled as they go.

    Z = trace prod_i A_i,    A_i(a, b) = exp(h_i a + J a b),  a, b in {-1, 1}

    >>> log_z, up = ring_answers(0.0, np.zeros(3))
    >>> round(log_z / np.log(2), 9).item(), up.tolist()
    (3.0, [0.5, 0.5, 0.5])
    """
    signs = np.array([-1.0, 1.0])
    matrices = [np.exp(h * signs[:, None] + coupling * np.outer(signs, signs)) for h in field]

    first, last, log_z = [np.eye(2)], [np.eye(2)], 0.0  # scaled products from the front and from the back
    for matrix, other in zip(matrices, reversed(matrices), strict=True):
        total, behind = first[-1] @ matrix, other @ last[-1]
        log_z += np.log(total.max())
        first.append(total / total.max())
        last.append(behind / behind.max())
    log_z += np.log(np.trace(first[-1]))
    # the ring, opened before site i: the diagonal is the law of s_i
    turned = [np.diag(behind @ before) for before, behind in zip(first[:-1], last[:0:-1], strict=True)]
    return float(log_z), np.array([row[1] / row.sum() for row in turned])


def ising_chain(num_spins: int = 64, coupling: float = 1.0, field: float = 0.3, seed: int = 0) -> Problem:
    """A ring of spins in a random field.

    Args:
        num_spins: d, at least 3.
        coupling: J.
        field: The sd of the random field.
        seed: Decides the field.

    Returns:
        The problem; `truth` holds `mean`, P(theta_i = 1).

    Reference: Ising (1925); Baxter (1982), Exactly solved models in statistical mechanics, chapter 2.

    >>> round(ising_chain(8, 0.0, 0.0).log_z / np.log(2), 9).item()
    8.0
    """
    num_spins = arguments.count("num_spins", num_spins, low=3, high=2**24)
    coupling, field = arguments.finite("coupling", coupling), arguments.finite("field", field)
    values = field * np.random.default_rng(arguments.seed_number(seed)).normal(size=num_spins)
    colours = np.arange(num_spins) % 2
    colours[-1] = 2 if num_spins % 2 else 1
    fn = IsingRing(as_floats(coupling), as_floats(values))
    target = Target(fn, binary(num_spins), colours=colours)
    log_z, up = ring_answers(coupling, values)
    summary = f"Ising ring of {num_spins} spins in a random field"
    return Problem(
        f"ising_chain_{num_spins}", target=target, summary=summary, reference="Baxter (1982)", log_z=log_z,
        truth={"mean": up},
    )  # fmt: skip
