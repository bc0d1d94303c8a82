"""The paper's report in a real browser: it renders, its tables sort, nothing is logged as an error or fetched."""

import base64
import struct

import pytest

from chromium import Browser, needs_chromium
from terrazzo.paper.experiments.base import Piece
from terrazzo.paper.experiments.records import piece_path, save_record
from terrazzo.paper.report import write_report

pytestmark = needs_chromium
SORTED = """(() => {
  const table = document.querySelectorAll("table")[%d], head = table.tHead.rows[0].cells[%d];
  head.firstElementChild.click();
  return [...table.tBodies[0].rows].map((row) => row.cells[%d].textContent);
})()"""


def record(piece, ess, verdict):
    return {
        "piece": piece._asdict(), "label": f"{piece.sampler} <b>&amp;</b>", "configuration": {"preset": "smoke"},
        "seed": 0, "versions": {"jax": "0"}, "device": "1 x test", "command": "terrazzo reproduce all",
        "seconds": {"total": 10.0}, "paper_ess": {"mean": ess, "standard_error": 0.1}, "num_dims": 15,
        "num_constant": 0, "ess": {"mean": ess, "min": ess / 2}, "ess_per_minute": 6 * ess, "r_hat": 1.01,
        "log_prob": {"mean": -ess, "sd": 1.0}, "verdict": {"is_trusted": verdict, "text": "why <i>not</i>"},
        "extra": {"accuracy": 0.97},
    }  # fmt: skip


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """A report on invented records: no sampler is needed to test a page."""
    folder = tmp_path_factory.mktemp("report")
    for setting, scale in (("iris", 1.0), ("wine", 10.0)):
        for i, sampler in enumerate(("flow_mh", "metropolis", "dhmc", "gibbs", "ours")):
            piece = Piece("logistic", setting, sampler)
            save_record(piece_path(folder, piece), record(piece, scale * (7 * i % 5 + 1), i == 4), {})
    piece = Piece("ising", "paper", "gibbs_10k")
    save_record(piece_path(folder, piece), record(piece, 3.0, False), {})
    return write_report(folder).page


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    it = Browser(tmp_path_factory.mktemp("profile"))
    yield it
    it.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_it_renders_at_two_widths(browser, page, width):
    browser.set_size(width, 800)
    browser.open(page)
    assert browser.evaluate("document.querySelectorAll('table').length") == 2
    assert browser.evaluate("document.querySelectorAll('tbody tr').length") == 11
    # The page itself does not scroll sideways: only the boxes around wide tables do.
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('td b, td i, li i').length") == 0
    image = base64.b64decode(browser.call("Page.captureScreenshot")["data"])
    assert struct.unpack(">II", image[16:24]) == (width, 800)


def test_tables_sort_up_and_down(browser, page):
    browser.open(page)
    heads = browser.evaluate("[...document.querySelectorAll('table')[1].tHead.rows[0].cells].map((h) => h.innerText)")
    for name, kind in (("ESS, this run", float), ("sampler", str), ("ESS, paper", float)):
        column = heads.index(name)
        for is_reversed in (False, True):
            texts = browser.evaluate(SORTED % (1, column, column))
            shown = [t for t in texts if t != "–"]
            assert shown + ["–"] * texts.count("–") == texts  # what is missing comes last, both ways
            keys = [kind(t.split(" ±")[0]) if kind is float else t.lower() for t in shown]
            assert keys == sorted(keys, reverse=is_reversed)
            order = browser.evaluate(f"document.querySelectorAll('table')[1].tHead.rows[0].cells[{column}].ariaSort")
            assert order == ("descending" if is_reversed else "ascending")
    other = browser.evaluate("document.querySelectorAll('table')[0].querySelectorAll('[aria-sort]').length")
    assert other == 0


def test_no_errors_and_no_requests(browser, page):
    browser.open(page)
    browser.evaluate("document.querySelector('th button').click()")
    assert browser.named("Runtime.exceptionThrown") == []
    assert browser.named("Runtime.consoleAPICalled") == []
    assert browser.named("Log.entryAdded") == []
    asked = [event["request"]["url"] for event in browser.named("Network.requestWillBeSent")]
    assert [url for url in asked if not url.startswith("data:")] == [page.resolve().as_uri()]


def test_the_tests_can_fail(browser, page, tmp_path):
    """A page with an error and a request is seen as such."""
    bad = tmp_path / "bad.html"
    script = "<script>console.error('x'); undefined_name;</script>"
    bad.write_text(page.read_text().replace("</main>", f"<img src='http://127.0.0.1:9/x.png'>{script}</main>"))
    browser.open(bad)
    assert browser.named("Runtime.exceptionThrown")
    assert browser.named("Runtime.consoleAPICalled")
    assert any("127.0.0.1" in event["request"]["url"] for event in browser.named("Network.requestWillBeSent"))


def test_it_prints(browser, page):
    browser.open(page)
    pdf = base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"])
    assert pdf.startswith(b"%PDF")
