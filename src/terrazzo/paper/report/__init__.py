"""The report: a folder of records to tables (Markdown, LaTeX), figures (PNG) and one self-contained HTML page."""

from pathlib import Path
from typing import NamedTuple

from terrazzo.errors import OptionError
from terrazzo.paper.experiments.records import load_all
from terrazzo.paper.report.figures import make_figures
from terrazzo.paper.report.page import render_page
from terrazzo.paper.report.rows import collect_rows
from terrazzo.paper.report.tables import make_tables, to_latex, to_markdown

__all__ = ["Report", "write_report"]


class Report(NamedTuple):
    """Where the parts of a report are."""

    page: Path
    markdown: Path
    latex: Path
    figures: list[Path]


def write_report(folder: Path) -> Report:
    """Writes `report.html`, `tables.md`, `tables.tex` and the figures into `folder/report`.

    Args:
        folder: What `terrazzo reproduce --out` wrote.
    """
    rows = collect_rows(load_all(folder)) if folder.is_dir() else []
    if not rows:
        raise OptionError(
            "folder",
            f"{str(folder)!r} holds no run and no finished piece",
            "give the folder of `terrazzo sample --out`, or run `terrazzo reproduce` with it first",
        )
    out = folder / "report"
    out.mkdir(exist_ok=True)
    tables, pictures = make_tables(rows), make_figures(rows)
    report = Report(
        out / "report.html", out / "tables.md", out / "tables.tex", [out / f"{p.name}.png" for p in pictures]
    )
    for path, picture in zip(report.figures, pictures, strict=True):
        path.write_bytes(picture.data)
    report.markdown.write_text("\n".join(map(to_markdown, tables)), encoding="utf-8")
    report.latex.write_text("\n".join(map(to_latex, tables)), encoding="utf-8")
    report.page.write_text(render_page(rows, tables, pictures), encoding="utf-8")
    return report
