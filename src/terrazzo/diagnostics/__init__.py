"""Diagnostics: arrays in, numbers out. NumPy and SciPy only; nothing here knows what a sampler is.

Conventions (docs/theory.md, trap 5): a constant coordinate has NaN as its effective sample size and R-hat, is
counted and listed, and is never averaged in. Chains that are each constant but differ have an infinite R-hat.
The estimator of the paper is kept beside ours under its own name, `paper_ess`.
"""

from terrazzo.diagnostics.bridge import bennett, bridge_log_z
from terrazzo.diagnostics.chains import ChainStatistics, describe, ess, mcse, rhat
from terrazzo.diagnostics.evidence import LogZ, importance_summary, total_variation
from terrazzo.diagnostics.paper import PaperESS, paper_ess
from terrazzo.diagnostics.streaming import RunningRhat

__all__ = [
    "ChainStatistics", "LogZ", "PaperESS", "RunningRhat", "bennett", "bridge_log_z", "describe", "ess",
    "importance_summary", "mcse", "paper_ess", "rhat", "total_variation",
]  # fmt: skip
