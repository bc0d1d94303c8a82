"""The HTML page: one file, no network, everything from outside escaped; for screens, phones and paper."""

import base64
from collections.abc import Sequence
from html import escape

from terrazzo.paper.experiments.presets import EXPERIMENTS
from terrazzo.paper.report.figures import Picture
from terrazzo.paper.report.notes import INTRODUCTION, NOTES
from terrazzo.paper.report.rows import Row
from terrazzo.paper.report.tables import Table
from terrazzo.report import markup

TITLE = "Sampling in combinatorial spaces: the paper's experiments, run again"


def render_page(rows: Sequence[Row], tables: Sequence[Table], pictures: Sequence[Picture]) -> str:
    """The whole page."""
    names = [table.name for table in tables]
    links = "".join(f'<a href="#{escape(n)}">{escape(EXPERIMENTS[n].title)}</a>' for n in names)
    sections = "".join(
        _section(table, [p for p in pictures if p.experiment == table.name], [r for r in rows if r[0] == table.name])
        for table in tables
    )
    body = (
        f"<header><h1>{escape(TITLE)}</h1><p>{escape(INTRODUCTION)}</p>{_summary(rows)}"
        f'<nav>{links}<a href="#made">How this was made</a></nav></header><main>{sections}{_made(rows)}</main>'
    )
    return markup.document(TITLE, body, style=markup.asset("terrazzo.paper.report", "page.css"))


def _summary(rows: Sequence[Row]) -> str:
    """Counts, presets and devices in a few words."""
    records = [record for row in rows for record in row.records]
    trusted = sum(row.num_trusted for row in rows)
    cut = sum(not record.get("is_complete", True) for record in records)
    presets = sorted({str(record["configuration"].get("preset")) for record in records})
    devices = sorted({str(record.get("device")) for record in records})
    facts = [
        ("runs", f"{len(records)}"),
        ("trusted by our own checks", f"{trusted} of {len(records)}"),
        ("preset", ", ".join(presets)),
        ("device", ", ".join(devices)),
    ] + ([("cut short by a time limit", f"{cut}")] if cut else [])
    return markup.facts(facts)


def _section(table: Table, pictures: Sequence[Picture], rows: Sequence[Row]) -> str:
    notes = "".join(f"<li>{escape(note)}</li>" for note in NOTES.get(table.name, ()))
    figures = "".join(_picture(picture) for picture in pictures)
    return (
        f'<section id="{escape(table.name)}"><h2>{escape(table.title)}</h2>'
        f"{render_table(table)}<ul>{notes}</ul>{figures}{_verdicts(rows)}</section>"
    )


def render_table(table: Table) -> str:
    """A table whose heads sort it; cells carry the number they are sorted by."""
    tones = {"trusted": "good", "not trusted": "bad"}
    rows = [[markup.Cell(cell.text, cell.key, tones.get(cell.text)) for cell in row] for row in table.rows]
    caption = markup.paragraph(f"{table.caption} Click a head to sort.", "caption")
    return markup.table(table.columns, rows, table.title) + caption


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.data).decode()
    caption = escape(picture.caption)
    return (
        f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )


def _verdicts(rows: Sequence[Row]) -> str:
    """What the library says about each of its own runs, word for word."""
    items = []
    for row in rows:
        for record in row.records:
            fold = record["piece"].get("fold")
            name = f"{row.setting}, {row.label}" + ("" if fold is None else f", fold {fold + 1}")
            items.append(f"<li><b>{escape(name)}</b>: {escape(str(record['verdict'].get('text')))}</li>")
    return f"<details><summary>Verdict of every run</summary><ul>{''.join(items)}</ul></details>"


def _made(rows: Sequence[Row]) -> str:
    """Commands, versions, machines."""
    records = [record for row in rows for record in row.records]
    commands = list(dict.fromkeys(str(record.get("command")) for record in records))
    machines = dict.fromkeys(
        f"{record.get('device')}; {record.get('platform')}; "
        + ", ".join(f"{k} {v}" for k, v in dict(record["versions"]).items())
        for record in records
    )
    return (
        '<section id="made"><h2>How this was made</h2><p>The commands that wrote the records of this page:</p>'
        f"<pre>{escape(chr(10).join(commands))}</pre><p>Machines and versions:</p><ul>"
        + "".join(f"<li>{escape(machine)}</li>" for machine in machines)
        + "</ul><p>Every number of this page stands in a JSON file beside it, one a run, with its configuration and "
        "seed. The digit is image 0 of the MNIST training set (LeCun, Cortes, Burges; CC BY-SA 3.0).</p></section>"
    )
