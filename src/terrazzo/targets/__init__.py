"""Targets: a log-probability on a space."""

from terrazzo.targets.black_boxes import BlackBox, blackbox
from terrazzo.targets.target import Target, as_target

__all__ = ["BlackBox", "Target", "as_target", "blackbox"]
