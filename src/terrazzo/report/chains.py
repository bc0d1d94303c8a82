"""The section on the chains: traces and ranks of log pi and of the coordinates that mix worst; and correlations."""

from html import escape

import numpy as np

from terrazzo.report import svg, theme
from terrazzo.report.markup import Cell, figure, grid, number, paragraph, section, table
from terrazzo.report.view import Quantity, View

MOST_CHAINS, MOST_TRACES, NUM_BINS = 8, 3, 20
MOST_COMPARED, MOST_DRAWS, MOST_SHOWN, MOST_PAIRS = 512, 2000, 16, 12
TIES = (20, 261, 8)  # a seed that no run has: exact draws are made from NumPy's generator of the run's seed
NOISE = 4.0  # standard errors of a correlation of independent quantities


def chains_section(view: View) -> str:
    """Traces and rank plots."""
    result = view.result
    if result.num_draws < 2:
        return ""
    log_prob = [q for q in view.quantities if q.coordinate is None]
    shown = [*log_prob, *view.worst[:MOST_TRACES]]
    count = min(result.num_chains, MOST_CHAINS)
    cards = []
    for quantity in shown:
        values = view.values(quantity)[:count]
        name = "log π" if quantity.coordinate is None else quantity.row.name
        says = f"R-hat {number(quantity.row.r_hat)}, ESS {number(quantity.row.ess_bulk, 3)}"
        if quantity.coordinate is not None and (quantity.code is not None or _is_binary(quantity)):
            values = np.cumsum(values, axis=1) / np.arange(1, values.shape[1] + 1)
            what = f"Share of ones in {name}" if quantity.code is None else f"Share of {name}"
            cards.append(figure(svg.traces(list(values), what), f"{what}, up to each draw. {says}."))
        else:
            cards.append(figure(svg.traces(list(values), f"trace of {name}"), f"Trace of {name}. {says}."))
        cards.append(figure(ranks(view.values(quantity), count, name), f"Ranks of {name} by chain."))
    some = f"The first {count} of {result.num_chains} chains are drawn. " if count < result.num_chains else ""
    text = (
        f"{some}Traces of chains that agree look like one another and go up and down over the same range; for what is "
        "only yes or no, the share of yes up to each draw is drawn, and the lines must meet. Rank plots "
        "count, for every chain, how often its draws are among the lowest, ..., the highest of all draws: flat bars, "
        "at the height of the line, mean that the chain sees the whole distribution. Shown are log π and the "
        "coordinates that mix worst."
    )
    key = "".join(f'<span><i class="c{i % 8} bar"></i>chain {i + 1}</span>' for i in range(count))
    return section(
        "chains", "Traces and ranks", paragraph(text), f'<p class="legend">{key}</p>', grid(cards, "cards pairs")
    )


def _is_binary(quantity: Quantity) -> bool:
    return quantity.variable is not None and quantity.variable.size == 2


def ranks(values: np.ndarray, count: int, name: str) -> str:
    """Histograms of ranks over all chains, one line a chain; ties are broken at random."""
    flat = values.ravel()
    order = np.lexsort((np.random.default_rng(TIES).random(len(flat)), flat))
    rank = np.empty(len(flat), int)
    rank[order] = np.arange(len(flat))
    bins = (rank * NUM_BINS // len(flat)).reshape(values.shape)
    shares = np.stack([np.bincount(row, minlength=NUM_BINS) for row in bins[:count]]) * NUM_BINS / values.shape[1]
    top = max(2.0, float(shares.max()))
    step = min(34.0, 130.0 / count)
    x = svg.Axis(0, NUM_BINS, svg.LEFT, svg.WIDTH - svg.RIGHT)
    edges = x.at(np.arange(NUM_BINS))
    width = np.full(NUM_BINS, edges[1] - edges[0] - 1.0)
    parts = []
    for i, row in enumerate(shares):
        base = svg.TOP + step * (i + 1) - 2
        heights = (step - 4) * row / top
        parts.append(svg.rectangles(edges, base - heights, width, heights, f"c{i % 8}"))
        level = base - (step - 4) / top
        parts.append(svg.line(x.start, level, x.stop, level, "rule dashed"))
        parts.append(svg.text(x.start - 6, base - 1, str(i + 1), anchor="end"))
    bottom = svg.TOP + step * count
    parts.append(svg.text(x.start, bottom + 13, "lowest"))
    parts.append(svg.text(x.stop, bottom + 13, "highest", anchor="end"))
    return svg.chart("".join(parts), f"rank plot of {name}, one line a chain", height=bottom + 20)


def correlations_section(view: View) -> str:
    """The strongest correlations between coordinates."""
    if view.result.num_draws < 4 or view.num_coordinates < 2:
        return ""
    chosen = _compared(view)
    if len(chosen) < 2:
        return ""
    step = max(1, len(view.codes) // MOST_DRAWS)
    weights = view.weights[::step] / view.weights[::step].sum()
    points = np.stack([view.values(q).ravel()[::step] for q in chosen])
    centred = (points - (points @ weights)[:, None]) * np.sqrt(weights)
    length = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    is_moving = length[:, 0] > 0
    chosen, centred = [q for q, moves in zip(chosen, is_moving, strict=True) if moves], centred[is_moving]
    r = (centred / length[is_moving]) @ (centred / length[is_moving]).T
    ess = [q.row.ess_bulk for q in chosen if np.isfinite(q.row.ess_bulk)]
    noise = min(1.0, NOISE / np.sqrt(max(min([1.0 / float((weights**2).sum()), *ess]), 1.0)))
    first, second = np.triu_indices(len(chosen), 1)
    order = np.argsort(-np.abs(r[first, second]), kind="stable")
    pairs = [(int(first[k]), int(second[k])) for k in order if abs(r[first[k], second[k]]) > noise]
    strong = [(i, j) for i, j in pairs if chosen[i].coordinate != chosen[j].coordinate]  # categories exclude each other
    total = sum(1 for q in view.quantities if q.coordinate is not None)
    scope = (
        f"Of {total:,} quantities the {MOST_COMPARED} that vary most are compared. " if total > MOST_COMPARED else ""
    )
    text = f"{scope}Correlations below {noise:.2f} are noise at this effective sample size and are left out."
    if not strong:
        return section("correlations", "Correlations", paragraph(text + " No pair is above it."))
    keep: dict[int, None] = {}
    for pair in strong:
        if len(keep) <= MOST_SHOWN - 2:
            keep |= dict.fromkeys(pair)
    matrix = figure(
        _matrix(chosen, r, sorted(keep)), "Blue: one is low where the other is high. Orange: both are high."
    )
    rows = [
        (Cell(chosen[i].row.name), Cell(chosen[j].row.name), Cell(f"{r[i, j]:+.3f}", float(r[i, j])))
        for i, j in strong[:MOST_PAIRS]
    ]
    listed = table(("coordinate", "coordinate", "correlation"), rows, "strongest correlations")
    return section("correlations", "Correlations", paragraph(text), f'<div class="cards pairs">{matrix}{listed}</div>')


def _compared(view: View) -> list[Quantity]:
    """Quantities that are compared: those that moved; of many, the ones of largest spread over their range."""
    moved = [q for q in view.quantities if q.coordinate is not None and not q.row.is_constant]
    if len(moved) <= MOST_COMPARED:
        return moved
    spread = [q.row.sd / (1 if q.code is not None or q.variable is None else q.variable.size - 1) for q in moved]
    return [moved[i] for i in np.sort(np.argsort(-np.array(spread), kind="stable")[:MOST_COMPARED])]


def _matrix(chosen: list[Quantity], r: np.ndarray, keep: list[int]) -> str:
    """Numbered rows with names, numbered columns, a square a pair."""
    left, size = 120, 212 / len(keep)
    parts = []
    for a, i in enumerate(keep):
        y = 16 + size * a
        name = f"{svg.clipped(chosen[i].row.name, 15)} {a + 1}"
        parts.append(svg.text(left - 4, y + size / 2 + 4, name, anchor="end", kind="ink"))
        if size > 17 or a % 2 == 0:
            parts.append(svg.text(left + size * (a + 0.5), 12, str(a + 1), anchor="middle"))
        for b, j in enumerate(keep):
            colour = theme.hexadecimal(theme.diverging(np.array(r[i, j])))
            words = escape(f"{chosen[i].row.name}, {chosen[j].row.name}: {r[i, j]:+.2f}")
            parts.append(
                f'<rect x="{left + size * b:.1f}" y="{y:.1f}" width="{size - 0.7:.1f}" height="{size - 0.7:.1f}" '
                f'fill="{colour}"><title>{words}</title></rect>'
            )
    return svg.chart("".join(parts), "matrix of correlations", height=16 + 212 + 6)
