"""Grids as pictures, with the scale that they are drawn in."""

from collections.abc import Sequence
from html import escape

import numpy as np

from terrazzo.report import theme
from terrazzo.report.markup import number
from terrazzo.report.png import data_uri
from terrazzo.report.svg import clipped
from terrazzo.spaces import RealVariable, Variable
from terrazzo.verdict.summaries import label_of

MOST_LABELS = 8
MOST_PLANES = 4  # of a variable with more than two axes
LARGEST = 512  # rows or columns of a picture: larger grids are shown by every n-th


def is_grid(variable: Variable | RealVariable) -> bool:
    """Whether a variable is better looked at as a picture than as a list."""
    return len(variable.shape) >= 2 and min(variable.shape[-2:]) >= 2 and variable.num_elements >= 9


def planes(variable: Variable | RealVariable, flat: np.ndarray) -> list[np.ndarray]:
    """The two-dimensional slices of flat values: one, or the first few of a variable with more axes."""
    stack = np.asarray(flat).reshape(-1, *variable.shape[-2:])[:MOST_PLANES]
    return [plane[:: -(-plane.shape[0] // LARGEST), :: -(-plane.shape[1] // LARGEST)] for plane in stack]


def image(pixels: np.ndarray, label: str) -> str:
    """A picture whose cells stay squares however large it is shown."""
    height, width = pixels.shape[:2]
    return f'<img class="pixels" alt="{escape(label)}" width="{width}" height="{height}" src="{data_uri(pixels)}">'


def heat(plane: np.ndarray, low: float, high: float, label: str) -> str:
    """Numbers from dark to light."""
    return image(theme.sequential((plane - low) / ((high - low) or 1.0)), label)


def scale(low: float, high: float) -> str:
    """The colours of `heat` with the numbers at their ends."""
    strip = theme.sequential(np.linspace(0, 1, 64))[None]
    return (
        f'<span class="scale"><span>{escape(number(low, 3))}</span><img alt="" src="{data_uri(strip)}">'
        f"<span>{escape(number(high, 3))}</span></span>"
    )


def legend(variable: Variable) -> str:
    """The colours of categories, with their labels."""
    shown = range(min(variable.size, MOST_LABELS))
    colours = theme.categories(np.arange(variable.size), variable.size)
    items = (
        f'<span><i style="background:{theme.hexadecimal(colours[code])}"></i>'
        f"{escape(clipped(label_of(variable, code), 24))}</span>"
        for code in shown
    )
    rest = "" if variable.size <= MOST_LABELS else f"<span>and {variable.size - MOST_LABELS} more</span>"
    return f'<span class="legend">{"".join(items)}{rest}</span>'


def configuration(variable: Variable, codes: np.ndarray, label: str) -> str:
    """One configuration of a grid as pictures."""
    found: Sequence[np.ndarray] = planes(variable, codes)
    if variable.is_ordered:
        return "".join(heat(plane, 0, variable.size - 1, label) for plane in found)
    return "".join(image(theme.categories(plane, variable.size), label) for plane in found)
