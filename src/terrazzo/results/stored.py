"""What a stored result must hold: each part is looked at before it is believed.

The file itself is whole and its arrays have the sizes that they say (see `storage`); here their meaning is checked:
draws inside the space, one number of each statistic a draw, estimates and checks that are numbers and texts.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from terrazzo.diagnostics import LogZ
from terrazzo.spaces import Space
from terrazzo.verdict.checks import GRADES, NOTE, Check, Verdict

GROUPS = ("stats", "history", "replicas")
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
