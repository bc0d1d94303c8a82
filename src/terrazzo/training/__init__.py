"""Training: what a transport is fitted for, and the loop that fits it."""

from terrazzo.training.fit import Fitted, fit
from terrazzo.training.objectives import ForwardKL, ReverseKL, forward_kl, reverse_kl
from terrazzo.training.settings import Training

__all__ = ["Fitted", "ForwardKL", "ReverseKL", "Training", "fit", "forward_kl", "reverse_kl"]
