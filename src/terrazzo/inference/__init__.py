"""The calls of users: `sample`, `maximize`, `condition`."""

from terrazzo.inference.call import sample

__all__ = ["sample"]
