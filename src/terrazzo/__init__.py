"""Terrazzo: exact, diagnosed draws from any unnormalised distribution over integers."""

from terrazzo import errors as errors
from terrazzo.spaces import Space as Space
from terrazzo.spaces import binary as binary
from terrazzo.spaces import categorical as categorical
from terrazzo.spaces import integers as integers
from terrazzo.targets import Target as Target
from terrazzo.targets import blackbox as blackbox

__version__ = "0.1.0"
