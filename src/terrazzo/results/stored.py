"""Results to and from a file, and what a stored one must hold: each part is looked at before it is believed.

The file itself is whole and its arrays have the sizes that they say (see `storage`); here their meaning is checked:
draws inside the space, one number of each statistic a draw, estimates and checks that are numbers and texts.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.diagnostics import LogZ
from terrazzo.errors import FileFormatError, UnsupportedError
from terrazzo.results import models
from terrazzo.results.draws import Replicas
from terrazzo.spaces import Space
from terrazzo.storage.files import read_file, write_file
from terrazzo.storage.setups import Setup
from terrazzo.storage.spaces import space_from_json, space_to_json
from terrazzo.verdict.checks import GRADES, NOTE, Check, Verdict

PLAN = "plan/"
KIND, VERSION = "terrazzo result", 2
GROUPS = ("stats", "history", "replicas", "observed")
CHECK_TYPES = (str, float, float, bool, str, str, bool)


def checked_arrays(arrays: Mapping[str, np.ndarray]) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
    """The draws, and the statistics and training curves by name."""
    theta = arrays["theta"]
    if theta.ndim != 3 or theta.dtype.kind not in "iu":
        raise ValueError(f"theta is {theta.dtype} of shape {theta.shape}")
    groups: dict[str, dict[str, np.ndarray]] = {name: {} for name in GROUPS}
    for name, array in arrays.items():
        group, _, rest = name.partition("/")
        if group in groups and rest:
            groups[group][rest] = array
        elif name not in ("theta", "latent", "reals"):
            raise ValueError(f"an array is called {name[:60]!r}")
        if name != "theta" and array.dtype.kind not in "biuf":
            raise ValueError(f"{name} is {array.dtype}")
    for name, array in groups["stats"].items():
        if array.shape[:2] != theta.shape[:2]:
            raise ValueError(f"{name} has shape {array.shape} for draws of shape {theta.shape}")
    replicas = groups["replicas"]
    if replicas and (
        set(replicas) != {"inverse_temperatures", "log_prob"}
        or replicas["log_prob"].shape != (*theta.shape[:2], len(replicas["inverse_temperatures"]))
    ):
        raise ValueError("its replicas do not fit its draws")
    return theta, groups


def check_values(space: Space, theta: np.ndarray, arrays: Mapping[str, np.ndarray]) -> None:
    """Raises unless the draws lie in the space, each has a log-probability, and latent draws are as many."""
    if theta.size and (theta.min() < 0 or (theta.max(axis=(0, 1)) >= space.sizes).any()):
        raise ValueError("some draws lie outside the space")
    if theta.dtype != space.dtype:
        raise ValueError(f"theta is {theta.dtype}, not {space.dtype}")
    log_prob, latent = arrays.get("stats/log_prob"), arrays.get("latent")
    if log_prob is not None:
        if log_prob.dtype.kind != "f" or log_prob.shape != theta.shape[:2]:
            raise ValueError(f"log_prob is {log_prob.dtype} of shape {log_prob.shape}")
        if np.isnan(log_prob).any() or (log_prob == np.inf).any():
            raise ValueError("a draw has a log_prob of NaN or +inf")
    if latent is not None and (latent.shape != theta.shape or latent.dtype.kind != "f" or np.isnan(latent).any()):
        raise ValueError(f"latent is {latent.dtype} of shape {latent.shape}, or holds NaN")
    reals = arrays.get("reals")
    if (reals is None) != (space.num_reals == 0):
        raise ValueError("its real values are missing, or there should be none")
    if reals is not None and (reals.dtype.kind != "f" or not np.isfinite(reals).all()):
        raise ValueError("its real values are not all finite numbers")


def checked_records(header: Mapping[str, Any]) -> tuple[LogZ | None, dict[str, LogZ], tuple[Check, ...]]:
    """The estimates of log Z and the further checks of a header, whose other records are looked at too."""
    for name, kind in (("is_complete", bool), ("has_history", bool), ("provenance", dict), ("extra_checks", list)):
        if not isinstance(header[name], kind):
            raise ValueError(f"{name} is {str(header[name])[:40]!r}")
    warmup = header["provenance"].get("warm-up", {})
    choice = warmup.get("choice") if isinstance(warmup, dict) else 0
    if choice is not None and not (isinstance(choice, dict) and {"chosen", "reason"} <= choice.keys()):
        raise ValueError("its warm-up is not one of ours")
    evidence = header["evidence"]
    estimates = {str(name): _log_z(values) for name, values in header.get("evidence_estimates", {}).items()}
    checks = tuple(_check(values) for values in header["extra_checks"])
    return None if evidence is None else _log_z(evidence), estimates, checks


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _log_z(values: Any) -> LogZ:
    if not isinstance(values, list) or len(values) != len(LogZ._fields) or not all(map(_is_number, values)):
        raise ValueError(f"an estimate of log Z is {str(values)[:60]}")
    found = LogZ(*values)
    if found.standard_error < 0 or found.ess < 0:
        raise ValueError(f"an estimate of log Z is {str(values)[:60]}")
    return found


def checked_verdict(values: Any) -> Verdict | None:
    """A stored verdict."""
    if values is None:
        return None
    if not isinstance(values, list) or len(values) != 2 or values[0] not in GRADES or not isinstance(values[1], str):
        raise ValueError(f"a verdict is {str(values)[:60]}")
    return Verdict(*values)


def _check(values: Any) -> Check:
    kinds = CHECK_TYPES[: len(values)] if isinstance(values, list) else ()
    is_right = len(kinds) >= 5 and len(values) == len(kinds) and all(
        _is_number(value) if kind is float else isinstance(value, kind)
        for value, kind in zip(values, kinds, strict=True)
    )  # fmt: skip
    if not is_right or (len(values) > 5 and values[5] not in (NOTE, *GRADES)):
        raise ValueError(f"a check is {str(values)[:60]}")
    return Check(*values)


def write_result(result: Any, path: Any, *, compress: bool) -> Path:
    """Writes a result to one file."""
    arrays = {"theta": result.codes, **{f"stats/{k}": v for k, v in result.sample_stats.items()}}
    arrays |= {f"history/{k}": v for k, v in (result.history or {}).items()}
    if result.latent is not None:
        arrays["latent"] = result.latent
    if result.reals is not None:
        arrays["reals"] = result.reals
    if result.replicas is not None:
        arrays |= {f"replicas/{name}": array for name, array in result.replicas._asdict().items()}
    header: dict[str, Any] = {
        "space": space_to_json(result.space),
        "evidence": None if result.evidence is None else list(result.evidence),
        "evidence_estimates": {name: list(value) for name, value in result.evidence_estimates.items()},
        "provenance": result.provenance,
        "has_history": result.history is not None,
        "is_complete": result.is_complete,
        "extra_checks": [list(check) for check in result.extra_checks],
        "log_z_verdict": None if result.log_z_verdict is None else list(result.log_z_verdict),
        "transport_config": None,
        "plan": None,
        "model": None,
    }
    blobs: dict[str, bytes] = {}
    if result.model is not None:
        header["model"], data = models.to_parts(result.model)
        arrays |= {f"observed/{name}": array for name, array in data.items()}
    if result.plan is not None:
        header["plan"], parts, kept = result.plan.to_parts()
        arrays |= {f"{PLAN}{name}": array for name, array in parts.items()}
        blobs |= {f"{PLAN}{name}": data for name, data in kept.items()}
    if result.transport is not None:
        from terrazzo.transports import serialise  # late: a result knows no method

        blobs["transport"], header["transport_config"] = serialise(result.transport, result.space)
    return write_file(path, KIND, VERSION, header=header, arrays=arrays, blobs=blobs, compress=compress)


def read_result(path: Any, build: Callable[..., Any]) -> Any:
    """The result that a file holds, built from its fields; `FileFormatError` if it is damaged or not ours."""
    header, arrays, blobs = read_file(path, KIND, VERSION)
    try:
        stored = {name[len(PLAN) :]: arrays.pop(name) for name in [n for n in arrays if n.startswith(PLAN)]}
        theta, groups = checked_arrays(arrays)
        num_dims = None if header["provenance"].get("keep") else theta.shape[2]
        space = space_from_json(header["space"], num_dims=num_dims)
        check_values(space, theta, arrays)
        evidence, estimates, checks = checked_records(header)
        model = header.get("model")
        config, transport = header["transport_config"], None
        if config is not None:
            from terrazzo.transports import deserialise

            transport = deserialise(blobs["transport"], config, space)
        return build(
            space=space,
            theta=theta,
            sample_stats=groups["stats"],
            reals=arrays.get("reals"),
            latent=arrays.get("latent"),
            evidence=evidence,
            evidence_estimates=estimates,
            transport=transport,
            provenance=header["provenance"],
            history=groups["history"] if header["has_history"] else None,
            is_complete=header["is_complete"],
            extra_checks=checks,
            log_z_verdict=checked_verdict(header["log_z_verdict"]),
            plan=_plan(header["plan"], stored, blobs),
            model=None if model is None else models.from_parts(model, groups["observed"]),
            replicas=Replicas(**groups["replicas"]) if groups["replicas"] else None,
        )
    except FileFormatError as error:
        raise FileFormatError(str(path), f"has a {error.field} that {error.problem}", error.remedy) from None
    except UnsupportedError:
        raise
    except Exception as error:  # whatever a record says that was not written by us
        text = " ".join(str(error).split())[:200]
        raise FileFormatError(str(path), f"lacks what a result needs ({text})", "save it again") from None


def _plan(header: Any, arrays: dict[str, np.ndarray], blobs: Mapping[str, bytes]) -> Setup | None:
    if header is None:
        return None
    kept = {name[len(PLAN) :]: data for name, data in blobs.items() if name.startswith(PLAN)}
    return Setup.from_parts(header, arrays, kept)
