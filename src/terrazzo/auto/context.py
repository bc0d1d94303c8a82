"""What all phases of one run share."""

from typing import NamedTuple

from jax.sharding import Mesh

from terrazzo.auto.budget import Budget
from terrazzo.auto.policy import Policy
from terrazzo.runtime.progress import Progress
from terrazzo.targets.target import Target


class Context(NamedTuple):
    """The run that warm-up prepares, and what it may spend.

    Attributes:
        target: The target.
        num_chains: The chains of the run.
        num_draws: Its kept draws a chain.
        thin: Its rounds a kept draw, if the user chose them.
        mesh: The devices of its chains.
        length: Draws that a chunk of it can hold.
        budget: What everything may spend.
        progress: Where phases show.
    """

    target: Target
    num_chains: int
    num_draws: int
    thin: int | None
    mesh: Mesh
    length: int
    budget: Budget
    progress: Progress

    @property
    def policy(self) -> Policy:
        """The numbers that decide."""
        return self.budget.policy
