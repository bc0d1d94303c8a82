"""The first experiment: discretised Gaussian mixtures, 5 components, 6 bits, two dimensions, four targets (Figure 1).

All 4096 states are enumerated, so the total-variation distance of draws from the exact law is known.
"""

from pathlib import Path

import numpy as np

from terrazzo.diagnostics import total_variation
from terrazzo.errors.arguments import key_of_seed
from terrazzo.paper.experiments.base import Case, Experiment, Extras, Method, Run
from terrazzo.paper.plots import grid_histogram
from terrazzo.problems.mixture import NUM_TARGETS, exact_probabilities, mixture
from terrazzo.targets.target import Target
from terrazzo.transports import sample_transport

SETTINGS = ("ring", "stripes", "cross", "scattered")
FLOW_DRAWS = 50_000
REPEATS = 20

METHODS = {
    "flow_mh": Method("Flow + MH", "flow"),
    "flow_mh_score_function": Method("Flow + MH, score-function gradient", "flow", gradient="score_function"),
    "metropolis": Method("discrete MH", "baseline", "metropolis"),
    "ours": Method("ours", "ours"),
}


def build(setting: str, fold: int | None, seed: int, archive: Path | None) -> Case:
    """One of the four mixtures."""
    target = mixture(SETTINGS.index(setting))
    return Case(target, _extras(target, seed))


def _extras(target: Target, seed: int) -> Extras:
    """Total variation of draws, of as many independent draws, and of the flow alone; histograms for Figure 1."""

    def extras(run: Run) -> tuple[dict, dict[str, np.ndarray]]:
        exact = exact_probabilities(target)
        theta = np.asarray(run.result.theta)
        sizes = target.space.sizes
        drawn = grid_histogram(theta, sizes)
        count = theta[..., 0].size
        rng = np.random.default_rng(seed)
        floor = [total_variation(rng.multinomial(count, exact) / count, exact) for _ in range(REPEATS)]
        figures = {"tv": total_variation(drawn.ravel(), exact), "tv_independent": float(np.mean(floor))}
        arrays = {"exact": exact.reshape(sizes).astype(np.float32), "draws": drawn.astype(np.float32)}
        if run.result.transport is not None:
            pushed = sample_transport(key_of_seed(seed + 2), run.result.transport, target, FLOW_DRAWS)
            alone = grid_histogram(np.asarray(pushed.theta), sizes)
            figures["tv_transport"] = total_variation(alone.ravel(), exact)
            arrays["transport"] = alone.astype(np.float32)
        return figures, arrays

    return extras


MIXTURE = Experiment(
    name="mixture",
    title="Discretised Gaussian mixtures",
    settings=SETTINGS[:NUM_TARGETS],
    num_folds=0,
    methods=METHODS,
    build=build,
)
