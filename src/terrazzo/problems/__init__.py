"""Ready problems: the paper's targets and the field's standard ones, with exact answers where they exist."""

from terrazzo.problems.base import Problem
from terrazzo.problems.boltzmann import boltzmann_machine
from terrazzo.problems.curie_weiss import curie_weiss
from terrazzo.problems.data import coal_disasters
from terrazzo.problems.exact import ExactAnswers, exact_answers
from terrazzo.problems.ising import ising_mnist, ising_torus, kaufman_log_z
from terrazzo.problems.ising_chain import ising_chain
from terrazzo.problems.logistic import logistic_target, quantised_logistic
from terrazzo.problems.mixture import mixture
from terrazzo.problems.potts import potts_torus
from terrazzo.problems.selection import selection_target, variable_selection
from terrazzo.problems.spin_glass import spin_glass

__all__ = [
    "ExactAnswers", "Problem", "boltzmann_machine", "coal_disasters", "curie_weiss", "exact_answers", "ising_chain",
    "ising_mnist", "ising_torus", "kaufman_log_z", "logistic_target", "mixture", "potts_torus", "quantised_logistic",
    "selection_target", "spin_glass", "variable_selection",
]  # fmt: skip
