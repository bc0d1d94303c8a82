"""Every block of Python in README.md and on the pages of the site runs, or says why it does not."""

import re
from pathlib import Path

import jax
import pytest

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<why>[^>]+) -->\n)?(?P<indent> *)```python[^\S\n]*\n(?P<code>.*?)^ *```", re.M | re.S
)
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])


def blocks(page):
    """Line, code and the reason not to run it (None if it runs) of every Python block."""
    text = page.read_text(encoding="utf-8")
    return [(text[: m.start("code")].count("\n"), m["code"], m["why"]) for m in BLOCK.finditer(text)]


WITH_CODE = [page for page in PAGES if blocks(page)]


@pytest.mark.parametrize("page", WITH_CODE, ids=lambda page: str(page.relative_to(ROOT)))
@pytest.mark.filterwarnings("default")
def test_the_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    with jax.enable_x64(False), jax.numpy_dtype_promotion("standard"):
        for line, code, why in blocks(page):
            compiled = compile("\n" * line + code, str(page), "exec")  # what does not run is Python all the same
            if why is None:
                exec(compiled, names)


def test_there_are_pages_with_code():
    assert len(WITH_CODE) > 10
    assert sum(why is None for page in WITH_CODE for _, _, why in blocks(page)) > 25


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_links_to_files_of_the_repository_hold(name):
    for link in re.findall(r"\]\(([^)#\s]+)", (ROOT / name).read_text(encoding="utf-8")):
        assert link.startswith("https://") or (ROOT / link).exists(), link
