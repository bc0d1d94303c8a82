"""The paper's Ising-MNIST target: coloured Gibbs alone, and parallel tempering over coloured Gibbs.

Coloured Gibbs has a high ESS inside the patch each chain happens to sit in; tempering finds the posterior.

    python benchmarks/ising_mnist.py --chains 128 --sweeps 10000 --rounds 10000       # a GPU
    python benchmarks/ising_mnist.py --chains 8 --sweeps 500 --rounds 2000            # a CPU, shorter
"""

import argparse
import json
import time

import numpy as np

import terrazzo as tz
from terrazzo.diagnostics import paper_ess
from terrazzo.problems.ising import ising_mnist


def report(name, result, seconds, extra):
    log_prob = np.asarray(result.log_prob, float)
    row = {
        "sampler": name,
        "seconds": round(seconds, 1),
        "sampling_s": round(result.provenance["seconds"]["sampling"], 1),
        "mean_log_pi": round(float(log_prob.mean()), 3),
        "sd_within": round(float(log_prob.std(axis=1).mean()), 2),
        "sd_of_chain_means": round(float(log_prob.mean(axis=1).std(ddof=1)), 3),
        "max_log_pi": round(float(log_prob.max()), 1),
        "constant_pixels": len(result.constant),
        **extra,
    }
    print(json.dumps(row), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--sweeps", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=10_000)
    parser.add_argument("--temperatures", type=int, default=24)
    parser.add_argument("--thin", type=int, default=20)
    options = parser.parse_args()
    target = ising_mnist("paper").target
    tick = time.perf_counter()
    gibbs = tz.sample(
        target,
        seed=0,
        sampler="coloured_gibbs",
        chains=options.chains,
        draws=options.sweeps,
        warmup=2000,
        progress="off",
    )
    seconds = time.perf_counter() - tick
    groups = 8 if options.chains % 8 == 0 else 1
    theirs = paper_ess(gibbs.theta, num_groups=groups)
    extra = {"paper_ess_per_10k": [round(float(theirs.mean), 1), round(float(theirs.standard_error), 1)]}
    report("coloured_gibbs", gibbs, seconds, extra)
    ladders = max(4, options.chains // 2)
    tick = time.perf_counter()
    tempering = tz.sample(
        target,
        seed=0,
        sampler=tz.samplers.parallel_tempering(
            kernel=tz.samplers.coloured_gibbs, num_temperatures=options.temperatures
        ),
        chains=ladders,
        draws=options.rounds // options.thin,
        thin=options.thin,
        warmup=options.rounds,
        progress="off",
    )
    ladder = np.asarray(tempering.provenance["tuned"]["inverse_temperatures"])
    extra = {
        "ladders": ladders,
        "temperatures": options.temperatures,
        "rounds": 2 * options.rounds,
        "log_z": [round(float(v), 3) for v in (tempering.log_z, tempering.log_z_standard_error)],
        "second_rung": round(float(ladder[1]), 4),
        "verdict": str(tempering.verdict),
    }
    report("parallel_tempering", tempering, time.perf_counter() - tick, extra)


if __name__ == "__main__":
    main()
