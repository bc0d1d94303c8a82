"""The first example of the README gives what it promises (that all of them run: test_pages.py)."""

import re
from pathlib import Path

import jax

README = Path(__file__).parent.parent / "README.md"


def blocks():
    return re.findall(r"```python\n(.*?)```", README.read_text(), flags=re.S)


def test_the_five_lines_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        exec(compile(blocks()[0], "README.md", "exec"), names)
    assert names["result"].verdict.grade == "exact"
    assert (tmp_path / "run.html").stat().st_size > 10_000
