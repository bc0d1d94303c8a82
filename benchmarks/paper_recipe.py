"""The paper's recipe on Iris, all included: train its flow, then walk in its latent space.

    python benchmarks/paper_recipe.py [--iterations 10000] [--steps 100000] [--archive data.npz]

Prints the seconds of everything, compilation included, and of each phase.
"""

import argparse
import json
import time

import jax
import numpy as np

import terrazzo as tz
from terrazzo.problems.logistic import load_standardised, logistic_target


def iris(archive):
    if archive is None:
        return logistic_target(*load_standardised("iris"))
    with np.load(archive) as stored:
        return logistic_target(stored["iris_x"], stored["iris_y"])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--iterations", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--chains", type=int, default=128)
    parser.add_argument("--archive", default=None, help="npz with the data, where scikit-learn is missing")
    options = parser.parse_args()
    began = time.perf_counter()
    target = iris(options.archive)
    sampler = tz.samplers.latent_random_walk(
        scale=0.3, transport=tz.flow(architecture="paper"),
        training=tz.Training(
            objective=tz.reverse_kl("paper"), num_steps=options.iterations, start_beta=1.0, anneal_steps=0,
            patience=options.iterations, check_every=500,
        ),
    )  # fmt: skip
    draws = min(1000, options.steps)
    result = tz.sample(
        target, seed=0, sampler=sampler, chains=options.chains, draws=draws, thin=options.steps // draws, warmup=0,
        progress="off",
    )  # fmt: skip
    seconds = result.provenance["seconds"]
    print(json.dumps({
        "device": jax.devices()[0].device_kind, "seconds": round(time.perf_counter() - began, 1),
        "phases": {name: round(value, 2) for name, value in seconds.items()},
        "ms an iteration, compilation included": round(1e3 * seconds["training"] / options.iterations, 4),
        "ms a step": round(1e3 * seconds["sampling"] / options.steps, 4),
        "loss": round(float(result.history["loss"][-100:].mean()), 3), "verdict": str(result.verdict),
    }))  # fmt: skip


if __name__ == "__main__":
    main()
