"""Results on stdout: for people as text, for programs as JSON."""

import json
import math
from typing import Any

from terrazzo.cli.app import INTERRUPTED, NOT_TRUSTED, UNCHECKED
from terrazzo.results.result import Result
from terrazzo.spaces.text import format_space
from terrazzo.verdict import checks


def exit_code(result: Result) -> int:
    """What a command about a result ends with."""
    return {checks.NOT_TRUSTED: NOT_TRUSTED, checks.UNCHECKED: UNCHECKED}.get(result.verdict.grade, 0)


def sampling_code(result: Result) -> int:
    """What the command that made a result ends with."""
    return exit_code(result) if result.is_complete else INTERRUPTED


def as_json(result: Result, *, has_checks: bool = False) -> str:
    """A result as JSON: NaN is null, infinity a text."""
    record: dict[str, Any] = {
        "verdict": {**result.verdict._asdict(), "is_trusted": result.verdict.is_trusted},
        "space": format_space(result.space), "coordinates": result.space.num_dims + result.space.num_reals,
        "chains": result.num_chains, "draws": result.num_draws, "is_complete": result.is_complete,
        "sampler": result.provenance.get("sampler"),
        "choice": result.choice, "seed": result.provenance.get("seed"), "log_z": result.log_z,
        "log_z_standard_error": result.log_z_standard_error,
        "log_z_verdict": None if result.log_z_verdict is None else result.log_z_verdict._asdict(),
        "constant": result.constant, "summary": result._summary.to_dict(),
    }  # fmt: skip
    if has_checks:
        record["checks"] = [check._asdict() for check in result.checks()]
        record["evidence"] = {name: value._asdict() for name, value in result.evidence_estimates.items()}
    return json.dumps(_plain(record), indent=1, allow_nan=False)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else "inf" if value > 0 else "-inf"
    return value
