"""The fourth experiment: Bayesian variable selection on synthetic data, 100, 200 and 400 features (Table 3).

A tenth of the features is informative, and there are twice as many rows as features. The paper's data have no noise;
settings ending in "_noisy" add noise. Whatever its sd s, the prior of an included coefficient has variance near
nu2 s^2 = 10, so a feature without effect keeps an inclusion probability of about 1 / (1 + sqrt(1 + 10 n / s^2)): with
n = 200 and s = 10 near 0.18, a posterior over very many sets. Data are drawn once per seed. The target subtracts nearly
equal numbers, so everything here is in float64 (docs/theory.md, trap 6).
"""

from pathlib import Path

import jax.numpy as jnp
import numpy as np

from terrazzo.paper.experiments.base import Case, Experiment, Extras, Method, Run
from terrazzo.problems import variable_selection
from terrazzo.targets.target import Target

SIZES = (100, 200, 400)
NOISY = "_noisy"
NOISE = 10.0
SETTINGS = (*map(str, SIZES), *(f"{size}{NOISY}" for size in SIZES), "20", f"20{NOISY}")  # 20 features: for tests

METHODS = {
    "flow_mh": Method("Flow + MH", "flow"),
    "flow_mh_score_function": Method("Flow + MH, score-function gradient", "flow", gradient="score_function"),
    "gibbs": Method("Gibbs, a site a step", "baseline", "gibbs"),
    "tempering": Method("parallel tempering", "reference", "gibbs"),
    "ours": Method("ours", "ours"),
}


def build(setting: str, fold: int | None, seed: int, archive: Path | None) -> Case:
    """The posterior over sets of features; call it in float64."""
    size = int(setting.removesuffix(NOISY))
    problem = variable_selection(size, size // 10, noise=NOISE if setting.endswith(NOISY) else 0.0, seed=seed)
    return Case(problem.target, _extras(problem.truth["support"], problem.target))


def _extras(support: np.ndarray, target: Target) -> Extras:
    """How well draws recover the true support, log pi there and at the empty model, and inclusion probabilities."""

    def extras(run: Run) -> tuple[dict, dict[str, np.ndarray]]:
        theta = np.asarray(run.result.theta).reshape(-1, len(support))
        is_true = support == 1
        inclusion = theta.mean(axis=0)
        log_probs = [float(target.log_prob(jnp.asarray(s, jnp.int32))) for s in (support, 0 * support)]
        figures = {
            "exact_support": float((theta == support).all(axis=1).mean()),
            "false_in": float(inclusion[~is_true].sum()),
            "false_out": float((1 - inclusion[is_true]).sum()),
            "log_prob_true_support": log_probs[0],
            "log_prob_empty": log_probs[1],
        }
        return figures, {"inclusion": inclusion.astype(np.float32), "support": support.astype(np.uint8)}

    return extras


SELECTION = Experiment(
    name="selection",
    title="Bayesian variable selection",
    settings=SETTINGS,
    num_folds=0,
    methods=METHODS,
    build=build,
    precision="float64",
)
