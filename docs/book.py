"""What the book adds to Sphinx: scripts of cells with the outputs of a run, and drawings in its ink.

A section's page has its text and code from the script `experiments/NAME.py`, as it is now, and its outputs
from the notebook `NAME.ipynb` of a run, up to the first cell whose code has changed since.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import nbformat
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from nbformat import v4
from sphinx.project import Project
from sphinx.transforms.post_transforms import SphinxPostTransform

from jaxperf.chapter import catalogue, cells
from jaxperf.result import Environment

ROOT = Path(__file__).resolve().parents[1]
INK = re.compile(
    "#1f2328|#6b7280"
)  # of figures.mplstyle and of the drawings: what takes the page's text color
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.M | re.S)
LINK = re.compile(r"(?<!!)\[((?:[^][]|\[[^][]*\])*)\]\(([^()\s]+)\)")
IMAGE = re.compile(r"!\[([^]]*)\]\(")
DETAILS = re.compile(r"<details>\s*<summary>(.*?)</summary>[ \t]*(.*?)(</details>|$)", re.S)
SPEED = "This is a run at toy size: it shows what the code does, and its times mean nothing."


def sections() -> list[str]:
    """Return the names of the sections, in order, that are scripts of cells."""
    folder = ROOT / "experiments"
    paths = [(s.name, folder / f"{s.name}.py") for s in catalogue.SECTIONS]
    return [name for name, path in paths if path.exists() and "\n# %%" in f"\n{path.read_text('utf-8')}"]


class Run(NamedTuple):
    """The kept run of a section: its code cells, and what `jaxperf.chapter.cells` wrote about it."""

    code: list[Any]
    about: dict[str, Any]

    @classmethod
    def of(cls, notebook: Path) -> "Run | None":
        """Read a notebook; None if it is not there."""
        if not notebook.is_file():
            return None
        kept = nbformat.read(notebook, as_version=4)
        return cls(
            [cell for cell in kept.cells if cell.cell_type == "code"], kept.metadata.get("jaxperf", {})
        )

    def changed_modules(self) -> list[str]:
        """Name the modules of jaxperf that are not what they were in the run."""
        before = self.about.get("modules", {})
        return [name for name, digest in before.items() if cells.digest(source_of(name)) != digest]


def source_of(module: str) -> Path:
    """Return the file of a module of jaxperf."""
    path = ROOT.joinpath(*module.split("."))
    if module == cells.MINI:
        return path / "SHA256SUMS"
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def page(script: Path, run: Run | None) -> Any:
    """Make the page of a section: a notebook whose code cells know their lines, and a part about its run."""
    found = cells.read(script)
    outputs, changed = outputs_of([cell.source for cell in found if not cell.markdown], run)
    made, number = [], 0
    for cell in found:
        if cell.markdown:
            made.append(v4.new_markdown_cell(prose(cell.source, first=not made)))
            if len(made) == 1:
                made.extend(v4.new_markdown_cell(words) for words in at_the_top(script, run))
            continue
        last = cell.line + cell.source.count("\n")
        metadata: dict[str, Any] = {"lines": f"L{cell.line}-L{last}", "tags": list(cell.tags)}
        if cells.ANSWER in cell.tags:
            metadata["tags"].append("hide-cell")
        shown = outputs[number] if number < len(outputs) else []
        made.append(v4.new_code_cell(cell.source, metadata=metadata, outputs=shown))
        if number == changed:
            made.append(v4.new_markdown_cell(note(
                "The code of this cell has changed since the run that this page shows. "
                "Outputs from here on are left out.", "changed")))  # fmt: skip
        number += 1
    made.append(v4.new_markdown_cell(about_the_run(script, run, changed=changed is not None)))
    language = {"language_info": {"name": "python", "pygments_lexer": "python"}}
    return v4.new_notebook(cells=made, metadata=language)


def outputs_of(code: list[str], run: Run | None) -> tuple[list[list[Any]], int | None]:
    """Return the outputs of the cells up to the first that the run does not have so, and its number."""
    outputs: list[list[Any]] = []
    if run is None:
        return outputs, None
    for number, source in enumerate(code):
        if number == len(run.code) and run.about.get("incomplete"):
            return outputs, None
        if number == len(run.code) or run.code[number].source != source:
            return outputs, number
        outputs.append([as_html(output) for output in run.code[number].outputs])
    return outputs, None if len(run.code) == len(code) else len(code)


def as_html(output: Any) -> Any:
    """Turn a figure into HTML, so that it becomes part of the page."""
    data = output.get("data", {})
    if svg := data.pop("image/svg+xml", None):
        data["text/html"] = figure(svg, data["text/plain"], "plot")
    return output


def prose(text: str, *, first: bool = False) -> str:
    """Make a Markdown cell ready for MyST: question and goals apart, and Markdown within folded answers."""
    if first:
        text = re.sub(r"\s(After this section)", r"\n\n\1", text, count=1)
        text = re.sub(r"\A(# .*)\n+", r"\1\n\n{.question}\n", text)  # the question
    text = IMAGE.sub(lambda image: f"![{' '.join(image[1].split())}](", text)
    return DETAILS.sub(folded, text)


def folded(details: re.Match[str]) -> str:
    """Write a folded part so that Markdown works inside it; `class` says whether it asks or answers."""
    summary, text, end = details.groups()
    words = re.sub("`([^`]+)`", lambda code: f"<code>{code[1]}</code>", " ".join(summary.split()))
    words = re.sub(r"\$([^$]+)\$", lambda math: tex2mathml(math[1], as_block=False), words)
    kind = "predict" if summary.lower().startswith("predict") else "answer"
    inside = f"{text.strip()}\n\n" if text.strip() else ""
    return f'<details class="{kind}"><summary>{words}</summary>\n\n{inside}{end}'


def note(words: str, kind: str) -> str:
    """Return a remark that stands out."""
    return f":::{{div}} remark {kind}\n{words}\n:::"


def at_the_top(script: Path, run: Run | None) -> Iterator[str]:
    """Yield what a reader must know before the first figure."""
    if run is None:
        yield note("This section has not been run for this page: it shows code without outputs. "
            f"`python experiments/{script.name}` runs it.", "missing")  # fmt: skip
    elif "smoke" in run.about.get("options", ()):
        yield note(SPEED, "smoke")


def rerun(script: Path) -> str:
    """Say how to make the page from one's own run."""
    run = f"python experiments/{script.name} --notebook results/{script.stem}.ipynb"
    return f"To make this page from a run of yours:\n\n```sh\n{run}\nmake book RESULTS=results\n```\n"


def about_the_run(script: Path, run: Run | None, *, changed: bool) -> str:
    """Return the last part of a page: where its outputs come from, and what has changed since."""
    lines = ["## About this run", ""]
    if run is None:
        lines += ["This section has not been run for this page.", ""]
    else:
        lines += [f"- {words}" for words in remarks(run, changed=changed)]
        rows = (f"<tr><th>{name}</th><td>{words}</td></tr>" for name, words in settings(run.about))
        lines += ["", f'<table class="run">{"".join(rows)}</table>', ""]
    download = (
        f"Take this section with you: the script [{script.name}](../experiments/{script.name}), or "
        f'<a href="{script.stem}.ipynb" download>a notebook without outputs</a>.'
    )
    return "\n".join([*lines, rerun(script), download])


def remarks(run: Run, *, changed: bool) -> Iterator[str]:
    """Yield what makes the run another one than the reader would get today."""
    options, modules = run.about.get("options", ()), run.changed_modules()
    if "smoke" in options:
        yield SPEED
    if changed:
        yield "**The code of this page has changed since this run**, so some outputs are left out."
    if modules:
        names = ", ".join(f"`{name}`" for name in modules)
        yield f"**These modules have changed since this run**, so a new run may differ: {names}."
    if busy := run.about.get("busy"):
        yield f"**The machine was busy**: {busy} meanwhile, so times are noisy."
    if run.about.get("incomplete"):
        yield "**The run was stopped** before its last cell."
    if any(output.output_type == "error" for cell in run.code for output in cell.outputs):
        yield "**A cell failed** in this run; its error is shown below it."
    if "answers" not in options:
        yield "The answers to the exercises were not run; `--answers` runs them, too."


def settings(about: dict[str, Any]) -> list[tuple[str, str]]:
    """Return what it takes to repeat a run, as rows of HTML."""
    known = {
        name: value for name, value in about.get("environment", {}).items() if name in vars(Environment())
    }
    e = Environment(**known)
    size = f"{e.memory_bytes / 1e9:.0f} GB" if e.memory_bytes else ""
    cores = f"{e.cores} cores" if e.cores else ""
    devices = f"{len(e.devices)} × {e.backend}" if e.devices else ""
    if e.devices_are_fake:
        devices += ": parts of one CPU, which share its cores"
    if e.gpus:
        devices += f" ({'; '.join(e.gpus)})"
    versions = {"Python": e.python, **e.versions}
    flags = [f"{name}={value}" for name, value in e.flags.items() if not name.startswith("jax_")]
    others = e.accelerated or tuple({"oneDNN convolutions" for flag in flags if "onednn" in flag.lower()})
    took = f", in {about['wall_s']:,.0f} s" if about.get("wall_s") else ""
    where_to = r" --(json|notebook)[ =]\S+"  # which changes nothing in the run
    rows = {
        "Command": code(re.sub(where_to, "", about.get("command", ""))),
        "Parameters": code(*(f"{name}={value}" for name, value in about.get("config", {}).items())),
        "Date": about.get("started_at", "")[:10] + took,
        "Machine": html.escape(", ".join(filter(None, (e.cpu, cores, size)))),
        "Devices": html.escape(devices),
        "System": html.escape(e.platform),
        "Versions": html.escape(
            ", ".join(f"{name} {version}" for name, version in versions.items() if version)
        ),
        "Settings": code(*flags),
        "Beside JAX": html.escape(", ".join(others)) or "nothing: JAX as installed",
        "Images": html.escape(images(e.data_source)),
        "Code": html.escape(f"commit {e.commit}" if e.commit else ""),
    }
    return [(name, words) for name, words in rows.items() if words]


def images(source: str) -> str:
    """Say where the images came from."""
    if source == "mini":
        return "the 6,000 + 1,000 images of Fashion-MNIST in this package"
    return f"Fashion-MNIST, {source}" if source else ""


def code(*words: str) -> str:
    """Mark words as code in HTML, so that a line breaks between them only."""
    return ", ".join(f"<code>{html.escape(word)}</code>" for word in words if word)


def list_of_sections() -> str:
    """Return the chapter's contents for the start page: a table of contents, and a line for each section."""
    known = {section.name: section for section in catalogue.SECTIONS}
    names = sections()
    toctree = [
        "```{toctree}",
        ":hidden:",
        ":caption: The chapter",
        "",
        *(f"experiments/{name}" for name in names),
        "```",
        "",
    ]
    titles = {
        name: cells.read(ROOT / "experiments" / f"{name}.py")[0].source.split("\n")[0] for name in names
    }
    entries = [
        f"[{titles[name].lstrip('# ')}](../experiments/{name}.py)\n: {known[name].question}\n"
        for name in names
    ]
    return "\n".join([*toctree, "{.sections}", *entries])


class Pages(Project):
    """The pages of the book; a script has its page, wherever it is found by the link in this folder."""

    def path2doc(self, filename: Any) -> str | None:
        """Return the name of the page of a file."""
        path, lessons = Path(filename), ROOT / "experiments"
        return super().path2doc(Path("experiments", path.name) if path.parent == lessons else path)


def on_begin(app: Any) -> None:
    """Let Sphinx find the pages of scripts."""
    app.project.__class__ = Pages


def on_docstring(app: Any, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    """Make what docstrings have of Markdown reStructuredText: `word`s, and lists without empty lines."""
    if what == "module":  # whose examples are only indented
        text = "\n".join(lines)
        lines[:] = re.sub(r"^(\S.*\n)\n(?= {4})", r"\1\n::\n\n", text, flags=re.M).split("\n")
    before = ""
    for number, line in reversed([*enumerate(lines)]):
        lines[number] = re.sub(r"(`[^`]+`)(?=[A-Za-z])", r"\1\\ ", line)
        if line.strip() and before.strip() and indent(line) > indent(before):
            lines.insert(number + 1, "")
        before = line


def indent(line: str) -> int:
    """Count the spaces that a line begins with."""
    return len(line) - len(line.lstrip())


def on_source(app: Any, docname: str, source: list[str]) -> None:
    """Replace a script by its page, and turn links to files of the repository into links of the book."""
    if docname.startswith("experiments/"):
        script = ROOT / f"{docname}.py"
        kept = Path(app.srcdir, app.config.book_results, f"{script.stem}.ipynb")
        run = Run.of(kept)
        for path in (kept, Path(__file__), *(map(source_of, run.about.get("modules", ())) if run else ())):
            app.env.note_dependency(str(path), docname=docname)
        made = page(script, run)
        for cell in made.cells:
            if cell.cell_type == "markdown":
                cell.source = with_links(app, docname, cell.source)
        source[0] = nbformat.writes(made)
        return
    if docname == "index":
        for name in sections():
            app.env.note_dependency(str(ROOT / "experiments" / f"{name}.py"), docname=docname)
        listed = {*re.findall(r"^[\w-]+$", source[0], re.M), "index"}
        guides = [path.stem for path in sorted(Path(app.srcdir).glob("*.md")) if path.stem not in listed]
        source[0] = source[0].replace("<!-- sections -->", list_of_sections())
        source[0] = source[0].replace("<!-- other guides -->", "\n".join(guides))
    source[0] = with_links(app, docname, source[0])


def with_links(app: Any, docname: str, text: str) -> str:
    """Turn links to other files, outside of code, into links to their pages or into the repository."""
    folder = "experiments" if docname.startswith("experiments/") else str(Path("docs", docname).parent)
    repository = app.config.html_theme_options["repository_url"]

    def target(link: re.Match[str]) -> str:
        words, (path, mark, anchor) = link[1], link[2].partition("#")
        if not path or re.match(r"[a-z+]+:", path):
            return link[0]
        path = os_normal(f"{folder}/{path}")
        for ending in ("", ".py", ".md"):
            name = (path + ending).removeprefix("docs/")
            page, _, suffix = name.rpartition(".")
            if page in app.env.found_docs and suffix == ("py" if "experiments/" in page else "md"):
                return f"[{words}](/{name}{mark}{anchor})"
        if (ROOT / path).exists():
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"[{words}]({repository}/{kind}/main/{path}{mark}{anchor})"
        return link[0]  # of which Sphinx warns

    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [LINK.sub(target, text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, LINK.sub(target, text[at:])])


def os_normal(path: str) -> str:
    """Return a path without `..`."""
    parts: list[str] = []
    for part in Path(path).parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


NUMBER, ANCHOR, UNIQUE = "%number%", "%anchor%", "%unique%"  # what `OfThePage` fills in


def figure(svg: str, words: str, kind: str) -> str:
    """Return a drawing as part of the page, so that its text takes the page's font and color.

    Args:
      svg: the drawing.
      words: what there is to see in it, which is the caption; for `kind` "bare" the alternative text.
      kind: "plot", "drawing" or "bare", which has no caption and no number.
    """
    drawing = svg[svg.index("<svg") :]
    drawing = re.sub(
        r"<metadata>.*?</metadata>|<style[^>]*>.*?</style>|<!--.*?-->|<title>.*?</title>",
        "",
        drawing,
        flags=re.S,
    )
    drawing = re.sub(r'\bid="', f'id="{UNIQUE}', re.sub(r'(url\(|href=")#', rf"\1#{UNIQUE}", drawing))
    drawing = INK.sub("currentColor", re.sub(r"\s*\n\s*", "\n", drawing))
    if kind == "bare":
        label = html.escape(words)
        return f'<figure class="drawing" role="group" aria-label="{label}"><div>{drawing}</div></figure>'
    caption = f'<figcaption><a href="#{ANCHOR}">{NUMBER}</a> {html.escape(words)}</figcaption>'
    return f'<figure class="drawing {kind}" id="{ANCHOR}"><div>{drawing}</div>{caption}</figure>'


class OfThePage(SphinxPostTransform):
    """Number figures and tables, make drawings part of the page, and link cells to their lines."""

    default_priority = 900  # after MyST-NB has folded cells
    formats = ("html",)

    def run(self, **_: Any) -> None:
        """Change a page."""
        docname = self.env.docname
        lesson = docname.startswith("experiments/")
        title = next((t.astext() for t in self.document.findall(nodes.title)), "")
        begin = re.match(r"\d+(\.\d+)*", title)
        self.prefix = f"{begin[0]}." if begin else ""
        self.figures = self.tables = 0
        for node in list(self.document.findall()):
            if isinstance(node, nodes.image) and node["uri"].endswith(".svg"):
                path = Path(self.env.srcdir, node["uri"])
                svg = path.read_text(encoding="utf-8") if path.is_file() else "<svg/>"  # Sphinx warns of it
                words = node.get("alt", "")
                self.place(node, figure(svg, node.get("title", words), "drawing" if lesson else "bare"))
            elif isinstance(node, nodes.raw) and UNIQUE in node.astext():
                self.place(node, node.astext())
            elif (
                lesson
                and isinstance(node, nodes.raw)
                and '<details class="evidence"><summary>' in node.astext()
            ):
                number = f"<summary><strong>{self.next_table()}</strong> "
                words = node.astext().replace("<summary>", number, 1)
                node.replace_self(nodes.raw("", words, format="html"))
            elif lesson and isinstance(node, nodes.table):
                self.caption(node)
        if lesson:
            self.lines(f"{self.config.html_theme_options['repository_url']}/blob/main/{docname}.py")

    def place(self, node: nodes.Node, drawing: str) -> None:
        """Put a drawing where a node was, with its number and with ids that no other drawing has."""
        self.figures += 1
        words = f"Figure {self.prefix}{self.figures}"
        filled = drawing.replace(UNIQUE, f"f{self.figures}-").replace(NUMBER, words)
        filled = filled.replace(ANCHOR, re.sub(r"\W+", "-", words.lower()))
        parent = node.parent
        if isinstance(parent, nodes.paragraph) and len(parent) == 1:  # no figure stands in a paragraph
            node = parent
        node.replace_self(nodes.raw("", filled, format="html"))

    def next_table(self) -> str:
        """Return the next table's number."""
        self.tables += 1
        return f"Table {self.prefix}{self.tables}"

    def caption(self, table: nodes.table) -> None:
        """Make the bold line above a table of an output its caption."""
        above = table.parent[table.parent.index(table) - 1]
        bold = next(above.findall(nodes.strong), None)
        if not isinstance(above, nodes.paragraph) or bold is None or bold.astext() != above.astext():
            return
        words = self.next_table()
        anchor = re.sub(r"\W+", "-", words.lower())
        table.insert(0, nodes.title("", "", nodes.strong("", words), nodes.Text(f" {above.astext()}")))
        table["ids"].append(anchor)
        table.parent.remove(above)

    def lines(self, script: str) -> None:
        """Link each cell to its lines of the script."""
        for cell in list(self.document.findall(nodes.container)):
            if lines := cell.get("cell_metadata", {}).get("lines"):
                words = f"lines {lines.replace('L', '').replace('-', '–')}"
                link = (
                    f'<a class="lines" href="{script}#{lines}" title="these lines of the script">{words}</a>'
                )
                cell.insert(0, nodes.raw("", link, format="html"))


def inline_math(self: Any, node: nodes.math) -> None:
    """Write a formula in a line as MathML, which browsers show without a script."""
    self.body.append(tex2mathml(node.astext(), as_block=False))
    raise nodes.SkipNode


def display_math(self: Any, node: nodes.math_block) -> None:
    """Write a formula of its own line."""
    self.body.append(f'<div class="math">{tex2mathml(node.astext(), as_block=True)}</div>')
    raise nodes.SkipNode


def on_page(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let the button "source" of a section lead to its script, not through the link in this folder."""
    if name.startswith("experiments/"):
        context["theme_path_to_docs"] = ""


def on_finished(app: Any, error: Exception | None) -> None:
    """Add a notebook for each section, and delete what only debuggers of the theme's scripts read."""
    if error is None and app.builder.name == "html":
        out = Path(app.outdir)
        for name in sections():
            nodes_of = [cell.node() for cell in cells.read(ROOT / "experiments" / f"{name}.py")]
            notebook = v4.new_notebook(cells=nodes_of)
            for number, cell in enumerate(notebook.cells):
                cell.id = f"cell-{number}"  # random ones would differ with each build
            (out / "experiments" / f"{name}.ipynb").write_text(
                nbformat.writes(notebook) + "\n", encoding="utf-8"
            )
        # Images are parts of pages, and no browser asks for the others.
        for path in [*out.rglob("*.map"), *out.rglob("*webpack-macros.html"), *out.glob("_images/*.svg")]:
            path.unlink()


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx."""
    app.add_config_value("book_results", "../benchmarks/results/book", "env", [str])
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.add_post_transform(OfThePage)
    app.connect("builder-inited", on_begin)
    app.connect("source-read", on_source)
    app.connect("autodoc-process-docstring", on_docstring)
    app.connect("html-page-context", on_page, priority=100)
    app.connect("build-finished", on_finished)
    return {"parallel_read_safe": True}
