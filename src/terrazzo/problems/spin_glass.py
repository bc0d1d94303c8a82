"""The Sherrington-Kirkpatrick spin glass: every pair of spins coupled at random. Many modes, no structure to exploit.

    log pi(s) = beta / sqrt(d) sum_{i<j} J_ij s_i s_j + sum_i h_i s_i,    J_ij ~ N(0, 1),  s = 2 theta - 1

Above beta = 1 (without field) the infinite system is in its glass phase.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import arguments
from terrazzo.problems.base import Problem, as_floats
from terrazzo.spaces import binary
from terrazzo.targets.pair_models import AbstractPairModel
from terrazzo.targets.target import Target


class DenseSpins(AbstractPairModel):
    """log pi = 1/2 s'Ws + h's with a symmetric W of zero diagonal, its site conditionals and its pairwise terms."""

    weights: Float[Array, "dim dim"]
    field: Float[Array, " dim"]

    def __call__(self, theta: Any) -> Float[Array, ""]:
        spins = 2 * theta.astype(self.field.dtype) - 1
        return jnp.dot(spins, 0.5 * (self.weights @ spins) + self.field)

    def site_logits(self, theta: Int[Array, " dim"], i: Int[Array, ""]) -> Float[Array, " two"]:
        """Log pi with site i down and up, up to a constant: minus and plus its local field."""
        spins = 2 * theta.astype(self.field.dtype) - 1
        local = jnp.dot(self.weights[i], spins) + self.field[i]
        return jnp.stack([-local, local])

    def pairwise(self) -> tuple[Array, np.ndarray, Array]:
        """Fields, edges and couplings in Potts form: s_i s_j = 2 [s_i = s_j] - 1."""
        rows, columns = np.triu_indices(self.field.shape[0], 1)
        edges = np.stack([rows, columns], axis=1).astype(np.int32)
        return jnp.stack([-self.field, self.field], axis=1), edges, 2 * self.weights[rows, columns]


def spin_glass(num_spins: int = 64, beta: float = 1.0, field: float = 0.0, seed: int = 0) -> Problem:
    """A Sherrington-Kirkpatrick spin glass with couplings drawn from the seed.

    Args:
        num_spins: d.
        beta: The inverse temperature.
        field: The sd of a random field.
        seed: Decides the couplings.

    Reference: Sherrington & Kirkpatrick (1975), Solvable model of a spin-glass, Physical Review Letters 35.

    >>> spin_glass(12).target.space.num_states
    4096
    """
    num_spins = arguments.count("num_spins", num_spins, low=2, high=2**14)
    beta, field = arguments.finite("beta", beta), arguments.finite("field", field)
    rng = np.random.default_rng(arguments.seed_number(seed))
    upper = np.triu(rng.normal(size=(num_spins, num_spins)), 1)
    weights = beta / np.sqrt(num_spins) * (upper + upper.T)
    fn = DenseSpins(as_floats(weights), as_floats(field * rng.normal(size=num_spins)))
    target = Target(fn, binary(num_spins), site_logits=fn.site_logits)
    summary = f"Sherrington-Kirkpatrick spin glass, {num_spins} spins, beta = {beta:g}"
    return Problem(
        f"spin_glass_{num_spins}", target=target, summary=summary, reference="Sherrington & Kirkpatrick (1975)"
    )
