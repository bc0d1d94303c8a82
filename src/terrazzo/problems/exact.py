"""Exact answers by enumeration: log Z, marginals and pair marginals of any target with few enough states."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from terrazzo.errors import OptionError, TargetError, arguments
from terrazzo.targets.target import Target

MAX_STATES = 2**22
CHUNK = 2**16


class ExactAnswers(NamedTuple):
    """What a small target has in closed form.

    Attributes:
        log_z: The logarithm of the sum of pi over all states.
        states: All configurations, shape (state, d), in the order of `Space.enumerate`.
        probabilities: Their probabilities.
        mean_log_prob: The mean of log pi.
    """

    log_z: float
    states: np.ndarray
    probabilities: np.ndarray
    mean_log_prob: float

    def marginals(self) -> np.ndarray:
        """P(theta_i = k), shape (d, K_max)."""
        size = int(self.states.max()) + 1
        columns = [np.bincount(column, self.probabilities, size) for column in self.states.T]
        return np.stack(columns)

    def pair_marginals(self, i: int, j: int) -> np.ndarray:
        """P(theta_i = k, theta_j = l), shape (K_max, K_max)."""
        size = int(self.states.max()) + 1
        flat = self.states[:, i].astype(np.int64) * size + self.states[:, j]
        return np.bincount(flat, self.probabilities, size * size).reshape(size, size)

    def mean(self) -> np.ndarray:
        """E[theta], in inner integers from 0."""
        return self.probabilities @ self.states


def exact_answers(target: Target) -> ExactAnswers:
    """Sums over all states of a target.

        log Z = log sum_theta pi(theta)

    Args:
        target: A target with at most 2^22 states.

    >>> import terrazzo as tz
    >>> out = exact_answers(tz.Target(lambda s: 1.0 * s[0] * s[1], tz.binary(2)))
    >>> round(out.log_z, 4), out.marginals()[0].round(3).tolist()
    (1.7437, [0.35, 0.65])
    """
    arguments.instance("target", target, Target, "e.g. tz.Target(log_prob, tz.binary(20))", TargetError)
    if target.space.num_states > MAX_STATES:
        raise OptionError("target", f"has {target.space.num_states:.3g} states", f"at most {MAX_STATES} are summed")
    states = target.space.enumerate()
    evaluate = jax.jit(jax.vmap(target.log_prob))
    parts = [states[i : i + CHUNK] for i in range(0, len(states), CHUNK)]
    log_prob = np.concatenate([np.asarray(evaluate(jnp.asarray(part)), float) for part in parts])
    top = log_prob.max()
    weights = np.exp(log_prob - top)
    probabilities = weights / weights.sum()
    is_possible = weights > 0
    mean = float(probabilities[is_possible] @ log_prob[is_possible])
    return ExactAnswers(float(top + np.log(weights.sum())), states, probabilities, mean)
