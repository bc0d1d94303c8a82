"""Charts as SVG, written here: 340 units wide, so that letters stay readable where a phone shows one in a row.

Every chart has a role and a text for those who do not see it. Colours are classes (`c0` to `c7`, `ink`, `soft`) that
the style sheet fills in, so that charts turn dark with the page.
"""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

import numpy as np

from terrazzo.report.markup import number

WIDTH, HEIGHT = 340, 170
LEFT, RIGHT, TOP, BOTTOM = 46, 8, 10, 30


class Axis(NamedTuple):
    """A straight scale from numbers to places."""

    low: float
    high: float
    start: float
    stop: float

    def at(self, values: np.ndarray) -> np.ndarray:
        """The places of numbers."""
        span = (self.high - self.low) or 1.0
        return self.start + (np.asarray(values, float) - self.low) / span * (self.stop - self.start)


def chart(content: str, label: str, *, height: float = HEIGHT) -> str:
    """An SVG of the common width."""
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {height:g}" role="img" aria-label="{escape(label)}" class="chart">{content}</svg>'
    )


def text(x: float, y: float, words: str, *, anchor: str = "start", kind: str = "soft") -> str:
    """Words at a place."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str = "rule") -> str:
    """A straight line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def polyline(x: np.ndarray, y: np.ndarray, kind: str) -> str:
    """A line through points, to a tenth of a unit."""
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x, y, strict=True))
    return f'<polyline points="{points}" class="line {kind}"/>'


def rectangles(x: np.ndarray, y: np.ndarray, widths: np.ndarray, heights: np.ndarray, kind: str) -> str:
    """Filled rectangles of one colour, as one path."""
    parts = (
        f"M{a:.1f} {b:.1f}h{w:.1f}v{h:.1f}h{-w:.1f}z" for a, b, w, h in zip(x, y, widths, heights, strict=True) if h > 0
    )
    return f'<path d="{"".join(parts)}" class="fill {kind}"/>'


def ticks(low: float, high: float, most: int = 4) -> list[float]:
    """Round numbers between two others.

    >>> ticks(0, 1), ticks(-3, 17)
    ([0.0, 0.5, 1.0], [0.0, 5.0, 10.0, 15.0])
    """
    span = high - low
    if not np.isfinite(span) or span <= 0:
        return [low]
    raw = span / most
    scale = 10.0 ** np.floor(np.log10(raw))
    step = next(m * scale for m in (1, 2, 5, 10) if m * scale >= raw * 0.999)
    first = np.ceil(low / step - 1e-9)
    return [float(round(k * step, 12)) + 0.0 for k in np.arange(first, np.floor(high / step + 1e-9) + 1)]


def frame(x: Axis, y: Axis, *, below: str = "", x_ticks: Sequence[float] | None = None, has_y: bool = True) -> str:
    """Axes with numbers, and a word under them."""
    parts = [line(x.start, y.start, x.stop, y.start)]
    if has_y:
        for value in ticks(y.low, y.high):
            place = float(y.at(np.array(value)))
            parts += [
                line(x.start, place, x.stop, place, "faint"),
                text(x.start - 5, place + 4, _short(value), anchor="end"),
            ]
    for value in ticks(x.low, x.high, 5) if x_ticks is None else x_ticks:
        parts.append(text(float(x.at(np.array(value))), y.start + 13, _short(value), anchor="middle"))
    if below:
        parts.append(text((x.start + x.stop) / 2, y.start + 26, below, anchor="middle"))
    return "".join(parts)


def _short(value: float) -> str:
    if abs(value) >= 1e5:
        return f"{value:.1e}".replace("e+0", "e").replace("e+", "e")
    return number(value, 5)


def bars(labels: Sequence[str], shares: Sequence[float], label: str) -> str:
    """Horizontal bars with their numbers: for few values, whose names may be long."""
    step, left = 19, 110 if max(map(len, labels), default=0) > 7 else 60
    height = step * len(labels) + 8
    parts = []
    for i, (name, share) in enumerate(zip(labels, shares, strict=True)):
        y, length = 4 + step * i, (WIDTH - left - 52) * float(share)
        parts.append(text(left - 6, y + 13, clipped(name, 17 if left > 60 else 8), anchor="end", kind="ink"))
        parts.append(
            f'<rect x="{left}" y="{y + 2}" width="{max(length, 0.5):.1f}" height="{step - 5}" class="fill c0"/>'
        )
        parts.append(text(left + length + 5, y + 13, f"{share:.3f}"))
    return chart("".join(parts), label, height=height)


def columns(edges: np.ndarray, heights: np.ndarray, label: str, *, below: str) -> str:
    """Vertical bars between edges: for many values."""
    x = Axis(float(edges[0]), float(edges[-1]), LEFT, WIDTH - RIGHT)
    y = Axis(0.0, float(max(heights.max(initial=0.0), 1e-12)) * 1.05, HEIGHT - BOTTOM, TOP)
    places = x.at(edges)
    tops = y.at(heights)
    gap = 0.6 if len(heights) < 80 else 0.0
    body = rectangles(places[:-1], tops, np.maximum(np.diff(places) - gap, 0.3), y.start - tops, "c0")
    return chart(frame(x, y, below=below) + body, label)


def band(middle: np.ndarray, low: np.ndarray, high: np.ndarray, label: str) -> str:
    """A line along the index, with a band around it."""
    index = np.arange(len(middle))
    x = Axis(-0.5, len(middle) - 0.5, LEFT, WIDTH - RIGHT)
    y = Axis(float(low.min()), float(high.max()), HEIGHT - BOTTOM, TOP)
    around = np.concatenate([x.at(index), x.at(index[::-1])]), np.concatenate([y.at(high), y.at(low[::-1])])
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(*around, strict=True))
    body = f'<polygon points="{points}" class="fill c0 light"/>' + polyline(x.at(index), y.at(middle), "c0")
    return chart(frame(x, y, below="index") + body, label)


def traces(series: Sequence[np.ndarray], label: str, *, below: str = "draw") -> str:
    """Lines over each other, one a chain; long ones are shown by the least and the largest of every stretch."""
    finite = np.concatenate([s[np.isfinite(s)] for s in series])
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
    pad = 0.04 * (high - low) or 0.5
    x = Axis(0, max(max(map(len, series)) - 1, 1), LEFT, WIDTH - RIGHT)
    y = Axis(low - pad, high + pad, HEIGHT - BOTTOM, TOP)
    parts = [frame(x, y, below=below)]
    for i, values in enumerate(series):
        where, shown = thinned(values)
        parts.append(polyline(x.at(where), y.at(shown), f"c{i % 8}" + (" dashed" if i >= 4 else "")))
    return chart("".join(parts), label)


def thinned(values: np.ndarray, stretches: int = 110) -> tuple[np.ndarray, np.ndarray]:
    """Places and values of a line that looks the same: per stretch, its least and largest value in their order.

    >>> [a.tolist() for a in thinned(np.array([0.0, 3.0, 1.0, 2.0]), 1)]
    [[0, 1], [0.0, 3.0]]
    """
    values = np.where(np.isfinite(values), values, np.nan)
    if len(values) <= 2 * stretches:
        keep = np.flatnonzero(~np.isnan(values))
        return keep, values[keep]
    where: list[int] = []
    for part in np.array_split(np.arange(len(values)), stretches):
        real = part[~np.isnan(values[part])]
        if len(real):
            where += sorted({int(real[values[real].argmin()]), int(real[values[real].argmax()])})
    return np.array(where), values[where]


def clipped(words: str, most: int) -> str:
    """Words that are cut where they are too long.

    >>> clipped("posterior", 5)
    'post…'
    """
    return words if len(words) <= most else words[: most - 1] + "…"
