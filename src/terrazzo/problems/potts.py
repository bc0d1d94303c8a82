"""The Potts model on a torus: unordered values that like to equal their neighbours.

    log pi(theta) = J sum_edges [theta_i = theta_j] + sum_i h(theta_i)

Critical on the infinite lattice at J = log(1 + sqrt q). log Z is exact, by a transfer matrix, while q^length is small.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.errors import OptionError, arguments
from terrazzo.problems.base import Problem, as_floats
from terrazzo.problems.ising import lattice_colours, lattice_edges
from terrazzo.spaces import categorical
from terrazzo.targets.pair_models import AbstractPairModel
from terrazzo.targets.target import Target

MAX_ROW_STATES = 1024


class PottsLattice(AbstractPairModel):
    """log pi of a periodic lattice of values, by one-hot rows; its site conditionals and its pairwise terms.

    Attributes:
        coupling: J, what two equal neighbours add.
        field: h, what each value adds.
        num_rows: Of the lattice.
        num_columns: Of the lattice.
    """

    coupling: Float[Array, ""]
    field: Float[Array, " value"]
    num_rows: int = eqx.field(static=True)
    num_columns: int = eqx.field(static=True)

    def __call__(self, theta: Any) -> Float[Array, ""]:
        return self.one_hot(jax.nn.one_hot(theta.reshape(-1), self.field.shape[0], dtype=self.field.dtype))

    def one_hot(self, rows: Float[Array, "dim value"]) -> Float[Array, ""]:
        """Log pi of (relaxed) one-hot rows."""
        grid = rows.reshape(self.num_rows, self.num_columns, -1)
        neighbours = jnp.roll(grid, -1, axis=0) + jnp.roll(grid, -1, axis=1)
        return jnp.sum(grid * (self.coupling * neighbours + self.field))

    def site_logits(self, theta: Int[Array, " dim"], i: Int[Array, ""]) -> Float[Array, " value"]:
        """Log pi with site i set to each value, up to a constant: how many neighbours have it, and its field."""
        row, column = i // self.num_columns, i % self.num_columns
        rows = jnp.stack([row, row, (row + 1) % self.num_rows, (row - 1) % self.num_rows])
        columns = jnp.stack([(column + 1) % self.num_columns, (column - 1) % self.num_columns, column, column])
        values = theta[rows * self.num_columns + columns]
        counts = jnp.sum(jax.nn.one_hot(values, self.field.shape[0], dtype=self.field.dtype), axis=0)
        return self.coupling * counts + self.field

    def pairwise(self) -> tuple[Array, np.ndarray, Array]:
        edges = lattice_edges(self.num_rows, self.num_columns)
        fields = jnp.broadcast_to(self.field, (self.num_rows * self.num_columns, self.field.shape[0]))
        return fields, edges, jnp.full(len(edges), self.coupling)


def transfer_log_z(length: int, coupling: float, field: np.ndarray) -> float:
    """Log Z of the length x length torus: log trace T^length, T between rows.

    T(a, b) = exp(J sum_c [a_c = b_c] + (E(a) + E(b)) / 2),    E(a) = J sum_c [a_c = a_{c+1}] + sum_c h(a_c)

    >>> round(transfer_log_z(2, 0.0, np.zeros(3)) / np.log(3), 9).item()
    4.0
    """
    rows = np.stack(np.unravel_index(np.arange(len(field) ** length), (len(field),) * length), axis=1)
    energy = coupling * (rows == np.roll(rows, -1, axis=1)).sum(axis=1) + np.asarray(field)[rows].sum(axis=1)
    matches = (rows[:, None, :] == rows[None, :, :]).sum(axis=-1)
    eigenvalues = np.linalg.eigvalsh(np.exp(coupling * matches + (energy[:, None] + energy[None]) / 2 - energy.max()))
    top = np.abs(eigenvalues).max()
    return float(length * (np.log(top) + energy.max()) + np.log(np.sum((eigenvalues / top) ** length)))


def potts_torus(length: int = 8, num_values: int = 3, coupling: float | None = None, field: Any = None) -> Problem:
    """The Potts model on a length x length torus, each edge counted once.

    Args:
        length: The side of the lattice, at least 3.
        num_values: q.
        coupling: J; critical, log(1 + sqrt q), by default.
        field: h, one number a value; none by default.

    Reference: Wu (1982), The Potts model, Reviews of Modern Physics 54.

    >>> potts_torus(3, 3).target.space.num_states
    19683
    """
    length = arguments.count("length", length, low=3, high=2**12)
    num_values = arguments.count("num_values", num_values, low=2, high=2**16)
    coupling = float(np.log1p(np.sqrt(num_values))) if coupling is None else arguments.finite("coupling", coupling)
    values = np.zeros(num_values) if field is None else arguments.array("field", field, 1, "one number a value")
    if values.shape != (num_values,):
        raise OptionError("field", f"has shape {values.shape}", f"one number for each of {num_values} values")
    fn = PottsLattice(as_floats(coupling), as_floats(values), length, length)
    target = Target(
        fn,
        categorical(num_values, shape=(length, length)),
        site_logits=fn.site_logits,
        one_hot_log_prob=fn.one_hot,
        colours=lattice_colours(length, length),
    )
    log_z = transfer_log_z(length, coupling, values) if num_values**length <= MAX_ROW_STATES else None
    summary = f"Potts model, {num_values} values, {length} x {length} torus"
    return Problem(f"potts_{length}", target=target, summary=summary, reference="Wu (1982)", log_z=log_z)
