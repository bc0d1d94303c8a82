"""The drawing of samples: from where chains stand, in a store or after warm-up, to the draws that were asked for.

Between chunks: the store, the budget, progress. Chains of a stored run may stand at different places, if the processes
that ran them were ended in the middle; those behind catch up first, and all then go on together.
"""

import warnings
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from terrazzo.auto import Budget
from terrazzo.diagnostics.streaming import RunningRhat
from terrazzo.engine.kept import STORED_BYTES, Kept, bytes_a_draw
from terrazzo.engine.loop import draws
from terrazzo.inference.reporting import Ready
from terrazzo.runtime.processes import Team
from terrazzo.runtime.progress import Progress
from terrazzo.storage.checkpoints import Checkpoint, restore_states, state_leaves
from terrazzo.storage.memory import Memory
from terrazzo.storage.pieces import Segment
from terrazzo.targets.target import Target

WATCHED = 4096  # coordinates that the R-hat of the progress line looks at, evenly spaced: it must cost nothing


class Drawing(NamedTuple):
    """What drawing takes.

    Attributes:
        settings: What the user asked for.
        target: The target.
        key: The key of all draws.
        store: Where draws are kept.
        budget: What may be spent.
        progress: Where to show how far it is.
        team: The processes that share the chains.
    """

    settings: Any
    target: Target
    key: jax.Array
    store: Checkpoint | Memory
    budget: Budget
    progress: Progress
    team: Team

    @property
    def part(self) -> range:
        """The chains of this process."""
        return self.team.part(self.settings.chains)

    def draw(self, ready: Ready) -> tuple[Kept, BaseException | None]:
        """All kept draws of this process; an error or Ctrl-C ends them early and is handed back."""
        s, part = self.settings, self.part
        each = bytes_a_draw(self.target.space, keep_latent=s.keep_latent) if s.keep is None else s.keep.num_bytes
        size = len(part) * s.draws * each
        kept = Kept(s.draws, part, is_stored=self.store.is_lasting and size > STORED_BYTES)
        self.store.is_only_copy = kept.is_stored or self.team.size > 1
        monitor = RunningRhat()
        for chains, first, rows in self.store.stored_rows(part):
            kept.add(rows, chains, first)
            if chains == part:
                monitor.update(self._watched(rows))
        found = self.store.segments(part)
        self.progress.phase("sampling", s.draws, "draws")
        furthest = max(segment.done for segment in found)
        try:
            if len(found) > 1:  # processes had come differently far: those behind catch up first
                found = [self._advanced(ready, kept, monitor, segment, min(furthest, s.draws)) for segment in found]
                leaves = [np.concatenate(each) for each in zip(*(s.leaves or [] for s in found), strict=True)]
                found = [Segment(part, min(segment.done for segment in found), leaves)]
            if not (kept.done and self.budget.is_over) and kept.done >= furthest:
                self._advanced(ready, kept, monitor, found[0], s.draws)
        except (Exception, KeyboardInterrupt) as error:
            return kept, error
        if kept.done < s.draws:
            warnings.warn(
                f"{kept.done} of {s.draws} draws a chain were made before the time or the evaluations were used up",
                RuntimeWarning, stacklevel=2,
            )  # fmt: skip
        return kept, None

    def _advanced(self, ready: Ready, kept: Kept, monitor: RunningRhat, segment: Segment, until: int) -> Segment:
        """Chains that have come equally far, after they have drawn up to a number, or the budget is spent."""
        s, chains, done, leaves = self.settings, segment.chains, segment.done, segment.leaves
        if done >= until:
            return segment
        if self.team.is_first:
            self.store.forget_result()
        own = ready.chains.of_part(chains, s.chains)
        states = jax.tree.map(lambda x: x[chains.start : chains.stop], ready.states)  # where warm-up left them
        if leaves is not None:
            states = restore_states(states, leaves)
        states = own.place(states)
        thin = ready.thin if ready.plan is None else ready.thin // ready.plan.rounds
        pace: dict[str, Any] = {"chunk_size": s.chunk_size, "affordable": lambda: self._affordable(kept)}
        for chunk in draws(own, self.key, states, until - done, first=done, thin=thin, **pace):
            rows, leaves = chunk.out.rows, state_leaves(chunk.out.states)
            self.store.save_draws(rows, leaves, first=done, chains=None if len(chains) == s.chains else chains)
            kept.add_chunk(chunk, chains, done)
            done += chunk.size
            self.budget.spend_evaluations("sampling", rows["num_evaluations"])
            if chains == self.part:
                monitor.update(self._watched(rows))
            acceptance = float(rows["acceptance_rate"].mean())
            self.progress.update(kept.done, acceptance=acceptance, worst_r_hat=monitor.worst())
            if self.budget.is_over:
                break
        return Segment(chains, done, leaves)

    def _watched(self, rows: Mapping[str, np.ndarray]) -> np.ndarray:
        """The coordinates that the progress line looks at, (chain, draw, dim)."""
        theta = rows["theta"]
        if "reals" in rows:
            theta = np.concatenate([theta.astype(float), rows["reals"]], axis=-1)
        theta = theta if theta.shape[-1] else rows["log_prob"][..., None]
        step = -(-theta.shape[-1] // WATCHED)
        return np.moveaxis(theta[..., ::step], 0, 1)

    def _affordable(self, kept: Kept) -> int:
        """Kept draws that the evaluations left still pay for, judged by the last chunk; at least one."""
        if self.budget.evaluations is None or not kept.done:
            return self.settings.draws
        return max(1, int(self.budget.total_left // max(kept.last_evaluations, 1.0)))
