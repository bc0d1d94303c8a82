"""Going on with a run in the process that sampled."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import numpy as np

from terrazzo.auto import Budget
from terrazzo.inference.run import Settings
from terrazzo.results.result import Result
from terrazzo.runtime.interruption import Interruption
from terrazzo.runtime.progress import Progress
from terrazzo.storage.memory import Memory


@dataclass(frozen=True)
class Continuation:
    """Goes on with a run from where its chains are: what `Result.extend` calls.

    Attributes:
        run_with: `(store, settings, (progress, budget, interruption)) -> Result`.
        settings: Those of the run.
        memory: What warm-up left, and the states after the last draw.
        is_double: Whether it ran in float64.
    """

    run_with: Callable[..., Result]
    settings: Settings
    memory: Memory
    is_double: bool

    def __call__(self, result: Result, draws: int) -> Result:
        interruption = Interruption()
        progress = Progress("off", on_update=interruption.check)
        settings = self.settings._replace(draws=result.num_draws + draws, may_restart=False)
        memory = Memory(self.memory.setup, _rows(result), self.memory.leaves)
        with jax.enable_x64(self.is_double), interruption, progress:
            longer = self.run_with(memory, settings, (progress, Budget(), interruption))
        return longer.changed(continuation=replace(self, settings=settings, memory=memory), model=result.model)


def _rows(result: Result) -> dict[str, np.ndarray]:
    """The draws of a result as the loop hands them over, (draw, chain, ...)."""
    arrays = {"theta": result.codes, **result.sample_stats}
    if result.reals is not None:
        arrays["reals"] = result.reals
    if result.latent is not None:
        arrays["latent"] = result.latent
    if result.replicas is not None:
        arrays["replica_log_probs"] = result.replicas.log_prob
    return {name: np.moveaxis(array, 1, 0) for name, array in arrays.items()}
