"""Pieces in order of priority within a total time: for a machine that is lent for a few minutes.

A turn says how long a piece may draw, and how much time must be left for it to be started: a piece that would not be
finished is passed over for a later one that fits. The seconds of the paper's preset rest on runs on an H200 (see
docs/reproduction.md): what a row took there, and what cannot be cut (training, burn-in, compilation, statistics).
"""

import gc
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from terrazzo.paper.experiments.base import Piece
from terrazzo.paper.experiments.runner import Request, attempt, check_data, is_done, pieces

FIRST, OTHERS, EVERY = (0,), (1, 2, 3, 4), (0, 1, 2, 3, 4)
NO_FOLDS = (None,)
UNKNOWN = 60.0  # seconds that a piece without a turn and without a limit is taken to need: those of smoke take 25


class Turn(NamedTuple):
    """Some pieces of an experiment, and their seconds.

    Attributes:
        experiment: Its name.
        settings: Its targets, separated by spaces.
        samplers: Its rows, separated by spaces.
        max_seconds: When a piece keeps the draws it has.
        needs: Seconds that must be left when a piece is started.
        folds: Which folds, from 0.
    """

    experiment: str
    settings: str
    samplers: str
    max_seconds: float
    needs: float
    folds: tuple[int | None, ...] = NO_FOLDS

    def pieces(self) -> Iterator[Piece]:
        """The pieces of this turn, setting by setting."""
        for setting in self.settings.split():
            for sampler in self.samplers.split():
                for fold in self.folds:
                    yield Piece(self.experiment, setting, sampler, fold)


class Start(NamedTuple):
    """A piece with its seconds, as in `Turn`."""

    piece: Piece
    max_seconds: float | None
    needs: float


MIXTURES = "ring stripes cross scattered"
REGRESSIONS = "iris wine breast_cancer"
FULL_CALL = 1500.0  # more than ten minutes: such a piece wants a machine for longer

OURS = (
    Turn("ising", "paper", "ours", 90, 140),
    Turn("logistic", "iris", "ours", 90, 120, FIRST),
    Turn("selection", "100 100_noisy", "ours", 60, 90),
    Turn("logistic", "wine", "ours", 120, 150, FIRST),
    Turn("logistic", "breast_cancer", "ours", 150, 180, FIRST),
    Turn("mixture", MIXTURES, "ours", 45, 65),
    Turn("selection", "200 200_noisy", "ours", 90, 120),
    Turn("selection", "400 400_noisy", "ours", 130, 170),
    Turn("logistic", "digits", "ours", 200, 260, FIRST),
)
NEVER_RUN = (
    Turn("ising", "paper", "metropolis_100k coloured_gibbs", 60, 120),
    Turn("logistic", REGRESSIONS, "gibbs", 60, 100, FIRST),
    Turn("logistic", "digits", "metropolis gibbs", 60, 150, FIRST),
    Turn("selection", "100_noisy 200 200_noisy", "tempering", 120, 180),
    Turn("selection", "200_noisy", "gibbs", 150, 200),
    Turn("logistic", "breast_cancer", "flow_mh", 160, 220, (4,)),
    Turn("logistic", "digits", "flow_mh", 200, 290, FIRST),
    Turn("selection", "100_noisy 200_noisy", "flow_mh", 200, 280),
    Turn("selection", "400 400_noisy", "tempering", 240, 400),
    Turn("selection", "400 400_noisy", "flow_mh", 400, 570),
    Turn("selection", "400 400_noisy", "gibbs", 400, 570),
    Turn("ising", "paper", "dhmc", 900, FULL_CALL),
    Turn("logistic", "digits", "dhmc", 900, FULL_CALL, FIRST),
)
AGAIN = (
    Turn("ising", "paper", "gibbs_10k gibbs_20k gibbs_50k gibbs_100k", 60, 100),
    Turn("ising", "paper", "metropolis_10k metropolis_20k metropolis_50k tempering", 60, 100),
    Turn("logistic", REGRESSIONS, "metropolis", 35, 70, FIRST),
    Turn("mixture", MIXTURES, "flow_mh", 60, 90),
    Turn("logistic", "iris wine", "dhmc", 160, 200, FIRST),
    Turn("logistic", "iris", "flow_mh", 120, 150, FIRST),
    Turn("logistic", "wine", "flow_mh", 160, 200, FIRST),
    Turn("logistic", "breast_cancer", "flow_mh dhmc", 180, 230, FIRST),
    Turn("selection", "100", "tempering", 100, 130),
    Turn("selection", "100 100_noisy", "gibbs", 100, 150),
    Turn("selection", "200", "gibbs", 150, 200),
    Turn("ising", "paper", "flow_mh_1k flow_mh_2k flow_mh_5k flow_mh_10k", 160, 240),
    Turn("selection", "100 200", "flow_mh", 200, 280),
)
OTHER_FOLDS = (
    Turn("logistic", "iris", "ours", 90, 120, OTHERS),
    Turn("logistic", "wine", "ours", 120, 150, OTHERS),
    Turn("logistic", "breast_cancer", "ours", 150, 180, OTHERS),
    Turn("logistic", REGRESSIONS, "metropolis", 35, 70, OTHERS),
    Turn("logistic", "iris", "flow_mh", 120, 150, OTHERS),
    Turn("logistic", "wine", "flow_mh", 160, 200, OTHERS),
    Turn("logistic", "breast_cancer", "flow_mh", 160, 220, (1, 2, 3)),
    Turn("logistic", REGRESSIONS, "gibbs", 60, 100, OTHERS),
    Turn("logistic", "iris wine", "dhmc", 160, 200, OTHERS),
    Turn("logistic", "breast_cancer", "dhmc", 180, 230, OTHERS),
    Turn("logistic", "digits", "ours", 200, 260, OTHERS),
    Turn("logistic", "digits", "metropolis gibbs", 60, 150, OTHERS),
    Turn("logistic", "digits", "flow_mh", 200, 290, OTHERS),
    Turn("logistic", "digits", "dhmc", 900, FULL_CALL, OTHERS),
)
TURNS = {"paper": (*OURS, *NEVER_RUN, *AGAIN, *OTHER_FOLDS)}


def ordered(request: Request) -> list[Start]:
    """The pieces of a request: those of the preset's turns first, in their order, then the rest in the tables' order.

    A limit of the request stands for the turns' own.
    """
    asked = pieces(request)
    known = [(piece, turn) for turn in TURNS.get(request.preset, ()) for piece in turn.pieces()]
    starts = [Start(p, turn.max_seconds, turn.needs) for p, turn in known if p in asked]
    rest = [p for p in asked if p not in {s.piece for s in starts}]
    starts += [Start(piece, None, UNKNOWN) for piece in rest]
    if request.max_seconds is None:
        return starts
    uncut = lambda start: start.needs - (start.max_seconds or 0)
    return [Start(s.piece, request.max_seconds, uncut(s) + request.max_seconds) for s in starts]


def alone(request: Request, start: Start) -> Request:
    """The request of one piece."""
    piece = start.piece
    return replace(
        request, experiments=(piece.experiment,), settings=(piece.setting,), samplers=(piece.sampler,),
        folds=() if piece.fold is None else (piece.fold + 1,), max_seconds=start.max_seconds,
    )  # fmt: skip


def reproduce_within(
    request: Request, total_seconds: float, tell: Callable[[str], None] = lambda line: None
) -> list[str]:
    """Runs missing pieces in order of priority, each only if it can be finished in what is left of the time.

    Args:
        request: What may be run.
        total_seconds: Seconds from this call on.
        tell: Called with lines about what goes on.

    Returns:
        What went wrong, a line for each piece that failed. Pieces for which no time was left are told, no failures.
    """
    end = time.perf_counter() + total_seconds
    todo = [start for start in ordered(request) if not is_done(start.piece, alone(request, start))]
    check_data([start.piece for start in todo], request)
    failures, left_out = [], []
    for start in todo:
        left = end - time.perf_counter()
        if start.needs > left:
            left_out.append(start.piece)
            continue
        tell(f"{start.piece} ({start.needs:.0f} s at most, {left:.0f} s left)")
        try:
            failures += attempt(start.piece, alone(request, start), tell)
        except Exception as error:  # out of memory, say: the time that is left belongs to the other pieces
            failures.append(f"{start.piece}: {type(error).__name__}: {error}")
            tell(traceback.format_exc())
        gc.collect()
    if left_out:
        tell(f"no time was left for {len(left_out)} pieces: " + "; ".join(map(str, left_out)))
    return failures
