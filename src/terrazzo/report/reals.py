"""Real variables on the page of a run: histograms for a few numbers, pictures for grids, bands for long lists."""

from html import escape

import numpy as np

from terrazzo.report import pictures, svg
from terrazzo.report.markup import figure, grid, number, paragraph
from terrazzo.report.view import Block, View
from terrazzo.spaces import RealVariable

MOST_SINGLE = 12  # numbers of a variable that get a chart each
MOST_WORDS = 12  # numbers of a draw that are written out
MOST_BINS = 40
INNER = (0.05, 0.95)
TAIL = 0.001  # the share on either side that a histogram leaves out, so that one far draw does not flatten the rest


def real_variable(view: View, block: Block[RealVariable]) -> str:
    """The posterior of one real variable."""
    title = f"<h3>{escape(block.name)}</h3>"
    if pictures.is_grid(block.variable):
        return title + grid(_maps(view, block))
    if block.variable.num_elements <= MOST_SINGLE:
        return title + grid(_single(view, place) for place in range(block.start, block.stop))
    return title + _band(view, block)


def _single(view: View, place: int) -> str:
    """One number: a histogram of its density."""
    name, values = view.real_names[place], view.reals[:, place]
    mean = float(view.weights @ values)
    sd = float(np.sqrt(view.weights @ (values - mean) ** 2))
    edges, heights = density(values, view.weights)
    drawn = svg.columns(edges, heights, f"density of {name}", below="value")
    return figure(drawn, f"{name}: mean {number(mean)}, sd {number(sd, 3)}")


def density(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bins of one width over nearly all draws, and the density in each; the farthest tails are left out.

    >>> edges, heights = density(np.arange(1000.0), np.full(1000, 0.001))
    >>> len(edges), round(float((heights * np.diff(edges)).sum()), 2)
    (32, 1.0)
    """
    order = np.argsort(values, kind="stable")
    places = np.searchsorted(np.cumsum(weights[order]), (TAIL, 1 - TAIL))
    low, high = values[order[np.minimum(places, len(values) - 1)]]
    if high <= low:
        low, high = low - 0.5, high + 0.5
    number_of_bins = int(np.clip(np.sqrt(len(values)), 8, MOST_BINS))
    heights, edges = np.histogram(values, number_of_bins, (low, high), weights=weights)
    return edges, heights / (edges[1] - edges[0])


def _maps(view: View, block: Block[RealVariable]) -> list[str]:
    """A grid as pictures: means, and how unsure they are."""
    mean, sd = view.real_moments(block)
    low, high, most = float(mean.min()), float(mean.max()), float(sd.max()) or 1.0
    what, unsure = f"mean of {block.name}", f"standard deviation of {block.name}"
    return [
        *(
            figure(pictures.heat(p, low, high, what) + pictures.scale(low, high), what)
            for p in pictures.planes(block.variable, mean)
        ),
        *(
            figure(pictures.heat(p, 0, most, unsure) + pictures.scale(0, most), f"{unsure}: where it is unsure")
            for p in pictures.planes(block.variable, sd)
        ),
    ]


def _band(view: View, block: Block[RealVariable]) -> str:
    """A long list: mean and an interval along the index, and the three that vary most."""
    mean, sd = view.real_moments(block)
    low, high = view.real_intervals(block, INNER)
    caption = f"mean of {block.name} by index, with the middle 90 %"
    drawing = svg.band(mean, low, high, caption)
    order = np.sort(np.argsort(-sd, kind="stable")[:3])
    unsure = grid((_single(view, block.start + int(i)) for i in order), "cards")
    return figure(drawing, caption, "wide") + paragraph("The three that vary most:", "caption") + unsure


def numbers_in_words(values: np.ndarray) -> str:
    """Reals as a short text.

    >>> numbers_in_words(np.array([0.12345, 2.0]))
    '0.1235, 2'
    """
    shown = ", ".join(number(float(value), 4) for value in values[:MOST_WORDS])
    return shown + (f", … ({len(values)} values)" if len(values) > MOST_WORDS else "")
