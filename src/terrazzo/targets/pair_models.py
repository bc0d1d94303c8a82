"""What a log-probability tells samplers of pair models about itself."""

from abc import abstractmethod
from typing import Any

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float


class AbstractPairModel(eqx.Module):
    """log pi(theta) = sum_i h_i(theta_i) + sum_e J_e [theta_a = theta_b], and its fields and couplings."""

    @abstractmethod
    def __call__(self, theta: Any) -> Float[Array, ""]:
        """log pi."""

    @abstractmethod
    def pairwise(self) -> tuple[Array, np.ndarray, Array]:
        """h, (site, value); the edges (a, b), (edge, 2); and J, one an edge."""
