"""The sections on the run itself: log Z by every way, how it moved, what each phase cost, how to repeat it."""

from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from terrazzo.report import svg
from terrazzo.report.markup import Cell, facts, figure, grid, number, paragraph, seconds, section, table
from terrazzo.report.view import View
from terrazzo.results.result import Result
from terrazzo.spaces.text import format_space

CURVES = 4
WAYS = {
    "exact": "exact: the sum over all configurations",
    "importance": "importance: the learned map's draws, reweighted",
    "bridge": "bridge: between the draws and the learned map",
    "tempering": "tempering: along the ladder of temperatures",
    "smc": "smc: the product of its stages' weights",
}


def evidence_section(view: View) -> str:
    """The estimates of log Z, side by side."""
    result = view.result
    estimates = {name: e for name, e in result.evidence_estimates.items() if np.isfinite(e.log_z)}
    if not estimates and result.evidence is None:
        return ""
    verdict = result.log_z_verdict
    parts = []
    if result.evidence is not None and np.isfinite(result.evidence.log_z):
        error = result.evidence.standard_error
        parts.append(facts([("log Z", number(result.evidence.log_z, 7)), ("standard error", number(error, 2))]))
    elif result.evidence is not None:
        parts.append(paragraph("No estimate of log Z is given: those that were made contradict each other."))
    if verdict is not None:
        parts.append(paragraph(f"How far to trust it: {verdict}."))
    if estimates:
        rows = [
            (
                Cell(WAYS.get(name, name)), Cell(number(e.log_z, 7), float(e.log_z)),
                Cell(number(e.standard_error, 2), float(e.standard_error)),
                Cell(number(e.pareto_k, 2), None if np.isnan(e.pareto_k) else float(e.pareto_k)),
            )
            for name, e in estimates.items()
        ]  # fmt: skip
        drawn = figure(_intervals(estimates), "Estimates of log Z with two standard errors to each side.")
        listed = table(("estimate", "log Z", "standard error", "Pareto k"), rows, "estimates of log Z")
        parts.append(f'<div class="cards pairs">{drawn}{listed}</div>')
    return section("evidence", "Evidence: log Z", *parts)


def _intervals(estimates: Mapping[str, Any]) -> str:
    """A line an estimate."""
    low = min(e.log_z - 2 * e.standard_error for e in estimates.values())
    high = max(e.log_z + 2 * e.standard_error for e in estimates.values())
    pad = 0.08 * (high - low) or max(1e-3 * abs(high), 0.1)
    bottom = 12 + 26 * len(estimates)
    x = svg.Axis(low - pad, high + pad, 90, svg.WIDTH - 14)
    parts = [svg.frame(x, svg.Axis(0, 1, bottom, 0), below="log Z", has_y=False, x_ticks=svg.ticks(x.low, x.high, 3))]
    for i, (name, e) in enumerate(estimates.items()):
        y = 18 + 26 * i
        ends = x.at(np.array([e.log_z - 2 * e.standard_error, e.log_z + 2 * e.standard_error]))
        parts.append(svg.text(82, y + 4, svg.clipped(name, 12), anchor="end", kind="ink"))
        parts.append(svg.line(float(ends[0]), y, float(ends[1]), y, f"line c{i % 8} thick"))
        parts.append(f'<circle cx="{float(x.at(np.array(e.log_z))):.1f}" cy="{y}" r="4.5" class="fill c{i % 8}"/>')
    return svg.chart("".join(parts), "estimates of log Z", height=bottom + 32)


def sampler_name(result: Result) -> str:
    """What moved the chains: the default sampler's choice, or the sampler that was named."""
    p = result.provenance
    choice = _mapping(_mapping(p.get("warm-up")).get("choice"))
    return str(choice.get("chosen") or p.get("chosen") or p.get("sampler") or "a sampler")


def moves_section(view: View) -> str:
    """How the run moved, and what each phase cost."""
    result, p = view.result, view.result.provenance
    pairs = [("moves", sampler_name(result))]
    pairs.append(("chains × draws", f"{result.num_chains} × {result.num_draws:,}"))
    if isinstance(p.get("thin"), int):
        pairs.append(("steps a kept draw", f"{p['thin']:,}"))
    stats = result.sample_stats
    if "acceptance_rate" in stats and stats["acceptance_rate"].size:
        pairs.append(("mean acceptance", number(float(stats["acceptance_rate"].mean()), 3)))
    if "num_evaluations" in stats and stats["num_evaluations"].any():
        pairs.append(("evaluations while sampling", f"{int(stats['num_evaluations'].sum(dtype=np.int64)):,}"))
    spent = {str(k): float(v) for k, v in _mapping(p.get("seconds")).items() if isinstance(v, int | float)}
    total = sum(spent.values())
    if total:
        pairs.append(("time in all", seconds(total)))
    parts = [facts(pairs)]
    if result.choice is not None:
        parts.append(paragraph(f"Why it moved like this: {result.choice}."))
    cards = [figure(_phases(spent), "Seconds by phase.")] if total else []
    cards += _curves(result.history)
    return section("moves", "How it moved, and what it cost", *parts, grid(cards), _trial(p), _exploration(p))


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _phases(spent: Mapping[str, float]) -> str:
    """A bar a phase, in the order of the run."""
    step, left, top = 19, 150, max(spent.values()) or 1.0
    parts = []
    for i, (name, value) in enumerate(spent.items()):
        y, length = 4 + step * i, (svg.WIDTH - left - 60) * value / top
        parts.append(svg.text(left - 6, y + 13, svg.clipped(name, 24), anchor="end", kind="ink"))
        parts.append(f'<rect x="{left}" y="{y + 2}" width="{max(length, 0.5):.1f}" height="14" class="fill c0"/>')
        parts.append(svg.text(left + length + 5, y + 13, seconds(value)))
    return svg.chart("".join(parts), "seconds by phase", height=step * len(spent) + 8)


def _curves(history: Mapping[str, np.ndarray] | None) -> list[str]:
    """Training curves."""
    lines = {
        k: np.asarray(v, float) for k, v in (history or {}).items() if np.ndim(v) == 1 and np.size(v) > 1 and np.ptp(v)
    }
    shown = list(lines.items())[:CURVES]
    return [
        figure(svg.traces([values], f"training: {name}", below="step"), f"Training: {name.replace('_', ' ')}.")
        for name, values in shown
    ]


def _trial(provenance: Mapping[str, Any]) -> str:
    """What the default sampler tried before it chose."""
    choice = _mapping(_mapping(provenance.get("warm-up")).get("choice"))
    trial = choice.get("trial")
    rows = [_mapping(row) for row in trial] if isinstance(trial, list) else []
    if not rows:
        return ""
    cell = lambda row, key, digits: (
        Cell(number(float(row[key]), digits), float(row[key]) if np.isfinite(float(row[key])) else None)
        if isinstance(row.get(key), int | float)
        else Cell("–")
    )
    lines = [
        (
            Cell(str(row.get("candidate", ""))), cell(row, "ess_per_second", 4), cell(row, "round_ms", 3),
            cell(row, "acceptance", 3),
        )
        for row in rows
    ]  # fmt: skip
    heads = ("moves that were tried", "effective draws a second", "ms a round", "acceptance")
    return "<h3>What was tried</h3>" + table(heads, lines, "moves that were tried")


def _exploration(provenance: Mapping[str, Any]) -> str:
    """What the exploration by tempering found."""
    found = _mapping(_mapping(provenance.get("warm-up")).get("exploration"))
    names = {
        "ladders": "ladders", "temperatures": "temperatures", "barrier": "barrier (1 is easy, 10 is hard)",
        "kernel": "local moves", "rounds": "rounds", "kept": "draws kept", "evaluations": "evaluations",
        "r_hat": "R-hat",
    }  # fmt: skip
    pairs = [
        (words, number(float(found[key]), 5) if isinstance(found[key], int | float) else str(found[key]))
        for key, words in names.items()
        if key in found
    ]
    return f"<h3>Exploration by parallel tempering</h3>{facts(pairs)}" if pairs else ""


def repeat_section(view: View) -> str:
    """How to make the same draws again."""
    result, p = view.result, view.result.provenance
    parts = []
    if isinstance(p.get("command"), str):
        parts.append(f"<p>The command:</p><pre>{escape(p['command'])}</pre>")
    options = [f"{name}={p[name]!r}" for name in ("seed", "chains", "draws", "warmup") if isinstance(p.get(name), int)]
    sampler = p.get("sampler", "auto")
    plan = []
    if sampler != "auto":
        given = _mapping(p.get("options"))
        options.append(f"sampler=tz.samplers.{sampler}({', '.join(f'{k}={v}' for k, v in given.items())})")
        if isinstance(p.get("thin"), int):
            options.append(f"thin={p['thin']}")
    if result.plan is not None:
        options.append('plan=tz.Result.load("result.tz").plan')
        plan = [
            "The default sampler decides by timings, so its plan is part of the recipe: it is stored in the result."
        ]
    space = format_space(result.space, most=2000)
    code = "\n".join(
        [f"# space: {space}", "result = tz.sample(", "    log_prob, space,", *(f"    {o}," for o in options), ")"]
    )
    parts.append(f"<p>In Python:</p><pre>{escape(code)}</pre>")
    parts += [paragraph(line) for line in plan]
    versions = ", ".join(f"{name} {version}" for name, version in _mapping(p.get("versions")).items())
    parts.append(
        facts(
            (name, value)
            for name, value in (
                ("versions", versions), ("device", str(p.get("device") or "")), ("seed", str(p.get("seed", ""))),
                ("time limit", seconds(p["max_seconds"]) if isinstance(p.get("max_seconds"), int | float) else ""),
            )
            if value
        )
    )  # fmt: skip
    return section("repeat", "How to repeat it", *parts)
