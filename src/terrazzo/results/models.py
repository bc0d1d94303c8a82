"""What a result keeps of the model of another library that its target came from.

The data are stored with the draws. How new data are predicted is a function, and stays in the process that sampled.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from terrazzo.storage.files import jsonable


class Observed(NamedTuple):
    """Data that a model was conditioned on.

    Attributes:
        values: The data.
        dims: Names of their axes, where the model has names.
        coords: Names along the axes, by dim.
    """

    values: np.ndarray
    dims: tuple[str, ...] | None = None
    coords: Mapping[str, tuple[Any, ...]] = {}


@dataclass(frozen=True, eq=False)
class Model:
    """What a model knows beyond its log-density: its data, and how to predict new data.

    Attributes:
        library: Where it comes from: "numpyro" or "pymc".
        predict: `(seed, draws, args, kwargs) -> values`: draws and values by name, one draw a line; None in a result
            that was read from a file.
        observed: The data, by name.
        notes: What was done to the model, in words: priors that were cut, say.
    """

    library: str
    predict: Callable[[int, dict[str, np.ndarray], tuple, dict[str, Any]], dict[str, np.ndarray]] | None
    observed: Mapping[str, Observed] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def to_parts(model: Model) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """A header and named arrays, as files hold them; data that are no numbers are left out."""
    arrays = {name: np.asarray(data.values) for name, data in model.observed.items()}
    arrays = {name: array for name, array in arrays.items() if array.dtype.kind in "biuf"}
    axes = {
        name: {"dims": model.observed[name].dims, "coords": dict(model.observed[name].coords)} for name in arrays
    }  # fmt: skip
    return jsonable({"library": model.library, "notes": model.notes, "observed": axes}), arrays


def from_parts(header: Any, arrays: Mapping[str, np.ndarray]) -> Model:
    """What `to_parts` took apart; `ValueError`, `KeyError` or `TypeError` where it is not that."""
    library, notes, axes = header["library"], header["notes"], header["observed"]
    if not isinstance(library, str) or not all(isinstance(note, str) for note in notes) or set(axes) != set(arrays):
        raise ValueError("its model is not one of ours")
    observed = {}
    for name, array in arrays.items():
        dims, coords = axes[name]["dims"], axes[name]["coords"]
        if dims is not None and (len(dims) != array.ndim or not all(isinstance(dim, str) for dim in dims)):
            raise ValueError(f"the axes of {name[:60]!r} do not fit its data")
        for dim, names in coords.items():
            if dims is None or dim not in dims or len(names) != array.shape[dims.index(dim)]:
                raise ValueError(f"the coordinates of {name[:60]!r} do not fit its data")
        named = {dim: tuple(names) for dim, names in coords.items()}
        observed[name] = Observed(array, None if dims is None else tuple(dims), named)
    return Model(library, None, observed, tuple(notes))
