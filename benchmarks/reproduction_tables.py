"""The tables of docs/reproduction.md, from the records in benchmarks/results/reproduction.

    python benchmarks/reproduction_tables.py             # writes the tables between their marks
    python benchmarks/reproduction_tables.py --figures   # and draws the page's two figures from the `paper` records

A record is what `terrazzo reproduce` and `python -m terrazzo.paper.experiments.run` write for one piece; those of a
preset lie in the folder of its name. `terrazzo report FOLDER` shows all columns and figures.
"""

import argparse
import re
from collections import Counter
from pathlib import Path

from terrazzo.paper.experiments import EXPERIMENTS, Request, pieces
from terrazzo.paper.experiments.records import load_all, piece_path
from terrazzo.paper.experiments.runner import label
from terrazzo.paper.report.figures import make_figures
from terrazzo.paper.report.rows import collect_rows
from terrazzo.paper.report.tables import make_tables, to_markdown

ROOT = Path(__file__).parents[1]
RECORDS = ROOT / "benchmarks" / "results" / "reproduction"
PAGE = ROOT / "docs" / "reproduction.md"
LEFT_OUT = {
    "our estimator: least", "accuracy %, paper", "sd of chain means", "acceptance", "log π, true support",
    "log π, empty model", "false in", "false out", "inclusion gap",
}  # fmt: skip
FIGURES = {"figure1": "reproduction-mixtures.png", "figure2": "reproduction-ising.png"}


def mark(preset):
    """What stands before the tables of a preset, and after them."""
    return f"<!-- records: {preset} -->\n", f"<!-- end of records: {preset} -->"


def narrow(table):
    """A table with the columns that the page has room for."""
    kept = [i for i, head in enumerate(table.columns) if head not in LEFT_OUT]
    rows = tuple(tuple(row[i] for i in kept) for row in table.rows)
    return table._replace(columns=tuple(table.columns[i] for i in kept), rows=rows, caption="")


def missing(preset, folder):
    """A line for every experiment with rows that have no record, naming them by setting."""
    request = Request(("all",), preset, folder)
    rows = dict.fromkeys(piece._replace(fold=None) for piece in pieces(request))
    there = {p._replace(fold=None) for p in pieces(request) if piece_path(folder, p).exists()}
    lines = []
    for name, experiment in EXPERIMENTS.items():
        lacking = {}
        for row in rows:
            if row.experiment == name and row not in there:
                lacking.setdefault(row.setting.replace("_", " "), []).append(label(row, request))
        if lacking:
            named = ", ".join(f"{setting} ({'; '.join(labels)})" for setting, labels in lacking.items())
            lines.append(f"- {experiment.title}: {named}.")
    return lines


def sources(records):
    """A line for every version of the source that made records."""
    found = Counter(
        (r.get("source", "unknown")[:12], r.get("date", "unknown")[:10], r.get("device", "unknown")) for r in records
    )
    return [
        f"- source tree `{tree}`, {date}, {device}: {count} record{'s' * (count > 1)}."
        for (tree, date, device), count in sorted(found.items(), key=lambda pair: pair[0][1])
    ]


def tables(preset, records=RECORDS):
    """What stands between the marks of a preset."""
    folder = records / preset
    found = list(load_all(folder))
    parts = [to_markdown(narrow(table)).strip() + "\n" for table in make_tables(collect_rows(found))]
    if found:
        parts.append("\n".join(["Where these records come from:", "", *sources([r for _, r in found]), ""]))
    if lacking := missing(preset, folder):
        parts.append("\n".join(["Rows without a record:", "", *lacking, ""]))
    return "\n".join(parts)


def presets(page):
    """The presets that a page has marks for."""
    return re.findall(r"<!-- records: (\w+) -->", page)


def rebuilt(page, records=RECORDS):
    """The page with the tables that the records give."""
    for preset in presets(page):
        first, last = mark(preset)
        before, _, rest = page.partition(first)
        _, _, after = rest.partition(last)
        page = f"{before}{first}\n{tables(preset, records)}\n{last}{after}"
    return page


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--figures", action="store_true", help="draw the page's figures too")
    options = parser.parse_args()
    PAGE.write_text(rebuilt(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    if options.figures:
        for picture in make_figures(collect_rows(load_all(RECORDS / "paper"))):
            if picture.name in FIGURES:
                (PAGE.parent / FIGURES[picture.name]).write_bytes(picture.data)


if __name__ == "__main__":
    main()
