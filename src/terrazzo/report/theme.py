"""One look for everything that is drawn: the page of a run, the paper's page, and the figures of matplotlib.

Colours of lines are those of Okabe & Ito (2008), in an order that keeps neighbours apart for every kind of colour
vision; grids take a scale that grows in lightness alone (cividis, Nunez et al., 2018), and correlations go from blue by
white to orange. Nothing is shown by colour alone: charts carry labels, marks and numbers.
"""

from importlib import resources
from typing import Any

import numpy as np

LINES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b07d00", "#56b4e9", "#7a7a7a", "#8c6d31")
LINES_ON_DARK = ("#56b4e9", "#ff8c42", "#2fc49a", "#e5a4c6", "#e8b52c", "#9bd3f5", "#b0b0b0", "#cfae6d")
FONT = 'system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif'
CHIP = "cividis"  # what matplotlib calls the scale below

# Every sixteenth colour of cividis; what lies between is interpolated.
_CIVIDIS = (
    "00224e 00306f 1f3c6d 35456c 46506b 545a6c 62656f 6e7073 7b7a77 888578 979178 a59c74 b5a96f c5b567 d5c35a e5d04a "
    "fee838"
)
_DIVERGING = "0b4f8a 4b8fc7 a9cbe6 f6f4f0 f4c38f d9822b 8f4a00"


def _colours(text: str) -> np.ndarray:
    return np.array([[int(word[i : i + 2], 16) for i in (0, 2, 4)] for word in text.split()], float)


def _scaled(anchors: np.ndarray, at: np.ndarray) -> np.ndarray:
    places = np.linspace(0.0, 1.0, len(anchors))
    channels = [np.interp(at, places, anchors[:, channel]) for channel in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def sequential(at: np.ndarray) -> np.ndarray:
    """Colours (..., 3) of numbers between 0 (dark) and 1 (light).

    >>> sequential(np.array([0.0, 1.0])).tolist()
    [[0, 34, 78], [254, 232, 56]]
    """
    return _scaled(_colours(_CIVIDIS), np.clip(at, 0.0, 1.0))


def diverging(at: np.ndarray) -> np.ndarray:
    """Colours (..., 3) of numbers between -1 (blue), 0 (white) and 1 (orange).

    >>> diverging(np.array([0.0])).tolist()
    [[246, 244, 240]]
    """
    return _scaled(_colours(_DIVERGING), (np.clip(at, -1.0, 1.0) + 1.0) / 2.0)


def categories(codes: np.ndarray, num: int) -> np.ndarray:
    """Colours (..., 3) of unordered codes: those of lines while they last, else the sequential scale.

    >>> categories(np.array([0]), 3).tolist()
    [[0, 114, 178]]
    """
    if num > len(LINES):
        return sequential(codes / max(num - 1, 1))
    return _colours(" ".join(colour[1:] for colour in LINES)).astype(np.uint8)[codes]


def hexadecimal(colour: np.ndarray) -> str:
    """A colour of three numbers as CSS writes it.

    >>> hexadecimal(np.array([0, 114, 178]))
    '#0072b2'
    """
    return "#" + "".join(f"{int(channel):02x}" for channel in colour)


def style() -> str:
    """The style sheet that all pages share, light and dark."""
    lines = "".join(f"--c{i}: {colour}; " for i, colour in enumerate(LINES))
    dark = "".join(f"--c{i}: {colour}; " for i, colour in enumerate(LINES_ON_DARK))
    text = resources.files("terrazzo.report").joinpath("base.css").read_text(encoding="utf-8")
    roots = (
        f":root {{ {lines}--font: {FONT}; }}\n@media screen and (prefers-color-scheme: dark) {{ :root {{ {dark}}} }}\n"
    )
    return roots + text


def matplotlib_settings() -> Any:
    """Settings for `matplotlib.rc_context`: the same colours, plain axes, letters that survive being made small."""
    from cycler import cycler

    return {
        "font.family": "sans-serif",
        "font.size": 11.0,
        "axes.prop_cycle": cycler(color=list(LINES)),
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.edgecolor": "#5b6675",
        "axes.labelcolor": "#1d2430",
        "axes.titlesize": 12.0,
        "axes.titleweight": "bold",
        "axes.grid": False,
        "image.cmap": CHIP,
        "image.interpolation": "nearest",
        "legend.frameon": False,
        "xtick.color": "#5b6675",
        "ytick.color": "#5b6675",
        "text.color": "#1d2430",
        "savefig.facecolor": "white",
    }
