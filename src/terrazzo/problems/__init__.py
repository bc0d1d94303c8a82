"""Ready problems: the paper's targets and the field's standard ones, with exact answers where they exist."""

from terrazzo.problems.base import Problem as Problem
from terrazzo.problems.boltzmann import boltzmann_machine as boltzmann_machine
from terrazzo.problems.curie_weiss import curie_weiss as curie_weiss
from terrazzo.problems.exact import ExactAnswers as ExactAnswers
from terrazzo.problems.exact import exact_answers as exact_answers
from terrazzo.problems.ising import ising_mnist as ising_mnist
from terrazzo.problems.ising import ising_torus as ising_torus
from terrazzo.problems.ising import kaufman_log_z as kaufman_log_z
from terrazzo.problems.ising_chain import ising_chain as ising_chain
from terrazzo.problems.logistic import logistic_target as logistic_target
from terrazzo.problems.logistic import quantised_logistic as quantised_logistic
from terrazzo.problems.mixture import mixture as mixture
from terrazzo.problems.potts import potts_torus as potts_torus
from terrazzo.problems.selection import selection_target as selection_target
from terrazzo.problems.selection import variable_selection as variable_selection
from terrazzo.problems.spin_glass import spin_glass as spin_glass
