"""The experiments at their smallest, through the command line: records, resuming, tables, escaping, bad input."""

import dataclasses
import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from typer.testing import CliRunner

from terrazzo import cli
from terrazzo.auto import policy
from terrazzo.errors import ConfigurationError, FileFormatError, MissingPackageError, OptionError
from terrazzo.paper.experiments import EXPERIMENTS, PRESETS, Request, methods, pieces, run, runner, schedule
from terrazzo.paper.experiments.base import Piece
from terrazzo.paper.experiments.logistic import load_data, save_archive
from terrazzo.paper.experiments.measure import GROUP_SIZE
from terrazzo.paper.experiments.paper_numbers import PAPER_NUMBERS
from terrazzo.paper.experiments.records import load_arrays, load_record, piece_path, save_record
from terrazzo.paper.experiments.source import own_source, tree_name
from terrazzo.paper.report import write_report
from terrazzo.paper.report.rows import collect_rows
from terrazzo.paper.report.tables import make_tables, to_latex

SMOKE = ["all", "--preset", "smoke", "--progress", "plain"]


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(a) for a in arguments])


@pytest.fixture(scope="module", autouse=True)
def _small_numbers():
    """Two scales to choose from, and few draws for an evidence that nobody reads: only time depends on these."""
    few = dataclasses.replace(policy.CPU, own_draws=256)
    with mock.patch.object(methods, "SCALES", (0.2, 0.7)), mock.patch.object(policy, "CPU", few):
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory, _small_numbers):
    """One run of all four experiments (each kind of row on two of them at least), and what it said."""
    folder = tmp_path_factory.mktemp("smoke")
    out = invoke("reproduce", *SMOKE, "--out", folder)
    assert out.exit_code == 0, out.output
    return folder, out


@pytest.fixture
def copy(finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "copy")
    return tmp_path / "copy"


def all_pieces(folder):
    return pieces(Request(("all",), "smoke", folder))


def without_seconds(folder):
    """The Markdown tables with the columns of time taken out."""
    lines = []
    for block in write_report(folder).markdown.read_text().split("###"):
        kept = None
        for line in block.splitlines():
            cells = line.split("|")
            if len(cells) > 2 and kept is None:
                kept = [i for i, head in enumerate(cells) if "min, this run" not in head and "seconds" not in head]
            lines.append(line if len(cells) <= 2 else "|".join(cells[i] for i in kept))
    return lines


def test_every_piece_has_a_full_record(finished):
    folder, out = finished
    todo = all_pieces(folder)
    assert {p.experiment for p in todo} == set(EXPERIMENTS)
    assert f"[{len(todo)}/{len(todo)}]" in out.stderr
    for piece in todo:
        record = load_record(piece_path(folder, piece))
        assert Piece(**record["piece"]) == piece
        assert set(record["seconds"]) == {"train", "burn_in", "sample", "compile", "total"}
        assert record["seconds"]["total"] > 0
        assert record["paper_ess"]["mean"] > 0
        assert np.isfinite(record["log_prob"]["mean"])
        assert 0 <= record["num_constant"] <= record["num_dims"]
        assert record["verdict"]["text"]
        assert {"jax", "terrazzo", "python"} <= set(record["versions"])
        assert record["device"]
        assert record["command"].startswith("terrazzo reproduce all --preset smoke")
        assert record["configuration"]["seed"] == record["seed"] == 0
        if piece.experiment == "logistic":
            assert 0 <= record["extra"]["accuracy"] <= 1
            assert record["extra"]["num_held_out"] == 30
        if record["configuration"]["kind"] == "flow":
            assert record["training"]["gradient"] == "paper"
    arrays = load_arrays(piece_path(folder, Piece("ising", "paper", "ours")))
    assert arrays["samples"].shape == (16, 28, 28)
    assert arrays["mean"].shape == (28, 28)
    assert load_arrays(piece_path(folder, Piece("mixture", "ring", "flow_mh")))["exact"].sum() == pytest.approx(1)


def test_a_second_call_repeats_nothing(finished, monkeypatch):
    folder, _ = finished
    monkeypatch.setattr(runner, "run_piece", lambda *_: pytest.fail("a finished piece ran again"))
    out = invoke("reproduce", *SMOKE, "--out", folder)
    assert out.exit_code == 0
    assert f"{len(all_pieces(folder))} of {len(all_pieces(folder))} pieces are finished" in out.stderr


def test_a_kill_loses_one_piece_at_most(finished, copy, monkeypatch):
    """Two records are missing, one is cut in half; Ctrl-C comes in the second piece: the tables end up the same."""
    folder, _ = finished
    todo = all_pieces(folder)
    lost = [p for p in todo if p.sampler in ("gibbs_100k", "metropolis") and p.fold in (None, 0)]
    lost.append(Piece("selection", "20_noisy", "gibbs"))
    for piece in lost[:-1]:
        piece_path(copy, piece).unlink()
    path = piece_path(copy, lost[-1])
    path.write_bytes(path.read_bytes()[:200])
    real, ran = runner.run_method, []

    def interrupted(method, plan, context):
        ran.append(method.label)
        if len(ran) == 2:
            raise KeyboardInterrupt
        return real(method, plan, context)

    monkeypatch.setattr(runner, "run_method", interrupted)
    out = invoke("reproduce", *SMOKE, "--out", copy)
    assert out.exit_code == 130
    command = out.stderr.strip().splitlines()[-1].strip()
    assert command.startswith("terrazzo reproduce all --preset smoke")
    assert str(copy) in command
    assert len(ran) == 2
    out = invoke(*command.split()[1:])
    assert out.exit_code == 0, out.output
    assert len(ran) == 2 + len(lost) - 1
    assert without_seconds(copy) == without_seconds(folder)


@pytest.mark.parametrize("call", [1, 3], ids=["in a pilot run", "while sampling"])
def test_a_part_of_a_piece_is_not_a_piece(finished, tmp_path, monkeypatch, call):
    """Ctrl-C returns the draws so far: that is the user's wish to stop, not a finished piece."""
    real, calls = methods.sample, []

    def cut(*arguments, **options):
        calls.append(1)
        return dataclasses.replace(real(*arguments, **options), is_complete=len(calls) != call)

    monkeypatch.setattr(methods, "sample", cut)
    one = ["mixture", "--preset", "smoke", "--samplers", "flow_mh", "--progress", "off"]
    assert invoke("reproduce", *one, "--out", tmp_path).exit_code == 130
    assert len(calls) == call
    assert list(tmp_path.rglob("*.json")) == []


def test_a_time_limit_keeps_what_there_is(finished, tmp_path, monkeypatch):
    real, limits = runner.run_method, []

    def cut(method, plan, context, num_draws=8):
        limits.append(context.max_seconds)
        out = real(method, plan, context._replace(max_seconds=None))
        stats = {name: values[:, :num_draws] for name, values in out.result.sample_stats.items()}
        theta = out.result.theta[:, :num_draws]
        return out._replace(result=dataclasses.replace(out.result, theta=theta, sample_stats=stats))

    request = Request(("mixture",), "smoke", tmp_path, ("flow_mh",), max_seconds=60.0, progress="off")
    monkeypatch.setattr(runner, "run_method", cut)
    assert runner.reproduce(request) == []
    record = load_record(piece_path(tmp_path, Piece("mixture", "ring", "flow_mh")))
    assert (record["is_complete"], record["draws"], limits) == (False, 8, [60.0])
    assert "(cut short)" in write_report(tmp_path).markdown.read_text()
    monkeypatch.setattr(runner, "run_method", lambda *_: pytest.fail("ran again"))
    assert runner.reproduce(request) == []
    for longer in (90.0, None):  # more time is allowed: the piece is run again
        with pytest.raises(pytest.fail.Exception):
            runner.reproduce(dataclasses.replace(request, max_seconds=longer))
    monkeypatch.setattr(runner, "run_method", lambda *arguments: cut(*arguments, num_draws=2))
    assert "ran out after 2 draws" in runner.reproduce(dataclasses.replace(request, max_seconds=90.0))[0]


def test_another_configuration_is_refused(copy):
    out = invoke("reproduce", *SMOKE, "--out", copy, "--seed", 1)
    assert isinstance(out.exception, ConfigurationError)
    assert "seed is 0 there and 1 here" in str(out.exception)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["nothing"], "experiment"),
        (["all", "--preset", "huge"], "preset"),
        (["all", "--samplers", "magic"], "samplers"),
        (["logistic", "--settings", "mnist"], "settings"),
        (["logistic", "--folds", "6"], "folds"),
        (["ising", "--folds", "1"], "folds"),
        (["mixture", "--preset", "smoke", "--progress", "loud"], "progress"),
    ],
)
def test_bad_requests(arguments, field, tmp_path):
    out = invoke("reproduce", *arguments, "--out", tmp_path)
    assert out.exit_code != 0
    assert field in str(out.exception) or field in out.stderr
    assert list(tmp_path.rglob("*.json")) == []


def test_bad_folders_and_archives(tmp_path):
    assert isinstance(invoke("report", tmp_path).exception, OptionError)
    assert isinstance(invoke("report", tmp_path / "missing").exception, FileFormatError)
    (tmp_path / "data.npz").write_bytes(b"nonsense")
    logistic = ["logistic", "--preset", "smoke", "--progress", "off", "--out", str(tmp_path / "out")]
    assert run.main([*logistic, "--archive", str(tmp_path / "data.npz")]) == 2
    assert run.main([*logistic, "--samplers", "magic"]) == 2


def test_what_is_missing_is_said_before_anything_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "run_piece", lambda *_: pytest.fail("a piece ran"))
    monkeypatch.setattr(runner, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "sklearn", None)
    lines, request = [], Request(("all",), "small", tmp_path)
    with pytest.raises(OptionError, match=r"(?s)scikit-learn is not installed.*terrazzo\[paper\]") as caught:
        runner.reproduce(request, lines.append)
    assert all(f"logistic {name}" in str(caught.value) for name in PRESETS["small"]["logistic"].settings)
    monkeypatch.setattr(runner, "run_piece", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        runner.reproduce(Request(("mixture",), "small", tmp_path), lines.append)
    assert "matplotlib is not installed" in lines[0]


def test_a_report_without_matplotlib_names_the_extra(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MissingPackageError, match=r"terrazzo\[plots\]"):
        write_report(finished[0])


def test_an_archive_stands_in_for_scikit_learn(tmp_path):
    save_archive(tmp_path / "data.npz")
    for dataset in ("iris", "digits"):
        for stored, loaded in zip(load_data(dataset, tmp_path / "data.npz"), load_data(dataset, None), strict=True):
            np.testing.assert_array_equal(stored, loaded)


def test_choices_narrow_a_request(tmp_path):
    request = Request(("ising",), "paper", tmp_path, ("gibbs", "ours"))
    names = [p.sampler for p in pieces(request)]
    assert names == ["gibbs_10k", "gibbs_20k", "gibbs_50k", "gibbs_100k", "ours"]
    request = Request(("logistic",), "paper", tmp_path, ("flow_mh",), ("iris", "digits_gaussian"), (2, 5))
    assert [p[1:] for p in pieces(request)] == [
        (setting, "flow_mh", fold) for setting in ("iris", "digits_gaussian") for fold in (1, 4)
    ]
    assert "--settings iris --settings digits_gaussian --folds 2 --folds 5" in request.command()


def test_the_paper_preset_is_the_papers():
    for name, plan in PRESETS["paper"].items():
        assert (plan.chains, plan.draws, plan.thin, plan.burn_in) == (128, 10_000, 10, 100_000)
        assert (plan.iterations, plan.batch_size, dict(plan.flow), dict(plan.ours)) == (10_000, 128, {}, {})
        assert plan.chains // GROUP_SIZE == 8
        experiment = EXPERIMENTS[name]
        run_rows = set(plan.methods or experiment.methods)
        printed = {(s, m) for e, s, m in PAPER_NUMBERS if e == name}
        assert {s for s, _ in printed} <= set(plan.settings)
        assert {m for _, m in printed} <= run_rows
    size = lambda name: methods.lengths(EXPERIMENTS["ising"].methods[name], PRESETS["paper"]["ising"])
    assert [size(f"flow_mh_{k}")["iterations"] for k in ("1k", "2k", "5k", "10k")] == [1000, 2000, 5000, 10_000]
    assert [size(f"gibbs_{k}")["burn_in"] for k in ("10k", "20k", "50k", "100k")] == [10_000, 20_000, 50_000, 100_000]


def test_tables_show_the_paper_beside_ours(finished):
    folder, _ = finished
    report = write_report(folder)
    markdown, latex = report.markdown.read_text(), report.latex.read_text()
    for printed in ("28.52 ± 4.17", "7.82 ± 1.06", "923.2 ± 37.3", "108.5 ± 1.44", "97.4", "4056.82 ± 5.64"):
        assert printed in markdown
        assert printed.replace("±", r"$\pm$") in latex
    for heading in ("Table 1", "Table 2", "Table 3", "constant coordinates", "our estimator: least"):
        assert heading in markdown
    assert latex.count(r"\begin{tabular}") == latex.count(r"\end{tabular}") == 4
    folds = [line for line in markdown.splitlines() if line.startswith("| iris") and "discrete MCMC" in line]
    assert "of 2 trusted" in folds[0]
    assert {p.stem for p in report.figures} == {"figure1", "figure2", "figure3", "figure4", "figure5"}
    assert all(p.read_bytes().startswith(b"\x89PNG") for p in report.figures)


def test_the_page_is_one_file(finished):
    page = write_report(finished[0]).page.read_text()
    assert not re.search(r"""(?:src|href)=["'](?!data:|#)""", page)
    assert not re.search("https?:", re.sub(r"base64,[A-Za-z0-9+/=]*", "", page))
    assert page.count("<table>") == page.count("</table>") == 4
    assert "terrazzo reproduce all --preset smoke" in page


def test_everything_from_outside_is_escaped(copy):
    nasty = "<script>alert('x')</script>&\"|_$"
    path = piece_path(copy, Piece("logistic", "iris", "ours", 0))
    record = json.loads(path.read_text())
    record |= {"label": nasty, "device": nasty, "platform": nasty, "command": nasty, "versions": {nasty: nasty}}
    record["verdict"]["text"] = record["configuration"]["preset"] = nasty
    save_record(path, record, {})
    report = write_report(copy)
    page = report.page.read_text()
    assert "<script>alert" not in page
    assert page.count("<script") == 1
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt;&amp;&quot;|_$" in page
    row = next(line for line in report.markdown.read_text().splitlines() if "alert" in line)
    assert "<script" not in row
    table = next(t for t in make_tables(collect_rows([(path, record)])))
    assert r"\&" in to_latex(table)
    assert r"\_\$" in to_latex(table)


def test_foreign_files_are_passed_over(copy):
    (copy / "logistic" / "notes.json").write_text('{"format": 1}')
    (copy / "logistic" / "odd--ours.json").write_text("[" * 100_000)
    before = without_seconds(copy)
    (copy / "ising" / "paper--ours.npz").write_bytes(b"damaged")
    assert without_seconds(copy) == before


def test_a_piece_that_its_own_plan_cut_short_is_finished(monkeypatch, finished, tmp_path):
    """The presets limit ours in time: what they cut is not run again."""
    folder, _ = finished
    piece = next(p for p in all_pieces(folder) if p.sampler == "ours")
    plan = PRESETS["smoke"][piece.experiment]
    short = dataclasses.replace(plan, ours={**plan.ours, "max_seconds": 5.0})
    monkeypatch.setitem(PRESETS["smoke"], piece.experiment, short)
    request = Request((piece.experiment,), "smoke", tmp_path)
    assert runner._limit(piece, request) == 5.0
    configuration = runner.configuration(piece, request)
    cut = {"is_complete": False, "max_seconds": 5.0, "configuration": configuration}
    save_record(piece_path(tmp_path, piece), load_record(piece_path(folder, piece)) | cut, {})
    assert runner.is_finished(piece_path(tmp_path, piece), configuration, runner._limit(piece, request))
    assert not runner.is_finished(piece_path(tmp_path, piece), configuration, 6.0)


class FakeTime:
    """A clock that pieces set: `run_piece` that takes the seconds it is told."""

    def __init__(self, takes):
        self.now, self.takes, self.ran = 0.0, takes, []

    def perf_counter(self):
        return self.now

    def run_piece(self, piece, request):
        self.ran.append((piece, request.max_seconds))
        self.now += self.takes(piece)
        if piece.sampler == "gibbs":
            raise MemoryError("nothing left")
        if piece.sampler == "tempering":
            raise OptionError("max_seconds", "ran out after 0 draws", "allow more time")
        record = {"configuration": runner.configuration(piece, request), "piece": piece._asdict(), "seed": 0}
        record |= {"is_complete": False, "max_seconds": request.max_seconds}
        record |= {key: {} for key in ("versions", "seconds", "ess", "verdict")}
        record |= {"paper_ess": {"mean": 1.0}, "log_prob": {"mean": 0.0}}
        save_record(piece_path(request.out, piece), record, {})
        return record


@pytest.fixture
def fake_time(monkeypatch):
    fake = FakeTime(lambda piece: 50.0)
    monkeypatch.setattr(schedule, "time", fake)
    monkeypatch.setattr(runner, "run_piece", fake.run_piece)
    return fake


def test_every_piece_of_the_paper_has_one_turn(tmp_path):
    request = Request(("all",), "paper", tmp_path)
    known = [piece for turn in schedule.TURNS["paper"] for piece in turn.pieces()]
    assert sorted(known, key=str) == sorted(pieces(request), key=str)
    starts = schedule.ordered(request)
    assert [start.piece for start in starts] == known
    assert all(start.needs > start.max_seconds for start in starts)
    first = [start.piece for start in starts[:15]]
    assert {p.sampler for p in first} == {"ours"}
    limited = schedule.ordered(dataclasses.replace(request, max_seconds=10.0))
    assert all(s.needs - s.max_seconds == a.needs - a.max_seconds for s, a in zip(limited, starts, strict=True))


def test_no_piece_is_started_that_cannot_be_finished(fake_time, tmp_path):
    """Pieces take 50 seconds each: with 300, those that need more than is left make way for shorter ones."""
    lines, request = [], Request(("all",), "paper", tmp_path, ("ours", "metropolis"), archive=None)
    assert schedule.reproduce_within(request, 300.0, lines.append) == []
    assert fake_time.now <= 300
    starts = schedule.ordered(request)
    left, expected = 300.0, []
    for start in starts:
        if start.needs <= left:
            expected.append((start.piece, start.max_seconds))
            left -= 50.0
    assert fake_time.ran == expected
    assert f"no time was left for {len(starts) - len(expected)} pieces" in lines[-1]
    before = list(fake_time.ran)
    schedule.reproduce_within(request, 300.0, lines.append)  # what is there is not run again
    assert not {p for p, _ in before} & {p for p, _ in fake_time.ran[len(before) :]}


def test_a_piece_that_breaks_leaves_time_for_the_others(fake_time, tmp_path):
    lines, request = [], Request(("selection",), "paper", tmp_path, settings=("100",))
    failures = schedule.reproduce_within(request, 2000.0, lines.append)
    assert [line.split(": ", 1)[0] for line in failures] == ["selection, 100, tempering", "selection, 100, gibbs"]
    assert "MemoryError: nothing left" in failures[1]
    assert [p.sampler for p, _ in fake_time.ran] == ["ours", "tempering", "gibbs", "flow_mh"]
    assert run.main(["selection", "--preset", "paper", "--settings", "100", "--out", str(tmp_path),
                     "--total-seconds", "1"]) == 0  # fmt: skip


def test_a_record_says_which_source_made_it(finished):
    """Git's own name of the tree of files, so that the commit can be found."""
    folder, _ = finished
    records = [load_record(piece_path(folder, piece)) for piece in all_pieces(folder)]
    assert {record["source"] for record in records} == {own_source()}
    assert all(record["date"] and record["wall_seconds"] > 0 for record in records)


def test_the_name_of_a_tree_is_gits(tmp_path):
    if (git := shutil.which("git")) is None:
        pytest.skip("needs git")
    for name in ("a.txt", "a/b.py", "a-b/c.py", "a/__pycache__/x.pyc", "z/d/e.css"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    call = lambda *words: subprocess.run([git, "-C", str(tmp_path), *words], check=True, capture_output=True, text=True)
    call("init", "--quiet")
    (tmp_path / ".git" / "info" / "exclude").write_text("__pycache__/\n")
    call("add", ".")
    name = call("write-tree").stdout.strip()
    shutil.rmtree(tmp_path / ".git")
    (tmp_path / "empty").mkdir()
    assert tree_name(tmp_path) == name


@pytest.fixture(scope="module")
def page():
    """The script that writes the tables of docs/reproduction.md."""
    path = Path(__file__).parents[1] / "benchmarks" / "reproduction_tables.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_pages_tables_are_what_the_records_give(page):
    text = page.PAGE.read_text(encoding="utf-8")
    assert "paper" in page.presets(text)
    assert page.rebuilt(text) == text, "run python benchmarks/reproduction_tables.py"


def test_kept_records_are_small_and_say_where_they_come_from(page):
    for path in page.RECORDS.glob("*/*/*"):
        if path.parent.name == "report":  # what `terrazzo report` wrote there; Git ignores it
            continue
        assert path.stat().st_size < 100 * 1024, path
        assert path.suffix in (".json", ".npz"), path
        if path.suffix == ".json":
            record = load_record(path)
            piece = Piece(**record["piece"])
            assert piece_path(page.RECORDS / record["configuration"]["preset"], piece) == path
            assert all(record[name] for name in ("source", "date", "device", "command", "versions")), path


def test_tables_name_the_rows_that_are_missing(page, finished, tmp_path):
    shutil.copytree(finished[0], tmp_path / "smoke")
    whole = page.tables("smoke", tmp_path)
    assert whole.count("###") == 4
    assert "without a record" not in whole
    assert f"source tree `{own_source()[:12]}`" in whole
    assert f"{len(all_pieces(finished[0]))} records" in whole
    piece_path(tmp_path / "smoke", Piece("ising", "paper", "gibbs_100k")).unlink()
    piece_path(tmp_path / "smoke", Piece("logistic", "iris", "ours", 1)).unlink()
    part = page.tables("smoke", tmp_path)
    assert part.endswith("- Ising model: denoising a binary digit: paper (Gibbs, a site a step (burn-in 10)).\n")
    line = next(line for line in part.splitlines() if line.startswith("| iris | ours |"))
    assert line.split("|")[3].strip() == "1"  # of two folds
    first, last = page.mark("smoke")
    text = f"before\n{first}old\n{last}\nafter"
    assert page.rebuilt(text, tmp_path) == f"before\n{first}\n{part}\n{last}\nafter"
    assert page.rebuilt(page.rebuilt(text, tmp_path), tmp_path) == page.rebuilt(text, tmp_path)
