"""Diagnostics: arrays in, numbers out. NumPy and SciPy only; nothing here knows what a sampler is.

Conventions (docs/theory.md, trap 5): a constant coordinate has NaN as its effective sample size and R-hat, is
counted and listed, and is never averaged in. Chains that are each constant but differ have an infinite R-hat.
The estimator of the paper is kept beside ours under its own name, `paper_ess`.
"""

from terrazzo.diagnostics.bridge import bennett as bennett
from terrazzo.diagnostics.bridge import bridge_log_z as bridge_log_z
from terrazzo.diagnostics.chains import ChainStatistics as ChainStatistics
from terrazzo.diagnostics.chains import describe as describe
from terrazzo.diagnostics.chains import ess as ess
from terrazzo.diagnostics.chains import mcse as mcse
from terrazzo.diagnostics.chains import rhat as rhat
from terrazzo.diagnostics.evidence import LogZ as LogZ
from terrazzo.diagnostics.evidence import importance_summary as importance_summary
from terrazzo.diagnostics.evidence import total_variation as total_variation
from terrazzo.diagnostics.paper import PaperESS as PaperESS
from terrazzo.diagnostics.paper import paper_ess as paper_ess
from terrazzo.diagnostics.streaming import RunningRhat as RunningRhat
from terrazzo.diagnostics.streaming import fast_rhat as fast_rhat
