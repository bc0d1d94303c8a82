"""A picture of the factor graph. matplotlib is imported when it is drawn, never before."""

from typing import Any

import numpy as np
import scipy.sparse as sp
from scipy.sparse.linalg import eigsh

from terrazzo.errors import MissingPackageError
from terrazzo.targets.structure.graph import FactorGraph

MAX_SITES = 4096  # sites up to which places are found from the graph; more stand on a circle
MAX_DRAWN = 20_000  # lines, the first ones
MAX_EXACT = 512  # sites of a part up to which all waves are found
SMALL = 12  # sites up to which a circle is as good as anything


def draw(graph: FactorGraph, title: str) -> Any:
    """Sites as dots in the colours of a sweep, lines between sites that share a term, squares for larger terms.

    Args:
        graph: The graph.
        title: What stands above it.

    Returns:
        A matplotlib figure that needs no screen; `figure.savefig(path)` writes it.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.collections import LineCollection
        from matplotlib.figure import Figure
    except ImportError:
        raise MissingPackageError("matplotlib", extra="plots") from None
    figure = Figure(figsize=(6.0, 6.0), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    places = site_places(graph)
    pairs, larger = _lines(graph)
    centres = np.array([places[sites].mean(axis=0) for sites in larger]).reshape(-1, 2)
    spokes = [(centre, places[i]) for centre, sites in zip(centres, larger, strict=True) for i in sites]
    lines = [*places[pairs], *spokes][:MAX_DRAWN]
    axes.add_collection(LineCollection([np.asarray(line) for line in lines], colors="0.7", linewidths=0.6, zorder=1))
    axes.scatter(centres[:, 0], centres[:, 1], marker="s", s=14, color="0.4", zorder=2)
    size = float(np.clip(6000 / max(graph.num_sites, 1), 2, 120))
    axes.scatter(places[:, 0], places[:, 1], c=graph.colours, cmap="viridis", s=size, zorder=3)
    axes.set_title(title, fontsize=9)
    axes.set_axis_off()
    axes.set_aspect("equal")
    return figure


def _lines(graph: FactorGraph) -> tuple[np.ndarray, list[np.ndarray]]:
    """Pairs of sites that share a term of two, and the sites of larger terms."""
    starts, members = graph.scopes.indptr, graph.scopes.indices
    sizes = np.diff(starts)
    pairs = starts[:-1][sizes == 2]
    larger = [members[starts[t] : starts[t + 1]] for t in np.flatnonzero(sizes > 2)[:MAX_DRAWN]]
    return np.stack([members[pairs], members[pairs + 1]], axis=1), larger


def site_places(graph: FactorGraph) -> np.ndarray:
    """A place in the plane for each site: smooth along the graph (Hall 1970), part beside part; or on a circle."""
    angles = 2 * np.pi * np.arange(graph.num_sites) / max(graph.num_sites, 1)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    if graph.is_dense or graph.num_sites <= SMALL or graph.num_sites > MAX_SITES:
        return circle
    places = np.zeros((graph.num_sites, 2))
    number = int(np.ceil(np.sqrt(graph.num_components)))
    for c in range(graph.num_components):
        sites = np.flatnonzero(graph.components == c)
        places[sites] = 0.4 * _smooth(graph.neighbours[sites][:, sites]) + (c % number, -(c // number))
    return places


def _smooth(neighbours: sp.csr_matrix) -> np.ndarray:
    """The two lowest waves on a connected graph, scaled to at most 1."""
    size = neighbours.shape[0]
    if size <= 3:
        return np.stack([np.arange(size) - (size - 1) / 2, np.zeros(size)], axis=1)
    found = _waves(neighbours)[:, 1:3]
    return found / np.abs(found).max()


def _waves(neighbours: sp.csr_matrix) -> np.ndarray:
    matrix = neighbours.astype(float)
    laplacian = sp.diags(np.asarray(matrix.sum(axis=1)).ravel()) - matrix
    if matrix.shape[0] <= MAX_EXACT:
        return np.linalg.eigh(laplacian.toarray())[1]
    start = np.random.default_rng(0).normal(size=matrix.shape[0])
    values, waves = eigsh(laplacian.tocsc(), k=3, sigma=-0.01, v0=start)
    return waves[:, np.argsort(values)]
