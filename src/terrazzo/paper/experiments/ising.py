"""The second experiment: a binarised 28 x 28 digit with 10 % of its pixels flipped, as an Ising model (Table 1).

Setting "paper" is the energy of the authors' code, which gives Table 1; "text" is the energy of the paper's text. The
posterior of either is what it is: its mode is not the clean digit (see `problems.ising_mnist`).
"""

from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.paper.experiments.base import Case, Experiment, Extras, Method, Run
from terrazzo.problems import ising_mnist
from terrazzo.problems.ising import EDGE_COUNTS, MNIST_SHAPE

SHARES = {"1k": 0.1, "2k": 0.2, "5k": 0.5, "10k": 1.0}
BURN_INS = {"10k": 0.1, "20k": 0.2, "50k": 0.5, "100k": 1.0}
NUM_PICTURES = 16
LONG_STEPS = 0.1  # a trajectory of discontinuous HMC, and a sweep of coloured Gibbs, are worth many site updates

METHODS = {
    **{
        f"flow_mh_{k}": Method("Flow + MH ({iterations} iterations)", "flow", iterations_share=v)
        for k, v in SHARES.items()
    },
    **{
        f"gibbs_{k}": Method("Gibbs, a site a step (burn-in {burn_in})", "baseline", "gibbs", burn_in_share=v)
        for k, v in BURN_INS.items()
    },
    **{
        f"metropolis_{k}": Method("discrete MH (burn-in {burn_in})", "baseline", "metropolis", burn_in_share=v)
        for k, v in BURN_INS.items()
    },
    "dhmc": Method("dHMC", "baseline", "discontinuous_hmc", step_share=LONG_STEPS),
    "coloured_gibbs": Method("coloured Gibbs, a sweep a step", "baseline", "coloured_gibbs", step_share=LONG_STEPS),
    "tempering": Method("parallel tempering", "reference", "coloured_gibbs"),
    "ours": Method("ours", "ours"),
}


def build(setting: str, fold: int | None, seed: int, archive: Path | None) -> Case:
    """The corrupted digit as the field of a lattice."""
    problem = ising_mnist(setting)
    return Case(problem.target, _extras(problem.truth))


def _extras(truth: Any) -> Extras:
    """Pixel errors, the posterior mean, and one draw each of several independent chains."""

    def extras(run: Run) -> tuple[dict, dict[str, np.ndarray]]:
        theta = np.asarray(run.result.theta)
        clean = truth["clean"].ravel()
        mean = theta.mean(axis=(0, 1))
        figures = {
            "wrong_pixels": float(np.where(clean == 1, 1 - mean, mean).sum()),
            "wrong_pixels_of_mean": int(((mean > 0.5) != (clean == 1)).sum()),
            "wrong_pixels_of_corrupt": int((truth["corrupt"] != truth["clean"]).sum()),
            "known_mean_log_prob": truth.get("mean_log_prob"),
        }
        arrays = {
            "clean": truth["clean"].astype(np.uint8),
            "corrupt": truth["corrupt"].astype(np.uint8),
            "mean": mean.reshape(MNIST_SHAPE).astype(np.float32),
            "samples": theta[:NUM_PICTURES, -1].reshape(-1, *MNIST_SHAPE).astype(np.uint8),
        }
        return figures, arrays

    return extras


ISING = Experiment(
    name="ising",
    title="Ising model: denoising a binary digit",
    settings=tuple(EDGE_COUNTS),
    num_folds=0,
    methods=METHODS,
    build=build,
)
