"""Every mistake a user can make has a type here.

Each error names the field, what is wrong with it (with the value), and the remedy, in at most five lines.
They are raised before any long work starts wherever that is possible.
"""

__all__ = [
    "ConfigurationError", "FileFormatError", "GradientError", "MissingPackageError", "OptionError", "ProcessError",
    "SpaceError", "StartError", "TargetError", "TerrazzoError", "TrainingError", "TransportError",
    "UnsupportedError",
]  # fmt: skip


class TerrazzoError(Exception):
    """Base class of all errors of Terrazzo.

    Args:
        field: The argument, option or variable that is at fault.
        problem: What is wrong, with the offending value.
        remedy: What to do about it.

    >>> print(OptionError("draws", "must be at least 1, got 0", "ask for one draw or more"))
    draws: must be at least 1, got 0
      -> ask for one draw or more
    """

    def __init__(self, field: str, problem: str, remedy: str):
        self.field = field
        self.problem = problem
        self.remedy = remedy
        super().__init__(f"{field}: {problem}\n  -> {remedy}")


class SpaceError(TerrazzoError, ValueError):
    """A variable or a space is ill-defined, or a configuration lies outside it."""


class TargetError(TerrazzoError, ValueError):
    """The log-probability cannot be used: wrong shape, dtype, value, or it raises."""


class GradientError(TargetError):
    """A method needs the gradient of the log-probability and the target has none."""


class StartError(TargetError):
    """No starting configuration of positive probability was found."""


class OptionError(TerrazzoError, ValueError):
    """An option has a value outside its range, or does not fit the other options."""


class UnsupportedError(OptionError):
    """A method does not apply to this target (for example a binary method on K = 5)."""


class ConfigurationError(OptionError):
    """A folder holds results of another configuration than the one asked for."""


class ProcessError(TerrazzoError, RuntimeError):
    """Another process of the run has stopped, or cannot be reached."""


class TransportError(TerrazzoError, ValueError):
    """A transport does not fit the space, or cannot be built."""


class TrainingError(TerrazzoError, RuntimeError):
    """Training met a non-finite loss before any usable transport existed."""


class MissingPackageError(TerrazzoError, ImportError):
    """An optional package is not installed.

    >>> print(MissingPackageError("matplotlib", extra="plots"))
    matplotlib: is not installed
      -> pip install 'terrazzo[plots]'
    """

    def __init__(self, package: str, *, extra: str):
        super().__init__(package, "is not installed", f"pip install 'terrazzo[{extra}]'")


class FileFormatError(TerrazzoError, ValueError):
    """A file is not one of ours, is damaged, or is of a version we cannot read."""
