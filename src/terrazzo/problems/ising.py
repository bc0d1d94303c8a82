"""Ising models on periodic lattices: the paper's denoising of a digit, and the torus whose log Z is known exactly.

    log pi(s) = J sum_edges s_i s_j + sum_i h_i s_i,    s = 2 theta - 1 in {-1, 1}

The digit is image 0 of the MNIST training set (LeCun, Cortes, Burges; http://yann.lecun.com/exdb/mnist; CC BY-SA 3.0),
rounded at 0.5 and embedded here as bits, with one fixed corruption.
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

_CLEAN = (
    "0000000000000000000000000000000000000006e0001ffe000ffc0000ffc00005c4000018000001c000000c0000"
    "00700000038000001e00000070000007000001f000007f00000fc00003f00001fc00007f80000fe0000000000000000000000000"
)
_FLIPS = (
    "20080010101000000004900200801008400083103082100800000010800005008000902000000200003000000061"
    "020000000000004001c8402800182000880000000400030080004601888000010804000200020001010200c00100000200201018"
)
MNIST_SHAPE = (28, 28)
PAPER_BETA, PAPER_ETA = 1.0, 2.1
EDGE_COUNTS = {"paper": 2.0, "text": 1.0}  # how often the sum over neighbours meets an edge


class IsingLattice(AbstractPairModel):
    """log pi of a periodic lattice, its site conditionals and its pairwise terms.

    Args:
        coupling: J, the same for all edges; positive favours equal neighbours.
        field: h, of the shape of the lattice.
    """

    coupling: Float[Array, ""]
    field: Float[Array, "row column"]

    def __call__(self, theta: Any) -> Float[Array, ""]:
        spins = 2 * theta.astype(self.field.dtype) - 1
        bonds = spins * (jnp.roll(spins, -1, axis=0) + jnp.roll(spins, -1, axis=1))
        return jnp.sum(self.coupling * bonds + self.field * spins)

    def site_logits(self, theta: Int[Array, " dim"], i: Int[Array, ""]) -> Float[Array, " two"]:
        """Log pi with site i down and up, up to a constant: minus and plus its local field."""
        num_rows, num_columns = self.field.shape
        row, column = i // num_columns, i % num_columns
        rows = jnp.stack([row, row, (row + 1) % num_rows, (row - 1) % num_rows])
        columns = jnp.stack([(column + 1) % num_columns, (column - 1) % num_columns, column, column])
        spins = 2 * theta[rows * num_columns + columns].astype(self.field.dtype) - 1
        local = self.coupling * spins.sum() + self.field[row, column]
        return jnp.stack([-local, local])

    def pairwise(self) -> tuple[Array, np.ndarray, Array]:
        """Fields, edges and couplings in Potts form, for pairwise samplers: s_i s_j = 2 [s_i = s_j] - 1."""
        edges = lattice_edges(*self.field.shape)
        flat = self.field.reshape(-1)
        return jnp.stack([-flat, flat], axis=1), edges, jnp.full(len(edges), 2 * self.coupling)


def lattice_edges(num_rows: int, num_columns: int) -> np.ndarray:
    """Edges of the torus, each once, as pairs of flat sites: to the right and down."""
    sites = np.arange(num_rows * num_columns, dtype=np.int32).reshape(num_rows, num_columns)
    right, down = np.roll(sites, -1, axis=1), np.roll(sites, -1, axis=0)
    return np.concatenate([np.stack([sites, right], -1).reshape(-1, 2), np.stack([sites, down], -1).reshape(-1, 2)])


def lattice_colours(num_rows: int, num_columns: int) -> np.ndarray:
    """A colouring of the torus: two colours if both sides are even, else three.

    >>> lattice_colours(2, 4).tolist()
    [0, 1, 0, 1, 1, 0, 1, 0]
    """

    def along(length: int) -> np.ndarray:
        places = np.arange(length) % 2
        places[-1] = 2 if length % 2 else places[-1]
        return places

    num_colours = 2 if num_rows % 2 == num_columns % 2 == 0 else 3
    return ((along(num_rows)[:, None] + along(num_columns)[None, :]) % num_colours).ravel()


def _lattice_target(coupling: Any, field: np.ndarray) -> Target:
    lattice = IsingLattice(as_floats(coupling), as_floats(field))
    space = binary(field.shape, dims=("row", "column"))
    return Target(lattice, space, site_logits=lattice.site_logits, colours=lattice_colours(*field.shape))


def kaufman_log_z(num_rows: int, num_columns: int, coupling: float) -> float:
    """Exact log Z of the two-dimensional Ising model on a torus without field.

    Z = 1/2 (2 sinh 2J)^(nm/2) [prod 2cosh(m g_{2r+1}/2) + prod 2sinh(m g_{2r+1}/2)
                               + prod 2cosh(m g_{2r}/2)   + prod 2sinh(m g_{2r}/2)],   r = 0..n-1,

    cosh g_r = cosh^2 2J / sinh 2J - cos(pi r / n),  g_0 = 2J + log tanh J.

    Reference: Kaufman (1949), Crystal statistics II, Physical Review 76.

    >>> round(kaufman_log_z(8, 8, 0.4406868), 6)
    60.141781
    """
    coupling = arguments.number("coupling", coupling, remedy="e.g. coupling=0.44")
    for name, side in (("num_rows", num_rows), ("num_columns", num_columns)):
        arguments.count(name, side, low=2, high=2**14)
    n, m = num_rows, num_columns
    angles = np.pi * np.arange(1, 2 * n) / n
    others = np.arccosh(np.cosh(2 * coupling) ** 2 / np.sinh(2 * coupling) - np.cos(angles))
    gammas = np.concatenate([[2 * coupling + np.log(np.tanh(coupling))], others])
    logs, signs = [], []
    for part in (gammas[1::2], gammas[0::2]):
        half = m * part / 2
        logs.append(np.sum(np.abs(half) + np.log1p(np.exp(-2 * np.abs(half)))))
        with np.errstate(divide="ignore"):
            logs.append(np.sum(np.abs(half) + np.log(-np.expm1(-2 * np.abs(half)))))
        signs += [1.0, float(np.prod(np.sign(half)))]
    top = max(logs)
    total = np.sum(np.asarray(signs) * np.exp(np.asarray(logs) - top))
    return float(n * m / 2 * np.log(2 * np.sinh(2 * coupling)) + top + np.log(total) - np.log(2))


def ising_torus(length: int = 8, coupling: float = 0.4406868, field: float = 0.0) -> Problem:
    """The Ising model on a length x length torus, each edge counted once.

    Args:
        length: The side of the lattice.
        coupling: J (the inverse temperature); 0.4406868 is critical.
        field: A constant field; log Z is known at 0 only.

    >>> problem = ising_torus(4, 0.3)
    >>> problem.target.space.num_dims
    16
    """
    length = arguments.count("length", length, low=2, high=2**12)
    coupling, field = arguments.finite("coupling", coupling), arguments.finite("field", field)
    target = _lattice_target(coupling, np.full((length, length), field))
    log_z = kaufman_log_z(length, length, coupling) if field == 0 and coupling > 0 else None
    return Problem(
        f"ising_torus_{length}", target=target, summary=f"Ising model on a {length} x {length} torus",
        reference="Kaufman (1949)", log_z=log_z,
    )  # fmt: skip


def _bits(text: str) -> np.ndarray:
    return np.unpackbits(np.frombuffer(bytes.fromhex(text), np.uint8)).reshape(MNIST_SHAPE)


def ising_mnist(setting: str = "paper", *, beta: float = PAPER_BETA, eta: float = PAPER_ETA) -> Problem:
    """The paper's image task: a corrupted binary digit as the field of an Ising model.

        log pi = beta m sum_edges s_i s_j + eta sum_i s_i c_i,    c the corrupted digit, 28 x 28, periodic

    The posterior is not a denoised digit: in the paper's setting its mode erases the digit's lower part (see `truth`).

    Args:
        setting: "paper": every edge counted from both of its ends, m = 2, as in the authors' code (their log pi near
            4056 follows from it); "text": every edge once, m = 1, as in Bishop (2006), section 8.3.
        beta: The weight of equal neighbours.
        eta: The weight of the corrupted pixels.

    Returns:
        The problem; `truth` holds the images `clean` and `corrupt` and their log pi; and, in the paper's setting, the
        exact maximum of log pi (by minimum cut) and the posterior mean of log pi (by parallel tempering).

    Reference: Jaini, Nielsen, Welling (2021), section 5.

    >>> round(ising_mnist().truth["log_prob_clean"], 1)
    3990.8
    """
    arguments.choice("setting", setting, tuple(EDGE_COUNTS))
    beta, eta = arguments.finite("beta", beta), arguments.finite("eta", eta)
    clean = _bits(_CLEAN)
    corrupt = clean ^ _bits(_FLIPS)
    coupling, field = EDGE_COUNTS[setting] * beta, eta * (2.0 * corrupt - 1.0)
    truth = {
        "clean": clean,
        "corrupt": corrupt,
        "log_prob_clean": _lattice_log_prob(clean, coupling, field),
        "log_prob_corrupt": _lattice_log_prob(corrupt, coupling, field),
    }
    if (setting, beta, eta) == ("paper", PAPER_BETA, PAPER_ETA):
        truth |= {"max_log_prob": 4083.6, "mean_log_prob": 4081.0}
    summary = "denoising of a binary digit by an Ising model, 784 sites"
    return Problem(
        "ising_mnist", target=_lattice_target(coupling, field), summary=summary, reference="Jaini et al. (2021)",
        log_z=None, truth=truth,
    )  # fmt: skip


def _lattice_log_prob(image: np.ndarray, coupling: float, field: np.ndarray) -> float:
    spins = 2.0 * image - 1.0
    bonds = spins * (np.roll(spins, -1, axis=0) + np.roll(spins, -1, axis=1))
    return float(np.sum(coupling * bonds + field * spins))
