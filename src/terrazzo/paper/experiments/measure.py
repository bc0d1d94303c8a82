"""The figures of a run: both effective sample sizes, ESS per minute, log pi, acceptance, R-hat and the verdict."""

import functools
import platform
from datetime import UTC, datetime
from typing import Any

import jax
import numpy as np

from terrazzo.diagnostics import paper_ess
from terrazzo.diagnostics.paper import PAPER_DRAWS
from terrazzo.paper.experiments.base import Run
from terrazzo.paper.experiments.source import own_source

GROUP_SIZE = 16  # chains a group in the paper's estimator
COMPILE_EVENTS = ("/jax/core/compile/jaxpr_to_mlir_module_duration", "/jax/core/compile/backend_compile_duration")


@functools.cache
def compile_clock() -> list[float]:
    """A list of one number: the seconds JAX has spent compiling (or fetching from its cache) since the first call."""
    total = [0.0]

    def listen(event: str, duration_secs: float, **kwargs: Any) -> None:
        if event in COMPILE_EVENTS:
            total[0] += duration_secs

    jax.monitoring.register_event_duration_secs_listener(listen)
    return total


def measurements(run: Run, compile_seconds: float) -> dict[str, Any]:
    """All figures of a run.

    The paper's ESS is per chain and per 10^4 kept draws. Ours (bulk, over all chains) is given in the same unit, as
    mean and minimum over the coordinates that are not constant. ESS per minute counts the draws that were really made,
    and every second of training, burn-in and sampling; once with compilation and once without.
    """
    result = run.result
    theta = result.theta
    chains, draws = theta.shape[:2]
    theirs = paper_ess(theta, num_groups=max(1, chains // GROUP_SIZE) if chains % GROUP_SIZE == 0 else 1)
    table = result._summary  # the verdict's own: statistics of 10^9 numbers take a minute
    rows = [row for row in table.rows if row.name != "log_prob"]
    ours = np.array([row.ess_bulk for row in rows if not row.is_constant])
    r_hats = [row.r_hat for row in table.rows if not np.isnan(row.r_hat)]
    unit = PAPER_DRAWS / (chains * draws)
    total = sum(run.seconds.values())
    log_prob = np.asarray(result.log_prob, float)
    achieved = theirs.mean * draws / PAPER_DRAWS
    acceptance = result.sample_stats.get("acceptance_rate")
    return {
        "chains": chains,
        "draws": draws,
        "num_dims": theta.shape[2],
        "seconds": {**run.seconds, "compile": compile_seconds, "total": total},
        "paper_ess": {"mean": theirs.mean, "standard_error": theirs.standard_error, "groups": len(theirs.per_group)},
        "ess": {
            "mean": float(np.nanmean(ours) * unit) if ours.size else None,
            "min": float(np.nanmin(ours) * unit) if ours.size else None,
            "min_all_chains": float(np.nanmin(ours)) if ours.size else None,
        },
        "num_constant": theirs.num_constant,
        "ess_per_minute": 60 * achieved / total,
        "ess_per_minute_compiled": 60 * achieved / max(total - compile_seconds, 1e-9),
        "log_prob": {
            "mean": float(log_prob.mean()),
            "sd": float(log_prob.std()),
            "sd_of_chain_means": float(log_prob.mean(axis=1).std(ddof=1)) if chains > 1 else None,
        },
        "acceptance": None if acceptance is None else float(np.mean(acceptance)),
        "r_hat": "infinite" if np.inf in r_hats else max(r_hats, default=None),
        "verdict": {"is_trusted": result.verdict.is_trusted, "text": str(result.verdict)},
        "tuned": {k: v for k, v in result.provenance.get("tuned", {}).items() if np.size(v) == 1},
        "training": run.training,
    }


def environment() -> dict[str, Any]:
    """When, with which source code and versions, and on which devices, for the record."""
    from terrazzo import __version__

    devices = jax.devices()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "source": own_source(),
        "versions": {
            "terrazzo": __version__,
            "jax": jax.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "device": f"{len(devices)} x {devices[0].device_kind}",
        "platform": platform.platform(),
    }
