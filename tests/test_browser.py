"""The page in a real Chromium: opened from disk, wide and narrow, light and dark, with hostile results in it.

Needs Debian's `chromium` and the package `playwright` (which need download nothing). JAXPERF_REPORT=PATH
tests that page beside our own; JAXPERF_SCREENSHOTS=DIR keeps pictures of both.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from report_results import HOSTILE, all_results, hostile, hostile_peers

from jaxperf.report.page import write_report

pytestmark = pytest.mark.real
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
QUIET = (
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
GIVEN = os.environ.get("JAXPERF_REPORT", "")
WIDTHS = (320, 360, 390, 768, 1280, 1920)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if importlib.util.find_spec("playwright") is None or not Path(CHROMIUM).exists():
        pytest.skip("needs Debian's chromium and the package playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as p:
        opened = p.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield opened
        opened.close()


@pytest.fixture(scope="module", params=["own", *(["given"] if GIVEN else [])])
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of all kinds of results, and the one that was asked for."""
    if request.param == "own":
        return write_report(
            all_results(), tmp_path_factory.mktemp("report"), left_out=["odd.json is not JSON"]
        )
    return Path(GIVEN).resolve()


class Watched:
    """A tab and all it did that it should not: messages, errors, dialogs, requests but for the page."""

    def __init__(self, browser: Any, path: Path, *, width: int = 1280, **context: Any) -> None:
        self.context = browser.new_context(viewport={"width": width, "height": 900}, **context)
        self.page, self.trouble = self.context.new_page(), []
        self.page.on("console", lambda m: self.trouble.append(f"console: {m.text}"))
        self.page.on("pageerror", lambda e: self.trouble.append(f"error: {e}"))
        self.page.on("dialog", lambda d: (self.trouble.append(f"dialog: {d.message}"), d.dismiss()))
        self.page.on("request", lambda r: self.trouble.append(f"request: {r.url}"))
        self.page.goto(path.as_uri())
        self.trouble.remove(f"request: {path.as_uri()}")

    def __enter__(self) -> Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self.context.close()


def keep(tab: Watched, name: str, *, full: bool = False) -> None:
    if folder := os.environ.get("JAXPERF_SCREENSHOTS"):
        tab.page.screenshot(path=Path(folder, f"{name}.png"), full_page=full)


def test_it_opens_from_disk_in_silence_and_asks_for_nothing_else(browser: Any, report: Path) -> None:
    with Watched(browser, report) as tab:
        tab.page.mouse.wheel(0, 100_000)
        for summary in tab.page.locator("summary").all():
            summary.click()
        assert tab.page.title() == "jaxperf report"
        assert tab.page.evaluate("document.documentElement.scrollHeight") > 2000
        assert tab.trouble == []


MARKS = """svg => [...svg.querySelectorAll('path, use')].filter(e => {
  const box = e.getBoundingClientRect(), style = getComputedStyle(e);
  const painted = style.fill !== 'none' || style.stroke !== 'none';
  return painted && box.width + box.height > 0.5;
}).length"""


def test_no_drawing_is_empty_or_too_small(browser: Any, report: Path) -> None:
    with Watched(browser, report) as tab:
        for svg in tab.page.locator("svg.plot").all():
            box = svg.bounding_box()
            assert box["width"] > 250
            assert box["height"] > 50
            assert svg.evaluate(MARKS) >= 3 or "nothing was recorded" in svg.text_content()


OPEN = "document.querySelectorAll('details').forEach(d => { d.open = true; })"
TOO_WIDE = """w => [...document.querySelectorAll('body *')].filter(e => !e.closest('.scroll, svg, .skip') &&
  e.getBoundingClientRect().right > w + 1).map(e => e.outerHTML.slice(0, 80))"""


def test_no_width_makes_the_page_scroll_sideways(browser: Any, report: Path) -> None:
    with Watched(browser, report) as tab:
        tab.page.evaluate(OPEN)
        for width in WIDTHS:
            tab.page.set_viewport_size({"width": width, "height": 900})
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.page.evaluate(TOO_WIDE, width) == []
            if width in (390, 1280):
                keep(tab, f"{report.stem}-{width}")


IN_VIEW = """id => { const box = document.getElementById(id).getBoundingClientRect();
  return box.top >= 0 && box.bottom <= innerHeight && box.left >= 0 && box.right <= innerWidth; }"""
HERE = """() => [...document.querySelectorAll('nav a')].filter(a =>
  getComputedStyle(a).color === getComputedStyle(document.querySelector('.skip')).color).map(a => a.hash)"""


def test_the_contents_stay_in_view_on_a_wide_screen_and_unfold_where_the_reader_is(
    browser: Any, report: Path
) -> None:
    with Watched(browser, report) as tab:
        for article in tab.page.locator("article").all():
            name = article.get_attribute("id")
            parts = [
                s.get_attribute("id") for s in article.locator("section").all() if s.locator("h3").count()
            ]
            for target in [name, *parts]:
                tab.page.evaluate("id => document.getElementById(id).scrollIntoView()", target)
                tab.page.wait_for_timeout(50)
                assert tab.page.evaluate(IN_VIEW, "contents")
            if parts:
                assert tab.page.evaluate(HERE)[0] == f"#{name}"
                links = tab.page.locator(f"nav a[href^='#{name}_']")
                assert links.count() == len(parts)
                assert links.first.is_visible()
        others = tab.page.locator(f"nav li:not(:has([href='#{name}'])) ol a")
        assert not any(link.is_visible() for link in others.all())


def test_the_contents_come_before_the_text_on_a_phone(browser: Any, report: Path) -> None:
    with Watched(browser, report, width=390) as tab:
        nav, main = (tab.page.locator(name).bounding_box() for name in ("#contents", "main"))
        assert nav["y"] + nav["height"] <= main["y"]


def test_gluon_and_jax_stand_next_to_each_other_and_below_each_other_on_a_phone(
    browser: Any, report: Path
) -> None:
    for width in (1280, 390):
        with Watched(browser, report, width=width) as tab:
            for habit in tab.page.locator(".habit").all():
                gluon, jax = (habit.locator("pre").nth(i).bounding_box() for i in (0, 1))
                assert (gluon["y"] == jax["y"]) == (width == 1280)


def test_lines_of_text_are_short_enough_to_be_read(browser: Any, report: Path) -> None:
    with Watched(browser, report, width=1920) as tab:
        widths = tab.page.evaluate("[...document.querySelectorAll('section > p')].map(p => p.clientWidth)")
        assert 0 < max(widths) <= 42 * 16


HEIGHTS = """[...document.querySelectorAll('svg.plot text')].map(t => {
  const svg = t.ownerSVGElement;
  return parseFloat(getComputedStyle(t).fontSize) * svg.clientWidth / svg.viewBox.baseVal.width;
})"""


def test_letters_in_drawings_are_large_enough_on_a_phone(browser: Any, report: Path) -> None:
    with Watched(browser, report, width=390) as tab:
        assert min(tab.page.evaluate(HEIGHTS)) > 8.5


CONTRASTS = """() => {
  const rgb = c => c.match(/[\\d.]+/g).map(Number);
  const light = c => { const [r, g, b] = rgb(c).map(v => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor;
    const [, , , alpha = 1] = rgb(c); if (alpha > 0) return c; } return 'rgb(255, 255, 255)'; };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (![...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())) continue;
    if (['TITLE', 'DESC', 'title', 'desc', 'STYLE'].includes(e.tagName)) continue;
    const style = getComputedStyle(e), own = e.closest('svg') ? style.fill : style.color;
    const [a, b] = [light(own), light(behind(e))].sort((x, y) => x - y);
    found.push([(b + 0.05) / (a + 0.05), e.outerHTML.slice(0, 90)]);
  }
  return found; }"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_stands_out_from_what_is_behind_it(browser: Any, report: Path, scheme: str) -> None:
    with Watched(browser, report, color_scheme=scheme) as tab:
        dark = tab.page.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
        assert dark == (scheme == "dark")
        tab.page.evaluate(OPEN)
        found = tab.page.evaluate(CONTRASTS)
        assert len(found) > 200
        assert [text for ratio, text in found if ratio < 4.5] == []
        tab.page.evaluate("scrollTo(0, 0)")
        keep(tab, f"{report.stem}-{scheme}")


def test_nothing_moves_after_it_was_shown_and_nothing_needs_a_script(browser: Any, report: Path) -> None:
    with Watched(browser, report) as tab:
        shifts = tab.page.evaluate(
            "new Promise(done => { let sum = 0; new PerformanceObserver(list => { "
            "for (const e of list.getEntries()) sum += e.value; })"
            ".observe({type: 'layout-shift', buffered: true}); setTimeout(() => done(sum), 300); })"
        )
        assert shifts == 0
        with_script = tab.page.locator("body").inner_text()
    with Watched(browser, report, java_script_enabled=False) as tab:
        assert tab.page.locator("body").inner_text() == with_script


def test_the_keyboard_reaches_contents_tables_and_details(browser: Any, report: Path) -> None:
    with Watched(browser, report, width=390) as tab:
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.textContent") == "Skip to the text"
        tab.page.keyboard.press("Tab")
        assert tab.page.evaluate("document.activeElement.hash").startswith("#s-")  # of the contents
        tab.page.keyboard.press("Shift+Tab")
        tab.page.keyboard.press("Enter")
        assert tab.page.url.endswith("#main")
        reached = set()
        for _ in range(60):
            tab.page.keyboard.press("Tab")
            reached.add(tab.page.evaluate("document.activeElement.tagName"))
        assert {"DIV", "PRE", "SUMMARY"} <= reached


def test_a_screen_reader_finds_landmarks_headings_tables_and_described_drawings(
    browser: Any, report: Path
) -> None:
    with Watched(browser, report) as tab:
        tree = tab.page.locator("body").aria_snapshot()
        for role in (
            "banner",
            "navigation",
            "main",
            "contentinfo",
            "article",
            "table",
            "img",
            "columnheader",
        ):
            assert re.search(rf"^ *- {role}\b", tree, flags=re.MULTILINE), role
        assert 'navigation "Contents"' in tree
        assert 'heading "Computational performance" [level=1]' in tree
        unnamed = re.findall(r"^ *- (?:img|region|article):?$", tree, flags=re.MULTILINE)
        assert unnamed == []


def test_it_prints_with_what_is_folded_on_light_paper(browser: Any, report: Path, tmp_path: Path) -> None:
    with Watched(browser, report, color_scheme="dark") as tab:
        tab.page.emulate_media(media="print")
        assert tab.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        for words in tab.page.locator("details > :not(summary)").all():
            assert words.bounding_box()["height"] > 10
        pdf = tab.page.pdf(format="A4", print_background=True)
        assert pdf.startswith(b"%PDF")
        assert pdf.count(b"/Type /Page\n") + pdf.count(b"/Type /Page ") >= tab.page.locator("article").count()


def test_hostile_results_run_nothing_and_load_nothing(browser: Any, tmp_path: Path) -> None:
    mixed = [" ".join(HOSTILE[i::5]) for i in range(5)]
    results = [*map(hostile, mixed), hostile_peers(mixed[0])]
    path = write_report(results, tmp_path, left_out=list(HOSTILE))
    for width in (1280, 390):
        with Watched(browser, path, width=width) as tab:
            links = tab.page.evaluate("[...document.querySelectorAll('a')].map(a => a.getAttribute('href'))")
            assert all(link.startswith("#") for link in links)
            tab.page.evaluate(OPEN)
            assert tab.page.title() == "jaxperf report"
            assert tab.page.locator("script, img, iframe").count() == 0
            assert tab.page.evaluate(TOO_WIDE, width) == []
            assert tab.page.evaluate("document.documentElement.scrollWidth") <= width
            assert tab.trouble == []
