"""Pictures. matplotlib is imported when a picture is drawn, never before."""

import contextlib
from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.errors import MissingPackageError
from terrazzo.report import theme
from terrazzo.report.theme import CHIP


def themed() -> contextlib.AbstractContextManager[None]:
    """A context in which matplotlib draws with the fonts and colours of all our pages."""
    try:
        from matplotlib import rc_context
    except ImportError:
        raise MissingPackageError("matplotlib", extra="plots") from None
    return rc_context(theme.matplotlib_settings())


def new_figure(width: float, height: float) -> Any:
    """An empty figure of this many inches that needs no screen."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError("matplotlib", extra="plots") from None
    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def grid_histogram(theta: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Relative frequencies on a two-dimensional grid, shape (K_0, K_1)."""
    flat = np.asarray(theta).reshape(-1, 2).astype(np.int64)
    counts = np.bincount(flat[:, 0] * int(sizes[1]) + flat[:, 1], minlength=int(sizes[0] * sizes[1]))
    return counts.reshape(int(sizes[0]), int(sizes[1])) / max(len(flat), 1)


def panels(grids: dict[str, np.ndarray], path: Any, *, captions: dict[str, str] | None = None) -> Path:
    """Grids side by side on one colour scale: the paper's Figure 1.

    Args:
        grids: Probability grids by title.
        path: Where to write the picture (the ending decides the format).
        captions: A line under each panel, by title.
    """
    with themed():
        return _panels(grids, Path(path), captions or {})


def _panels(grids: dict[str, np.ndarray], path: Path, captions: dict[str, str]) -> Path:
    figure = new_figure(3.4 * len(grids), 3.9)
    top = max(g.max() for g in grids.values())
    axes = figure.subplots(1, len(grids), squeeze=False)[0]
    for axis, (title, grid) in zip(axes, grids.items(), strict=True):
        axis.imshow(grid.T, origin="lower", cmap=CHIP, vmin=0, vmax=top, interpolation="nearest")
        axis.set_title(title, fontsize=13)
        axis.set_xticks([])
        axis.set_yticks([])
        axis.set_xlabel(captions.get(title, ""), fontsize=10)
        for spine in axis.spines.values():
            spine.set_visible(False)
    figure.savefig(path, dpi=150)
    return path
