"""What one equation does to the elements of its inputs: moves them, or combines them linearly.

A *movement* gives, for each element of an output, the input element that it is: places count through all inputs of the
equation, flattened one after the other, from 1; place 0 is no element at all. A *linear map* is a sparse matrix from
one input to the output. Dependence, terms and linear front ends all read equations through these two.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jax import lax

from terrazzo.targets.structure.program import Equation, Program

MAX_ENTRIES = 2**25  # of one sparse matrix: about 400 MB; larger ones are read as dense
SAME = {"copy", "copy_p", "reduce_precision", "stop_gradient", "optimization_barrier", "name", "convert_element_type"}
RESHAPES = {"reshape", "squeeze", "expand_dims"}
INDEXED = {"gather": (0,), "dynamic_slice": (0,), "dynamic_update_slice": (0, 1), "scatter": (0, 2)}  # what is moved


def movement(program: Program, equation: Equation) -> list[np.ndarray] | None:
    """The place of each element of each output, flat; None if the equation does more than move elements."""
    name, params = equation.name, equation.params
    sizes = [program.size(s) for s in equation.inputs]
    starts = np.concatenate([[1], 1 + np.cumsum(sizes)])
    places = lambda k: np.arange(int(starts[k]), int(starts[k + 1])).reshape(program.shape(equation.inputs[k]))
    out_shape = program.shape(equation.outputs[0])
    if name in SAME:
        return [places(k).ravel() for k in range(len(equation.outputs))]
    if name in ("squeeze", "expand_dims") or (name == "reshape" and params["dimensions"] is None):
        return [places(0).ravel()]
    if name == "transpose":
        return [places(0).transpose(params["permutation"]).ravel()]
    if name == "broadcast_in_dim" and len(equation.inputs) == 1:
        kept = [1] * len(out_shape)
        for axis, length in zip(params["broadcast_dimensions"], program.shape(equation.inputs[0]), strict=True):
            kept[axis] = length
        return [np.broadcast_to(places(0).reshape(kept), out_shape).ravel()]
    if name == "slice":
        strides = params["strides"] or (1,) * len(out_shape)
        cuts = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
        return [places(0)[tuple(slice(*cut) for cut in cuts)].ravel()]
    if name == "rev":
        return [np.flip(places(0), params["dimensions"]).ravel()]
    if name == "concatenate":
        return [np.concatenate([places(k) for k in range(len(sizes))], params["dimension"]).ravel()]
    if name == "stack":
        return [np.stack([places(k) for k in range(len(sizes))], params["axis"]).ravel()]
    if name == "unstack":
        return [part.ravel() for part in np.moveaxis(places(0), params["axis"], 0)]
    if name == "tile":
        return [np.tile(places(0), params["reps"]).ravel()]
    if name == "split":
        parts = np.split(places(0), np.cumsum(params["sizes"])[:-1], params["axis"])
        return [part.ravel() for part in parts]
    if name == "pad":
        return [_run(lambda x, y: lax.pad(x, y, params["padding_config"]), places(0), places(1))]
    if name == "select_n" and program.is_constant(equation.inputs[0]):
        which = np.broadcast_to(program.value(equation.inputs[0]).astype(int), out_shape)
        cases = np.stack([places(k) for k in range(1, len(sizes))])
        return [np.take_along_axis(cases, which[None], 0).ravel()]
    if name in INDEXED:
        moved = INDEXED[name]
        others = [s for k, s in enumerate(equation.inputs) if k not in moved]
        if all(program.is_constant(s) for s in others):
            indices = [jnp.asarray(program.value(s)) for s in others]
            return [indexed(equation, [places(k) for k in moved], indices)]
    return None


def indexed(equation: Equation, moved: list[np.ndarray], indices: list[Any]) -> np.ndarray:
    """A gather, slice or replacement at known indices, run on places."""
    params = equation.params
    run: Any
    if equation.name == "gather":
        known = ("dimension_numbers", "slice_sizes", "mode")
        run = lambda x: lax.gather(x, indices[0], **{k: params[k] for k in known}, fill_value=0)
    elif equation.name == "dynamic_slice":
        run = lambda x: lax.dynamic_slice(x, indices, params["slice_sizes"])
    elif equation.name == "dynamic_update_slice":
        run = lambda x, update: lax.dynamic_update_slice(x, update, indices)
    else:
        run = lambda x, update: lax.scatter(x, indices[0], update, params["dimension_numbers"], mode=params["mode"])
    return _run(run, *moved)


def _run(function: Any, *places: np.ndarray) -> np.ndarray:
    with jax.ensure_compile_time_eval():
        return np.asarray(function(*[jnp.asarray(p, jnp.int32) for p in places])).astype(np.int64).ravel()


def updated_places(program: Program, equation: Equation, indices: np.ndarray) -> np.ndarray:
    """For each element of a scatter's update, its place in the operand, from 1; 0 where it is dropped."""
    numbers = equation.params["dimension_numbers"]
    operand, updates = program.shape(equation.inputs[0]), program.shape(equation.inputs[2])
    left_out = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    windows = iter(updates[k] for k in numbers.update_window_dims)
    as_gather = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    slices = tuple(1 if k in left_out else next(windows) for k in range(len(operand)))
    places = np.arange(1, 1 + int(np.prod(operand))).reshape(operand)
    mode = equation.params["mode"]
    mode = mode if mode == lax.GatherScatterMode.CLIP else lax.GatherScatterMode.FILL_OR_DROP
    return _run(lambda x: lax.gather(x, jnp.asarray(indices), as_gather, slices, mode=mode, fill_value=0), places)


def reduced_places(shape: tuple[int, ...], axes: tuple[int, ...]) -> np.ndarray:
    """For each element of an array, the element of its reduction over some axes that it goes into."""
    kept = [1 if k in axes else n for k, n in enumerate(shape)]
    return np.broadcast_to(np.arange(int(np.prod(kept))).reshape(kept), shape).ravel()


def cumulative_map(shape: tuple[int, ...], axis: int, reverse: bool) -> sp.csr_matrix | None:
    """Ones where an element goes into a cumulative sum along an axis."""
    size, length = int(np.prod(shape)), shape[axis]
    if size * length > MAX_ENTRIES:
        return None
    places = np.moveaxis(np.arange(size).reshape(shape), axis, -1).reshape(-1, length)
    later, earlier = np.tril_indices(length)
    rows, columns = places[:, later].ravel(), places[:, earlier].ravel()
    rows, columns = (columns, rows) if reverse else (rows, columns)
    return sp.csr_matrix((np.ones(len(rows)), (rows, columns)), (size, size))


def linear_map(program: Program, equation: Equation, k: int) -> sp.csr_matrix | None:
    """The matrix from input k to the output, the other inputs being constants; None if there is none, or too large."""
    name, params, inputs = equation.name, equation.params, equation.inputs
    shape, size = program.shape(inputs[k]), program.size(inputs[k])
    num_outs = program.size(equation.outputs[0])
    if name == "reduce_sum":
        ones = np.ones(size)
        return sp.csr_matrix((ones, (reduced_places(shape, params["axes"]), np.arange(size))), (num_outs, size))
    if name == "cumsum":
        return cumulative_map(shape, params["axis"], params["reverse"])
    if name == "scatter-add" and k in (0, 2) and program.is_constant(inputs[1]):
        if k == 0:
            return sp.identity(size, format="csr")
        places = updated_places(program, equation, program.value(inputs[1]))
        kept = np.flatnonzero(places)
        return sp.csr_matrix((np.ones(len(kept)), (places[kept] - 1, kept)), (num_outs, size))
    if name == "dot_general" and program.is_constant(inputs[1 - k]):
        return _product_map(program, equation, k)
    if name == "conv_general_dilated" and k == 0 and program.is_constant(inputs[1]):
        return _convolution_map(program, equation)
    return None


def product_places(program: Program, equation: Equation) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The elements of a dot_general as arrays (batch, m, k), (batch, k, n) and (batch, m, n) of flat places, from 0."""
    (lc, rc), (lb, rb) = equation.params["dimension_numbers"]
    left, right = (program.shape(s) for s in equation.inputs)
    free = lambda shape, *used: [a for a in range(len(shape)) if a not in sum(map(tuple, used), ())]
    num = lambda shape, axes: int(np.prod([shape[a] for a in axes], dtype=np.int64))
    order = lambda shape, *axes: (
        np.arange(num(shape, range(len(shape)))).reshape(shape).transpose([a for part in axes for a in part])
    )
    b, m, c, n = num(left, lb), num(left, free(left, lc, lb)), num(left, lc), num(right, free(right, rc, rb))
    first = order(left, lb, free(left, lc, lb), lc).reshape(b, m, c)
    second = order(right, rb, rc, free(right, rc, rb)).reshape(b, c, n)
    return first, second, np.arange(b * m * n).reshape(b, m, n)


def _product_map(program: Program, equation: Equation, k: int) -> sp.csr_matrix | None:
    first, second, out = product_places(program, equation)
    weights = program.value(equation.inputs[1 - k]).ravel()[second if k == 0 else first]
    batch, i, j = np.nonzero(weights)
    num_free = first.shape[1] if k == 0 else second.shape[2]
    if len(batch) * num_free > MAX_ENTRIES:
        return None
    if k == 0:  # weights (batch, contracted, n), for every m
        rows, columns = out[batch, :, j], first[batch, :, i]
    else:  # weights (batch, m, contracted), for every n
        rows, columns = out[batch, i, :], second[batch, j, :]
    data = np.repeat(weights[batch, i, j].astype(float), num_free)
    return sp.csr_matrix((data, (rows.ravel(), columns.ravel())), (out.size, program.size(equation.inputs[k])))


def _convolution_map(program: Program, equation: Equation) -> sp.csr_matrix | None:
    """From the patches that the kernel sees: cut out of the places themselves (exact in float32 below 2^24)."""
    params, numbers = equation.params, equation.params["dimension_numbers"]
    shape, size = program.shape(equation.inputs[0]), program.size(equation.inputs[0])
    kernel = program.value(equation.inputs[1]).transpose(numbers.rhs_spec)  # (out, in, *window)
    out_shape = program.shape(equation.outputs[0])
    if params["feature_group_count"] != 1 or params["batch_group_count"] != 1 or size >= 2**24:
        return None
    if kernel.size // kernel.shape[0] * int(np.prod(out_shape)) > MAX_ENTRIES:
        return None
    places = np.arange(1, size + 1, dtype=np.float32).reshape(shape).transpose(numbers.lhs_spec)
    with jax.ensure_compile_time_eval():
        patches = lax.conv_general_dilated_patches(
            jnp.asarray(places), kernel.shape[2:], params["window_strides"], params["padding"], params["lhs_dilation"],
            params["rhs_dilation"], precision=lax.Precision.HIGHEST,
        )  # (batch, in * window, *out)  # fmt: skip
    seen = np.rint(np.asarray(patches)).astype(np.int64)
    outs = np.arange(int(np.prod(out_shape))).reshape(out_shape).transpose(numbers.out_spec)
    weights = kernel.reshape(kernel.shape[0], -1).astype(float)
    grid = (seen.shape[0], *weights.shape, *seen.shape[2:])  # (batch, out channel, patch, *out)
    spatial = tuple(range(3, len(grid)))
    rows = np.broadcast_to(np.expand_dims(outs, 2), grid).ravel()
    columns = np.broadcast_to(seen[:, None], grid).ravel()
    data = np.broadcast_to(np.expand_dims(weights, (0, *spatial)), grid).ravel()
    is_kept = (columns > 0) & (data != 0)
    return sp.csr_matrix((data[is_kept], (rows[is_kept], columns[is_kept] - 1)), (outs.size, size))
