"""The table of coordinates: thousands of rows as data, a few on the page; a search box, heads that sort, pages."""

import math
from typing import Any

from terrazzo.report.markup import Cell, json_data, number, paragraph, section, table
from terrazzo.report.view import Quantity, View
from terrazzo.verdict.summaries import COLUMNS

MOST_ROWS = 16_000  # about 80 bytes each
ON_PAGE = 25
HEADS = ("coordinate", "mean", "sd", "mcse", "ESS, bulk", "ESS, tail", "R-hat")
CONTROLS = (
    '<div class="controls"><label>Search <input type="search" id="search" autocomplete="off" '
    'placeholder="part of a name"></label><span id="found" aria-live="polite"></span>'
    '<span class="pages"><button type="button" id="previous">Previous</button>'
    '<button type="button" id="next">Next</button></span></div>'
)


def coordinates_section(view: View) -> str:
    """Every coordinate, or the worst of very many."""
    quantities = view.quantities
    if not quantities:
        return ""
    left_out = ""
    if len(quantities) > MOST_ROWS:
        order = {id(q): i for i, q in enumerate(quantities)}
        quantities = sorted(view.worst[:MOST_ROWS], key=lambda q: order[id(q)])
        rest = len(view.quantities) - len(quantities)
        left_out = f"The {rest:,} rows that mix best are left out: result.summary() has them all. "
    text = (
        f"{left_out}Mean, standard deviation, the error of the mean, how many independent draws the draws are worth in "
        "the middle and in the tails, and R-hat. For a category, the mean is its probability. Heads sort."
    )
    data = [[q.row.name, *(_json(getattr(q.row, column)) for column in COLUMNS)] for q in quantities]
    shown = table(HEADS, [_cells(q) for q in quantities[:ON_PAGE]], "coordinates")
    constant = view.summary.last_line() + "." if view.summary.num_constant else ""
    return section(
        "coordinates", "All coordinates", paragraph(text), paragraph(constant) if constant else "",
        f'<div id="table" data-page="{ON_PAGE}">{CONTROLS}{shown}</div>', json_data("rows", data),
        f'<p class="caption print">The first {min(ON_PAGE, len(data))} of {len(data):,} rows are printed.</p>',
    )  # fmt: skip


def _cells(quantity: Quantity) -> list[Cell]:
    values = [float(getattr(quantity.row, column)) for column in COLUMNS]
    return [Cell(quantity.row.name), *(Cell(number(v), v if math.isfinite(v) else None) for v in values)]


def _json(value: float) -> Any:
    """A number with four digits; None for NaN, and a text for what JSON has no number for."""
    if math.isnan(value):
        return None
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    short = float(f"{value:.4g}")
    return int(short) if short.is_integer() and abs(short) < 1e15 else short
