import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import chromium
import nbformat
import pytest
from nbformat import v4

from jaxperf.chapter import catalogue, cells

ROOT = Path(__file__).resolve().parents[2]
DOCS, EXPERIMENTS = ROOT / "docs", ROOT / "experiments"
ADDRESS = "https://github.com/somebody/jaxperf"
pytestmark = pytest.mark.real

SCRIPT = """\
# %% [markdown]
# # 8.4 A title
# What does it ask? After this section you can
# - run it.
#
# ![Two boxes
# and an arrow.](images/drawing.svg)

# %%
a = 1
print(a)

# %% [markdown]
# <details><summary>Predict: what is `b`?</summary>**Two.**</details>

# %%
b = a + 1
print(b)

# %% tags=["answer"]
print(a + b)

# %% tags=["hide-input"]
print("claimed")
"""
SVG = (
    '<svg viewBox="0 0 1 1"><metadata>x</metadata><style>*{}</style>'
    '<g id="a"><path d="M0 0" stroke="#1f2328"/></g><use href="#a"/></svg>'
)
CLAIM = '<div class="claim holds" id="it-adds"><p><a href="#it-adds">holds</a> It adds.</p></div>'
TABLE = "**Times**\n\n| | median |\n| --- | ---: |\n| one | 1 ms |\n\n"
FOLDED = (
    f'<details class="evidence"><summary>All times</summary>\n\n{TABLE.partition(chr(10))[2]}\n\n</details>'
)


@pytest.fixture(scope="module")
def section_page():
    pytest.importorskip("sphinx")
    sys.path.insert(0, str(DOCS))
    try:
        yield __import__("section_page")
    finally:
        sys.path.remove(str(DOCS))


def show(**data):
    kinds = {"html": "text/html", "markdown": "text/markdown", "svg": "image/svg+xml"}
    shown = {kinds[name]: value for name, value in data.items()}
    return v4.new_output("display_data", data={**shown, "text/plain": "What there is to see."})


def run_of(script, *outputs, about=None):
    """A notebook of a run of a script, with these outputs in its first code cell and lines in the others."""
    nodes = [cell.node() for cell in cells.read(script)]
    first, *others = (node for node in nodes if node.cell_type == "code")
    for node in (first, *others):
        text = "1\n" if node is first else "printed\n"
        node.outputs = [v4.new_output("stream", name="stdout", text=text)]
    first.outputs += outputs
    known = {"options": ["answers"], "modules": cells.modules(), "command": f"python {script.name}"}
    return v4.new_notebook(cells=nodes, metadata={"jaxperf": {**known, **(about or {})}})


def keep(notebook, path):
    path.write_text(nbformat.writes(notebook), encoding="utf-8")
    return path


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "multiple_gpus.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture
def page_of(section_page, script):
    def page(run, gpu=None):
        kept = [each and section_page.Run.of(keep(each, script.with_suffix(".ipynb"))) for each in (run, gpu)]
        return section_page.page(script, *kept)

    return page


def text_of(page):
    return "\n".join(cell.source for cell in page.cells if cell.cell_type == "markdown")


def code_of(page):
    return [cell for cell in page.cells if cell.cell_type == "code"]


def test_a_page_has_the_outputs_of_its_run_and_the_lines_of_its_cells(section_page, page_of, script):
    page = page_of(run_of(script, show(svg=SVG)))
    first, second, answer, claimed = code_of(page)
    assert first.outputs[0].text == "1\n"
    assert "<figure" in first.outputs[1].data["text/html"] and "image/svg+xml" not in first.outputs[1].data
    assert second.outputs[0].text == answer.outputs[0].text == "printed\n"
    assert "hide-cell" in answer.metadata.tags and "hide-cell" not in second.metadata.tags
    lines = script.read_text().split("\n")
    assert "hide-input" in claimed.metadata.tags and claimed.metadata.mystnb.code_prompt_show == "code"
    assert section_page.prompt_of("s.figure(f)\ns.claim(a)") == "code of the verdict and the figure"
    for cell in (first, second, answer, claimed):
        start, end = (int(n) for n in re.findall(r"\d+", cell.metadata.lines))
        assert "\n".join(lines[start - 1 : end]) == cell.source
    assert "changed since" not in text_of(page)


def test_from_the_first_changed_cell_on_outputs_are_left_out_and_the_page_says_so(page_of, script):
    run = run_of(script)
    script.write_text(SCRIPT.replace("a + 1", "a + 2").replace("What does it ask?", "What else?"))
    page = page_of(run)
    assert [len(cell.outputs) for cell in code_of(page)] == [1, 0, 0, 0]
    (remark,) = (i for i, cell in enumerate(page.cells) if "Outputs from here on are left out" in cell.source)
    assert page.cells[remark - 1].source.startswith("b = a + 2")
    assert "The code of this page has changed since this run" in page.cells[-1].source


def test_a_page_says_what_kind_of_run_it_shows(page_of, script):
    def end(**about):
        return text_of(page_of(run_of(script, about=about)))

    assert "has not been run for this page" in text_of(page_of(None))
    # at the top, and in the end
    assert end(options=["smoke", "answers"]).count("its times mean nothing") == 2
    assert "its times mean nothing" not in end(options=["full", "answers"])
    assert "The answers to the exercises were not run" in end(options=["full"])
    assert "was stopped" in end(incomplete=True)
    assert "not that of a commit" in end(environment={"commit": "abc+dirty"})
    assert "not that of a commit" not in end(environment={"commit": "abc"})
    assert "turned around" in end(turned=True)
    assert "The machine was busy" in end(busy="other programs used 1.20 of 2 cores")
    changed = end(modules={"jaxperf.measure.timing": "0" * 12, "jaxperf.gone": "1" * 12, **cells.modules()})
    assert "`jaxperf.gone`" in changed and "jaxperf.chapter.cells" not in changed
    failed = run_of(script, v4.new_output("error", ename="E", evalue="e", traceback=["E: e"]))
    assert "A cell failed" in text_of(page_of(failed))


def test_a_prediction_has_choices_before_its_explanation(section_page):
    box = "<details><summary>Predict: is <code>x</code> $n$?</summary>\n\n**No.**\n\n</details>"
    offered = {section_page.question_of("is `x` $n$?"): ["yes", "*no", "`y`"]}
    shown = section_page.prose(box, offered)
    assert shown.startswith('<fieldset class="predict"><legend>Predict: is <code>x</code> <math')
    assert re.findall(r'class="(\w+)">(.*?)</label>', shown) == [
        ("wrong", "yes"), ("right", "no"), ("wrong", "<code>y</code>"), ("open", "show me"),
    ]  # fmt: skip
    assert shown.endswith('<div class="explanation">\n\n**No.**\n\n</div></fieldset>')
    open_question = section_page.prose(box, {section_page.question_of("is `x` $n$?"): ["yes", "no"]})
    assert set(re.findall(r'class="(\w+)">.*?</label>', open_question)) == {"open"}
    assert "<details" in section_page.prose(box, {})


def test_every_prediction_of_the_chapter_has_choices_and_no_other_has(section_page):
    for name in section_page.sections():
        text = "\n".join(cell.source for cell in cells.read(EXPERIMENTS / f"{name}.py") if cell.markdown)
        summaries = (summary for summary, _, _ in section_page.DETAILS.findall(text))
        predictions = [summary for summary in summaries if summary.lower().startswith("predict")]
        assert {*map(section_page.question_of, predictions)} == section_page.choices(name).keys()
        for offered in section_page.choices(name).values():
            assert len(offered) >= 2 and sum(answer.startswith("*") for answer in offered) <= 1


def test_a_page_folds_what_a_gpu_showed_below_the_cell(page_of, script):
    environment = {"devices": ["cuda:0 NVIDIA H200"], "backend": "gpu", "versions": {"jax": "0.12.0"}}
    shown = show(svg=SVG), show(markdown=TABLE), show(html=CLAIM)
    gpu = run_of(script, *shown, about={"environment": environment})
    page = page_of(run_of(script, show(svg=SVG)), gpu)
    first, second, *_ = code_of(page)
    folded = first.outputs[-1].data["text/markdown"]
    assert folded.startswith('<details class="gpu"><summary>This cell on one NVIDIA H200</summary>')
    for part in ("```text\n1\n```", "*Times*", "<figure", "holds"):
        assert part in folded
    assert "**Times**" not in folded and 'id="it-adds"' not in folded
    assert len(second.outputs) == 1  # which printed the same
    assert "jax 0.12.0" in text_of(page) and text_of(page).count('<table class="run">') == 2
    script.write_text(SCRIPT.replace("a = 1", "a = 2"))
    assert "details class" not in str(code_of(page_of(None, gpu))[0].outputs)


# The built site.


NOT_LOADED = {"next", "prev", "index", "search", "canonical"}


class Page(HTMLParser):
    """Of a page: where its links lead, its anchors, and what a browser loads to show it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.ids, self.loads = [], set(), []
        self.text = path.read_text(encoding="utf-8")
        self.feed(self.text)

    def handle_starttag(self, tag, attrs):
        known = {name: value or "" for name, value in attrs}
        self.ids |= {known[name] for name in ("id", "name") if name in known}
        if tag == "a" and "href" in known:
            self.links.append(known["href"])
        elif tag == "link" and not NOT_LOADED & set(known["rel"].split()):
            self.loads.append(known["href"])
        self.loads += [known[name] for name in ("src", "srcset", "data", "poster") if known.get(name)]
        self.loads += re.findall(r"url\(([^)]*)\)", known.get("style", ""))


@pytest.fixture(scope="module")
def site(section_page, tmp_path_factory):
    """The book, built with two runs: one with a figure, tables and a claim, one at toy size."""
    folder = tmp_path_factory.mktemp("book")
    names = section_page.sections()
    shown = [show(svg=SVG), show(markdown=TABLE), show(markdown=FOLDED), show(html=CLAIM)]
    keep(run_of(EXPERIMENTS / f"{names[0]}.py", *shown), folder / f"{names[0]}.ipynb")
    toy = run_of(EXPERIMENTS / f"{names[1]}.py", about={"options": ["smoke"]})
    keep(toy, folder / f"{names[1]}.ipynb")
    return build(folder, f"book_results={folder}", f"html_theme_options.repository_url={ADDRESS}")


@pytest.fixture(scope="module")
def kept_site(section_page, tmp_path_factory):
    return build(tmp_path_factory.mktemp("kept"))


def build(folder, *settings):
    command = [sys.executable, *("-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html")]
    command += ["-d", folder / "doctrees", *(word for setting in settings for word in ("-D", setting))]
    done = subprocess.run([*command, DOCS, folder / "site"], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder / "site"


@pytest.fixture(scope="module")
def pages(site):
    return {path: Page(path) for path in site.rglob("*.html")}


def test_the_site_has_a_page_for_each_section_and_guide(site, section_page, pages):
    start = pages[site / "index.html"]
    for name in section_page.sections():
        assert f"experiments/{name}.html" in start.links
        notebook = nbformat.read(site / "experiments" / f"{name}.ipynb", as_version=4)
        assert not any(cell.get("outputs") for cell in notebook.cells)
    guides = {path.with_suffix(".html").name for path in DOCS.glob("*.md")}
    assert {path.name for path in site.glob("*.html")} >= guides
    for section in catalogue.SECTIONS:
        if section.name in section_page.sections():
            assert section.question.split("?")[0].replace("'", "’") in start.text.replace("&#39;", "’")


def test_no_page_loads_anything_from_elsewhere(site, pages):
    outside = re.compile(r"^\s*['\"]?\s*(\w+:)?//")
    loaded = [(path.name, url) for path, page in pages.items() for url in page.loads if outside.match(url)]
    assert not loaded
    for path in site.rglob("*.css"):
        style = path.read_text(encoding="utf-8")
        urls = re.findall(r"url\(([^)]*)\)|@import\s+([^;]+)", style)
        assert not [url for pair in urls for url in pair if outside.match(url)], path


def test_no_link_leads_nowhere(site, pages):
    missing = []
    for path, page in pages.items():
        for link in page.links:
            name, _, anchor = link.partition("#")
            if re.match(r"\w+:", link):
                continue
            target = (path.parent / name.partition("?")[0]).resolve() if name else path
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].ids):
                missing.append((path.name, link))
    assert not missing


def test_no_flag_in_prose_has_become_a_dash(pages):
    """Outside code, Markdown's "--flag" is printed as a dash, and a reader who copies it gets no flag."""
    dashes = {path: re.findall(r"\W[–—][a-z]{2}.{20}", page.text) for path, page in pages.items()}
    assert not {path: found for path, found in dashes.items() if found}


def test_figures_and_tables_have_numbers_and_cells_have_links(site, section_page, pages):
    name = section_page.sections()[0]
    page = pages[site / "experiments" / f"{name}.html"]
    number = next(s.number for s in catalogue.SECTIONS if s.name == name)
    for title in (f"Figure {number}.1", f"Table {number}.1", f"Table {number}.2"):
        assert title in page.text
    anchors = [f"{kind}-{number}-1".replace(".", "-") for kind in ("figure", "table")]
    assert {*anchors, "it-adds"} <= page.ids
    assert '<details class="evidence"><summary><strong>Table' in page.text
    assert re.search(rf'href="{ADDRESS}/blob/main/experiments/{name}\.py#L\d+-L\d+"', page.text)
    assert not re.search(r"%(number|anchor|unique)%", "".join(p.text for p in pages.values()))
    assert "its times mean nothing" in pages[site / "experiments" / f"{section_page.sections()[1]}.html"].text


@pytest.mark.thorough
def test_a_notebook_runs_on_a_fresh_kernel_and_shows_claims(tmp_path):
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nodes = [cell.node() for cell in cells.read(EXPERIMENTS / "use_gpu.py")]
    taught = [node for node in nodes if "answer" not in node.metadata.get("tags", ())]
    notebook, place = v4.new_notebook(cells=taught), {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(notebook, startup_timeout=600, resources=place).execute()
    shown = [o for cell in notebook.cells for o in cell.get("outputs", ())]
    claims = sum('class="claim' in o.get("data", {}).get("text/html", "") for o in shown)
    assert claims == sum(cell.source.count("s.claim(") for cell in notebook.cells if cell.cell_type == "code")
    assert any("text/markdown" in o.get("data", {}) for o in shown)
    assert "".join(o.text for o in shown if o.output_type == "stream" and o.name == "stderr") == ""


MEASURE = """<script>addEventListener('load', () => setTimeout(() => {
  const shown = (s) => [...document.querySelectorAll(s)].filter(e => e.offsetParent !== null);
  const left = (e) => e.getBoundingClientRect().left;
  const right = (e) => e.getBoundingClientRect().right;
  const scrolls = (e) => { for (; e; e = e.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(e).overflowX)) return true; return false; };
  const edge = (e) => { let at = innerWidth; while (e = e.parentElement)
    if (getComputedStyle(e).overflowX !== 'visible') at = Math.min(at, right(e)); return at; };
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    code: shown('.bd-article pre').filter(e => e.scrollWidth > e.clientWidth + 1).length,
    drawings: [...document.querySelectorAll('.bd-article figure :is(svg, text)')].filter(e =>
      e.getClientRects().length && (right(e) > edge(e) + 1 || left(e) < -1)).length,
    tables: shown('.bd-article table').filter(e => right(e) > innerWidth + 1 && !scrolls(e)).length,
    page: Math.max(0, ...shown('.bd-article').map(e => e.scrollWidth - e.clientWidth)),
  }), '*');
}, 300));</script>"""


@pytest.mark.thorough
@pytest.mark.parametrize("width", [390, 1280])
def test_nothing_is_cut_on_a_screen_or_a_phone(kept_site, width, tmp_path):
    faults = {}
    for path in [*kept_site.glob("*.html"), *kept_site.glob("experiments/*.html")]:
        copy = path.with_name(f"_measured-{path.name}")
        copy.write_text(path.read_text().replace("</head>", MEASURE + "</head>", 1))
        seen = chromium.measured(copy, width, tmp_path)
        copy.unlink()
        assert seen["width"] == width
        code = ("code",) if width > 600 else ()  # which scrolls on a phone
        parts = ("drawings", "tables", "page", *code)
        faults |= {f"{path.name}, {part}": seen[part] for part in parts if seen[part]}
    assert not faults
