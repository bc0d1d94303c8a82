"""Runs pieces one after the other, writes each as it is finished, and passes over those that are."""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import jax

from terrazzo.errors import OptionError, TerrazzoError
from terrazzo.paper.experiments.base import Experiment, Piece, Plan
from terrazzo.paper.experiments.measure import compile_clock, environment, measurements
from terrazzo.paper.experiments.methods import Context, lengths, run_method, seconds_allowed
from terrazzo.paper.experiments.presets import EXPERIMENTS, get_preset
from terrazzo.paper.experiments.records import is_finished, piece_path, save_record
from terrazzo.runtime.progress import Progress, format_seconds

LEAST_DRAWS = 4  # with fewer, no effective sample size can be estimated


@dataclass(frozen=True)
class Request:
    """What was asked for; empty choices mean the preset's own.

    Attributes:
        experiments: Names of experiments, or "all".
        preset: "smoke", "small" or "paper".
        out: The folder of the records.
        samplers: Rows to run; a prefix stands for all rows that begin with it ("gibbs" for "gibbs_10k", ...).
        settings: Targets to run.
        folds: Folds to run, from 1.
        seed: Random seed, of data and chains.
        archive: Data sets as `logistic.save_archive` writes them, where scikit-learn is missing.
        max_seconds: When a piece has taken this long it keeps the draws it has (training and burn-in are not cut).
        progress: As in `tz.sample`.
    """

    experiments: tuple[str, ...]
    preset: str
    out: Path
    samplers: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    folds: tuple[int, ...] = ()
    seed: int = 0
    archive: Path | None = None
    max_seconds: float | None = None
    progress: Any = "auto"

    def command(self) -> str:
        """The command that asks for this."""
        parts = ["terrazzo", "reproduce", *self.experiments, "--preset", self.preset, "--out", str(self.out)]
        for name, values in (("samplers", self.samplers), ("settings", self.settings), ("folds", self.folds)):
            for value in values:
                parts += [f"--{name}", str(value)]
        parts += ["--seed", str(self.seed)]
        parts += [] if self.archive is None else ["--archive", str(self.archive)]
        parts += [] if self.max_seconds is None else ["--max-seconds", f"{self.max_seconds:g}"]
        return shlex.join(parts)


def chosen_experiments(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, in the paper's order."""
    known = {*EXPERIMENTS, "all"}
    for name in names:
        if name not in known:
            raise OptionError("experiment", f"{name!r} is unknown", f"one of {', '.join([*EXPERIMENTS, 'all'])}")
    return [e for e in EXPERIMENTS.values() if e.name in names or "all" in names]


def pieces(request: Request) -> list[Piece]:
    """All pieces a request names, in order; `OptionError` where it names something that no experiment has."""
    experiments = chosen_experiments(request.experiments)
    plans = get_preset(request.preset)
    for field, asked, known in (
        ("settings", request.settings, {s for e in experiments for s in e.settings}),
        ("samplers", request.samplers, {m for e in experiments for m in e.methods}),
        ("folds", request.folds, set(range(1, 1 + max(e.num_folds for e in experiments)))),
    ):
        for value in asked:
            is_prefix = field == "samplers" and any(str(name).startswith(f"{value}_") for name in known)
            if value not in known and not is_prefix:
                shown = ", ".join(map(str, sorted(known))) or "none here"
                raise OptionError(field, f"{value!r} is unknown", f"one of {shown}")
    return [piece for e in experiments for piece in _pieces_of(e, plans[e.name], request)]


def _pieces_of(experiment: Experiment, plan: Plan, request: Request) -> Iterator[Piece]:
    settings = [s for s in experiment.settings if s in request.settings] if request.settings else plan.settings
    folds: Sequence[int | None] = plan.folds
    if request.folds and experiment.num_folds:
        folds = [fold - 1 for fold in request.folds]
    for setting in settings:
        for name in experiment.methods:
            asked = request.samplers or plan.methods or tuple(experiment.methods)
            if name in asked or any(name.startswith(f"{a}_") for a in asked if a not in experiment.methods):
                for fold in folds:
                    yield Piece(experiment.name, setting, name, fold)


def configuration(piece: Piece, request: Request) -> dict[str, Any]:
    """What decides the numbers of a piece: two records may share a table only if they agree on it."""
    method = EXPERIMENTS[piece.experiment].methods[piece.sampler]
    plan = get_preset(request.preset)[piece.experiment]
    out = {"preset": request.preset, "seed": request.seed, "kind": method.kind, "sampler": method.sampler}
    out |= lengths(method, plan) | {"options": dict(method.options)}
    if method.kind == "flow":
        out |= {"flow": dict(plan.flow), "gradient": method.gradient}
    if method.kind == "reference":
        out |= {"temperatures": plan.reference["temperatures"], "moves": plan.reference["moves"]}
    if method.kind == "ours":
        out["options"] = dict(plan.ours)
    return out


def label(piece: Piece, request: Request) -> str:
    """What a piece's row is called."""
    steps = {name: f"{value:,}" for name, value in configuration(piece, request).items() if isinstance(value, int)}
    return EXPERIMENTS[piece.experiment].methods[piece.sampler].label.format(**steps)


def _limit(piece: Piece, request: Request) -> float | None:
    """The seconds a piece is allowed."""
    plan = get_preset(request.preset)[piece.experiment]
    return seconds_allowed(EXPERIMENTS[piece.experiment].methods[piece.sampler], plan, request.max_seconds)


def is_done(piece: Piece, request: Request) -> bool:
    """Whether a request's folder holds the finished record of a piece."""
    return is_finished(piece_path(request.out, piece), configuration(piece, request), _limit(piece, request))


def reproduce(request: Request, tell: Callable[[str], None] = lambda line: None) -> list[str]:
    """Runs every piece of a request that is not finished yet.

    Args:
        request: What to run.
        tell: Called with a line before and after each piece.

    Returns:
        What went wrong, a line for each piece that failed. Ctrl-C ends the run; finished pieces are kept.
    """
    todo = pieces(request)
    finished = {piece for piece in todo if is_done(piece, request)}
    check_data([piece for piece in todo if piece not in finished], request)
    if find_spec("matplotlib") is None:
        tell("matplotlib is not installed: `terrazzo report` will need it (pip install 'terrazzo[paper]')")
    if finished:
        tell(f"{len(finished)} of {len(todo)} pieces are finished already")
    failures = []
    for i, piece in enumerate(todo):
        if piece not in finished:
            tell(f"[{i + 1}/{len(todo)}] {piece}")
            failures += attempt(piece, request, tell)
    return failures


def attempt(piece: Piece, request: Request, tell: Callable[[str], None]) -> list[str]:
    """Runs one piece and tells what came of it; a line if it failed."""
    began = time.perf_counter()
    try:
        record = run_piece(piece, request)
    except TerrazzoError as error:
        tell(f"    failed: {error}")
        return [f"{piece}: {error}"]
    theirs, seconds = record["paper_ess"]["mean"], format_seconds(time.perf_counter() - began)
    tell(f"    ESS {theirs:.4g} per 10^4 draws, log pi {record['log_prob']['mean']:.2f}, {seconds}")
    return []


def check_data(todo: Sequence[Piece], request: Request) -> None:
    """Raises one error that names every data set that is missing, before anything runs."""
    missing = {}
    for experiment, setting in dict.fromkeys((piece.experiment, piece.setting) for piece in todo):
        try:
            EXPERIMENTS[experiment].check_data(setting, request.archive)
        except TerrazzoError as error:
            missing[f"{experiment} {setting}"] = error
    if missing:
        remedies = " or ".join(dict.fromkeys(error.remedy for error in missing.values()))
        problems = "; ".join(dict.fromkeys(f"{error.field} {error.problem}" for error in missing.values()))
        raise OptionError("data", f"of {', '.join(missing)} cannot be read: {problems}", f"{remedies}, or --archive")


def run_piece(piece: Piece, request: Request) -> dict[str, Any]:
    """Runs one piece and writes its record."""
    experiment, plan = EXPERIMENTS[piece.experiment], get_preset(request.preset)[piece.experiment]
    method = experiment.methods[piece.sampler]
    clock, began = compile_clock(), time.perf_counter()
    is_double = experiment.precision == "float64"
    with jax.enable_x64(True) if is_double else contextlib.nullcontext():
        case = experiment.build(piece.setting, piece.fold, request.seed, request.archive)
        context = Context(case.target, request.seed, experiment.precision, request.progress, request.max_seconds)
        compiled = clock[0]
        run = run_method(method, plan, context)
        if run.result.num_draws < LEAST_DRAWS:
            raise OptionError("max_seconds", f"ran out after {run.result.num_draws} draws", "allow more time")
        with Progress(request.progress) as progress:
            progress.phase("diagnosing")
            figures = measurements(run, clock[0] - compiled)
            extra, arrays = case.extras(run)
    config = configuration(piece, request)
    record = {
        "piece": piece._asdict(),
        "label": label(piece, request),
        "configuration": config,
        "plan": asdict(plan),
        "seed": request.seed,
        "command": request.command(),
        "max_seconds": _limit(piece, request),
        **environment(),
        **figures,
        "is_complete": run.result.num_draws == config["draws"],
        "wall_seconds": time.perf_counter() - began,
        "extra": extra,
    }
    save_record(piece_path(request.out, piece), record, arrays)
    return record
