"""Which coordinates of theta each element of each intermediate array may depend on.

Sets of coordinates live in a pool and have numbers; an array's dependence is an integer array of its size. Equations
that move elements move the numbers, elementwise ones unite them, linear maps and reductions unite along their patterns
(zeros of constant operands are respected), and an unknown primitive depends on everything it sees. Sound: no coordinate
is ever missing; at worst there are too many. Derivatives would not do: `==` has derivative zero.
"""

import time

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax import dtypes

from terrazzo.targets.structure import maps
from terrazzo.targets.structure.program import ELEMENTWISE, Equation, Program

MAX_EXPANDED = 2**25  # coordinates listed while uniting: half a second of sorting; beyond it one set serves all
REDUCTIONS = {"reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or", "reduce_xor"}
REDUCTIONS |= {"argmax", "argmin"}
CUMULATIVE = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}
SCATTERS = {"scatter", "scatter-add", "scatter_add", "scatter-mul", "scatter_mul", "scatter_min", "scatter_max"}
SCATTERS |= {"scatter-min", "scatter-max", "scatter_sub", "scatter-sub"}
FINITE, MAYBE_IMPOSSIBLE, ANYTHING = 0, 1, 2  # what an array may hold: real numbers; also -inf; also +inf and NaN
SUMS = {"add", "add_any", "reduce_sum", "cumsum", "max", "min", "reduce_max", "reduce_min", "select_n", "scatter-add"}
SUMS |= {"clamp", "sort", "concatenate", "pad", "gather", "dynamic_slice", "dynamic_update_slice", "scatter", "split"}
SUMS |= {"stack", "unstack", "tile", "slice", "transpose", "rev", "broadcast_in_dim"}
PRODUCTS = {"sub", "mul", "neg", "abs", "sign", "square", "dot_general", "conv_general_dilated", "floor", "ceil"}
PRODUCTS |= {"round", "tanh", "sin", "cos", "logistic", "erf", "atan", "reduce_prod", "cumprod"}


class ReadingTooLongError(Exception):
    """The time for reading is over."""


class Pool:
    """Numbered sets of coordinates: number 0 is the empty set, number 1 + i is {i}."""

    def __init__(self, num_dims: int):
        self.num_dims, self.num_sets, self.num_members = num_dims, num_dims + 1, num_dims
        self.starts = np.arange(-1, num_dims + 1, dtype=np.int64).clip(0)  # set s is members[starts[s]:starts[s + 1]]
        self.members = np.arange(num_dims, dtype=np.int64)  # both have room to spare at their ends

    def sizes(self, sets: np.ndarray) -> np.ndarray:
        """The number of coordinates of each set."""
        return self.starts[sets + 1] - self.starts[sets]

    def listed(self, sets: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The coordinates of some sets, one set after the other, as (which of the sets, coordinate)."""
        lengths = self.sizes(sets)
        which = np.repeat(np.arange(len(sets)), lengths)
        first = np.cumsum(lengths) - lengths
        return which, self.members[np.arange(len(which)) - first[which] + self.starts[sets][which]]

    def csr(self, sets: np.ndarray) -> sp.csr_matrix:
        """Sets as the rows of a matrix of ones."""
        _, columns = self.listed(sets)
        indptr = np.concatenate([[0], np.cumsum(self.sizes(sets))])
        return sp.csr_matrix((np.ones(len(columns), bool), columns, indptr), (len(sets), self.num_dims))

    def union(self, groups: np.ndarray, sets: np.ndarray, num_groups: int) -> np.ndarray:
        """For each group, the number of the union of its sets."""
        out = np.zeros(num_groups, np.int64)
        is_kept = sets > 0
        num_sets = self.num_sets
        keys = _distinct(groups[is_kept].astype(np.int64) * num_sets + sets[is_kept])
        groups, sets = keys // num_sets, keys % num_sets
        is_alone = np.ones(len(keys), bool)
        is_alone[1:] &= groups[1:] != groups[:-1]
        is_alone[:-1] &= groups[1:] != groups[:-1]
        out[groups[is_alone]] = sets[is_alone]
        groups, sets = groups[~is_alone], sets[~is_alone]
        if not len(groups):
            return out
        many, which = np.unique(groups, return_inverse=True)
        if self.sizes(sets).sum() > MAX_EXPANDED:
            seen = np.unique(self.listed(np.unique(sets))[1])
            out[many] = self._append(np.zeros(len(seen), np.int64), seen, 1)
            return out
        member_of, coordinates = self.listed(sets)
        keys = _distinct(which[member_of] * self.num_dims + coordinates)
        out[many] = self._append(keys // self.num_dims, keys % self.num_dims, len(many))
        return out

    def _append(self, which: np.ndarray, coordinates: np.ndarray, num_new: int) -> np.ndarray:
        ends = self.num_members + np.cumsum(np.bincount(which, minlength=num_new))
        self.starts = _put(self.starts, self.num_sets + 1, ends)
        self.members = _put(self.members, self.num_members, coordinates)
        self.num_sets, self.num_members = self.num_sets + num_new, self.num_members + len(coordinates)
        return np.arange(self.num_sets - num_new, self.num_sets)

    def united(self, first: np.ndarray, second: np.ndarray) -> np.ndarray:
        """The unions of two arrays of sets, element by element."""
        if first is second or not second.any():
            return first
        if not first.any():
            return second
        keys, back = np.unique(first * self.num_sets + second, return_inverse=True)
        pairs = np.stack([keys // self.num_sets, keys % self.num_sets])
        groups = np.tile(np.arange(len(keys)), 2)
        return self.union(groups, pairs.ravel(), len(keys))[back]


def _put(array: np.ndarray, place: int, values: np.ndarray) -> np.ndarray:
    """The array with values written from a place on, made twice as long where they do not fit."""
    if place + len(values) > len(array):
        array = np.concatenate([array[:place], np.zeros(place + 2 * len(values), np.int64)])
    array[place : place + len(values)] = values
    return array


def _distinct(keys: np.ndarray) -> np.ndarray:
    keys = np.sort(keys)
    return keys[np.concatenate([[True], keys[1:] != keys[:-1]])] if len(keys) else keys


class Dependence:
    """The sets of all slots of a program; a blunt one says no more than that the output depends on all coordinates.

    Attributes:
        pool: The sets.
        sets: For each slot that is no constant, one set number an element, flat.
        holds: For each slot, what it may hold: `FINITE`, `MAYBE_IMPOSSIBLE` or `ANYTHING`.
    """

    def __init__(self, program: Program, deadline: float = np.inf, *, is_blunt: bool = False):
        self.program = program
        self.pool = Pool(program.size(0))
        self.sets = {0: 1 + np.arange(program.size(0), dtype=np.int64)}
        self.holds = {0: FINITE}
        if program.has_data:
            self.sets[1], self.holds[1] = np.zeros(program.size(1), np.int64), FINITE
        if is_blunt:
            everything = self.pool.union(np.zeros(program.size(0), np.int64), self.sets[0], 1)[0]
            self.sets[program.output] = np.full(program.size(program.output), everything)
            return
        for number, equation in enumerate(program.equations):
            if number % 64 == 0 and time.monotonic() > deadline:
                raise ReadingTooLongError
            self.follow(equation)

    def follow(self, equation: Equation) -> None:
        """Finds the sets of one more equation's outputs."""
        self._bound(equation)
        for slot, sets in zip(equation.outputs, self._rule(equation), strict=True):
            self.sets[slot] = sets

    def of(self, slot: int) -> np.ndarray:
        """The sets of a slot's elements; constants have empty ones."""
        found = self.sets.get(slot)
        return np.zeros(self.program.size(slot), np.int64) if found is None else found

    def arity(self, slot: int) -> int:
        """The most coordinates of an element."""
        return int(self.pool.sizes(self.of(slot)).max(initial=0))

    def held(self, slot: int) -> int:
        """What a slot may hold."""
        if slot not in self.holds:
            value = self.program.value(slot) if not dtypes.issubdtype(self.program.dtype(slot), dtypes.extended) else 0
            is_real = np.issubdtype(np.asarray(value).dtype, np.floating)
            has_bad = is_real and not (np.asarray(value) < np.inf).all()
            is_finite = not is_real or bool(np.isfinite(value).all())
            self.holds[slot] = ANYTHING if has_bad else FINITE if is_finite else MAYBE_IMPOSSIBLE
        return self.holds[slot]

    def _bound(self, equation: Equation) -> None:
        name = equation.name
        seen = max(self.held(s) for s in equation.inputs)
        is_positive = name == "integer_pow" and equation.params["y"] > 0
        if name in SUMS or name in maps.SAME or name in maps.RESHAPES:
            out = seen
        elif name in PRODUCTS or is_positive:
            out = FINITE if seen == FINITE else ANYTHING
            out = MAYBE_IMPOSSIBLE if seen == MAYBE_IMPOSSIBLE and self._keeps_sign(equation) else out
        else:
            out = ANYTHING
        for slot in equation.outputs:
            is_real = dtypes.issubdtype(self.program.dtype(slot), np.inexact)
            self.holds[slot] = out if is_real else FINITE

    def _keeps_sign(self, equation: Equation) -> bool:
        """Whether a product or difference leaves -inf at -inf: by a positive constant, or less something finite."""
        if equation.name == "sub":
            return self.held(equation.inputs[1]) == FINITE
        constants = [s for s in equation.inputs if self.program.is_constant(s)]
        return equation.name == "mul" and len(constants) == 1 and bool((self.program.value(constants[0]) > 0).all())

    def _everything(self, equation: Equation) -> list[np.ndarray]:
        seen = np.unique(np.concatenate([self.of(s) for s in equation.inputs] or [np.zeros(1, np.int64)]))
        union = self.pool.union(np.zeros(len(seen), np.int64), seen, 1)
        return [np.full(self.program.size(s), union[0]) for s in equation.outputs]

    def _rule(self, equation: Equation) -> list[np.ndarray]:
        name, program, inputs = equation.name, self.program, equation.inputs
        places = maps.movement(program, equation)
        if places is not None:
            flat = np.concatenate([[0], *[self.of(s) for s in inputs]])
            return [flat[p] for p in places]
        if name in ELEMENTWISE:
            return [self._elementwise(equation)]
        if name in REDUCTIONS:
            into = maps.reduced_places(program.shape(inputs[0]), equation.params["axes"])
            return [self.pool.union(into, self.of(inputs[0]), program.size(equation.outputs[0]))]
        if name in CUMULATIVE:
            params = equation.params
            return self._through(
                [(maps.cumulative_map(program.shape(inputs[0]), params["axis"], params["reverse"]), 0)], equation
            )
        if name == "dot_general":
            return self._product(equation)
        if name == "conv_general_dilated" and program.is_constant(inputs[1]) and self.held(inputs[0]) == FINITE:
            return self._through([(maps.linear_map(program, equation, 0), 0)], equation)
        if name == "sort":
            return self._sort(equation)
        if name in ("gather", "dynamic_slice"):
            return [self._gather(equation)]
        if name in SCATTERS:
            return [self._scatter(equation)]
        return self._everything(equation)

    def _elementwise(self, equation: Equation) -> np.ndarray:
        shape = self.program.shape(equation.outputs[0])
        spread = lambda s: np.broadcast_to(self.of(s).reshape(self.program.shape(s)), shape).ravel()
        out = np.zeros(int(np.prod(shape)), np.int64)
        for s in equation.inputs:
            if not self.program.is_constant(s):
                out = self.pool.united(out, spread(s))
        if equation.name in ("mul", "and"):
            others = [s for s in equation.inputs if self.program.is_constant(s)]
            if others and all(self.held(s) == FINITE for s in equation.inputs):
                out = np.where(np.broadcast_to(self.program.value(others[0]) == 0, shape).ravel(), 0, out)
        return out

    def _through(self, parts: list[tuple[sp.csr_matrix | None, int]], equation: Equation) -> list[np.ndarray]:
        """Unions along the patterns of maps from inputs."""
        out = np.zeros(self.program.size(equation.outputs[0]), np.int64)
        for matrix, k in parts:
            if matrix is None:
                return self._everything(equation)
            rows = np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
            sets = self.of(equation.inputs[k])[matrix.indices]
            out = self.pool.united(out, self.pool.union(rows, sets, len(out)))
        return [out]

    def _product(self, equation: Equation) -> list[np.ndarray]:
        first, second = equation.inputs
        for k, (varying, other) in enumerate([(first, second), (second, first)]):
            if self.program.is_constant(other) and self.held(varying) == self.held(other) == FINITE:
                return self._through([(maps.linear_map(self.program, equation, k), k)], equation)
        left, right, out = maps.product_places(self.program, equation)
        b, m, n = out.shape
        rows = self.pool.union(np.repeat(np.arange(b * m), left.shape[2]), self.of(first)[left].ravel(), b * m)
        columns = self.of(second)[right].transpose(0, 2, 1)
        columns = self.pool.union(np.repeat(np.arange(b * n), left.shape[2]), columns.ravel(), b * n)
        spread = lambda x, shape: np.broadcast_to(x.reshape(shape), out.shape).ravel()
        return [self.pool.united(spread(rows, (b, m, 1)), spread(columns, (b, 1, n)))]

    def _sort(self, equation: Equation) -> list[np.ndarray]:
        shape = self.program.shape(equation.inputs[0])
        into = maps.reduced_places(shape, (equation.params["dimension"],))
        num = int(into.max(initial=-1)) + 1
        sets = np.concatenate([self.of(s) for s in equation.inputs])
        out = self.pool.union(np.tile(into, len(equation.inputs)), sets, num)[into]
        return [out for _ in equation.outputs]

    def _known_indices(self, equation: Equation, slots: tuple[int, ...]) -> tuple[list[np.ndarray], np.ndarray]:
        """The indices of a gather or scatter, 0 where theta moves them; and which of their components it moves."""
        values = []
        for s in slots:
            if self.program.is_constant(s):
                values.append(self.program.value(s))
            elif s in self.program.by_data:  # data may move it anywhere
                values.append(np.zeros(self.program.shape(s), self.program.dtype(s)))
            else:  # elements with an empty set are the same at every theta, so at zero
                at_zero = self.program.evaluate(jnp.zeros(self.program.shape(0), jnp.int32), [s])[0]
                values.append(np.where((self.of(s) > 0).reshape(self.program.shape(s)), 0, np.asarray(at_zero)))
        if equation.name == "dynamic_slice":
            return values, np.array([bool(self.of(s).any()) or s in self.program.by_data for s in slots])
        is_moved = np.asarray((self.of(slots[0]) > 0).reshape(-1, values[0].shape[-1]).any(axis=0))
        is_moved = is_moved | (slots[0] in self.program.by_data)
        return [np.where(is_moved, 0, values[0])], is_moved

    def _blurred(self, slot: int, sets: np.ndarray, axes: tuple[int, ...]) -> np.ndarray:
        """Sets of an operand's elements, united along axes where theta chooses the place."""
        into = maps.reduced_places(self.program.shape(slot), axes)
        return self.pool.union(into, sets, int(into.max(initial=-1)) + 1)[into]

    def _gather(self, equation: Equation) -> np.ndarray:
        operand, slots = equation.inputs[0], equation.inputs[1:]
        shape = self.program.shape(equation.outputs[0])
        if equation.name == "gather":
            numbers = equation.params["dimension_numbers"]
            index_shape = self.program.shape(slots[0])
            into = maps.reduced_places(index_shape, (len(index_shape) - 1,))
            by_index = self.pool.union(into, self.of(slots[0]), int(np.prod(index_shape[:-1])))
            kept = [1 if a in numbers.offset_dims else n for a, n in enumerate(shape)]
            by_index = np.broadcast_to(by_index.reshape(kept), shape).ravel()
        else:
            sets = np.concatenate([self.of(s) for s in slots])
            by_index = np.full(int(np.prod(shape)), self.pool.union(np.zeros(len(sets), int), sets, 1)[0])
        if self.program.is_constant(operand):
            return by_index
        indices, is_moved = self._known_indices(equation, slots)
        indexed_axes = numbers.start_index_map if equation.name == "gather" else range(len(slots))
        axes = tuple(a for a, moved in zip(indexed_axes, is_moved, strict=True) if moved)
        blurred = self._blurred(operand, self.of(operand), axes)
        moved = maps.indexed(equation, [blurred.reshape(self.program.shape(operand))], indices)
        return self.pool.united(moved, by_index)

    def _scatter(self, equation: Equation) -> np.ndarray:
        operand, index, updates = equation.inputs
        numbers = equation.params["dimension_numbers"]
        (indices,), is_moved = self._known_indices(equation, (index,))
        places = maps.updated_places(self.program, equation, indices)
        axes = tuple(a for a, m in zip(numbers.scatter_dims_to_operand_dims, is_moved, strict=True) if m)
        shape, index_shape = self.program.shape(updates), self.program.shape(index)
        into = maps.reduced_places(index_shape, (len(index_shape) - 1,))
        by_index = self.pool.union(into, self.of(index), int(np.prod(index_shape[:-1])))
        kept = [1 if a in numbers.update_window_dims else n for a, n in enumerate(shape)]
        sets = self.pool.united(self.of(updates), np.broadcast_to(by_index.reshape(kept), shape).ravel())
        landed = self.pool.union(places, sets, self.program.size(operand) + 1)[1:]
        landed = self._blurred(operand, landed, axes) if axes else landed
        return self.pool.united(self.of(operand), landed)
