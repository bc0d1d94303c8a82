"""The section on the posterior: bars for few values, histograms for many, pictures for grids, bands for long lists.

Real variables are drawn by `reals`.
"""

from functools import partial
from html import escape

import numpy as np

from terrazzo.report import pictures, svg
from terrazzo.report.markup import figure, grid, paragraph, section
from terrazzo.report.reals import real_variable
from terrazzo.report.view import Block, View
from terrazzo.spaces import Variable
from terrazzo.verdict.summaries import label_of

MOST_VARIABLES = 40
MOST_SINGLE = 12  # coordinates of a variable that get a chart each
MOST_ONES = 24  # binary coordinates that get a bar each
MOST_BARS = 12  # values of a coordinate that get a bar with a name
MOST_BINS = 60
INNER = (0.05, 0.95)


def marginals_section(view: View) -> str:
    """The posterior of every variable."""
    if not view.has_draws:
        return ""
    drawn = {block.name: partial(_variable, view, block) for block in view.blocks}
    drawn |= {block.name: partial(real_variable, view, block) for block in view.real_blocks}
    parts = [drawn[name]() for name, _ in view.result.space.variables[:MOST_VARIABLES]]
    rest = len(drawn) - MOST_VARIABLES
    if rest > 0:
        parts.append(paragraph(f"{rest} more variables are in the table of coordinates below.", "caption"))
    weighted = "" if view.result.log_weights is None else "Draws count by their weights. "
    intro = weighted + "How probable each value is, whatever the other coordinates are."
    return section("posterior", "Posterior of every variable", paragraph(intro), *parts)


def _variable(view: View, block: Block[Variable]) -> str:
    v = block.variable
    title = f"<h3>{escape(block.name)}</h3>"
    if pictures.is_grid(v):
        return title + grid(_maps(view, block))
    if v.kind == "binary" and 1 < v.num_elements <= MOST_ONES:
        mean, _ = view.moments(block)
        labels = [name[len(block.name) :].strip("[]") for name in view.names[block.start : block.stop]]
        drawn = svg.bars(labels, mean.tolist(), f"probability that {block.name} is 1")
        return title + grid([figure(drawn, f"probability that each of {block.name} is 1")])
    if v.num_elements <= MOST_SINGLE:
        return title + grid(_single(view, block, i) for i in range(block.start, block.stop))
    return title + (_band(view, block) if v.is_ordered else _stack(view, block))


def _maps(view: View, block: Block[Variable]) -> list[str]:
    """A grid as pictures: where it lies and how unsure it is."""
    v = block.variable
    if v.is_ordered:
        mean, sd = view.moments(block)
        top = v.size - 1
        low, high = (0.0, float(top)) if v.size == 2 else (float(mean.min()), float(mean.max()))
        what = f"probability that {block.name} is 1" if v.kind == "binary" else f"mean of {block.name}"
        most = float(sd.max()) or 1.0
        return [
            *(
                figure(pictures.heat(p, low, high, what) + pictures.scale(low + v.low, high + v.low), what)
                for p in pictures.planes(v, mean)
            ),
            *(
                figure(
                    pictures.heat(p, 0, most, f"standard deviation of {block.name}") + pictures.scale(0, most),
                    f"standard deviation of {block.name}: where it is unsure",
                )
                for p in pictures.planes(v, sd)
            ),
        ]
    code, share = view.likeliest(block)
    what, sure = f"most probable category of {block.name}", f"probability of the most probable category of {block.name}"
    return [
        *(
            figure(pictures.image(pictures.theme.categories(p, v.size), what) + pictures.legend(v), what)
            for p in pictures.planes(v, code)
        ),
        *(figure(pictures.heat(p, 0, 1, sure) + pictures.scale(0, 1), sure) for p in pictures.planes(v, share)),
    ]


def _single(view: View, block: Block[Variable], coordinate: int) -> str:
    """One coordinate: bars where values are few or have no order, columns otherwise."""
    v, name = block.variable, view.names[coordinate]
    if v.size <= MOST_BARS or not v.is_ordered:
        shares = view.probabilities(coordinate, v.size)
        shown = np.arange(v.size) if v.size <= MOST_BARS else np.sort(np.argsort(-shares, kind="stable")[:MOST_BARS])
        rest = "" if v.size <= MOST_BARS else f" (the {MOST_BARS} most probable of {v.size:,})"
        labels = [label_of(v, int(code)) for code in shown]
        return figure(svg.bars(labels, shares[shown].tolist(), f"probabilities of {name}"), name + rest)
    values = view.codes[:, coordinate].astype(np.int64) + v.low
    edges, heights = histogram(values, view.weights)
    mean = float(view.weights @ values)
    sd = float(np.sqrt(view.weights @ (values - mean) ** 2))
    caption = f"{name}: mean {mean:.4g}, sd {sd:.3g}"
    return figure(svg.columns(edges, heights, f"distribution of {name}", below="value"), caption)


def histogram(values: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Bins of whole numbers, all of one width, and the probability of a value in each.

    >>> edges, heights = histogram(np.array([3, 4, 4, 5]), np.full(4, 0.25))
    >>> edges.tolist(), heights.tolist()
    ([2.5, 3.5, 4.5, 5.5], [0.25, 0.5, 0.25])
    """
    low, high = int(values.min()), int(values.max())
    width = -(-(high - low + 1) // MOST_BINS)
    number = -(-(high - low + 1) // width)
    counts = np.bincount((values - low) // width, weights, minlength=number)
    return low - 0.5 + width * np.arange(number + 1), counts / width


def _band(view: View, block: Block[Variable]) -> str:
    """A long list of ordered coordinates: mean and an interval along the index."""
    v = block.variable
    mean, sd = view.moments(block)
    if v.kind == "binary":
        x = svg.Axis(-0.5, v.num_elements - 0.5, svg.LEFT, svg.WIDTH - svg.RIGHT)
        y = svg.Axis(0.0, 1.0, svg.HEIGHT - svg.BOTTOM, svg.TOP)
        places = x.at(np.arange(v.num_elements))
        step = (x.stop - x.start) / v.num_elements
        width = np.full(v.num_elements, max(step * 0.8, 0.2))
        tops = y.at(mean)
        caption = f"probability that {block.name} is 1, by index"
        body = svg.rectangles(places - width / 2, tops, width, y.start - tops, "c0")
        drawing = svg.chart(svg.frame(x, y, below="index") + body, caption)
    else:
        low, high = view.intervals(block, INNER)
        caption = f"mean of {block.name} by index, with the middle 90 %"
        drawing = svg.band(mean + v.low, low + v.low, high + v.low, caption)
    order = np.argsort(-sd, kind="stable")[:MOST_SINGLE]
    unsure = grid((_single(view, block, block.start + int(i)) for i in np.sort(order[:3])), "cards")
    return figure(drawing, caption, "wide") + paragraph("The three that vary most:", "caption") + unsure


def _stack(view: View, block: Block[Variable]) -> str:
    """A long list of unordered coordinates: categories by index."""
    v = block.variable
    shares = np.stack([view.probabilities(i, v.size) for i in range(block.start, block.stop)], axis=1)
    shown = np.sort(np.argsort(-shares.sum(axis=1), kind="stable")[:MOST_BARS])
    caption = f"{block.name}: probability of each category (rows, from the top: " + ", ".join(
        svg.clipped(label_of(v, int(code)), 24) for code in shown
    )
    caption += f"{', and others' if len(shown) < v.size else ''}) by index (columns)"
    plane = np.repeat(shares[shown][:, :: -(-shares.shape[1] // pictures.LARGEST)], 1, axis=0)
    return figure(pictures.heat(plane, 0, 1, caption) + pictures.scale(0, 1), caption, "wide strip")
