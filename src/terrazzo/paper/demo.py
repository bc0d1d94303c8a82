"""The demonstration: the paper's first experiment, from training to a picture, in about a minute.

A Gaussian mixture with five components on a 64 x 64 grid: 4096 states, so the exact law is known, and everything the
run says can be held against it.
"""

import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from terrazzo.diagnostics import ess, total_variation
from terrazzo.errors import MissingPackageError
from terrazzo.errors.arguments import key_of_seed
from terrazzo.inference.call import sample
from terrazzo.paper import plots
from terrazzo.problems.mixture import exact_probabilities, mixture, nearest_component
from terrazzo.results.result import Result
from terrazzo.transports import sample_transport

FLOW_DRAWS = 50_000


class DemoReport(NamedTuple):
    """What the demonstration found.

    Attributes:
        result: The draws.
        tv_draws: Total-variation distance of all draws from the exact law.
        tv_independent: The same for independent draws, as many as the draws are worth (their ESS).
        tv_flow: The same for draws of the flow alone.
        component_shares: Share of draws in each component: found and exact.
        figure: Where the picture is; None without matplotlib.
        seconds: Wall time.
    """

    result: Result
    tv_draws: float
    tv_independent: float
    tv_flow: float
    component_shares: np.ndarray
    figure: Path | None
    seconds: float


def run_demo(folder: Any, *, index: int = 0, seed: int = 0, progress: Any = "auto", **options: Any) -> DemoReport:
    """Trains a flow, samples in its latent space, compares with the exact law, draws Figure 1.

    Args:
        folder: Where the picture goes; made if it is not there.
        index: Which of the four mixtures.
        seed: Random seed.
        progress: As in `sample`.
        **options: Further options of `sample`.
    """
    began = time.perf_counter()
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    target = mixture(index)
    exact = exact_probabilities(target)
    settings = {"sampler": "latent_random_walk", "chains": 64, "draws": 2000, "thin": 4, "warmup": 300, **options}
    result = sample(target, seed=seed, progress=progress, **settings)
    theta = np.asarray(result.theta)
    sizes = target.space.sizes
    flow = np.asarray(sample_transport(key_of_seed(seed + 1), result.transport, target, FLOW_DRAWS).theta)
    grids = {
        "target": exact.reshape(sizes),
        "flow": plots.grid_histogram(flow, sizes),
        "flow + MH": plots.grid_histogram(theta, sizes),
    }
    worth = int(np.clip(np.min(ess(theta)), 1, theta[..., 0].size))
    rng = np.random.default_rng(seed)
    reference = [total_variation(rng.multinomial(worth, exact) / worth, exact) for _ in range(20)]
    tv = {name: total_variation(grid.ravel(), exact) for name, grid in grids.items()}
    found = np.bincount(nearest_component(target, theta).ravel(), minlength=5) / theta[..., 0].size
    wanted = np.bincount(nearest_component(target, target.space.enumerate()), exact, 5)
    captions = {name: f"TV {tv[name]:.3f}" for name in ("flow", "flow + MH")}
    captions["target"] = "exact, 4096 states"
    try:
        figure = plots.panels(grids, folder / "figure1.png", captions=captions)
    except MissingPackageError:
        figure = None
    return DemoReport(
        result=result,
        tv_draws=tv["flow + MH"],
        tv_independent=float(np.mean(reference)),
        tv_flow=tv["flow"],
        component_shares=np.stack([found, wanted]),
        figure=figure,
        seconds=time.perf_counter() - began,
    )
