"""Quantised softmax regression: weights on a grid of few bits, the paper's third experiment.

    log pi(W) = sum_n log softmax_c(x_n'W)_{c = y_n} + log prior(W),    W in {-2^(b-1), ..., 2^(b-1) - 1}^{(F + 1) x C}

Features are standardised (sample sd), and a row of biases comes last. With one bit the values are -1 and 1. The prior
is even on the grid, or a discretised standard normal.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr
from jaxtyping import Array, Float, Int

from terrazzo.errors import MissingPackageError, OptionError, arguments
from terrazzo.problems.base import Problem
from terrazzo.spaces import integers
from terrazzo.targets.target import Target

DATASETS = ("iris", "wine", "breast_cancer", "digits")
PRIORS = ("uniform", "gaussian")
NUM_FOLDS = 5


class Logistic(eqx.Module):
    """The log-posterior of a weight matrix, shape (features, classes)."""

    features: Float[Array, "row feature"]
    labels: Int[Array, " row"]
    num_bits: int = eqx.field(static=True)
    prior: str = eqx.field(static=True)

    def __call__(self, theta: Any) -> Float[Array, ""]:
        weights = theta.astype(self.features.dtype)
        weights = 2 * weights + 1 if self.num_bits == 1 else weights  # -1, 0 -> -1, 1
        logits = self.features @ weights
        chosen = jnp.take_along_axis(logits, self.labels[:, None], axis=1)[:, 0]
        value = jnp.sum(chosen - jax.nn.logsumexp(logits, axis=1))
        if self.prior == "gaussian":  # the mass of N(0, 1) on [w, w + 1), taken in the lower tail
            low = jnp.where(weights >= 0, -weights - 1.0, weights)
            upper, lower = log_ndtr(low + 1.0), log_ndtr(low)
            value = value + jnp.sum(upper + jnp.log(-jnp.expm1(lower - upper)))
        return value


def logistic_target(features: Any, labels: Any, *, num_bits: int = 4, prior: str = "uniform") -> Target:
    """Quantised softmax regression on given data, used as they are (add a column of ones for a bias).

    Args:
        features: Shape (row, feature).
        labels: Class numbers from 0.
        num_bits: Bits a weight.
        prior: "uniform" or "gaussian".

    >>> logistic_target(np.ones((4, 1)), np.array([0, 1, 1, 2])).space.sizes.tolist()
    [16, 16, 16]
    """
    x, y = arguments.array("features", features, 2, "rows of numbers"), np.asarray(labels)
    if x.ndim != 2 or y.shape != (x.shape[0],) or y.dtype.kind not in "iu" or y.min() < 0:
        raise OptionError("labels", f"have shape {y.shape} for features {x.shape}", "one class number from 0 a row")
    num_bits = arguments.count("num_bits", num_bits, high=8, remedy="1 to 8; 4 in the paper")
    arguments.choice("prior", prior, tuple(PRIORS))
    half = 2 ** (num_bits - 1)
    fn = Logistic(jnp.asarray(x, jnp.result_type(float)), jnp.asarray(y, jnp.int32), num_bits, prior)
    return Target(fn, integers(-half, half - 1, (x.shape[1], int(y.max()) + 1), dims=("feature", "class")))


def fold_rows(num_rows: int, fold: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows to train on and rows held out, for one fold of a random permutation.

    >>> train, test = fold_rows(10, 0)
    >>> len(train), len(test)
    (8, 2)
    """
    if isinstance(fold, bool) or not isinstance(fold, int) or not 0 <= fold < NUM_FOLDS:
        raise OptionError("fold", f"must be 0 to {NUM_FOLDS - 1}, got {fold!r}", "or None for all rows")
    parts = np.array_split(np.random.default_rng(0).permutation(num_rows), NUM_FOLDS)
    return np.concatenate([part for i, part in enumerate(parts) if i != fold]), parts[fold]


def load_standardised(dataset: str) -> tuple[np.ndarray, np.ndarray]:
    """Features, standardised and with a last column of ones, and labels, of a data set that scikit-learn brings."""
    arguments.choice("dataset", dataset, tuple(DATASETS))
    try:
        from sklearn import datasets
    except ImportError:
        raise MissingPackageError("scikit-learn", extra="paper") from None
    features, labels = getattr(datasets, f"load_{dataset}")(return_X_y=True)
    sd = features.std(axis=0, ddof=1)
    scaled = (features - features.mean(axis=0)) / np.where(sd == 0, 1.0, sd)
    return np.column_stack([scaled, np.ones(len(scaled))]), labels.astype(np.int32)


def quantised_logistic(
    dataset: str = "iris", *, num_bits: int = 4, prior: str = "uniform", fold: int | None = None
) -> Problem:
    """Quantised softmax regression on one of four data sets: d = 15 (iris), 42 (wine), 62 (breast cancer), 650.

    Args:
        dataset: "iris", "wine", "breast_cancer" or "digits" (they come with scikit-learn).
        num_bits: Bits a weight; 4 in the paper.
        prior: "uniform" (the paper's) or "gaussian" (a standard normal, discretised).
        fold: 0 to 4: train on four fifths of the rows, as the paper does; None: all rows.

    Returns:
        The problem; `truth` holds the data by part: `features`, `labels`, `test_features`, `test_labels`.

    Reference: Jaini, Nielsen, Welling (2021), section 5.

    >>> quantised_logistic("iris").target.space.num_dims
    15
    """
    features, labels = load_standardised(dataset)
    every = np.arange(len(labels))
    train, test = (every, every[:0]) if fold is None else fold_rows(len(labels), fold)
    truth = {
        "features": features[train],
        "labels": labels[train],
        "test_features": features[test],
        "test_labels": labels[test],
    }
    target = logistic_target(features[train], labels[train], num_bits=num_bits, prior=prior)
    summary = f"{num_bits}-bit softmax regression, {dataset.replace('_', ' ')}, d = {target.space.num_dims}"
    return Problem(
        f"logistic_{dataset}", target=target, summary=summary, reference="Jaini et al. (2021)", log_z=None, truth=truth
    )


def accuracy(draws: Any, features: Any, labels: Any) -> float:
    """The share of rows whose label is the likeliest under the mean prediction of all draws.

    Args:
        draws: Weight matrices in the user's values, shape (..., feature, class).
        features: Rows to predict.
        labels: Their true classes.

    >>> accuracy(np.array([[[-3, 3]], [[-1, 1]]]), np.array([[1.0], [-1.0]]), np.array([1, 0]))
    1.0
    """
    x, weights = np.asarray(features, float), np.asarray(draws, float)
    weights = weights.reshape(-1, *weights.shape[-2:])
    total = np.zeros((len(x), weights.shape[-1]))
    for start in range(0, len(weights), 1024):
        logits = x @ weights[start : start + 1024]
        odds = np.exp(logits - logits.max(axis=-1, keepdims=True))
        total += (odds / odds.sum(axis=-1, keepdims=True)).sum(axis=0)
    return float((total.argmax(axis=1) == np.asarray(labels)).mean())
