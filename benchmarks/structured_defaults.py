"""The default sampler on plain functions of lattice models, everything included: one JSON line each.

    python benchmarks/structured_defaults.py glass ising potts --chains 128       # a GPU
    python benchmarks/structured_defaults.py glass ising potts --potts-size 16    # two cores

glass: a +-J spin glass of 6 x 6 x 6 at beta = 1.2; ising: 64 x 64 at the critical point, with Kaufman's log Z beside
ours; potts: q = 10 at its first-order point.
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo.diagnostics import rhat
from terrazzo.problems.ising import kaufman_log_z

CRITICAL = 0.5 * np.log(1.0 + np.sqrt(2.0))
COLOURS = 10


def glass(_):
    signs = np.random.default_rng(0).choice([-1.0, 1.0], (3, 6, 6, 6))

    def log_prob(theta):
        spins = 2.0 * theta - 1.0
        return 1.2 * sum(jnp.sum(signs[k] * spins * jnp.roll(spins, 1, k)) for k in range(3))

    return log_prob, tz.binary((6, 6, 6))


def ising(_, size=64):
    def log_prob(theta):
        spins = 2.0 * theta - 1.0
        return CRITICAL * jnp.sum(spins * (jnp.roll(spins, 1, 0) + jnp.roll(spins, 1, 1)))

    return log_prob, tz.binary((size, size))


def potts(options):
    coupling = np.log(1.0 + np.sqrt(COLOURS))

    def log_prob(theta):
        return coupling * (jnp.sum(theta == jnp.roll(theta, 1, 0)) + jnp.sum(theta == jnp.roll(theta, 1, 1)))

    return log_prob, tz.categorical(COLOURS, shape=(options.potts_size, options.potts_size))


def ordered_share(theta):
    """The share of draws in which one value has most sites, by chain."""
    counts = np.stack([(theta == k).sum(axis=-1) for k in range(COLOURS)])
    return (counts.max(axis=0) > theta.shape[-1] / 2).mean(axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=["glass", "ising", "potts"])
    parser.add_argument("--chains", type=int, default=16)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=None)
    parser.add_argument("--potts-size", type=int, default=24)
    options = parser.parse_args()
    for name in options.names:
        log_prob, space = {"glass": glass, "ising": ising, "potts": potts}[name](options)
        began = time.perf_counter()
        result = tz.sample(
            log_prob, space, seed=options.seed, chains=options.chains, draws=options.draws,
            max_seconds=options.seconds, progress="plain",
        )  # fmt: skip
        seconds = time.perf_counter() - began
        theta = np.asarray(result.theta)
        row = {
            "target": name, "device": jax.devices()[0].device_kind, "seconds": round(seconds, 1),
            "worst R-hat": round(float(np.nanmax(rhat(theta))), 4),
            "R-hat of log pi": round(float(rhat(result.log_prob)), 4), "grade": result.verdict.grade,
            "log Z": result.log_z, "standard error": result.log_z_standard_error,
            "choice": result.choice, "phases": {k: round(v, 1) for k, v in result.provenance["seconds"].items()},
        }  # fmt: skip
        if name == "ising":
            row["exact log Z"] = round(float(kaufman_log_z(64, 64, CRITICAL)), 4)
        if name == "potts":
            shares = ordered_share(theta)
            row |= {"ordered": round(float(shares.mean()), 3), "least": round(float(shares.min()), 3)}
        print(json.dumps(row), flush=True)
        print(result.diagnose(), flush=True)


if __name__ == "__main__":
    main()
