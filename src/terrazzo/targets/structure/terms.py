"""log pi = constant + sum of terms, found by following constant weights back from the result.

The result is a weighted sum of the elements of earlier arrays for as long as equations are linear: sums, differences,
constant factors, products with constant matrices, movements. Where an equation is not linear, its elements, with their
weights, are terms. Products of sums are multiplied out where that makes smaller terms (s' J s gives pairs), and

    where(all(ok), x, -inf) = x + sum_e where(ok_e, 0, -inf).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax import dtypes
from jaxtyping import Array, Float, Int

from terrazzo.targets.structure import maps
from terrazzo.targets.structure.dependence import MAYBE_IMPOSSIBLE, Dependence, ReadingTooLongError
from terrazzo.targets.structure.program import Equation, Program

MAX_PRODUCTS = 2**26  # multiplications in multiplying out one product of sums: about a second
MAX_DEPTH = 100  # equations behind a factor of a product
SMALL_ARITY = 2  # terms of so few sites are not looked into any further


class Block(NamedTuple):
    """Terms of one kind: elements of a slot times weights, or products of two, or what must not happen.

    Attributes:
        slot: The array.
        places: Which of its elements, flat.
        weights: A factor for each.
        other: The second factor's slot and places, if there is one.
        forbidden: If not None, the term is -inf where the element has this value, else 0.
    """

    slot: int
    places: np.ndarray
    weights: np.ndarray
    other: tuple[int, np.ndarray] | None = None
    forbidden: bool | None = None


class Form(NamedTuple):
    """An array as a sum of sparse matrices times other arrays, and a constant."""

    parts: dict[int, sp.csr_matrix]
    constant: np.ndarray


@dataclass(frozen=True, eq=False)
class Terms:
    """log pi = constant + sum of terms.

    Attributes:
        dependence: The sets of coordinates of the program's slots.
        blocks: The terms.
        sets: For each term the number of its set of coordinates.
        constant: What does not depend on theta.
    """

    dependence: Dependence
    blocks: tuple[Block, ...]
    sets: np.ndarray
    constant: float

    @property
    def num_terms(self) -> int:
        return len(self.sets)

    @property
    def arities(self) -> np.ndarray:
        """The number of coordinates of each term."""
        return self.dependence.pool.sizes(self.sets)

    @property
    def scopes(self) -> sp.csr_matrix:
        """Terms by coordinates."""
        return self.dependence.pool.csr(self.sets)

    @property
    def slots(self) -> list[int]:
        """The slots that the terms look at."""
        return sorted({b.slot for b in self.blocks} | {b.other[0] for b in self.blocks if b.other is not None})

    def only(self, is_kept: np.ndarray) -> "Terms":
        """Some of the terms, without the constant."""
        blocks, starts = [], np.cumsum([0] + [len(b.places) for b in self.blocks])
        for block, start, end in zip(self.blocks, starts, starts[1:], strict=False):
            kept = is_kept[start:end]
            if kept.any():
                other = None if block.other is None else (block.other[0], block.other[1][kept])
                blocks.append(block._replace(places=block.places[kept], weights=block.weights[kept], other=other))
        return Terms(self.dependence, tuple(blocks), self.sets[is_kept], 0.0)

    def values(self, theta: Int[Array, " dim"], data: Array | None = None) -> Float[Array, " term"]:
        """All terms at one configuration, and at data where the function has some."""
        slots = self.slots
        return self.from_slots(dict(zip(slots, self.dependence.program.evaluate(theta, slots, data), strict=True)))

    def from_slots(self, values: dict[int, Array]) -> Float[Array, " term"]:
        """All terms from the values of their slots."""
        dtype = jnp.result_type(float)
        parts = [_block_values(block, values, dtype) for block in self.blocks]
        return jnp.concatenate(parts) if parts else jnp.zeros(0, dtype)

    def log_prob(self, theta: Int[Array, " dim"]) -> Float[Array, ""]:
        """The sum."""
        return self.values(theta).sum() + self.constant


def _block_values(block: Block, values: dict[int, Array], dtype: np.dtype) -> Array:
    x = _taken(values[block.slot], block.places)
    if block.forbidden is not None:
        return jnp.where(x == block.forbidden, jnp.asarray(-jnp.inf, dtype), jnp.zeros((), dtype))
    weights = jnp.asarray(block.weights.astype(dtype))
    if block.other is None:
        return x.astype(dtype) * weights
    return x.astype(dtype) * _taken(values[block.other[0]], block.other[1]).astype(dtype) * weights


def _taken(x: Array, places: np.ndarray) -> Array:
    is_all = len(places) == x.size and bool((places == np.arange(len(places))).all())
    return x.ravel() if is_all else x.ravel()[places]


def find_terms(dependence: Dependence, deadline: float = np.inf) -> Terms:
    """Splits the (sum of the elements of the) result of a program into terms."""
    splitter = _Splitter(dependence, deadline)
    splitter.run()
    pool, of = dependence.pool, dependence.of
    sets = [np.zeros(0, np.int64)]
    for block in splitter.blocks:
        found = of(block.slot)[block.places]
        sets.append(found if block.other is None else pool.united(found, of(block.other[0])[block.other[1]]))
    return Terms(dependence, tuple(splitter.blocks), np.concatenate(sets), splitter.constant)


class _Splitter:
    """Follows weights back through the equations, from the last to the first."""

    def __init__(self, dependence: Dependence, deadline: float):
        self.dependence, self.program, self.deadline = dependence, dependence.program, deadline
        self.weights: dict[int, np.ndarray] = {}
        self.constant = 0.0
        self.blocks: list[Block] = []
        self.forms: dict[int, Form] = {}

    def run(self) -> None:
        self.add(self.program.output, np.ones(self.program.size(self.program.output)))
        for number, equation in enumerate(reversed(self.program.equations)):
            if number % 64 == 0 and time.monotonic() > self.deadline:
                raise ReadingTooLongError
            for k, slot in enumerate(equation.outputs):
                weights = self.weights.pop(slot, None)
                if weights is not None and weights.any():
                    self.split(equation, k, weights)
        for slot in (0, 1) if self.program.has_data else (0,):
            self.leave(slot, self.weights.pop(slot, np.zeros(self.program.size(slot))))

    def add(self, slot: int, weights: np.ndarray) -> None:
        if not self.program.is_constant(slot):
            self.weights[slot] = self.weights[slot] + weights if slot in self.weights else weights
        elif weights.any():
            is_used = weights != 0
            self.constant += float(weights[is_used] @ self.program.value(slot).ravel()[is_used].astype(float))

    def leave(self, slot: int, weights: np.ndarray) -> None:
        """These elements are terms."""
        places = np.flatnonzero(weights)
        if len(places):
            self.blocks.append(Block(slot, places, weights[places]))

    def split(self, equation: Equation, k: int, weights: np.ndarray) -> None:
        slot = equation.outputs[k]
        parts = back = linear_parts(self.program, equation, k)
        if back is not None:
            parts = [(s, matrix.T @ weights) for s, matrix in back]
        if parts is not None and all(np.isfinite(w).all() for _, w in parts):
            for s, w in parts:
                self.add(s, w)
        elif not (
            self.dependence.arity(slot) > SMALL_ARITY
            and (self.forbid(equation, weights) or self.expand(equation, weights))
        ):
            self.leave(slot, weights)

    # ---- where(ok, x, -inf)

    def forbid(self, equation: Equation, weights: np.ndarray) -> bool:
        """Splits a selection between -inf and something that cannot make up for it."""
        if equation.name != "select_n" or len(equation.inputs) != 3 or not (weights > 0).all():
            return False
        which, *cases = equation.inputs
        is_ban = [self.program.is_constant(s) and bool(np.isneginf(self.program.value(s)).all()) for s in cases]
        if sum(is_ban) != 1 or self.program.dtype(which).kind != "b":
            return False
        other = cases[is_ban.index(False)]
        if self.dependence.held(other) > MAYBE_IMPOSSIBLE:
            return False
        self.add(other, weights)
        self.ban(which, bool(is_ban.index(True)))
        return True

    def ban(self, slot: int, bad: bool) -> None:
        """No element of a slot may have the value `bad`."""
        equation = self.program.made_by.get(slot)
        name = equation.name if equation is not None and self.dependence.arity(slot) > SMALL_ARITY else ""
        varying = [] if equation is None else [s for s in equation.inputs if not self.program.is_constant(s)]
        is_whole = name in ("reshape", "squeeze", "expand_dims", "broadcast_in_dim")
        if name == "not":
            self.ban(varying[0], not bad)
        elif (name == ("or" if bad else "and") and len(varying) == 2) or name == ("reduce_or" if bad else "reduce_and"):
            for s in varying:
                self.ban(s, bad)
        elif is_whole:
            self.ban(varying[0], bad)
        else:
            places = np.arange(self.program.size(slot))
            self.blocks.append(Block(slot, places, np.ones(len(places)), forbidden=bad))

    # ---- products of sums

    def expand(self, equation: Equation, weights: np.ndarray) -> bool:
        """Multiplies out a product of two sums, if the terms become smaller."""
        factors = factor_rows(self.program, equation, weights)
        if factors is None:
            return False
        (first, second), (rows, columns), weights = factors
        forms = [
            take_rows(linear_form(self.dependence, s, self.forms), r) for s, r in ((first, rows), (second, columns))
        ]
        counts = [sum((np.diff(m.indptr) for m in f.parts.values()), np.zeros(len(weights), int)) for f in forms]
        if (counts[0].astype(float) * counts[1]).sum() > MAX_PRODUCTS:
            return False
        blocks = []
        scale = sp.diags(weights)
        for s, left in forms[0].parts.items():
            for t, right in forms[1].parts.items():
                blocks.append(_products(s, t, (left.T @ scale @ right).tocsr()))
        pool, of = self.dependence.pool, self.dependence.of
        united = [pool.united(of(b.slot)[b.places], of(b.other[0])[b.other[1]]) for b in blocks if b.other is not None]
        if max(int(pool.sizes(s).max(initial=0)) for s in united) >= self.dependence.arity(equation.outputs[0]):
            return False
        self.blocks += [b for b in blocks if len(b.places)]
        self.constant += float(weights @ (forms[0].constant * forms[1].constant))
        for one, another in (forms, forms[::-1]):
            for s, matrix in one.parts.items():
                self.add(s, matrix.T @ (weights * another.constant))
        return True


def linear_form(dependence: Dependence, slot: int, known: dict[int, Form] | None = None, depth: int = 0) -> Form:
    """An array as an affine function of arrays that are not, or that depend on one site an element."""
    program, known = dependence.program, {} if known is None else known
    if slot in known:
        return known[slot]
    size = program.size(slot)
    if program.is_constant(slot):
        return Form({}, program.value(slot).ravel().astype(float))
    equation = program.made_by.get(slot)
    back = None
    if equation is not None and depth < MAX_DEPTH and dependence.arity(slot) > 1:
        back = linear_parts(program, equation, equation.outputs.index(slot))
    if back is None:
        known[slot] = Form({slot: sp.identity(size, format="csr")}, np.zeros(size))
        return known[slot]
    parts: dict[int, sp.csr_matrix] = {}
    constant = np.zeros(size)
    for s, matrix in back:
        inner = linear_form(dependence, s, known, depth + 1)
        constant += matrix @ inner.constant
        for t, part in inner.parts.items():
            parts[t] = (parts[t] + matrix @ part if t in parts else matrix @ part).tocsr()
    known[slot] = Form(parts, constant)
    return known[slot]


def _products(first: int, second: int, matrix: sp.csr_matrix) -> Block:
    """The terms x_i Q_ij y_j; both halves of a symmetric form are added up."""
    if first == second:
        matrix = (sp.triu(matrix) + sp.tril(matrix, -1).T).tocsr()
    matrix.sum_duplicates()
    entries = matrix.tocoo()
    is_kept = entries.data != 0
    return Block(first, entries.row[is_kept], entries.data[is_kept], (second, entries.col[is_kept]))


def take_rows(form: Form, rows: np.ndarray) -> Form:
    """Some elements of an affine function."""
    return Form({s: m[rows] for s, m in form.parts.items()}, form.constant[rows])


def factor_rows(
    program: Program, equation: Equation, weights: np.ndarray
) -> tuple[tuple[int, int], tuple[np.ndarray, np.ndarray], np.ndarray] | None:
    """A weighted sum of products: the two slots, the elements multiplied, and the weight of each product."""
    name, inputs = equation.name, equation.inputs
    shape = program.shape(equation.outputs[0])
    if name == "square" or (name == "integer_pow" and equation.params["y"] == 2):
        rows = np.flatnonzero(weights)
        return (inputs[0], inputs[0]), (rows, rows), weights[rows]
    if name == "mul":
        spread = [np.broadcast_to(np.arange(program.size(s)).reshape(program.shape(s)), shape).ravel() for s in inputs]
        kept = np.flatnonzero(weights)
        return (inputs[0], inputs[1]), (spread[0][kept], spread[1][kept]), weights[kept]
    if name == "dot_general":
        left, right, out = maps.product_places(program, equation)
        b, m, c = left.shape
        n = right.shape[2]
        if b * m * c * n > MAX_PRODUCTS:
            return None
        full = (b, m, c, n)
        scale = np.broadcast_to(weights[out][:, :, None, :], full).ravel()
        rows, columns = (np.broadcast_to(x, full).ravel() for x in (left[..., None], right[:, None]))
        return (inputs[0], inputs[1]), (rows, columns), scale
    return None


def linear_parts(program: Program, equation: Equation, k: int) -> list[tuple[int, sp.csr_matrix]] | None:
    """Output k as a sum of sparse matrices times inputs; None if the equation is not linear."""
    name, inputs = equation.name, equation.inputs
    slot = equation.outputs[k]
    if not all(_is_signed(program.dtype(s)) for s in equation.outputs):
        return None
    if name == "convert_element_type" and not _is_exact(program.dtype(inputs[0]), program.dtype(slot)):
        return None
    places = maps.movement(program, equation)
    if places is not None:
        return _moved_parts(program, inputs, places[k])
    if name in ("add", "add_any", "sub", "neg"):
        signs = (-1.0,) if name == "neg" else (1.0, -1.0) if name == "sub" else (1.0, 1.0)
        return [(s, _spread(program, s, slot, sign)) for s, sign in zip(inputs, signs, strict=True)]
    varying = [i for i, s in enumerate(inputs) if not program.is_constant(s)]
    if name == "mul" and len(varying) == 1:
        factor = program.value(inputs[1 - varying[0]])
        return [(inputs[varying[0]], _spread(program, inputs[varying[0]], slot, factor))]
    if name == "div" and varying == [0] and dtypes.issubdtype(program.dtype(slot), np.floating):
        with np.errstate(divide="ignore"):
            return [(inputs[0], _spread(program, inputs[0], slot, 1.0 / program.value(inputs[1]).astype(float)))]
    parts = [(inputs[i], maps.linear_map(program, equation, i)) for i in _linear_inputs(name, varying)]
    found = [(s, matrix) for s, matrix in parts if matrix is not None]
    return found if found and len(found) == len(parts) else None


def _linear_inputs(name: str, varying: Sequence[int]) -> Sequence[int]:
    return (0, 2) if name == "scatter-add" else varying if len(varying) == 1 else ()


def _is_signed(dtype: np.dtype) -> bool:
    return dtypes.issubdtype(dtype, np.floating) or dtypes.issubdtype(dtype, np.signedinteger)


def _is_exact(old: np.dtype, new: np.dtype) -> bool:
    """Whether a conversion keeps numbers: to a real type, or from whole numbers to (as wide) whole numbers."""
    if dtypes.issubdtype(new, np.floating):
        return not dtypes.issubdtype(old, np.complexfloating)
    is_whole = dtypes.issubdtype(old, np.integer) and np.dtype(old).itemsize <= np.dtype(new).itemsize
    return is_whole or old.kind == "b"


def _moved_parts(program: Program, inputs: Sequence[int], places: np.ndarray) -> list[tuple[int, sp.csr_matrix]]:
    ends = 1 + np.cumsum([program.size(s) for s in inputs])
    parts = []
    for s, end in zip(inputs, ends, strict=True):
        size = program.size(s)
        rows = np.flatnonzero((places >= end - size) & (places < end))
        if len(rows):
            entries = (np.ones(len(rows)), (rows, places[rows] - (end - size)))
            parts.append((s, sp.csr_matrix(entries, (len(places), size))))
    return parts


def _spread(program: Program, slot: int, out: int, factor: float | np.ndarray) -> sp.csr_matrix:
    """The matrix of an elementwise product with constants, with broadcasting."""
    shape, size = program.shape(out), program.size(slot)
    columns = np.broadcast_to(np.arange(size).reshape(program.shape(slot)), shape).ravel()
    data = np.broadcast_to(np.asarray(factor, float), shape).ravel()
    return sp.csr_matrix((data, (np.arange(len(columns)), columns)), (len(columns), size))
