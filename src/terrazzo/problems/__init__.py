"""Ready problems: the paper's targets and the field's standard ones, with exact answers where they exist."""

from terrazzo.problems.base import Problem as Problem
from terrazzo.problems.ising import ising_mnist as ising_mnist
from terrazzo.problems.ising import ising_torus as ising_torus
from terrazzo.problems.ising import kaufman_log_z as kaufman_log_z
