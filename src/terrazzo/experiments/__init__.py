"""The paper's four experiments: what they run, how long, and one record for every finished piece."""

from terrazzo.experiments.base import Piece as Piece
from terrazzo.experiments.presets import EXPERIMENTS as EXPERIMENTS
from terrazzo.experiments.presets import PRESETS as PRESETS
from terrazzo.experiments.runner import Request as Request
from terrazzo.experiments.runner import pieces as pieces
from terrazzo.experiments.runner import reproduce as reproduce
