"""Results: draws with everything that was measured while they were made."""

from terrazzo.results.result import Result

__all__ = ["Result"]
