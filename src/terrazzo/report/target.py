"""The section on the target: what was read from it, and the groups that its draws fall into."""

from html import escape
from typing import Any

import numpy as np

from terrazzo.report import pictures
from terrazzo.report.markup import facts, figure, grid, number, paragraph, section
from terrazzo.report.modes import MOST_MODES, Mode, find_modes
from terrazzo.report.reals import numbers_in_words
from terrazzo.report.svg import clipped
from terrazzo.report.view import View
from terrazzo.spaces import RealVariable, Variable
from terrazzo.verdict.summaries import label_of

MOST_VALUES, MOST_VARIABLES = 24, 8
RULE = (
    "A group is split where the draws leave a valley: along one of the five directions in which they differ most, "
    "where their density falls below half of the lower peak beside it. Groups below 2 % are not looked for. What is "
    "shown is the draw of the largest log π in the group."
)


def target_section(view: View) -> str:
    """What was found about the target."""
    space = view.result.space
    pairs = [("coordinates", f"{view.num_coordinates:,}")]
    if space.num_dims:
        num_states = float(np.log10(space.sizes.astype(float)).sum())
        size = f"{space.num_states:,}" if num_states < 9 else f"about 10^{num_states:.0f}"
        pairs.append(("configurations", f"{size}, for any values of the reals" if space.num_reals else size))
    pairs.append(("variables", _kinds(view)))
    log_prob = view.result.log_prob
    if log_prob is not None and log_prob.size:
        pairs.append(("largest log π of a draw", number(float(np.max(log_prob)), 6)))
    return section("target", "The target", facts(pairs), _structure(view.result.provenance), _modes(view))


def _kinds(view: View) -> str:
    """The variables with their kinds and shapes; bounds of reals too."""
    variables = view.result.space.variables
    parts = []
    for name, v in variables[:MOST_VARIABLES]:
        ends = ""
        if isinstance(v, RealVariable) and (v.low is not None or v.high is not None):
            low, high = (number(x, 4) if x is not None else end for x, end in ((v.low, "-∞"), (v.high, "∞")))
            ends = f" between {low} and {high}"
        parts.append(f"{name}: {v.kind}{list(v.shape) if v.shape else ''}{ends}")
    rest = len(variables) - MOST_VARIABLES
    return ", ".join(parts) + (f" and {rest} more" if rest > 0 else "")


def _structure(provenance: Any) -> str:
    """What reading the function found, line by line, if the run wrote it down."""
    lines = provenance.get("structure")
    if not isinstance(lines, list) or not lines:
        return ""
    items = "".join(f"<li>{escape(str(line))}</li>" for line in lines)
    return f"<h3>What was read from log π</h3><ul>{items}</ul>"


def _modes(view: View) -> str:
    modes = find_modes(view)
    if not modes:
        return paragraph("There are no draws to look at.")
    if len(modes) == 1:
        text = "The draws form one group: no valley separates some of them from the others."
    else:
        text = f"The draws fall into {len(modes)} groups."
    if len(modes) == MOST_MODES:
        text += " More are not looked for."
    if len(modes) > 1 and not view.result.verdict.is_trusted:
        text += " Their shares are those of the draws, which are not known to be those of the target: see the verdict."
    cards = grid(_card(view, mode, i + 1, len(modes)) for i, mode in enumerate(modes))
    return f"<h3>Modes</h3>{paragraph(text)}{cards}{paragraph(RULE, 'caption')}"


def _card(view: View, mode: Mode, place: int, number_of_modes: int) -> str:
    """One group: its weight, its best draw, its mean where that can be drawn."""
    head = f"Mode {place}: {100 * mode.share:.0f} % of the draws" if number_of_modes > 1 else "The most probable draw"
    parts, words = [], []
    for block in view.blocks[:MOST_VARIABLES]:
        v, own = block.variable, slice(block.start, block.stop)
        if pictures.is_grid(v):
            label = f"{block.name} of the best draw of mode {place}"
            parts.append(figure(pictures.configuration(v, mode.best[own], label), f"{block.name}, best draw", "small"))
            if v.is_ordered:
                mean = "".join(
                    pictures.heat(plane, 0, v.size - 1, f"mean of {block.name} in mode {place}")
                    for plane in pictures.planes(v, mode.mean[own])
                )
                parts.append(figure(mean, f"{block.name}, mean", "small"))
        else:
            words.append((block.name, values_in_words(v, mode.best[own])))
    for real in view.real_blocks[: MOST_VARIABLES - min(len(view.blocks), MOST_VARIABLES)]:
        values = mode.best_reals[real.start : real.stop]
        if pictures.is_grid(real.variable):
            label = f"{real.name} of the best draw of mode {place}"
            low, high = float(values.min()), float(values.max())
            drawn = "".join(pictures.heat(plane, low, high, label) for plane in pictures.planes(real.variable, values))
            parts.append(figure(drawn + pictures.scale(low, high), f"{real.name}, best draw", "small"))
        else:
            words.append((real.name, numbers_in_words(values)))
    if not np.isnan(mode.log_prob):
        words.append(("log π", number(mode.log_prob, 6)))
    images = f'<div class="row">{"".join(parts)}</div>' if parts else ""
    return f'<article class="card"><h4>{escape(head)}</h4>{images}{facts(words)}</article>'


def values_in_words(variable: Variable, codes: np.ndarray) -> str:
    """A configuration of a variable as a short text.

    >>> from terrazzo.spaces import binary, integers
    >>> values_in_words(binary(4), np.array([0, 1, 0, 1])), values_in_words(integers(1, 9), np.array([3]))
    ('ones at 1, 3 (2 of 4)', '4')
    """
    if not variable.shape:
        return clipped(label_of(variable, int(codes[0])), 60)
    if variable.kind == "binary" and len(variable.shape) == 1:
        ones = np.flatnonzero(codes)
        shown = ", ".join(map(str, ones[:MOST_VALUES])) + (", …" if len(ones) > MOST_VALUES else "")
        return f"ones at {shown} ({len(ones)} of {len(codes)})" if len(ones) else f"all {len(codes)} are zero"
    shown = ", ".join(clipped(label_of(variable, int(code)), 24) for code in codes[:MOST_VALUES])
    return shown + (f", … ({len(codes)} values)" if len(codes) > MOST_VALUES else "")
