"""The default sampler on the paper's targets and on hard ones, one JSON line each.

ESS is the paper's, per 10^4 kept draws of a chain, and ours, the least over log pi and the coordinates that moved.

    python benchmarks/default_sampler.py iris wine --chains 128 --draws 1000 --thin 10          # a GPU
    python benchmarks/default_sampler.py iris --chains 16 --seconds 300                         # a fixed wall time
    python benchmarks/default_sampler.py iris --chains 16 --seconds 300 --sampler gibbs         # one local kernel
"""

import argparse
import json
import time

import jax
import jax.numpy as jnp
import numpy as np

import terrazzo as tz
from terrazzo import problems
from terrazzo.diagnostics import ess, mcse, paper_ess, rhat
from terrazzo.problems.ising import kaufman_log_z
from terrazzo.problems.logistic import load_standardised, logistic_target

CRITICAL = 0.44068679350977147
COLD = 0.6


def logistic(name):
    def build(archive):
        if archive:
            with np.load(archive) as stored:
                return logistic_target(stored[f"{name}_x"], stored[f"{name}_y"]), None
        return logistic_target(*load_standardised(name)), None

    return build


def selection(num_features):
    def build(_):
        problem = problems.variable_selection(num_features, num_features // 10)
        return problem.target, problem.truth["support"]

    return build


def two_modes(_):
    """Two equal modes at Hamming distance 30 of d = 60."""
    rng = np.random.default_rng(0)
    first = rng.integers(0, 2, 60)
    second = first.copy()
    second[rng.permutation(60)[:30]] ^= 1
    centres = jnp.asarray(2.0 * np.stack([first, second]) - 1.0)
    log_prob = lambda theta: jax.nn.logsumexp(1.5 * centres @ (2.0 * theta - 1.0))
    return tz.Target(log_prob, tz.binary(60)), np.asarray(centres)


TARGETS = {
    "iris": logistic("iris"), "wine": logistic("wine"), "breast_cancer": logistic("breast_cancer"),
    "selection_100": selection(100), "selection_200": selection(200), "selection_400": selection(400),
    "mixture": lambda _: (problems.mixture(0), None),
    "ising_mnist": lambda _: (problems.ising_mnist().target, None), "two_modes": two_modes,
    "torus_critical": lambda _: (problems.ising_torus(16, CRITICAL).target, CRITICAL),
    "torus_cold": lambda _: (problems.ising_torus(16, COLD).target, COLD),
}  # fmt: skip


def special(name, result, truth):
    """What only this target can say."""
    theta = result.theta
    if name.startswith("selection"):
        exact = (theta == np.asarray(truth)).all(axis=-1)
        return {"true_support": round(float(exact.mean()), 4), "chains_at_it": int(exact.any(axis=1).sum())}
    if name == "two_modes":
        side = np.diff((2.0 * theta - 1.0) @ truth.T, axis=-1)[..., 0] > 0
        visits = int((side.any(axis=1) & ~side.all(axis=1)).sum())
        return {"weight": float(side.mean()), "weight_se": float(mcse(side.astype(float))), "visit_both": visits}
    if name.startswith("torus"):
        magnetisation = (2.0 * theta - 1.0).mean(axis=-1)
        return {
            "exact_log_z": kaufman_log_z(16, 16, truth), "magnetisation": float(magnetisation.mean()),
            "magnetisation_se": float(mcse(magnetisation)), "abs_magnetisation": float(np.abs(magnetisation).mean()),
        }  # fmt: skip
    return {}


def report(name, result, seconds, truth):
    own = [ess(result.theta), rhat(result.theta), ess(result.log_prob), rhat(result.log_prob)]
    theirs = paper_ess(result.theta, num_groups=8) if result.num_chains % 8 == 0 else None
    found = result.provenance.get("warm-up", {})
    least = float(np.nanmin([*own[0], own[2]]))
    row = {
        "target": name, "sampler": result.provenance["sampler"], "device": result.provenance["device"],
        "seconds": round(seconds, 1), "phases": {k: round(v, 1) for k, v in result.provenance["seconds"].items()},
        "thin": result.provenance["thin"], "draws": result.num_draws, "chains": result.num_chains,
        "paper_ess": None if theirs is None else [round(float(theirs.mean), 1), round(float(theirs.standard_error), 1)],
        "least_ess": round(least, 1), "least_ess_per_minute": round(60 * least / seconds, 1),
        "r_hat": round(float(np.nanmax([*own[1], own[3]])), 4), "constant": len(result.constant),
        "mean_log_pi": round(float(result.log_prob.mean()), 3),
        "sd_of_chain_means": round(float(result.log_prob.mean(axis=1).std(ddof=1)), 3),
        "log_z": {k: [round(v.log_z, 4), round(v.standard_error, 4)] for k, v in result.evidence_estimates.items()},
        "exploration": found.get("exploration"), "training": found.get("training"),
        "transport": found.get("transport"), "choice": found.get("choice"), "verdict": str(result.verdict),
        **special(name, result, truth),
    }  # fmt: skip
    print(json.dumps(row), flush=True)


def sampler_of(options):
    """The sampler that the command line describes."""
    learned = {
        "training": None if options.training is None else tz.Training(**options.training),
        "exploration": None if options.max_rounds is None else tz.Exploration(max_rounds=options.max_rounds),
        "transport": False if options.no_transport else None,
    }
    if options.transport_options is not None:
        learned["transport"] = tz.autoregressive(**options.transport_options)
    learned = {name: value for name, value in learned.items() if value is not None}
    if options.sampler == "auto":
        return tz.Auto(**learned)
    return tz.samplers.get(options.sampler)(**learned, **options.sampler_options or {})


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("targets", nargs="+", choices=TARGETS)
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--thin", type=int, default=None)
    parser.add_argument("--seconds", type=float, default=None, help="wall time for everything together")
    parser.add_argument("--sampler", default="auto")
    parser.add_argument("--sampler-options", type=json.loads, default=None)
    parser.add_argument("--training", type=json.loads, default=None)
    parser.add_argument("--no-transport", action="store_true")
    parser.add_argument("--max-rounds", type=int, default=None)
    parser.add_argument("--transport-options", type=json.loads, default=None)
    parser.add_argument("--archive", default=None, help="npz with the data, where scikit-learn is missing")
    parser.add_argument("--progress", default="off")
    options = parser.parse_args()
    for name in options.targets:
        with jax.enable_x64(name.startswith("selection")):
            target, truth = TARGETS[name](options.archive)
            tick = time.perf_counter()
            result = tz.sample(
                target, seed=0, chains=options.chains, draws=options.draws, thin=options.thin,
                max_seconds=options.seconds, sampler=sampler_of(options), progress=options.progress,
            )  # fmt: skip
            report(name, result, time.perf_counter() - tick, truth)


if __name__ == "__main__":
    main()
