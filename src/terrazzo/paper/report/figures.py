"""The figures, by matplotlib's Agg: the paper's Figures 1 to 3, posterior means with pixel errors, inclusions."""

import io
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from terrazzo.paper.plots import CHIP, new_figure, themed
from terrazzo.paper.report.rows import Row
from terrazzo.report.theme import LINES

FIGURE_2_ROWS = ("flow_mh_10k", "metropolis_100k", "gibbs_100k", "ours")
NUM_SMALL, NUM_LARGE = 5, 12


class Picture(NamedTuple):
    """A figure as PNG.

    Attributes:
        name: A word for file names and links.
        experiment: Where it belongs.
        caption: What it shows.
        data: The PNG file.
    """

    name: str
    experiment: str
    caption: str
    data: bytes


def make_figures(rows: Sequence[Row]) -> list[Picture]:
    """All figures that the rows have arrays for."""
    makers: tuple[Callable[[list[Row]], Picture | None], ...] = (figure1, figure2, figure3, posterior_means, inclusions)
    drawn = [row for row in rows if row.arrays()]
    if not drawn:
        return []
    with themed():
        return [picture for make in makers if (picture := make(drawn)) is not None]


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi=110)
    return stream.getvalue()


def _image(axis: Any, pixels: np.ndarray, *, title: str = "", below: str = "", **options: Any) -> None:
    axis.imshow(pixels, interpolation="nearest", **options)
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_color("0.8")
    if title:
        axis.set_title(title, fontsize=9)
    if below:
        axis.set_xlabel(below, fontsize=8)


def figure1(rows: list[Row]) -> Picture | None:
    """Target, flow, flow + MH and ours on every mixture."""
    own = [row for row in rows if row.experiment == "mixture" and row.sampler in ("flow_mh", "ours")]
    settings = list(dict.fromkeys(row.setting for row in own))
    if not settings:
        return None
    figure = new_figure(9, 2.35 * len(settings))
    axes = figure.subplots(len(settings), 4, squeeze=False)
    for setting, line in zip(settings, axes, strict=True):
        by_sampler = {row.sampler: row for row in own if row.setting == setting}
        some = next(iter(by_sampler.values()))
        exact = some.arrays()["exact"]
        panels = [("target", exact, "exact, 4096 states")]
        for name, sampler, key, figure_name in (
            ("flow", "flow_mh", "transport", "tv_transport"),
            ("flow + MH", "flow_mh", "draws", "tv"),
            ("ours", "ours", "draws", "tv"),
        ):
            row = by_sampler.get(sampler)
            grid = None if row is None else row.arrays().get(key)
            below = "" if row is None else f"TV {row.mean('extra', figure_name):.3f}"
            panels.append((name, np.full_like(exact, np.nan) if grid is None else grid, below))
        for axis, (name, grid, below) in zip(line, panels, strict=True):
            options = {"origin": "lower", "cmap": CHIP, "vmin": 0, "vmax": float(exact.max())}
            _image(axis, grid.T, title=name, below=below, **options)
        line[0].set_ylabel(setting, fontsize=9)
    caption = (
        "Figure 1. Discretised Gaussian mixtures: the target, draws of the flow alone, draws of the flow + MH chains, "
        "and ours, with the total-variation distance from the exact law."
    )
    return Picture("figure1", "mixture", caption, _png(figure))


def _ising(rows: list[Row]) -> list[Row]:
    own = [row for row in rows if row.experiment == "ising"]
    return [row for row in own if row.setting == own[0].setting]


def _digits(rows: list[Row], count: int) -> Any:
    """True and corrupted digit on top, below it a line of draws for every sampler."""
    figure = new_figure(1.0 + 0.85 * count, 1.05 * (len(rows) + 1.2))
    figure.get_layout_engine().set(h_pad=0.12)
    axes = figure.subplots(len(rows) + 1, count, squeeze=False)
    arrays = rows[0].arrays()
    for axis in axes[0]:
        axis.set_axis_off()
    for axis, key, title in ((axes[0, 0], "clean", "true"), (axes[0, 1], "corrupt", "corrupted")):
        axis.set_axis_on()
        _image(axis, arrays[key], title=title, cmap="gray_r", vmin=0, vmax=1)
    for row, line in zip(rows, axes[1:], strict=True):
        samples = row.arrays()["samples"]
        for i, axis in enumerate(line):
            if i < len(samples):
                _image(axis, samples[i], cmap="gray_r", vmin=0, vmax=1)
            else:
                axis.set_axis_off()
        label = line[0].text(0.0, 1.08, row.label, fontsize=9, transform=line[0].transAxes)
        label.set_in_layout(False)  # a long label must not widen the first column
    return figure


def figure2(rows: list[Row]) -> Picture | None:
    """The digit and draws of the paper's three samplers and ours."""
    own = [row for row in _ising(rows) if row.sampler in FIGURE_2_ROWS] if _has_ising(rows) else []
    if not own:
        return None
    caption = "Figure 2. Ising model: the true and the corrupted digit, and the last draws of independent chains."
    return Picture("figure2", "ising", caption, _png(_digits(own, NUM_SMALL)))


def figure3(rows: list[Row]) -> Picture | None:
    """More draws, of every sampler that was run."""
    if not _has_ising(rows):
        return None
    caption = "Figure 3. Ising model: the last draws of more independent chains, for every sampler of Table 1."
    return Picture("figure3", "ising", caption, _png(_digits(_ising(rows), NUM_LARGE)))


def _has_ising(rows: list[Row]) -> bool:
    return any(row.experiment == "ising" for row in rows)


def posterior_means(rows: list[Row]) -> Picture | None:
    """The mean image of every sampler, and where it is wrong."""
    if not _has_ising(rows):
        return None
    own = _ising(rows)
    num_columns = min(4, len(own))
    num_lines = -(-len(own) // num_columns)
    figure = new_figure(2.6 * num_columns, 1.75 * num_lines)
    axes = figure.subplots(num_lines, 2 * num_columns, squeeze=False)
    for axis in axes.ravel():
        axis.set_axis_off()
    for i, row in enumerate(own):
        arrays = row.arrays()
        left, right = axes[i // num_columns, 2 * (i % num_columns) :][:2]
        for axis in (left, right):
            axis.set_axis_on()
        _image(left, arrays["mean"], cmap="gray_r", vmin=0, vmax=1)
        error = np.abs(arrays["mean"] - arrays["clean"])
        _image(right, error, cmap="Reds", vmin=0, vmax=1, below=f"{row.mean('extra', 'wrong_pixels'):.1f} wrong")
        left.set_title(row.label.replace(" (", "\n("), fontsize=7, loc="left")
    caption = (
        "Figure 4. Ising model: the mean of all draws (left) and the probability that a pixel differs from the true "
        "digit (right), with the expected number of wrong pixels. The noise alone flips 78; the posterior's mode has "
        "76 wrong pixels, since it erases the digit's lower part: a higher log π is not a better picture."
    )
    return Picture("figure4", "ising", caption, _png(figure))


def inclusions(rows: list[Row]) -> Picture | None:
    """Posterior inclusion probabilities against those of the tempering run."""
    own = [row for row in rows if row.experiment == "selection"]
    settings = list(dict.fromkeys(row.setting for row in own))
    if not settings:
        return None
    figure = new_figure(3.1 * min(3, len(settings)), 3.3 * -(-len(settings) // 3))
    axes = figure.subplots(-(-len(settings) // 3), min(3, len(settings)), squeeze=False).ravel()
    for axis in axes[len(settings) :]:
        axis.set_axis_off()
    samplers = {row.sampler: row.label for row in own}
    for axis, setting in zip(axes, settings, strict=False):
        rows_here = [row for row in own if row.setting == setting]
        support = rows_here[0].arrays()["support"]
        order = np.argsort(1 - support.astype(int), kind="stable")
        for row in rows_here:
            place = list(samplers).index(row.sampler)
            style = {"marker": "osDv^x"[place % 6], "color": LINES[place % len(LINES)], "linestyle": "none"}
            axis.plot(row.arrays()["inclusion"][order], markersize=3, alpha=0.7, label=row.label, **style)
        axis.axvspan(-0.5, support.sum() - 0.5, color="0.92", zorder=0)
        size, _, kind = setting.partition("_")
        axis.set_title(f"{size} features" + (f", {kind}" if kind else ""), fontsize=9)
        axis.set_ylim(-0.03, 1.03)
        axis.tick_params(labelsize=7)
    axes[0].set_ylabel("inclusion probability", fontsize=8)
    handles = {label: handle for axis in axes for handle, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    figure.legend(handles.values(), handles.keys(), fontsize=7, loc="outside lower center", ncols=4)
    caption = (
        "Figure 5. Variable selection: the posterior probability that each feature belongs to the model. The "
        "informative features come first, on grey."
    )
    return Picture("figure5", "selection", caption, _png(figure))
