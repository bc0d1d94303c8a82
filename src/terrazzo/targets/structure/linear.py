"""Linear front ends: log pi through A theta, with the product kept up to date while single sites change.

    log pi(theta) = sum_i h_i(theta_i) + g(v),    v = v_0 + sum_i S_i(theta_i)

(regressions, RBMs, factor models): a change of one site is one column of S, not a product. Where g is quadratic and the
sites have two values (spin glasses, QUBO) the log-odds themselves are the product: a = h + W theta.
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from terrazzo.targets.running_conditionals import AbstractRunningConditionals
from terrazzo.targets.structure.pairs import PairTables
from terrazzo.targets.structure.program import ELEMENTWISE, Program
from terrazzo.targets.structure.tables import factor_tables
from terrazzo.targets.structure.terms import Form, Terms, linear_form, linear_parts

MAX_COLUMNS = 2**26  # numbers in all columns: a quarter of a gigabyte in float32
MIN_DEGREE = 32  # neighbours a site from which on one dense column is quicker than a list of neighbours
SITES_AT_ONCE = 32  # conditionals evaluated together when all are asked for: beyond it they leave a CPU's cache


class RunningField(AbstractRunningConditionals):
    """Two values, finite pair tables, many neighbours: the table is the log-odds of all sites.

    Attributes:
        field: h.
        weights: W, symmetric with a zero diagonal.
    """

    field: Float[Array, " dim"]
    weights: Float[Array, "dim dim"]

    def start(self, theta: Int[Array, " dim"]) -> Float[Array, " dim"]:
        with jax.default_matmul_precision("highest"):
            return self.field + self.weights @ theta.astype(self.field.dtype)

    def logits(self, tables: Float[Array, " dim"], theta: Int[Array, " dim"]) -> Float[Array, "dim 2"]:
        return jnp.stack([jnp.zeros_like(tables), tables], axis=1)

    def moved(
        self, tables: Float[Array, " dim"], theta: Int[Array, " dim"], i: Int[Array, ""], value: Int[Array, ""]
    ) -> Float[Array, " dim"]:
        return tables + self.weights[i] * (value - theta[i]).astype(tables.dtype)

    @property
    def is_sequential(self) -> bool:
        return True

    def site_logits(self, tables: Float[Array, " dim"], theta: Int[Array, " dim"], i: Int[Array, ""]) -> Array:
        return jnp.stack([jnp.zeros_like(tables[i]), tables[i]])


class RunningProducts(AbstractRunningConditionals):
    """The table is (v, g(v)).

    Attributes:
        unary: h, shape (d, K); -inf at values that a site does not have.
        sizes: The number of values of each site.
        origin: v_0.
        columns: S_i(k), shape (d, K, n), with S_i(0) = 0.
        rest: g.
    """

    unary: Float[Array, "dim value"]
    sizes: Int[Array, " dim"]
    origin: Float[Array, " n"]
    columns: Float[Array, "dim value n"]
    rest: Callable = eqx.field(static=True)

    def start(self, theta: Int[Array, " dim"]) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        products = self.origin + self.columns[jnp.arange(theta.shape[0]), theta].sum(axis=0)
        return products, self.rest(products)

    @property
    def is_sequential(self) -> bool:
        return True

    def site_logits(self, tables: tuple[Array, Array], theta: Int[Array, " dim"], i: Int[Array, ""]) -> Array:
        """log pi with site i at each value, up to a constant; the current value is not evaluated again."""
        return self._merged(tables[1], theta, i, *self._others(tables[0], theta, i)[::2])

    def redrawn(
        self, tables: tuple[Array, Array], theta: Int[Array, " dim"], i: Int[Array, ""], draw: Callable[[Array], Array]
    ) -> tuple[Int[Array, ""], tuple[Array, Array]]:
        """v and g(v) of the new value are known from the conditional."""
        values, moved, rests = self._others(tables[0], theta, i)
        value = draw(self._merged(tables[1], theta, i, values, rests))
        place = 0 if len(rests) == 1 else (value - theta[i]) % self.sizes[i] - 1
        is_moved = value != theta[i]
        return value, (jnp.where(is_moved, moved[place], tables[0]), jnp.where(is_moved, rests[place], tables[1]))

    def _merged(self, now: Array, theta: Array, i: Array, values: Array, rests: Array) -> Array:
        """The logits of a site from g at its other values and at its own."""
        if len(rests) == 1:
            return self.unary[i] + jnp.where(theta[i] == jnp.arange(2, dtype=theta.dtype), now, rests[0])
        logits = jnp.full(self.unary.shape[1], now, rests.dtype).at[values].set(rests)
        return self.unary[i] + logits.at[theta[i]].set(now)

    def _others(self, products: Array, theta: Array, i: Array) -> tuple[Array, Array, Array]:
        """The other values of a site (its own once more where it has fewer), v with each of them, and g(v)."""
        if self.columns.shape[1] == 2:  # S_i(0) = 0: one column for all chains, with a sign
            values = 1 - theta[i][None]
            moved = products[None] + self.columns[i, 1] * (1 - 2 * theta[i]).astype(products.dtype)
        else:
            values = (theta[i] + jnp.arange(1, self.columns.shape[1], dtype=theta.dtype)) % self.sizes[i]
            moved = products + self.columns[i, values] - self.columns[i, theta[i]]
        return values, moved, jax.vmap(self.rest)(moved)

    def logits(self, tables: tuple[Array, Array], theta: Int[Array, " dim"]) -> Float[Array, "dim value"]:
        sites = jnp.arange(theta.shape[0], dtype=jnp.int32)
        return jax.lax.map(lambda i: self.site_logits(tables, theta, i), sites, batch_size=SITES_AT_ONCE)

    def moved(
        self, tables: tuple[Array, Array], theta: Int[Array, " dim"], i: Int[Array, ""], value: Int[Array, ""]
    ) -> tuple[Float[Array, " n"], Float[Array, ""]]:
        products = tables[0] + self.columns[i, value] - self.columns[i, theta[i]]
        return products, self.rest(products)


def running_field(pairs: PairTables) -> RunningField | None:
    """The running log-odds of a finite pair model of two values with many neighbours; None for others."""
    num_dims = len(pairs.unary)
    if pairs.unary.shape[1] != 2 or not (np.isfinite(pairs.tables).all() and np.isfinite(pairs.unary).all()):
        return None
    if 2 * len(pairs.edges) < MIN_DEGREE * num_dims or num_dims**2 > MAX_COLUMNS:
        return None
    f, (i, j) = pairs.tables, pairs.edges.T
    field = pairs.unary[:, 1] - pairs.unary[:, 0]
    np.add.at(field, i, f[:, 1, 0] - f[:, 0, 0])
    np.add.at(field, j, f[:, 0, 1] - f[:, 0, 0])
    weights = np.zeros((num_dims, num_dims))
    weights[i, j] = weights[j, i] = f[:, 1, 1] - f[:, 1, 0] - f[:, 0, 1] + f[:, 0, 0]
    dtype = jnp.result_type(float)
    return RunningField(jnp.asarray(field, dtype), jnp.asarray(weights, dtype))


def running_products(terms: Terms, sizes: np.ndarray) -> RunningProducts | None:
    """The running products behind all terms of more than one site; None if these are not all that they look at."""
    program = terms.dependence.program
    is_local = terms.arities <= 1
    local, rest = terms.only(is_local), terms.only(~is_local)
    cut = _cut(rest)
    if cut is None:
        return None
    num_dims, size = len(sizes), int(np.max(sizes))
    if sum(program.size(s) for s in cut) * num_dims * size > MAX_COLUMNS:
        return None
    fields = factor_tables(local, sizes)
    if fields is None:
        return None
    unary = np.where(np.arange(size) < np.asarray(sizes)[:, None], 0.0, -np.inf)
    for f in fields[0]:
        unary[f.sites[:, 0], : f.tables.shape[1]] += f.tables
    columns, origins = zip(*[_columns(rest, slot, np.asarray(sizes)) for slot in cut], strict=True)
    dtype = jnp.result_type(float)
    return RunningProducts(
        unary=jnp.asarray(unary, dtype),
        sizes=jnp.asarray(sizes, jnp.int32),
        origin=jnp.asarray(np.concatenate(origins), dtype),
        columns=jnp.asarray(np.concatenate(columns, axis=2), dtype),
        rest=_rest(rest, program, cut),
    )


def _rest(terms: Terms, program: Program, cut: list[int]) -> Callable:
    """g: the sum of terms from the products behind them, one after the other in a vector."""
    ends = np.cumsum([program.size(s) for s in cut])

    def rest(products: Array) -> Array:
        parts = jnp.split(products, ends[:-1])
        given = {s: x.reshape(program.shape(s)).astype(program.dtype(s)) for s, x in zip(cut, parts, strict=True)}
        slots = terms.slots
        value = terms.from_slots(dict(zip(slots, program.resume(given, slots), strict=True))).sum()
        return jnp.where(jnp.isnan(value), jnp.inf, value)  # as log pi itself shows it

    return rest


def _cut(terms: Terms) -> list[int] | None:
    """The slots, linear in functions of single sites, through which all terms see theta; None if there are none."""
    program, dependence = terms.dependence.program, terms.dependence
    is_linear = {0: True}
    for equation in program.equations:
        for k, slot in enumerate(equation.outputs):
            is_local = dependence.arity(slot) <= 1
            varying = [s for s in equation.inputs if not program.is_constant(s)]
            is_follower = equation.name in ELEMENTWISE and len(varying) == 1 and dependence.arity(varying[0]) > 1
            is_linear[slot] = is_local or (
                not is_follower  # cheaper from the product that it follows than as products of its own
                and all(is_linear[s] for s in varying)
                and linear_parts(program, equation, k) is not None
            )
    is_front = lambda s: is_linear[s] and not program.is_constant(s)
    cut: set[int] = {s for s in terms.slots if is_front(s)}
    for equation in program.needed(terms.slots):
        if not all(is_linear[s] for s in equation.outputs):
            cut |= {s for s in equation.inputs if not program.is_constant(s) and is_front(s)}
    return sorted(cut) if cut and min(dependence.arity(s) for s in cut) > 1 else None


def _columns(terms: Terms, slot: int, sizes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """S (d, K, n) and v_0 of one slot, from what the sites behind it are at each of their values."""
    program, dependence = terms.dependence.program, terms.dependence
    form: Form = linear_form(dependence, slot)
    at = np.minimum(np.arange(sizes.max())[:, None], sizes - 1).astype(np.int32)
    slots = list(form.parts)
    values = jax.jit(jax.vmap(lambda theta: program.evaluate(theta, slots)))(jnp.asarray(at))
    columns = np.zeros((len(sizes), int(sizes.max()), program.size(slot)))
    origin = form.constant.copy()
    for s, x in zip(slots, values, strict=True):
        x = np.asarray(x).reshape(len(at), -1).astype(float)
        origin += form.parts[s] @ x[0]
        matrix = form.parts[s].tocsc()
        site = np.where(dependence.of(s) > 0, dependence.pool.members[dependence.pool.starts[dependence.of(s)]], 0)
        element = np.repeat(np.arange(matrix.shape[1]), np.diff(matrix.indptr))
        for k in range(1, len(at)):
            np.add.at(columns[:, k], (site[element], matrix.indices), matrix.data * (x[k] - x[0])[element])
    return columns, origin
