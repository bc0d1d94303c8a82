"""The site builds without a broken link, loads nothing from elsewhere, and is fit to be read on a phone."""

import base64
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import pytest

import terrazzo as tz
from chromium import Browser, needs_chromium

ROOT = Path(__file__).parents[1]
LOADED = {"script": "src", "img": "src", "iframe": "src", "source": "src", "video": "src", "audio": "src"}
STYLES = {"stylesheet", "preload", "prefetch", "preconnect", "dns-prefetch", "icon", "manifest"}
NARROW = 390

nbformat = pytest.importorskip("nbformat", reason="the site's tools are not installed: pip install '.[docs]'")
pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("mkdocs") is None, reason="the site's tools are not installed: pip install '.[docs]'"
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    # not quietly: --quiet also silences what --strict would count
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def pages(site):
    return sorted(path for path in site.rglob("*.html") if path.name != "404.html")


class Reader(HTMLParser):
    """What a page loads, its headings, and pictures without a description."""

    def __init__(self):
        super().__init__()
        self.loads, self.headings, self.silent, self.ids = [], [], [], set()

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        self.ids.add(values.get("id"))
        if tag in LOADED and values.get(LOADED[tag]):
            self.loads.append(values[LOADED[tag]])
        if tag == "link" and STYLES & set((values.get("rel") or "").split()):
            self.loads.append(values["href"])
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(int(tag[1]))
        if tag == "img" and not (values.get("alt") or "").strip():
            self.silent.append(values.get("src"))


def read(path):
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    return reader


def test_nothing_is_loaded_from_elsewhere(site):
    for page in pages(site) + [site / "404.html"]:
        outside = [url for url in read(page).loads if re.match(r"(https?:)?//", url)]
        assert outside == [], page
    for sheet in site.rglob("*.css"):
        assert not re.search(r"url\(['\"]?(https?:)?//|@import", sheet.read_text(encoding="utf-8")), sheet


def test_pictures_have_descriptions_and_headings_are_in_order(site):
    for page in pages(site):
        found = read(page)
        assert found.silent == [], page
        assert found.headings[0] == 1, page
        assert found.headings.count(1) == 1, page
        steps = [b - a for a, b in zip(found.headings, found.headings[1:], strict=False)]
        assert max(steps, default=0) <= 1, (page, found.headings)


def test_formulas_are_drawn(site):
    for page in pages(site):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"\$\$|\$`|FORMULA\d", text), page
    assert (site / "theory.html").read_text(encoding="utf-8").count("<math") > 10


def test_every_public_name_is_described(site):
    ids = set().union(*(read(page).ids for page in pages(site) if page.parent.name == "api"))
    index = (site / "api" / "index.html").read_text(encoding="utf-8")
    for name in tz.__all__:
        assert f"tz.{name}<" in index, f"{name} is not in the table of api/index.md"
    families = {"autoregressive", "flow", "product"}  # described by the functions that build them
    rooms = {"diagnostics", "errors", "problems", "samplers", "transports"}  # a page each
    for name in set(tz.__all__) - families - rooms:
        assert f"terrazzo.{name}" in ids, name
    for room in rooms:
        assert (site / "api" / f"{room}.html").exists()
    for name, spec in {**tz.samplers.REGISTRY, **tz.samplers.PROGRAMS}.items():
        factory = spec.factory
        assert f"{factory.__module__}.{factory.__qualname__}" in ids, f"sampler {name}"


def test_worked_problems_have_pages(site):
    scripts = {path.stem for path in (ROOT / "gallery").glob("*.py")} - {"run"}
    assert {path.stem for path in (site / "gallery").glob("*.html")} - {"index"} == scripts


def test_notebooks_hold_the_scripts(site):
    notebooks = sorted((site / "gallery").glob("*.ipynb"))
    assert {path.stem for path in notebooks} == {path.stem for path in (ROOT / "gallery").glob("*.py")} - {"run"}
    for path in notebooks:
        code = "\n".join(cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "code")
        compile(code, str(path), "exec")
        script = (ROOT / "gallery" / f"{path.stem}.py").read_text(encoding="utf-8").split('"""', 2)[2]
        lines = [line for line in script.replace("  # fmt: skip", "").splitlines() if line.strip()]
        assert [line for line in code.splitlines() if line.strip()][: len(lines)] == lines, path


def test_notebooks_show_what_the_last_run_gave(site):
    for path in sorted((site / "gallery").glob("*.ipynb")):
        found = nbformat.read(path, 4)
        nbformat.validate(found)
        code = [cell for cell in found.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in code] == [1, 2, 3], path
        prepares, samples, draws = code
        stored = ROOT / "docs" / "gallery" / path.stem
        assert prepares.outputs == [], path  # it prints nothing
        assert samples.outputs[0].text.strip() == stored.with_suffix(".txt").read_text(encoding="utf-8").strip(), path
        assert base64.b64decode(draws.outputs[0].data["image/png"]) == stored.with_suffix(".png").read_bytes(), path
        assert ".png" in draws.source, path


@needs_chromium
def test_pages_fit_a_phone_and_are_quiet(site, tmp_path):
    browser = Browser(tmp_path)
    try:
        for page in pages(site):
            browser.set_size(NARROW, 800)
            browser.open(page)
            assert browser.evaluate("document.documentElement.scrollWidth") <= NARROW, page
            events = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
            assert [event for name in events for event in browser.named(name)] == [], page
            asked = [event["request"]["url"] for event in browser.named("Network.requestWillBeSent")]
            assert [url for url in asked if not url.startswith(("file:", "data:"))] == [], page
    finally:
        browser.close()


@needs_chromium
@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_text_stands_out(site, tmp_path, is_dark):
    script = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")
    browser = Browser(tmp_path)
    try:
        browser.set_size(1280, 900)
        browser.set_dark(is_dark)
        for page in pages(site):
            browser.open(page)
            assert json.loads(browser.evaluate(script)) == [], page
    finally:
        browser.close()


@needs_chromium
def test_search_finds_a_page(site, tmp_path):
    browser = Browser(tmp_path)
    try:
        browser.set_size(1280, 900)
        browser.open(site / "index.html")
        browser.evaluate(
            "document.querySelector('label[for=__search]').click();"
            "const field = document.querySelector('[data-md-component=search-query]');"
            "field.focus(); field.value = 'checkpoint'; field.dispatchEvent(new Event('input', {bubbles: true}));"
            "field.dispatchEvent(new KeyboardEvent('keyup', {bubbles: true}))"
        )
        end = time.monotonic() + 30
        found = 0
        while not found and time.monotonic() < end:
            time.sleep(0.2)
            found = browser.evaluate("document.querySelectorAll('.md-search-result__item').length")
        assert found
    finally:
        browser.close()
