"""HTML that pages share: the frame, facts, tables whose heads sort, data for scripts. All text is escaped here."""

import json
import math
from collections.abc import Iterable, Sequence
from html import escape
from importlib import resources
from typing import Any, NamedTuple

from terrazzo.report import theme

# Nothing is fetched: not even by a page that someone managed to write markup into.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
MARKS = {"good": "✓", "bad": "✗", "open": "○", "note": "i"}


class Cell(NamedTuple):
    """What a cell shows, what it is sorted by (its text where there is no number), and its tone (`MARKS`) if any."""

    text: str
    key: float | None = None
    tone: str | None = None


def asset(package: str, name: str) -> str:
    """A style sheet or a script that is shipped beside the code."""
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


def document(title: str, body: str, *, style: str = "", script: str = "") -> str:
    """A whole page: one file, no network.

    Args:
        title: Plain text.
        body: Markup.
        style: A style sheet after the shared one.
        script: A script after the one that sorts tables.
    """
    sorting = asset("terrazzo.report", "sorting.js")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(POLICY)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,"><title>{escape(title)}</title>'
        f"<style>{theme.style()}{style}</style></head><body>{body}<script>{sorting}{script}</script></body></html>\n"
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    """Names with their values, side by side.

    >>> facts([("draws", "<1000>")])
    '<dl class="facts"><div><dt>draws</dt><dd>&lt;1000&gt;</dd></div></dl>'
    """
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="facts">{items}</dl>'


def mark(tone: str, text: str) -> str:
    """A word on a coloured ground, with a sign for those who do not see the colour."""
    return f'<span class="mark {tone}"><span aria-hidden="true">{MARKS[tone]}</span> {escape(text)}</span>'


def table(columns: Sequence[str], rows: Iterable[Sequence[Cell]], label: str) -> str:
    """A table whose heads sort it, in a box that scrolls by itself where it is too wide."""
    rows = list(rows)
    is_numeric = [any(r[i].key is not None and r[i].tone is None for r in rows) for i in range(len(columns))]
    heads = "".join(_head(head, numeric) for head, numeric in zip(columns, is_numeric, strict=True))
    lines = ("".join(_cell(c, n) for c, n in zip(row, is_numeric, strict=True)) for row in rows)
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}"><table>'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _head(words: str, is_numeric: bool) -> str:
    kind = ' class="number"' if is_numeric else ""
    name = escape(words) if words else '<span class="unseen">state</span>'
    return f'<th scope="col"{kind}><button type="button">{name}</button></th>'


def _cell(cell: Cell, is_numeric: bool) -> str:
    key = "" if cell.key is None else f' data-key="{cell.key!r}"'
    if cell.tone is not None:
        return f"<td{key}>{mark(cell.tone, cell.text)}</td>"
    kind = ' class="number"' if is_numeric else ""
    return f"<td{kind}{key}>{escape(cell.text)}</td>"


def section(name: str, title: str, *parts: str) -> str:
    """A section with its heading; `parts` are markup."""
    return f'<section id="{escape(name)}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph of plain text."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def figure(drawing: str, caption: str, kind: str = "") -> str:
    """A drawing (markup) with its caption (text)."""
    return f'<figure class="{kind}">{drawing}<figcaption>{escape(caption)}</figcaption></figure>'


def grid(items: Iterable[str], kind: str = "cards") -> str:
    """Cards beside each other, as many as fit."""
    return f'<div class="{kind}">{"".join(items)}</div>'


def json_data(name: str, value: Any) -> str:
    r"""Data for a script. No text in it can end the element: `<`, `>` and `&` are written as escapes.

    >>> json_data("x", "</script>")
    '<script type="application/json" id="x">"\\u003c/script\\u003e"</script>'
    """
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return f'<script type="application/json" id="{escape(name)}">{text}</script>'


def number(value: float, digits: int = 4) -> str:
    """A number for a person.

    >>> number(1234.5678), number(float("nan")), number(0.000123456), number(12345678.0), number(3.0)
    ('1235', '–', '0.0001235', '12,345,678', '3')
    """
    if not math.isfinite(value):
        return "–" if math.isnan(value) else "∞" if value > 0 else "−∞"
    value += 0.0  # no negative zero
    if abs(value) >= 10**digits:
        return f"{value:,.0f}"
    return f"{value:.{digits}g}".replace("e-0", "e-")


def seconds(value: float) -> str:
    """A time for a person.

    >>> seconds(0.31), seconds(12.3), seconds(754.0), seconds(7500.0)
    ('0.3 s', '12 s', '12 min 34 s', '2 h 05 min')
    """
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest:02d} s" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"
