"""A result and the folder of its checkpoint: the draws stay there, the rest is one small file beside them.

`result.tz` is a stored result without draws. With the pieces of the draws it is the whole result, whoever opens it;
without it the run has not ended, and what is there is its draws so far.
"""

from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.errors import FileFormatError
from terrazzo.results.draws import Replicas
from terrazzo.results.result import Result
from terrazzo.spaces import Space
from terrazzo.storage.checkpoints import RESULT, read_run
from terrazzo.storage.pieces import consistent_pieces, num_common, stored_arrays
from terrazzo.storage.spaces import space_from_json

IN_MEMORY = 2**27  # bytes of draws up to which they are read at once


def save_record(result: Result, path: Path) -> Path:
    """Writes everything but the draws."""
    replicas = result.replicas
    if replicas is not None:
        replicas = Replicas(replicas.inverse_temperatures, np.zeros((result.num_chains, 0, replicas.log_prob.shape[2])))
    empty = np.zeros((result.num_chains, 0, result.codes.shape[2]), result.space.dtype)
    record = result.changed(
        theta=empty, reals=_no_reals(result.space, result.num_chains), sample_stats={}, latent=None,
        replicas=replicas, continuation=None, provenance={**result.provenance, "kept": result.num_draws},
    )  # fmt: skip
    return record.save(path)


def open_folder(folder: Any) -> Result:
    """The result of a run whose checkpoint is this folder; its draws are read from there when they are asked for."""
    folder = Path(folder)
    run, space_json, num_chains = read_run(folder)
    pieces = consistent_pieces(folder, run, num_chains)
    num_draws = num_common(pieces, num_chains)
    if (folder / RESULT).exists():
        record = Result.load(folder / RESULT)
        num_draws = min(num_draws, int(record.provenance.get("kept", num_draws)))
    else:
        space = space_from_json(space_json)
        empty = np.zeros((num_chains, 0, space.num_dims), space.dtype)
        record = Result(
            space=space, theta=empty, reals=_no_reals(space, num_chains), is_complete=False,
            provenance={"chains": num_chains},
        )  # fmt: skip
    if not num_draws:
        return record
    arrays: dict[str, Any] = dict(stored_arrays(pieces, num_chains, num_draws))
    figures = {"log_prob", "acceptance_rate", "num_evaluations", "diverging", "replica_log_probs"}
    names = set(arrays) - {"theta", "latent", "reals", *figures}
    is_kept = record.space.num_dims and not arrays["theta"].shape[2]
    if is_kept and not record.kept:  # the run has not ended: what it keeps is in its rows
        record = record.changed(provenance={**record.provenance, "keep": sorted(names)})
    if arrays["theta"].shape[2] not in ((record.space.num_dims, 0) if record.kept else (record.space.num_dims,)):
        raise FileFormatError(str(folder), "holds draws of another space", "leave the folder as it was written")
    if sum(array.nbytes for array in arrays.values()) <= IN_MEMORY:
        arrays = {name: np.asarray(array) for name, array in arrays.items()}
    theta, latent, tempered = arrays.pop("theta"), arrays.pop("latent", None), arrays.pop("replica_log_probs", None)
    reals, replicas = arrays.pop("reals", None), record.replicas
    if replicas is not None and tempered is not None:
        replicas = Replicas(replicas.inverse_temperatures, tempered)
    return record.changed(theta=theta, reals=reals, sample_stats=arrays, latent=latent, replicas=replicas)


def _no_reals(space: Space, num_chains: int) -> np.ndarray | None:
    """The reals of no draws, where the space has some."""
    return np.zeros((num_chains, 0, space.num_real_values)) if space.num_reals else None
