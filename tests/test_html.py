"""The page: whole, escaped, self-contained, readable by people and by screen readers, in light and dark."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_results import HOSTILE, all_results, bare, hostile, hostile_peers, hybridize, peers

from jaxperf.errors import JaxperfError
from jaxperf.measure.record import Claim, Result
from jaxperf.measure.store import load_result, to_json
from jaxperf.report import figure
from jaxperf.report.output import render, write_report
from jaxperf.report.page import render_html

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Tags with their attributes, text by tag, and whether every tag is closed."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.outside: list[tuple[str, ...]] = []  # tag and attribute names of everything not in a drawing
        self.feed(html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {k: v or "" for k, v in attrs}))
        if "svg" not in self.open:
            self.outside.append((tag, *(k for k, _ in attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag.lower(), f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if data.strip():
            self.texts.append((self.open[-1] if self.open else "", " ".join(data.split())))

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]

    @property
    def words(self) -> str:
        return " ".join(text for tag, text in self.texts if tag != "style")


@pytest.fixture(scope="module")
def html() -> str:
    return render_html(all_results(), left_out=["results/odd.json is not a jaxperf result"])


@pytest.fixture(scope="module")
def page(html: str) -> Page:
    return Page(html)


def test_the_first_screen_says_what_where_and_how_many_claims_held(page: Page) -> None:
    top = page.words.partition("Contents")[0]
    for words in (
        "Computational performance, measured",
        "A processor, 2 cores, 25 GB",
        "Python 3.11.7, JAX 0.10.2, Flax 0.12.8",
        "cpu: 2 devices, fake",
        "What became of 4 claims",
        "2 held",
        "1 did not hold",
        "1 not measured",
        "Smoke run.",
        "results/odd.json is not a jaxperf result",
    ):
        assert words in top, words


def test_every_section_shows_everything_its_result_holds(page: Page) -> None:
    for result in all_results():
        wanted = [result.title, result.question, result.command, *result.notes]
        wanted += [w for c in result.claims for w in (c.statement, c.predicted, c.observed)]
        wanted += [r.system for r in result.references]
        wanted += list(result.facts)
        wanted += [t.trace for t in result.timelines]
        if result.experiment != "peers":
            wanted += [m.name for m in result.measurements]
        for words in wanted:
            assert " ".join(words.split()) in page.words or words.startswith("--smoke"), words


def test_measurements_stand_beside_their_base_and_the_published_figures(page: Page) -> None:
    assert "base: hybridize" in page.words
    for words in ("886 µs", "88.6x", "494 µs MXNet, the book", "1.79x"):
        assert words.replace(" ", "") in page.words.replace("\xa0", " ").replace(" ", ""), words


def test_sections_come_in_the_books_order_and_the_peers_last(page: Page) -> None:
    links = [a["href"] for a in page.all("a") if a["href"].startswith("#s-")]
    assert links == ["#s-hybridize", "#s-async-computation", "#s-multiple-gpus", "#s-use-gpu", "#s-peers"]


def test_every_link_and_label_finds_its_target_and_identifiers_are_unique(page: Page) -> None:
    ids = [a["id"] for _, a in page.tags if "id" in a]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for a in page.all("a")]
    for name in ("aria-labelledby", "aria-describedby"):
        targets += [a[name] for _, a in page.tags if name in a]
    assert set(targets) <= set(ids)


def test_nothing_comes_from_outside_and_no_script_could_run(html: str, page: Page) -> None:
    names = {tag for tag, _ in page.tags}
    assert names.isdisjoint({"script", "iframe", "object", "embed", "img", "form", "base", "foreignobject"})
    for tag, attributes in page.tags:
        assert not any(k.startswith("on") for k in attributes)
        for key in ("href", "src", "action", "data", "srcset"):
            value = attributes.get(key, "#")
            assert value.startswith("#") or (tag == "link" and value == "data:,")
    [style] = re.findall(r"<style>(.*?)</style>", html, flags=re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    [policy] = [m["content"] for m in page.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")


def test_headings_are_in_order_and_every_part_of_the_page_is_marked(page: Page) -> None:
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:]))  # noqa: RUF007
    assert {"header", "nav", "main", "footer"} <= {tag for tag, _ in page.tags}
    assert page.all("html")[0]["lang"] == "en"
    assert all("scope" in th for th in page.all("th"))
    assert all(s.get("aria-label") or s.get("aria-labelledby") for s in page.all("section"))


def test_every_drawing_has_words_for_who_cannot_see_it_and_a_shape_before_it_is_drawn(page: Page) -> None:
    drawings = page.all("svg")
    assert len(drawings) == 17
    for svg in drawings:
        assert svg["role"] == "img"
        assert re.fullmatch(r"0 0 [\d.]+ [\d.]+", svg.get("viewbox", svg.get("viewBox", "")))


def test_tables_scroll_in_a_box_that_the_keyboard_reaches(html: str, page: Page) -> None:
    assert html.count("<table") == len(
        re.findall(r'class="scroll" role="region" tabindex="0"[^>]*>\s*<table', html)
    )
    assert all(a["aria-label"] for tag, a in page.tags if a.get("class") == "scroll" and tag == "div")


def test_the_page_is_small_and_the_same_each_time(html: str) -> None:
    assert len(html.encode()) < 1_000_000
    assert html == render_html(all_results()[::-1], left_out=["results/odd.json is not a jaxperf result"])


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_colours_can_be_told_from_the_page_in_light_and_dark(html: str) -> None:
    light, dark = (
        dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", html, flags=re.DOTALL)
    )
    assert light.keys() == dark.keys()
    assert all(light[name] == color for color, name in figure.VARIABLES.items())
    for colors in (light, dark):
        for name in ("--ink", "--muted", "--link", "--held", "--not-held", "--open"):
            assert contrast(colors[name], colors["--page"]) >= 4.5, name
        for background in ("--alert", "--panel"):
            assert contrast(colors["--ink"], colors[background]) >= 7
        for i in range(1, 7):
            assert contrast(colors[f"--series-{i}"], colors["--page"]) >= 3, i


def test_paper_gets_the_light_colours() -> None:
    style = render_html([bare()])
    assert "@media screen and (prefers-color-scheme: dark)" in style
    assert "@media (prefers-color-scheme: dark)" not in style
    assert "@media print" in style


MIXED = [" ".join(HOSTILE[i::5]) for i in range(5)]


@pytest.mark.parametrize("words", MIXED, ids=range(5))
def test_hostile_words_in_every_field_change_no_tag_of_the_page(words: str) -> None:
    def shape(name: str) -> Page:
        return Page(render_html([hostile(name), hostile_peers(name)], left_out=[name]))

    found, harmless = shape(words), shape(re.sub(r"[^/, \d-]", "n", words))  # the same slashes and commas
    known = {"svg", "title", "desc", "defs", "g", "path", "use", "text", "clippath", "rect", "tspan"}
    inside = Counter(tag for tag, _ in found.tags) - Counter(tag for tag, *_ in found.outside)
    assert set(inside) <= known
    assert found.outside == harmless.outside
    visible = " ".join(words.split())
    if visible and visible.isprintable():
        assert found.words.count(visible) > 40
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e\ud800\uffff]", found.words)


def test_any_page_can_be_encoded(tmp_path: Path) -> None:
    path = write_report([hostile(HOSTILE[9])], tmp_path, left_out=[HOSTILE[9]])
    assert "\\ud800" in path.read_text(encoding="utf-8")


def test_no_results_and_results_without_anything_still_give_a_page() -> None:
    assert "There is no result to show." in Page(render_html([])).words
    empty = replace(bare(), title="", question="", facts={})
    assert "use_gpu" in Page(render_html([empty])).words


def test_results_of_the_same_experiment_get_sections_of_their_own() -> None:
    page = Page(render_html([bare(), bare(), replace(bare(), experiment="!!!")]))
    assert [a["id"] for a in page.all("article")] == ["s-use-gpu", "s-use-gpu-2", "s-section"]


def test_an_older_result_without_the_newer_fields_still_shows(tmp_path: Path) -> None:
    body = json.loads(to_json(hybridize()))
    for key in ("timelines", "series", "notes", "facts", "command", "smoke", "started_at", "wall_s"):
        del body[key]
    for measurement in body["measurements"]:
        for key in ("group", "base", "note", "items", "loops", "warmup"):
            del measurement[key]
    body["environment"] = {"python": "3.11", "something_newer": [1]}
    (tmp_path / "old.json").write_text(json.dumps(body))
    page = Page(render_html([load_result(tmp_path / "old.json")]))
    assert "Imperative and symbolic programming" in page.words
    assert len(page.all("svg")) == 1  # the timings as bars


def test_a_section_shows_its_peers_only_where_they_were_run() -> None:
    assert "Beside other systems" in Page(render_html([hybridize(), peers()])).words
    assert "Beside other systems" not in Page(render_html([hybridize()])).words


def test_the_report_is_written_whole_into_a_folder_that_may_not_exist(tmp_path: Path) -> None:
    path = write_report([bare()], tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "report.html"
    assert path.read_text(encoding="utf-8") == render_html([bare()])
    assert list(path.parent.iterdir()) == [path]
    (tmp_path / "file").write_text("")
    with pytest.raises(JaxperfError, match="cannot write"):
        write_report([bare()], tmp_path / "file")


@pytest.mark.parametrize("fmt", ["html", "md", "text"])
def test_every_format_names_what_was_left_out_and_tells_the_claims(fmt: str) -> None:
    result: Result = replace(bare(), claims=(Claim("A statement", "one", "two", False),))
    shown = render([result], fmt, left_out=["odd.json is not JSON"])  # type: ignore[arg-type]
    for words in ("Using a GPU", "A statement", "one", "two", "did not hold", "odd.json is not JSON"):
        assert words in shown


def test_an_unknown_format_is_a_mistake_in_one_line() -> None:
    with pytest.raises(JaxperfError, match="no format 'pdf'; there are html, md and text"):
        render([], "pdf")  # type: ignore[arg-type]
