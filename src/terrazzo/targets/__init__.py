"""Targets: a log-probability on a space."""

from terrazzo.targets.black_boxes import BlackBox as BlackBox
from terrazzo.targets.black_boxes import blackbox as blackbox
from terrazzo.targets.target import Target as Target
from terrazzo.targets.target import as_target as as_target
