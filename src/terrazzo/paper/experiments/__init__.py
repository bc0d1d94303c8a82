"""The paper's four experiments: what they run, how long, and one record for every finished piece."""

from terrazzo.paper.experiments.base import Piece
from terrazzo.paper.experiments.presets import EXPERIMENTS, PRESETS
from terrazzo.paper.experiments.runner import Request, pieces, reproduce

__all__ = ["EXPERIMENTS", "PRESETS", "Piece", "Request", "pieces", "reproduce"]
