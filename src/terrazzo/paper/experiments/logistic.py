"""The third experiment: 4-bit quantised softmax regression on four data sets, 5-fold cross-validation (Table 2).

A piece trains on four fifths of the rows and predicts the rest by the mean of its draws' predictions. A setting ending
in "_gaussian" has the discretised Gaussian prior in place of the uniform one.
"""

from pathlib import Path

import numpy as np

from terrazzo.errors import FileFormatError
from terrazzo.paper.experiments.base import Case, Experiment, Extras, Method, Run
from terrazzo.problems.logistic import DATASETS, NUM_FOLDS, accuracy, fold_rows, load_standardised, logistic_target

GAUSSIAN = "_gaussian"
SETTINGS = (*DATASETS, *(name + GAUSSIAN for name in DATASETS))
MOST_PREDICTIONS = 20_000  # draws that predict the held-out rows, spread over the run

METHODS = {
    "flow_mh": Method("Flow + MH", "flow"),
    "flow_mh_score_function": Method("Flow + MH, score-function gradient", "flow", gradient="score_function"),
    "metropolis": Method("discrete MCMC", "baseline", "metropolis"),
    "dhmc": Method("dHMC", "baseline", "discontinuous_hmc", step_share=0.1),
    "gibbs": Method("Gibbs, a site a step", "baseline", "gibbs"),
    "ours": Method("ours", "ours"),
}


def load_data(dataset: str, archive: Path | None) -> tuple[np.ndarray, np.ndarray]:
    """Standardised features with a last column of ones, and labels; from an archive where scikit-learn is missing.

    Args:
        dataset: One of `DATASETS`.
        archive: An `.npz` file with `{dataset}_x` and `{dataset}_y`, as `save_archive` writes it; or None.
    """
    if archive is None:
        return load_standardised(dataset)
    try:
        with np.load(archive, allow_pickle=False) as stored:
            return stored[f"{dataset}_x"], stored[f"{dataset}_y"]
    except (OSError, ValueError, KeyError) as error:
        raise FileFormatError(
            str(archive), f"does not hold {dataset} ({error})", "write it with logistic.save_archive"
        ) from None


def save_archive(path: Path) -> None:
    """Writes all four data sets into one `.npz` file, for machines without scikit-learn."""
    data = {name: load_standardised(name) for name in DATASETS}
    parts = {f"{name}_x": x for name, (x, _) in data.items()} | {f"{name}_y": y for name, (_, y) in data.items()}
    np.savez_compressed(path, allow_pickle=False, **parts)


def build(setting: str, fold: int | None, seed: int, archive: Path | None) -> Case:
    """The posterior of the weights given the rows of a fold's training part (all rows without a fold)."""
    features, labels = load_data(setting.removesuffix(GAUSSIAN), archive)
    every = np.arange(len(labels))
    train, test = (every, every[:0]) if fold is None else fold_rows(len(labels), fold)
    prior = "gaussian" if setting.endswith(GAUSSIAN) else "uniform"
    target = logistic_target(features[train], labels[train], prior=prior)
    return Case(target, _extras(features[test], labels[test], len(train)))


def _extras(features: np.ndarray, labels: np.ndarray, num_rows: int) -> Extras:
    def extras(run: Run) -> tuple[dict, dict[str, np.ndarray]]:
        figures: dict[str, float] = {"num_rows": num_rows, "num_held_out": len(labels)}
        if len(labels):
            weights = run.result.draws["theta"].reshape(-1, *run.result.draws["theta"].shape[2:])
            stride = -(-len(weights) // MOST_PREDICTIONS)
            figures["accuracy"] = accuracy(weights[::stride], features, labels)
        return figures, {}

    return extras


def check_data(setting: str, archive: Path | None) -> None:
    """Raises unless the data set of a setting is at hand."""
    load_data(setting.removesuffix(GAUSSIAN), archive)


LOGISTIC = Experiment(
    name="logistic",
    title="Quantised logistic regression",
    settings=SETTINGS,
    num_folds=NUM_FOLDS,
    methods=METHODS,
    build=build,
    check_data=check_data,
)
