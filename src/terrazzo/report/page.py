"""The page of a run, put together."""

from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from terrazzo.report import words
from terrazzo.report.chains import chains_section, correlations_section
from terrazzo.report.coordinates import coordinates_section
from terrazzo.report.marginals import marginals_section
from terrazzo.report.markup import Cell, asset, document, facts, number, paragraph, seconds, section, table
from terrazzo.report.running import evidence_section, moves_section, repeat_section, sampler_name
from terrazzo.report.target import target_section
from terrazzo.report.view import View
from terrazzo.results.result import Result
from terrazzo.storage.atomic import write_text
from terrazzo.verdict.checks import figure as short

SECTIONS = (
    ("target", "Target", target_section),
    ("posterior", "Posterior", marginals_section),
    ("chains", "Chains", chains_section),
    ("correlations", "Correlations", correlations_section),
    ("evidence", "Evidence", evidence_section),
    ("moves", "Moves and cost", moves_section),
    ("coordinates", "Coordinates", coordinates_section),
    ("repeat", "Repeat", repeat_section),
)


def render_page(result: Result) -> str:
    """The whole page of a result, as one text."""
    view = View(result)
    parts = [(name, title, make(view)) for name, title, make in SECTIONS]
    shown = [("verdict", "Verdict", _verdict(view)), *((n, t, markup) for n, t, markup in parts if markup)]
    links = "".join(f'<a href="#{name}">{escape(title)}</a>' for name, title, _ in shown)
    body = (
        f"<header>{_head(view)}<nav aria-label='Sections'>{links}</nav></header>"
        f"<main>{''.join(markup for _, _, markup in shown)}</main>"
    )
    style, script = (asset("terrazzo.report", name) for name in ("run.css", "run.js"))
    return document(_title(result), body, style=style, script=script)


def write_page(result: Result, path: Any) -> Path:
    """Writes the page of a result to a file."""
    return write_text(path, render_page(result))


def _title(result: Result) -> str:
    sampler = sampler_name(result)
    names = ", ".join(result.space.names[:3]) + (", …" if len(result.space.names) > 3 else "")
    return f"{result.num_chains} × {result.num_draws:,} draws of {names}, by {sampler}"


def _head(view: View) -> str:
    """What a person wants first: how far to trust it."""
    result = view.result
    verdict = result.verdict
    tone = words.TONES[verdict.grade]
    pairs = [
        ("coordinates", f"{view.num_coordinates:,}"),
        ("chains × draws", f"{result.num_chains} × {result.num_draws:,}"),
    ]
    ess = [q.row.ess_bulk for q in view.quantities if q.row.ess_bulk == q.row.ess_bulk]
    if ess:
        pairs.append(("least effective draws", number(min(ess), 3)))
    if result.evidence is not None and result.evidence.log_z == result.evidence.log_z:
        pairs.append(("log Z", f"{number(result.evidence.log_z, 6)} ± {number(result.evidence.standard_error, 2)}"))
    spent = result.provenance.get("seconds")
    if isinstance(spent, dict):
        pairs.append(("time", seconds(sum(v for v in spent.values() if isinstance(v, int | float)))))
    return (
        f"<p class='brand'>Terrazzo · page of a run</p><h1>{escape(_title(result))}</h1>"
        f'<div class="verdict {tone}"><p class="grade"><span aria-hidden="true">{_sign(tone)}</span> '
        f"{escape(verdict.grade)}</p><p>{escape(words.MEANINGS[verdict.grade])}</p></div>{facts(pairs)}"
    )


def _key(value: float) -> float:
    """What a number is sorted by, also where it is infinite or missing."""
    return float(np.clip(np.nan_to_num(value), -1e300, 1e300))


def _sign(tone: str) -> str:
    return {"good": "✓", "bad": "✗", "open": "○"}[tone]


def _verdict(view: View) -> str:
    """Every check: what it asks, what was found, and what to do."""
    result = view.result
    checks = result.checks()
    failed = [check for check in checks if not check.passed and check.advice]
    todo = ""
    if failed:
        items = "".join(f"<li><b>{escape(c.name)}</b>: {escape(c.advice)}.</li>" for c in failed)
        todo = f"<h3>What to do</h3><ul>{items}</ul>"
    rows = [
        (
            Cell(words.answer(c), float(("bad", "open", "note", "good").index(words.tone(c))), words.tone(c)),
            Cell(c.name), Cell(short(c.value), _key(c.value)), Cell(short(c.threshold), _key(c.threshold)),
            Cell(words.question(c)),
        )
        for c in checks
    ]  # fmt: skip
    listed = table(("", "check", "found", "threshold", "what it asks"), rows, "checks")
    return section(
        "verdict", "The verdict, and why", paragraph(f"In one line: {result.verdict}."), todo,
        f'<div class="checks">{listed}</div>',
    )  # fmt: skip
