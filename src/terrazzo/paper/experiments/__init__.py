"""The paper's four experiments: what they run, how long, and one record for every finished piece."""

from terrazzo.paper.experiments.base import Piece as Piece
from terrazzo.paper.experiments.presets import EXPERIMENTS as EXPERIMENTS
from terrazzo.paper.experiments.presets import PRESETS as PRESETS
from terrazzo.paper.experiments.runner import Request as Request
from terrazzo.paper.experiments.runner import pieces as pieces
from terrazzo.paper.experiments.runner import reproduce as reproduce
