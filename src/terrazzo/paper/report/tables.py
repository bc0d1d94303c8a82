"""The tables: the paper's printed number beside ours, in Markdown and LaTeX (and, in `page`, HTML)."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from terrazzo.paper.report.rows import Row, largest_inclusion_gap


class Cell(NamedTuple):
    """What a cell shows, and what it is sorted by (its text where there is no number)."""

    text: str
    key: float | None = None


class Table(NamedTuple):
    """A table for people.

    Attributes:
        name: A word for file names and links.
        title: Its heading.
        caption: What the columns mean.
        columns: Their heads.
        rows: Cells, as many a row as there are columns.
    """

    name: str
    title: str
    caption: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


Column = tuple[str, Callable[[Row], Cell]]
NONE = "–"

CAPTION = (
    "“Paper” columns are what the paper prints; the columns beside them are this run. ESS (paper's estimator) is per "
    "chain and per 10,000 kept draws, mean over coordinates, ± standard error over groups of 16 chains; a constant "
    "coordinate counts 1.0 there. Our estimator (rank-normalised, over all chains, constant coordinates left out) is "
    "in the same unit. ESS/min counts training, burn-in, sampling and compilation. log π is mean ± sd over draws."
)


def number(value: float, digits: int = 4) -> Cell:
    """A number with a few significant digits; a dash where there is none.

    >>> number(1234.5678).text, number(float("nan")).text
    ('1235', '–')
    """
    if not math.isfinite(value):
        return Cell(NONE)
    text = f"{value:.{digits}g}" if abs(value) < 10**digits else f"{value:.0f}"
    return Cell(text.replace("e-0", "e-"), value)


def fixed(value: float, digits: int) -> Cell:
    """A number with a fixed number of decimals; a dash where there is none."""
    return Cell(f"{value:.{digits}f}", value) if math.isfinite(value) else Cell(NONE)


def spread(cell: Cell, plus_minus: float, digits: int | None = None) -> Cell:
    """A number with what follows the +- sign, if there is any."""
    if cell.key is None or not math.isfinite(plus_minus):
        return cell
    tail = f"{plus_minus:.3g}" if digits is None else f"{plus_minus:.{digits}f}"
    return Cell(f"{cell.text} ± {tail}", cell.key)


def _label(row: Row) -> Cell:
    return Cell(row.label + ("" if row.is_complete else " (cut short)"))


def _setting(row: Row) -> Cell:
    return Cell(row.setting.replace("_", " "))


def _verdict(row: Row) -> Cell:
    trusted, total = row.num_trusted, len(row.records)
    if total == 1:
        return Cell("trusted" if trusted else "not trusted", float(trusted))
    return Cell(f"{trusted} of {total} trusted", trusted / total)


def _constant(row: Row) -> Cell:
    return Cell(f"{row.worst('num_constant'):.0f} of {row.worst('num_dims'):.0f}", row.worst("num_constant"))


def _paper(field: str, digits: int | None = None) -> Callable[[Row], Cell]:
    def cell(row: Row) -> Cell:
        if row.paper is None:
            return Cell(NONE)
        value, plus_minus = getattr(row.paper, field)
        return spread(number(value) if digits is None else fixed(value, digits), plus_minus, digits)

    return cell


def _paper_accuracy(row: Row) -> Cell:
    return Cell(NONE) if row.paper is None or row.paper.accuracy is None else fixed(row.paper.accuracy, 1)


def _extra(head: str, name: str, digits: int, show: Callable[[float, int], Cell] = fixed) -> Column:
    return head, lambda row: show(row.mean("extra", name), digits)


def _ess(row: Row) -> Cell:
    return spread(number(row.mean("paper_ess", "mean")), row.standard_error("paper_ess", "standard_error"))


def _r_hat(row: Row) -> Cell:
    if any(record.get("r_hat") == "infinite" for record in row.records):  # chains that each stay where they are
        return Cell("∞", 1e300)
    worst = row.worst("r_hat")
    return fixed(worst, 3) if worst < 10 else number(worst, 3)


SETTING: Column = ("setting", _setting)
SAMPLER: Column = ("sampler", _label)
FOLDS: Column = ("folds", lambda row: Cell(f"{len(row.records)}", len(row.records)))
VERDICT: Column = ("verdict", _verdict)
ESS: tuple[Column, ...] = (
    ("ESS, paper", _paper("ess")),
    ("ESS, this run", _ess),
    ("our estimator: mean", lambda r: number(r.mean("ess", "mean"))),
    ("our estimator: least", lambda r: number(r.mean("ess", "min"))),
    ("constant coordinates", _constant),
    ("ESS/min, paper", _paper("ess_per_minute")),
    ("ESS/min, this run", lambda r: number(r.mean("ess_per_minute"), 3)),
)  # fmt: skip
LOG_PROB: tuple[Column, ...] = (
    ("log π, paper", _paper("log_prob", 2)),
    ("log π, this run", lambda r: spread(fixed(r.mean("log_prob", "mean"), 2), r.mean("log_prob", "sd"), 2)),
)
HEALTH: tuple[Column, ...] = (
    ("acceptance", lambda r: number(r.mean("acceptance"), 2)),
    ("R-hat", _r_hat),
    ("seconds", lambda r: fixed(sum(r.values("seconds", "total")), 0)),
)
ACCURACY: tuple[Column, ...] = (
    ("accuracy %, paper", _paper_accuracy),
    ("accuracy %, this run", lambda r: fixed(100 * r.mean("extra", "accuracy"), 1)),
)


def make_tables(rows: Sequence[Row]) -> list[Table]:
    """The paper's three tables and one for the mixtures, of the rows there are."""
    gap = lambda r: fixed(largest_inclusion_gap(r, rows), 3)
    layouts: tuple[tuple[str, str, str, tuple[Column, ...]], ...] = (
        (
            "mixture",
            "Gaussian mixtures: total variation",
            "Total-variation distance of all draws from the exact law; of as many independent draws; and of draws of "
            "the transport alone. ESS as in the other tables.",
            (
                SETTING, SAMPLER, VERDICT,
                _extra("TV, draws", "tv", 4),
                _extra("TV, independent draws", "tv_independent", 4),
                _extra("TV, transport alone", "tv_transport", 4),
                *ESS[1:5], ESS[6], *HEALTH,
            ),
        ),
        (
            "ising",
            "Table 1. Ising model: denoising a binary digit",
            CAPTION + " “sd of chain means” is the spread of mean log π between chains: chains that sit in different "
            "patches have a high ESS and a large spread. Wrong pixels: expected per draw; the noise flips 78.",
            (
                SETTING, SAMPLER, VERDICT, *ESS, *LOG_PROB,
                ("sd of chain means", lambda r: fixed(r.mean("log_prob", "sd_of_chain_means"), 2)),
                _extra("wrong pixels", "wrong_pixels", 1),
                *HEALTH,
            ),
        ),
        (
            "logistic",
            "Table 2. Quantised logistic regression",
            CAPTION + " Averages over the folds that were run; accuracy of the posterior-mean prediction on held-out "
            "rows (the paper prints the maximum over draws).",
            (SETTING, SAMPLER, FOLDS, VERDICT, *ESS, *ACCURACY, *LOG_PROB, *HEALTH),
        ),
        (
            "selection",
            "Table 3. Bayesian variable selection",
            CAPTION + " Exact support: share of draws that name exactly the informative features. Inclusion gap: the "
            "largest difference of a posterior inclusion probability from the tempering run.",
            (
                SETTING, SAMPLER, VERDICT, *ESS, *LOG_PROB,
                _extra("log π, true support", "log_prob_true_support", 2),
                _extra("log π, empty model", "log_prob_empty", 2),
                _extra("exact support", "exact_support", 3),
                _extra("false in", "false_in", 3, show=number),
                _extra("false out", "false_out", 3, show=number),
                ("inclusion gap", gap), *HEALTH,
            ),
        ),
    )  # fmt: skip
    tables = []
    for name, title, caption, columns in layouts:
        own = [row for row in rows if row.experiment == name]
        if own:
            cells = tuple(tuple(make(row) for _, make in columns) for row in own)
            tables.append(Table(name, title, caption, tuple(head for head, _ in columns), cells))
    return tables


def to_markdown(table: Table) -> str:
    """A table of GitHub's Markdown, with its heading and caption."""
    line = lambda texts: f"| {' | '.join(_plain(text) for text in texts)} |"
    rows = [line(cell.text for cell in row) for row in table.rows]
    head = [line(table.columns), "|" + "---|" * len(table.columns)]
    return "\n".join([f"### {table.title}", "", *head, *rows, "", table.caption, ""])


def _plain(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


_LATEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "π": r"$\pi$", "–": "--", "“": "``",
    "”": "''", "∞": r"$\infty$",
}  # fmt: skip


def latex_escape(text: str) -> str:
    r"""Text that LaTeX shows as it is.

    >>> latex_escape("50 % of a_b")
    '50 \\% of a\\_b'
    """
    return "".join(_LATEX.get(character, character) for character in text.replace("\n", " "))


def to_latex(table: Table) -> str:
    """A `table*` with booktabs."""
    line = lambda texts: " & ".join(latex_escape(text) for text in texts) + r" \\"
    return "\n".join(
        [
            r"\begin{table*}", r"\centering", rf"\caption{{{latex_escape(f'{table.title}. {table.caption}')}}}",
            rf"\begin{{tabular}}{{{'l' * len(table.columns)}}}", r"\toprule", line(table.columns), r"\midrule",
            *(line(cell.text for cell in row) for row in table.rows), r"\bottomrule", r"\end{tabular}",
            rf"\label{{tab:{table.name}}}", r"\end{table*}", "",
        ]
    )  # fmt: skip
