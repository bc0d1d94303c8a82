"""Results as other libraries hold them: pandas, ArviZ."""

import json
import warnings
from typing import Any

import numpy as np

from terrazzo.errors import MissingPackageError, OptionError, UnsupportedError, arguments
from terrazzo.spaces import RealVariable


def to_pandas(result: Any) -> Any:
    """One line a draw: chain, number, a column a coordinate, and the figures of the draw (needs pandas)."""
    import pandas as pd

    chain, draw = np.divmod(np.arange(result.num_chains * result.num_draws), max(result.num_draws, 1))
    columns: dict[str, Any] = {"chain": chain, "draw": draw}
    names, start = result.space.coordinate_names(), 0
    for name, variable in _variables(result):
        values = result.draws[name].reshape(len(chain), variable.num_elements)
        columns |= {names[start + i]: values[:, i] for i in range(variable.num_elements)}
        start += variable.num_elements
    columns |= {name: x.reshape(len(chain)) for name, x in result.sample_stats.items() if x.ndim == 2}
    return pd.DataFrame(columns)


def plot(result: Any, kind: str, **options: Any) -> Any:
    """A plot of ArviZ, by the name of its function."""
    az, _ = _arviz_and_xarray()
    function = getattr(az, f"plot_{kind}", None) if isinstance(kind, str) else None
    if function is None:
        raise OptionError("kind", f"ArviZ has no plot_{kind}", "e.g. 'trace', 'rank', 'forest'")
    return function(to_arviz(result), **options)


def to_arviz(result: Any) -> Any:
    """The draws as ArviZ holds them: an InferenceData (ArviZ 0.x) or a DataTree (ArviZ 1.x).

    Unordered variables are integer codes, their labels in the attribute `labels`.
    """
    az, xr = _arviz_and_xarray()
    chain_draw = {"chain": np.arange(result.num_chains), "draw": np.arange(result.num_draws)}
    coords: dict[str, Any] = dict(chain_draw)
    variables = {}
    start = 0
    for name, v in _variables(result):
        dims = v.dims or tuple(f"{name}_dim_{i}" for i in range(len(v.shape)))
        if isinstance(v, RealVariable):
            values = np.asarray(result.draws[name])
        else:
            block = result.codes[..., start : start + v.num_elements].reshape(*result.codes.shape[:2], *v.shape)
            start += v.num_elements
            values = block.astype(np.int64) if v.kind == "categorical" else v.decode(block)
        labels = {} if v.labels is None else {"labels": [str(label) for label in v.labels]}
        variables[name] = xr.Variable(("chain", "draw", *dims), values, {"kind": v.kind, **labels})
        for dim, length in zip(dims, v.shape, strict=True):
            coords[dim] = list(dict(v.coords).get(dim, coords.get(dim, range(length))))
    for name in result.kept:
        values = np.asarray(result.sample_stats[name])
        variables[name] = xr.Variable(("chain", "draw", *(f"{name}_dim_{i}" for i in range(values.ndim - 2))), values)
    attrs: dict[str, Any] = {
        "inference_library": "terrazzo",
        "is_complete": int(result.is_complete),
        "provenance": json.dumps(result.provenance),
    }
    if result.evidence is not None:
        attrs |= {"log_z": result.evidence.log_z, "log_z_standard_error": result.evidence.standard_error}
    groups = {"posterior": xr.Dataset(variables, coords, attrs)}
    stats = {
        name: (("chain", "draw", *(f"{name}_dim_{i}" for i in range(values.ndim - 2))), values)
        for name, values in ((n, np.asarray(x)) for n, x in result.sample_stats.items() if n not in result.kept)
    }
    if "log_prob" in stats:
        stats["lp"] = stats.pop("log_prob")  # the name ArviZ's schema gives it
    if stats:
        groups["sample_stats"] = xr.Dataset(stats, chain_draw, attrs)
    if result.model is not None and result.model.observed:
        groups["observed_data"] = _observed(xr, result.model.observed)
    if hasattr(az, "InferenceData"):
        return az.InferenceData(**groups)
    return xr.DataTree.from_dict(groups)


def _variables(result: Any) -> Any:
    """The variables whose draws there are: none where only values of them were kept."""
    return result.space.variables if result.codes.shape[2] == result.space.num_dims else ()


def _observed(xr: Any, observed: Any) -> Any:
    """The data of a model, as ArviZ's schema holds them."""
    variables: dict[str, Any] = {}
    coords: dict[str, Any] = {}
    for name, data in observed.items():
        dims = data.dims or tuple(f"{name}_dim_{i}" for i in range(np.ndim(data.values)))
        variables[name] = xr.Variable(dims, data.values)
        for dim, length in zip(dims, np.shape(data.values), strict=True):
            coords[dim] = list(data.coords.get(dim, coords.get(dim, range(length))))
    return xr.Dataset(variables, coords)


def predictive(result: Any, args: tuple, kwargs: dict[str, Any], *, draws: int, seed: int) -> dict[str, np.ndarray]:
    """New data from a result's model, for so many evenly spaced draws a chain."""
    arguments.count("draws", draws)
    arguments.seed_number(seed)
    if result.model is None:
        raise UnsupportedError(
            "predictive", "needs a model, and the target came from none", "tz.sample(tz.from_numpyro(model, ...))"
        )
    if result.model.predict is None:
        raise UnsupportedError(
            "predictive", f"needs the {result.model.library} model, and a file holds its data alone",
            "sample it in this process: tz.sample(target, plan=result.plan) repeats the draws without a warm-up",
        )  # fmt: skip
    if not result.num_draws:
        raise UnsupportedError("predictive", "needs draws, and there are none", "sample some first")
    places = np.unique(np.linspace(0, result.num_draws - 1, min(draws, result.num_draws)).astype(int))
    lead = (result.num_chains, len(places))
    chosen = {name: np.asarray(result.draws[name])[:, places] for name in result.space.names}
    rows = {name: x.reshape(-1, *x.shape[2:]) for name, x in chosen.items()}
    found = result.model.predict(seed, rows, args, kwargs)
    return {name: x.reshape(*lead, *x.shape[1:]) for name, x in found.items()}


def _arviz_and_xarray() -> tuple[Any, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import arviz
            import xarray
    except ImportError:
        raise MissingPackageError("arviz", extra="plots") from None
    return arviz, xarray
