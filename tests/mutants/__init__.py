"""Planted mistakes: each law must catch those of its samplers and transports.

A mutant replaces module-level functions by broken ones while it is planted; everything else is the code that users run.
Code that was compiled before is not affected: a law must trace the sampler inside `planted()`.
"""

import importlib
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple
from unittest import mock


def sampler_module(name):
    """The module of a kernel, or of a part such as "parts.ratios"."""
    return importlib.import_module(f"terrazzo.samplers.{name if name.startswith('parts.') else f'kernels.{name}'}")


class Mutant(NamedTuple):
    """What is broken, the law that must catch it, and (owner, attribute, what it is replaced by) for each change."""

    name: str
    law: str
    changes: tuple[tuple[Any, str, Any], ...]
    options: dict = {}  # noqa: RUF012
    is_sampled: bool = False

    @contextmanager
    def planted(self):
        with ExitStack() as stack:
            for change in self.changes:
                stack.enter_context(mock.patch.object(*change))
            yield
