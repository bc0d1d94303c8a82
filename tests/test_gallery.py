"""The worked problems run: some of them quickly here, all of them in full in `make study`."""

import ast
import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_spec = importlib.util.spec_from_file_location("gallery_run", ROOT / "gallery" / "run.py")
gallery = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(gallery)
SCRIPTS = gallery.scripts()
STORED = ROOT / "docs" / "gallery"
QUICK = ("asia", "epidemic", "karate_club", "maxcut")  # a network, a black box, a mixed model, a maximum


def by_name(path):
    return path.stem


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_run(name, tmp_path):
    gallery.run(ROOT / "gallery" / f"{name}.py", tmp_path, quick=True)
    assert (tmp_path / f"{name}.txt").read_text()
    assert (tmp_path / f"{name}.png").stat().st_size < gallery.MAX_BYTES


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=by_name)
def test_a_full_run(script, tmp_path):
    gallery.run(script, tmp_path)
    assert (tmp_path / f"{script.stem}.png").stat().st_size < gallery.MAX_BYTES


@pytest.mark.parametrize("script", SCRIPTS, ids=by_name)
def test_a_script_explains_itself_and_is_short(script):
    source = script.read_text(encoding="utf-8")
    text = ast.get_docstring(ast.parse(source))
    assert text.count("\n\nFigure: ") == 1
    code = [line for line in source.split('"""', 2)[2].splitlines() if line.strip()]
    assert 20 <= len(code) <= 60


@pytest.mark.parametrize("script", SCRIPTS, ids=by_name)
def test_its_run_is_stored(script):
    assert (STORED / f"{script.stem}.txt").read_text(encoding="utf-8").strip()
    assert (STORED / f"{script.stem}.json").exists()
    assert (STORED / f"{script.stem}.png").stat().st_size < gallery.MAX_BYTES


def test_nothing_is_stored_of_scripts_that_are_gone():
    assert {path.stem for path in STORED.glob("*.png")} == {script.stem for script in SCRIPTS}
