"""The table of targets that fool samplers, sampled as users do: one line a run, and what must not be.

    python tests/fooling_table.py                        # without a time limit
    python tests/fooling_table.py --seconds 30 --seeds 1 2 --names needle halves

A run counts as wrong where the mean of the target's number is off by more than five standard errors and 1 %.
"""

import argparse
import json
import time
import warnings

import numpy as np

import terrazzo as tz
from fooling_targets import cases
from terrazzo.diagnostics import mcse
from terrazzo.errors import StartError


def estimate(case, result):
    """The mean of the target's number, and its standard error."""
    values = case.feature(result.theta.astype(np.int64))
    return float(values.mean()), float(mcse(values)) if np.ptp(values) > 0 else 0.0


def is_wrong(case, result):
    mean, error = estimate(case, result)
    error = 0.0 if np.isnan(error) else error  # one draw a chain has none: judged by the 1 % alone
    return abs(mean - case.exact) > 5 * error + 0.01 * max(abs(case.exact), 1.0)


def row(case, init, seed, seconds):
    """What one run of the default sampler gives."""
    began = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            result = tz.sample(case.log_prob, case.space, seed=seed, init=init, max_seconds=seconds, progress="off")
        except StartError as error:  # no draws are no wrong draws
            return {
                "target": case.name, "seed": seed, "limit": seconds, "seconds": round(time.perf_counter() - began, 1),
                "is_wrong": False, "is_healthy": case.is_healthy, "grade": "no start", "reason": str(error),
            }  # fmt: skip
    mean, error = estimate(case, result)
    return {
        "target": case.name, "seed": seed, "limit": seconds, "seconds": round(time.perf_counter() - began, 1),
        "exact": round(case.exact, 4), "mean": round(mean, 4), "error": round(error, 4),
        "is_wrong": is_wrong(case, result), "is_healthy": case.is_healthy, "grade": result.verdict.grade,
        "reason": str(result.verdict),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--seconds", type=float, default=None, help="the limit of a run")
    parser.add_argument("--names", nargs="+", default=[""], help="parts of the names of targets")
    options = parser.parse_args()
    rows = []
    for seed in options.seeds:
        for case, init in cases(seed):
            if any(name in case.name for name in options.names):
                rows.append(row(case, init, seed, options.seconds))
                print(json.dumps(rows[-1]), flush=True)
    believed = [r for r in rows if r["is_wrong"] and r["grade"] in ("exact", "trusted")]
    healthy = [r for r in rows if r["is_healthy"]]
    doubted = [r for r in healthy if r["grade"] not in ("exact", "trusted")]
    print(f"{len(rows)} runs, {sum(r['is_wrong'] for r in rows)} wrong, {len(believed)} of them believed;")
    print(f"{len(healthy)} healthy, {len(doubted)} of them below trusted")


if __name__ == "__main__":
    main()
