"""The page of a run: what it says, that nothing from outside becomes markup, its size; and in a real browser."""

import base64
import dataclasses
import itertools
import json
import re

import numpy as np
import pytest

import terrazzo as tz
from chromium import Browser, needs_chromium
from terrazzo.diagnostics import LogZ
from terrazzo.errors import OptionError
from terrazzo.report import coordinates, render_page, theme
from terrazzo.report.modes import find_modes
from terrazzo.report.view import View
from terrazzo.verdict.checks import EXACT, NOT_TRUSTED, TRUSTED, UNCHECKED, Check, Verdict

EVIL = "</script><script>alert(1)</script><b>"
SECTIONS = ("verdict", "target", "posterior", "chains", "correlations", "moves", "coordinates", "repeat")


def draws_of(space, *, chains=4, draws=200, seed=0):
    return np.random.default_rng(seed).integers(0, space.sizes, (chains, draws, space.num_dims)).astype(space.dtype)


def made(space, **fields):
    space = space if isinstance(space, tz.Space) else tz.Space(space)
    theta = fields.pop("theta", None)
    theta = draws_of(space) if theta is None else theta
    log_prob = np.random.default_rng(1).normal(size=theta.shape[:2])
    return tz.Result(space=space, theta=theta, **{"sample_stats": {"log_prob": log_prob}, **fields})


def mixed(space, reals=None, **fields):
    """A result with real variables; their draws are normal unless given."""
    theta = fields.pop("theta", None)
    theta = draws_of(space) if theta is None else theta
    reals = np.random.default_rng(2).normal(size=(*theta.shape[:2], space.num_real_values)) if reals is None else reals
    return made(space, theta=theta, reals=reals, **fields)


@pytest.fixture(scope="module")
def hostile():
    """Everything that a user or a file can bring, with markup in it."""
    axes = {"dims": "who", "coords": {"who": [EVIL, "b", "c"]}}
    variables = {EVIL: tz.binary(3, **axes), "c": tz.categorical([EVIL, "x"], shape=(3, 4)), "n": tz.integers(0, 99)}
    space = tz.Space(**variables, long=tz.integers(-3, 3, shape=30), labels=tz.categorical(["a", EVIL], shape=15))
    trial = [{"candidate": EVIL, "ess_per_second": 3.0}, {"candidate": 4}, 7]
    return made(
        space,
        evidence=LogZ(1.5, 0.1, 50.0, 0.3),
        evidence_estimates={EVIL: LogZ(1.5, 0.1, 50.0, 0.3), "tempering": LogZ(1.4, 0.2, 9.0, float("nan"))},
        log_z_verdict=Verdict(TRUSTED, EVIL),
        extra_checks=(Check(EVIL, 1.0, 2.0, False, EVIL, NOT_TRUSTED),),
        history={EVIL: np.arange(5.0)},
        provenance={
            "sampler": EVIL, "options": {EVIL: EVIL}, "versions": {EVIL: EVIL}, "seconds": {EVIL: 3.0, "x": EVIL},
            "device": EVIL, "command": EVIL, "structure": [EVIL], "max_seconds": EVIL, "seed": 3,
            "warm-up": {"choice": {"chosen": EVIL, "reason": EVIL, "trial": trial}, "exploration": {"kernel": EVIL}},
        },
    )  # fmt: skip


def test_nothing_from_outside_becomes_markup(hostile):
    page = render_page(hostile)
    assert "alert(1)" in page
    assert "<script>alert" not in page
    assert "</script><script>" not in page
    assert "<b>&" not in page.replace("<b>&lt;", "")  # our own <b> only, around escaped text
    assert page.count("<script") == 2  # the data and ours
    assert page.count("</script>") == 2
    rows = json.loads(re.search(r'<script type="application/json" id="rows">(.*?)</script>', page)[1])
    assert rows[0][0] == f"{EVIL}[{EVIL}]"


def test_every_section_is_there(hostile):
    page = render_page(hostile)
    for name in (*SECTIONS, "evidence"):
        assert f'<section id="{name}">' in page
        assert f'href="#{name}"' in page
    heads = [int(level) for level in re.findall(r"<h(\d)", page)]
    assert heads[0] == 1
    assert all(b <= a + 1 for a, b in itertools.pairwise(heads)), "no level of headings is left out"
    assert all("alt=" in tag for tag in re.findall(r"<img[^>]*>", page))
    assert all("aria-label=" in tag for tag in re.findall(r"<svg[^>]*>", page))


def test_it_needs_no_network_and_no_matplotlib(hostile, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    page = render_page(hostile)
    assert "http" not in page.replace("http-equiv", "")
    assert not re.search(r"(src|href)=[\"'](?!data:|#)", page)


@pytest.mark.parametrize("grade", [EXACT, TRUSTED, UNCHECKED, NOT_TRUSTED])
def test_each_grade_is_said_in_words(grade):
    result = made(tz.binary(3))
    result.__dict__["verdict"] = Verdict(grade, "a reason")
    page = render_page(result)
    assert f"{grade}</p>" in page
    assert f"In one line: {grade}: a reason." in page


def test_d_4096_stays_under_3_megabytes():
    space = tz.Space(tz.binary((64, 64)))
    page = render_page(made(space, theta=draws_of(space, chains=8, draws=1000)))
    assert len(page.encode()) < 3_000_000
    assert "theta[63, 63]" in page


def test_very_many_rows_are_cut_and_said(monkeypatch):
    monkeypatch.setattr(coordinates, "MOST_ROWS", 10)
    page = render_page(made(tz.binary(40)))
    rows = json.loads(re.search(r'id="rows">(.*?)</script>', page)[1])
    assert len(rows) == 10
    assert "The 31 rows that mix best are left out" in page


@pytest.mark.parametrize(
    "result",
    [
        made(tz.binary(3), theta=np.zeros((4, 0, 3), np.uint8)),
        made(tz.binary(3), theta=np.zeros((1, 1, 3), np.uint8)),
        made(tz.binary(3), theta=np.zeros((4, 50, 3), np.uint8)),
        made(tz.integers(0, 40)),
        made(tz.integers(0, 5_000_000)),
        made(tz.binary(), sample_stats={}),
        made(tz.categorical(400, shape=3)),
        made(tz.binary((2, 3, 4)), is_complete=False),
        made(tz.categorical(3, shape=(5, 5)), evidence=LogZ(float("nan"), float("nan"), 0.0, float("nan"))),
        made(tz.integers(0, 3, shape=60), provenance={"seconds": 3, "warm-up": {}, "versions": [], "thin": "x"}),
        made(tz.binary(4), sample_stats={"log_weight": np.random.default_rng(0).normal(size=(4, 200))}),
        made(tz.binary(4), sample_stats={"log_prob": np.full((4, 200), -np.inf)}),
        made(tz.Space(**{f"x{i}": tz.binary() for i in range(60)})),
        mixed(tz.Space(k=tz.binary(3), x=tz.real(2), s=tz.real(low=0.0), w=tz.simplex(3))),
        mixed(tz.Space(x=tz.real((5, 4)), y=tz.real(30), z=tz.real())),
        mixed(tz.Space(x=tz.real(2)), np.ones((4, 200, 2))),
        mixed(tz.Space(k=tz.binary(), x=tz.real()), np.zeros((4, 0, 1)), theta=np.zeros((4, 0, 1), np.uint8)),
        mixed(tz.Space(x=tz.real(3)), sample_stats={"log_weight": np.random.default_rng(0).normal(size=(4, 200))}),
    ],
    ids=lambda result: "",
)
def test_results_of_every_kind_have_a_page(result, tmp_path):
    page = render_page(result)
    assert page.startswith("<!DOCTYPE html>")
    assert "nan" not in re.sub(r"<script.*?</script>|<style>.*?</style>|base64,[^\"]*", "", page, flags=re.S)
    assert (result.report(tmp_path / "run.html")).read_text(encoding="utf-8") == page


def test_real_variables_are_counted_drawn_and_listed():
    variables = {EVIL: tz.real(2), "scale": tz.real(low=0.0), "map": tz.real((4, 4)), "many": tz.real(40)}
    result = mixed(tz.Space(k=tz.integers(1, 5), **variables))
    page = render_page(result)
    assert "<script>alert" not in page
    assert page.count('aria-label="density of ') == 2 + 1 + 3  # two numbers, one, and the three of many that vary most
    assert 'alt="mean of map"' in page
    assert "mean of many by index" in page
    assert "scale: real between 0 and ∞" in page
    assert "5, for any values of the reals" in page
    assert re.search(r"coordinates</span>\s*<b>60</b>|coordinates.{0,40}>60<", page)


def test_modes_of_reals_are_found_with_their_shares():
    rng = np.random.default_rng(0)
    is_second = rng.random((4, 500, 1)) < 0.25
    reals = np.where(is_second, [6.0, -2.0], [0.0, 3.0]) + 0.5 * rng.normal(size=(4, 500, 2))
    modes = find_modes(
        View(mixed(tz.Space(k=tz.binary(), x=tz.real(2)), reals, theta=draws_of(tz.Space(tz.binary()), draws=500)))
    )
    assert len(modes) == 2
    assert modes[1].share == pytest.approx(0.25, abs=0.05)  # 5 standard errors of 1,201 draws
    assert modes[1].best_reals[0] > 3 > modes[0].best_reals[0]


def test_weights_count():
    theta = np.array([[[0], [1], [1], [1]]], np.uint8)
    log_weight = np.log(np.array([[0.7, 0.1, 0.1, 0.1]]))
    view = View(made(tz.binary(), theta=theta, sample_stats={"log_weight": log_weight}))
    np.testing.assert_allclose(view.probabilities(0, 2), [0.7, 0.3])
    np.testing.assert_allclose(view.moments(view.blocks[0])[0], [0.3])


def test_a_wrong_path_is_an_error(tmp_path):
    result = made(tz.binary(2))
    for path in (tmp_path, tmp_path / "no" / "run.html"):
        with pytest.raises(OptionError, match="path"):
            result.report(path)


def modes_of(space, theta, **fields):
    return find_modes(View(made(space, theta=np.asarray(theta), **fields)))


def test_planted_modes_are_found_with_their_shares():
    """Two patterns of 40 bits, each bit flipped with probability 0.05; a third of the draws around the first."""
    rng = np.random.default_rng(0)
    patterns = rng.integers(0, 2, (2, 40))
    which = rng.random((4, 500)) < 1 / 3
    theta = np.where(which[..., None], *patterns) ^ (rng.random((4, 500, 40)) < 0.05)
    found = modes_of(tz.binary(40), theta.astype(np.uint8))
    assert len(found) == 2
    assert found[0].share == pytest.approx(1 - which.mean(), abs=0.03)
    for mode, pattern in zip(found, patterns[::-1], strict=True):
        assert (mode.best != pattern).mean() < 0.2
        assert np.abs(mode.mean - pattern).max() < 0.15


def test_independent_coordinates_are_one_group():
    rng = np.random.default_rng(1)
    assert len(modes_of(tz.binary(30), (rng.random((4, 500, 30)) < rng.random(30)).astype(np.uint8))) == 1
    assert len(modes_of(tz.integers(0, 40), rng.binomial(40, 0.4, (4, 500, 1)).astype(np.uint8))) == 1


def test_one_uncertain_bit_is_no_mode_and_two_humps_are():
    rng = np.random.default_rng(2)
    theta = np.zeros((4, 500, 10), np.uint8)
    theta[..., 3] = rng.random((4, 500)) < 0.5
    assert len(modes_of(tz.binary(10), theta)) == 1
    humps = np.where(rng.random((4, 500)) < 0.5, rng.binomial(20, 0.5, (4, 500)), 60 + rng.binomial(20, 0.5, (4, 500)))
    assert len(modes_of(tz.integers(0, 90), humps[..., None].astype(np.uint8))) == 2


def test_colours_are_apart_for_everyone():
    """Neighbouring colours of lines differ in lightness or hue also when red and green are confused (deuteranopia)."""
    seen = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])  # Machado et al. (2009)
    for colours in (theme.LINES, theme.LINES_ON_DARK):
        rgb = np.array([[int(c[i : i + 2], 16) / 255 for i in (1, 3, 5)] for c in colours]) @ seen.T
        gaps = [np.linalg.norm(a - b) for i, a in enumerate(rgb[:4]) for b in rgb[:i]]
        assert min(gaps) > 0.15


# ---- in a browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    it = Browser(tmp_path_factory.mktemp("profile"))
    yield it
    it.close()


@pytest.fixture(scope="module")
def page(hostile, tmp_path_factory):
    return hostile.report(tmp_path_factory.mktemp("page") / "run.html")


@needs_chromium
@pytest.mark.parametrize("is_dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
def test_it_fits_any_width_and_is_quiet(browser, page, width, is_dark):
    browser.set_size(width, 800)
    browser.set_dark(is_dark)
    browser.open(page)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.troubles(page) == []
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background)[:3])) < 60) == is_dark


@needs_chromium
def test_the_table_searches_sorts_and_turns_pages(browser, page, hostile):
    browser.open(page)
    names = "[...document.querySelectorAll('#table tbody tr')].map((row) => row.cells[0].textContent)"
    column = "[...document.querySelectorAll('#table tbody tr')].map((row) => Number(row.cells[%d].textContent))"
    assert len(browser.evaluate(names)) == 25
    assert browser.evaluate(names)[0] == f"{EVIL}[{EVIL}]"
    browser.evaluate("document.getElementById('next').click()")
    assert browser.evaluate("document.getElementById('found').textContent").startswith("26–50 of ")
    browser.evaluate(
        "const s = document.getElementById('search'); s.value = 'LONG['; s.dispatchEvent(new Event('input'))"
    )
    assert browser.evaluate("document.getElementById('found').textContent") == "1–25 of 30"
    assert all(name.startswith("long[") for name in browser.evaluate(names))
    for is_reversed in (False, True):
        browser.evaluate("document.querySelectorAll('#table th button')[1].click()")
        means = browser.evaluate(column % 1)
        assert means == sorted(means, reverse=is_reversed)
    browser.evaluate("s.value = 'nowhere'; s.dispatchEvent(new Event('input'))")
    assert browser.evaluate("document.getElementById('found').textContent") == "nothing found"
    assert browser.evaluate("document.querySelectorAll('#table script, #table b').length") == 0
    browser.evaluate("document.querySelector('.checks th button').click()")
    assert browser.evaluate("document.querySelector('.checks th').ariaSort") == "ascending"
    assert browser.troubles(page) == []


@needs_chromium
def test_it_prints_and_reads_well(browser, page):
    browser.set_dark(False)
    browser.open(page)
    assert base64.b64decode(browser.call("Page.printToPDF", preferCSSPageSize=True)["data"]).startswith(b"%PDF")
    contrast = """(() => {
      const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
        .map((v) => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); return 0.2126*r + 0.7152*g + 0.0722*b; };
      const ground = (e) => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
        if (!c.startsWith("rgba(0, 0, 0, 0")) return c; } return "rgb(255, 255, 255)"; };
      return Math.min(...[...document.querySelectorAll("p, td, dt, dd, h1, h2, h3, figcaption, a, .mark")].map((e) => {
        const a = light(getComputedStyle(e).color), b = light(ground(e));
        return (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05); }));
    })()"""
    assert browser.evaluate(contrast) >= 4.5
    browser.set_dark(True)
    assert browser.evaluate(contrast) >= 4.5


def test_a_page_of_a_loaded_result_is_the_same(hostile, tmp_path):
    plain = dataclasses.replace(hostile, history=None)
    again = tz.Result.load(plain.save(tmp_path / "r.tz"))
    assert render_page(again) == render_page(plain)
