"""The page: whole, escaped, self-contained, readable by people and by screen readers, in light and dark."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from report_results import (
    HOSTILE,
    all_results,
    bare,
    hostile,
    hostile_peers,
    hybridize,
    peers,
    renamed,
    renamer,
)

from jaxperf.errors import JaxperfError
from jaxperf.report import draw, page
from jaxperf.report.page import code, prose, render_html, write_report
from jaxperf.report.story import walk
from jaxperf.result import (
    Axis,
    Claim,
    Curve,
    Dots,
    Fact,
    Heading,
    Lines,
    Measurement,
    Note,
    Output,
    Table,
    Text,
    load_result,
)

VOID = {"meta", "link", "br", "img", "hr", "input"}
RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


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
        if "svg" not in self.open and ("class", "k") not in attrs:  # a keyword of Python
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
        return " ".join(text for tag, text in self.texts if tag not in ("style", "title"))


def one_line(words: str) -> str:
    return " ".join(words.replace("`", " ").split())


@pytest.fixture(scope="module")
def html() -> str:
    return render_html(all_results(), left_out=["results/odd.json is not a jaxperf result"])


@pytest.fixture(scope="module")
def shown(html: str) -> Page:
    return Page(html)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawings are words, for tests of everything else."""
    monkeypatch.setattr(draw, "svg", lambda draw, *, title, **_: f"<svg role='img'>{page.prose(title)}</svg>")


def test_the_first_screen_says_what_where_and_counts_both_kinds_of_verdicts(shown: Page) -> None:
    top = shown.words.partition("Contents")[0]
    for words in (
        "Computational performance",
        "A processor, 2 cores, 25 GB",
        "Python 3.11.7, JAX 0.10.2, Flax 0.12.8",
        "cpu: 2 devices, fake",
        "4 sentences: do they hold here?",
        "1 holds 1 does not hold 1 undecided 1 cannot be measured here",
        "Our predictions: were they right? 2 right 1 wrong 1 undecided",
        "Smoke run.",
        "results/odd.json is not a jaxperf result",
    ):
        assert words in top, words


def test_every_section_shows_everything_its_result_holds(shown: Page) -> None:
    for result in all_results():
        wanted = [result.title, result.question, result.command, *result.notes]
        wanted += [
            w for c in result.claims for w in (c.statement, c.holds, c.predicted, c.observed, c.source)
        ]
        wanted += [f"prediction {c.prediction}" for c in result.claims]
        wanted += [r.system for r in result.references] + [m.name for m in result.measurements]
        wanted += [fact.words or fact.name for fact in result.of(Fact)] + [t.trace for t in result.timelines]
        wanted += [b.text for kind in (Text, Output, Note) for b in result.of(kind)]
        for words in wanted:
            assert one_line(words) in one_line(shown.words), words


def test_blocks_are_shown_in_the_order_in_which_they_were_told(shown: Page) -> None:
    words = shown.words[shown.words.index("What does compiling buy?") :]
    for result in all_results():
        at = words.index(one_line(result.question))
        for block in result.blocks:
            if isinstance(block, Heading | Table | Lines | Dots | Claim):
                name = block.statement if isinstance(block, Claim) else block.title
                at = words.index(name, at)
            elif isinstance(block, Text | Output | Note):
                at = words.index(one_line(block.text.partition("`")[0]), at)


@pytest.mark.thorough
def test_no_name_is_interpreted_random_words_give_the_same_page_but_for_the_words(html: str) -> None:
    rename, old = renamer()
    found = Page(render_html([renamed(r, rename) for r in all_results()], left_out=[rename("left out")]))
    expected = Page(html.replace("results/odd.json is not a jaxperf result", "left out"))

    def back(words: str) -> str:
        return " ".join(re.sub("[α-ω]+", lambda m: old[m.group()], words).split())

    assert found.outside == expected.outside
    assert [tag for tag, _ in found.tags] == [tag for tag, _ in expected.tags]
    assert [(tag, back(text)) for tag, text in found.texts] == expected.texts
    colors = [
        [re.findall(r"var\(--\w+-?\d?", a.get("style", "")) for _, a in p.tags] for p in (found, expected)
    ]
    assert colors[0] == colors[1]


def test_a_prediction_that_comes_true_never_looks_like_a_failure(shown: Page) -> None:
    looks = [a["class"] for a in shown.all("span") if a.get("class", "").startswith("verdict")]
    claims = [c for r in all_results() for c in r.claims]
    assert looks == [f"verdict {page.MARKS[w][1]}" for c in claims for w in (c.holds, c.prediction)]
    assert [word for word, (_, look) in page.MARKS.items() if look == "wrong"] == ["wrong"]


def test_the_contents_name_every_section_as_given_and_its_parts(shown: Page) -> None:
    links = [a["href"] for a in shown.all("a") if a["href"].startswith("#s-")]
    assert [link for link in links if "_" not in link] == [
        "#s-hybridize", "#s-async-computation", "#s-use-gpu", "#s-multiple-gpus", "#s-peers",
    ]  # fmt: skip
    assert links[1:3] == ["#s-hybridize_1", "#s-hybridize_2"]
    contents = shown.words.partition("Contents")[2]
    assert contents.startswith(" 8.1 Imperative and symbolic programming The MLP What it costs 8.2")


def test_every_link_label_and_timeline_finds_its_target_and_identifiers_are_unique(shown: Page) -> None:
    ids = [a["id"] for _, a in shown.tags if "id" in a]
    assert len(ids) == len(set(ids))
    targets = [a["href"][1:] for a in shown.all("a")]
    for name in ("aria-labelledby", "aria-describedby"):
        targets += [a[name] for _, a in shown.tags if name in a]
    styles = [
        a["style"].partition(": --")
        for tag, a in shown.tags
        if tag != "body" and "--s-" in a.get("style", "")
    ]
    assert set(targets) | {name for _, _, name in styles} <= set(ids)


def test_nothing_comes_from_outside_and_no_script_could_run(html: str, shown: Page) -> None:
    names = {tag for tag, _ in shown.tags}
    assert names.isdisjoint({"script", "iframe", "object", "embed", "img", "form", "base", "foreignobject"})
    for tag, attributes in shown.tags:
        assert not any(k.startswith("on") for k in attributes)
        for key in ("href", "src", "action", "data", "srcset"):
            value = attributes.get(key, "#")
            assert value.startswith("#") or (tag == "link" and value == "data:,")
    [style] = re.findall(r"<style>(.*?)</style>", html, flags=re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    [policy] = [m["content"] for m in shown.all("meta") if m.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'; img-src data:;")


def test_headings_are_in_order_and_every_part_of_the_page_is_marked(shown: Page) -> None:
    levels = [int(tag[1]) for tag, _ in shown.tags if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(b <= a + 1 for a, b in zip(levels, levels[1:]))  # noqa: RUF007
    assert {"header", "nav", "main", "footer"} <= {tag for tag, _ in shown.tags}
    assert shown.all("html")[0]["lang"] == "en"
    assert all("scope" in th for th in shown.all("th"))
    assert all("aria-labelledby" in s or s["id"].endswith("_0") for s in shown.all("section"))


def test_every_drawing_has_words_for_who_cannot_see_it_and_a_shape_before_it_is_drawn(shown: Page) -> None:
    drawings = shown.all("svg")
    assert len(drawings) == 18
    for svg in drawings:
        assert svg["role"] == "img"
        assert re.fullmatch(r"0 0 [\d.]+ [\d.]+", svg.get("viewbox", svg.get("viewBox", "")))


def test_tables_and_code_scroll_in_boxes_that_the_keyboard_reaches(html: str, shown: Page) -> None:
    assert html.count("<table") == len(
        re.findall(r'class="scroll" role="region" tabindex="0"[^>]*>\s*<table', html)
    )
    boxes = [a for _, a in shown.tags if "scroll" in a.get("class", "").split()]
    assert len(boxes) >= len(shown.all("pre")) > 0
    assert all(a["aria-label"] and a["tabindex"] == "0" and a["role"] == "region" for a in boxes)


def test_the_page_is_small_and_the_same_each_time(html: str) -> None:
    assert len(html.encode()) < 1_000_000
    assert render_html([peers()]) == render_html([peers()])


def luminance(color: str) -> float:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


def test_colors_can_be_told_from_the_page_in_light_and_dark(html: str) -> None:
    light, dark = (
        dict(re.findall(r"(--[\w-]+): (#[0-9a-f]{6})", block))
        for block in re.findall(r":root \{(.*?)\}", html, flags=re.DOTALL)
    )
    assert light.keys() == dark.keys()
    assert all(light[name] == color for color, name in draw.VARIABLES.items())
    for colors in (light, dark):
        for name in ("--ink", "--muted", "--link", "--yes", "--no", "--open", "--wrong"):
            assert contrast(colors[name], colors["--page"]) >= 4.5, name
        for name in ("--keyword", "--string", "--comment"):
            assert contrast(colors[name], colors["--panel"]) >= 4.5, name
        for background in ("--alert", "--panel"):
            assert contrast(colors["--ink"], colors[background]) >= 7
        for i in range(1, 7):
            assert contrast(colors[f"--series-{i}"], colors["--page"]) >= 3, i


def test_paper_gets_the_light_colors(html: str) -> None:
    assert "@media screen and (prefers-color-scheme: dark)" in html
    assert "@media (prefers-color-scheme: dark)" not in html
    assert "@media print" in html


@pytest.mark.thorough
def test_hostile_words_in_every_field_change_no_tag_of_the_page() -> None:
    def shape(name: str) -> Page:
        return Page(render_html([hostile(name), hostile_peers(name)], left_out=[name]))

    harmless = shape("nnnn nn")
    known = {"svg", "title", "desc", "defs", "g", "path", "use", "text", "clippath", "rect", "tspan"}
    for words in (" ".join(HOSTILE[i::2]) for i in range(2)):
        found = shape(words)
        inside = Counter(tag for tag, _ in found.tags) - Counter(tag for tag, *_ in found.outside)
        assert set(inside) - {"span"} <= known
        tags = [t for t in found.outside if t != ("span", "class")]
        assert tags == [t for t in harmless.outside if t != ("span", "class")]
        visible = " ".join(words.split())
        if visible.isprintable():
            assert found.words.count(visible) > 40
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f\u202e\ud800\uffff]", found.words)


def test_the_experiment_called_nothing_and_words_that_no_encoding_holds_give_a_page(
    tmp_path: Path, undrawn: None
) -> None:
    path = write_report([hostile(HOSTILE[9]), hostile("")], tmp_path, left_out=[HOSTILE[9]])
    assert "\\ud800" in path.read_text(encoding="utf-8")


def test_no_results_and_results_without_anything_still_give_a_page() -> None:
    assert "There is no result to show." in Page(render_html([])).words
    empty = replace(bare(), title="", question="", blocks=())
    assert "use_gpu" in Page(render_html([empty])).words


def test_results_of_the_same_experiment_get_sections_of_their_own() -> None:
    found = Page(render_html([bare(), bare(), replace(bare(), experiment="!!!")]))
    assert [a["id"] for a in found.all("article")] == ["s-use-gpu", "s-use-gpu-2", "s-section"]


def test_older_results_show_all_their_measurements_claims_and_facts(tmp_path: Path, undrawn: None) -> None:
    older = [load_result(path) for path in sorted(RESULTS.glob("*.json"))]
    assert older
    for result in older:
        words = Page(render_html([result])).words
        for name in (
            [m.name for m in result.measurements] + [c.statement for c in result.claims] + [*result.facts]
        ):
            assert one_line(name) in one_line(words)


def test_a_result_of_the_first_schema_without_the_newer_fields_still_shows(tmp_path: Path) -> None:
    body = {
        "format": "jaxperf-result", "schema_version": 1, "experiment": "hybridize", "section": "8.1",
        "title": "Older", "question": "", "config": {}, "environment": {"python": "3.11", "newer": [1]},
        "measurements": [{"name": n, "unit": "s", "values": [v]} for n, v in (("a", 1.0), ("b", 2.0))],
        "claims": [{"statement": "It is", "predicted": "yes", "observed": "no", "held": False}],
    }  # fmt: skip
    (tmp_path / "old.json").write_text(json.dumps(body))
    found = Page(render_html([load_result(tmp_path / "old.json")])).words
    assert "does not hold" in found
    assert "prediction" not in found.partition("It is")[2].partition("Made from")[0]  # nobody knows it
    assert "a 1 s" in found


def test_other_systems_are_shown_where_the_section_discusses_them_if_they_were_run(undrawn: None) -> None:
    told = Page(render_html([hybridize(), peers()])).words.partition("What does compiling buy?")[2]
    assert "The MLP on each system" in told.partition("What it costs")[0]
    assert "LeNet on each system" not in told.partition("Who is faster?")[0]
    assert "The MLP on each system" not in Page(render_html([hybridize()])).words


def test_what_cannot_be_shown_is_left_out_alone_and_says_so() -> None:
    for odd in (2**64, 2**1023, 1.7e308, -1.7e308):
        rows = tuple(Measurement(name, "s", (odd, odd)) for name in ("a", "b"))
        far = Table("Far", (*rows, Measurement("c", "s", (-odd,))), base="a", bars="bars")
        lines = Lines("Lines", (Curve("c", (1.0, 2.0), (odd, -odd)),), Axis("x"), Axis("y", "s"))
        blocks = (Text("well"), far, Dots("Dots", rows), lines, Fact("huge", odd), Text("on it goes"))
        result = replace(bare(), blocks=blocks, config={"x": float("inf"), "y": 10**400}, wall_s=odd)
        found = Page(render_html([result]))
        assert found.words.count("is left out, its values cannot be drawn") == 3 - len(found.all("svg"))
        assert len(found.all("svg")) < (3 if odd == 2**64 else 1)
        assert all(words in found.words for words in ("well", "-", "huge", "on it goes"))


def test_code_keeps_every_letter_and_is_marked_only_where_it_is_python() -> None:
    source = 'def f(x):  # <why>\n    """Say & so."""\n    return f"{x!r}" if x else None\n'
    marked = str(code(source))
    assert "".join(text for _, text in re.findall(r"(<[^>]*>)|([^<]+)", marked)).count("&lt;why&gt;") == 1
    for kind, text in (
        ("k", "def"),
        ("k", "return"),
        ("c", "# &lt;why&gt;"),
        ("s", "&#34;&#34;&#34;Say &amp; so."),
    ):
        assert f"<span class={kind}>{text}" in marked
    for words in (
        source,
        "x = (\n",
        "  odd\n indent",
        "'open",
        "net.hybridize()\n",
        "\u2028 if\x0cx",
        *HOSTILE,
    ):
        plain = re.sub(r"</?span[^>]*>", "", str(code(words)))
        assert Page(f"<pre>{plain}</pre>").words == Page(f"<pre>{code_of(words)}</pre>").words


def code_of(words: str) -> str:
    from markupsafe import escape

    return str(escape(page.plain(words)))


def test_prose_has_code_between_backticks_and_no_other_markup() -> None:
    assert prose("a `b<c>` & `d` `e") == "a <code>b&lt;c&gt;</code> &amp; <code>d</code> `e"


def test_every_item_of_a_walk_has_its_macro(shown: Page) -> None:
    kinds = {type(item).__name__ for r in [*all_results(), hostile("x")] for item in walk(r)}
    macros = (Path(page.__file__).parent / "templates" / "items.html.j2").read_text()
    assert kinds - {"Heading"} <= set(re.findall(r"macro (\w+)\(", macros))


def test_the_report_is_written_whole_into_a_folder_that_may_not_exist(tmp_path: Path) -> None:
    path = write_report([bare()], tmp_path / "new" / "folder")
    assert path == tmp_path / "new" / "folder" / "report.html"
    assert path.read_text(encoding="utf-8") == render_html([bare()])
    assert list(path.parent.iterdir()) == [path]
    (tmp_path / "file").write_text("")
    with pytest.raises(JaxperfError, match="cannot write"):
        write_report([bare()], tmp_path / "file")
