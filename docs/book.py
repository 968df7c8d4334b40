"""What the book adds to Sphinx: pages of sections, links to files of the repository, readable docstrings.

`section_page` makes a section's page from its script and a run, `page_figures` its figures and tables.
"""

import os
import re
import shutil
from pathlib import Path
from typing import Any

import nbformat
from page_figures import OfThePage, display_math, inline_math
from section_page import ROOT, Run, list_of_sections, one_line_pictures, page, sections, source_of
from sphinx.project import Project

from jaxperf.chapter import cells, notebooks

PREDICTIONS = Path(__file__).with_name("predictions.toml")
EVIDENCE = ("result", "log", "logs", "summary")  # texts of links that do not say which file they lead to
SOURCES = [Path(__file__).with_name(f"{name}.py") for name in ("book", "section_page", "page_figures")]


class Pages(Project):
    """The pages of the book; a script has one page, also if Sphinx reaches it by the link `experiments`."""

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
        notebook = Path(app.srcdir, app.config.book_results, f"{script.stem}.ipynb")
        run = Run.of(notebook)
        on_gpu = Path(app.srcdir, app.config.book_gpu_results, f"{script.stem}.ipynb")
        kept = Path(app.srcdir, app.config.book_kept_results, f"{script.stem}.ipynb")
        modules = run.about.get("modules", ()) if run else ()
        for path in (notebook, on_gpu, kept, PREDICTIONS, *SOURCES, *map(source_of, modules)):
            app.env.note_dependency(str(path), docname=docname)
        made = page(script, run, Run.of(on_gpu), Run.of(kept))
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
    joined = notebooks.outside_code(source[0], one_line_pictures)
    source[0] = with_links(app, docname, joined)


def with_links(app: Any, docname: str, source: str) -> str:
    """Turn links to other files, outside of code, into links to their pages or into the repository."""
    folder = "experiments" if docname.startswith("experiments/") else str(Path("docs", docname).parent)
    repository = app.config.html_theme_options["repository_url"]

    def target(link: re.Match[str]) -> str:
        text, (path, mark, anchor) = link[1], link[2].partition("#")
        if not path or re.match(r"[a-z+]+:", path):
            return link[0]
        path = os_normal(f"{folder}/{path}")
        for ending in ("", ".py", ".md"):
            name = (path + ending).removeprefix("docs/")
            page, _, suffix = name.rpartition(".")
            if page in app.env.found_docs and suffix == ("py" if "experiments/" in page else "md"):
                return f"[{text}](/{name}{mark}{anchor})"
        if (ROOT / path).exists() and not repository:
            return f"{text}, `{path}`" if text in EVIDENCE else text
        if (ROOT / path).exists():
            kind = "tree" if (ROOT / path).is_dir() else "blob"
            return f"[{text}]({repository}/{kind}/main/{path}{mark}{anchor})"
        return link[0]  # of which Sphinx warns

    return notebooks.outside_code(source, lambda text: notebooks.LINK.sub(target, text))


def os_normal(path: str) -> str:
    """Return a path without `..`."""
    parts: list[str] = []
    for part in Path(path).parts:
        if part == ".." and parts:
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)


def on_page(app: Any, name: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """Let the button "source" of a section lead to its script, not through the link in this folder."""
    if name.startswith("experiments/"):
        context["theme_path_to_docs"] = ""


def on_finished(app: Any, error: Exception | None) -> None:
    """Add script and notebook of each section; delete what only debuggers of the theme read."""
    if error is None and app.builder.name == "html":
        out = Path(app.outdir)
        for name in sections():
            shutil.copyfile(ROOT / "experiments" / f"{name}.py", out / "experiments" / f"{name}.py")
            notebook = without_outputs(app, name)
            for number, cell in enumerate(notebook.cells):
                cell.id = f"cell-{number}"  # random ones would differ with each build
            (out / "experiments" / f"{name}.ipynb").write_text(
                nbformat.writes(notebook) + "\n", encoding="utf-8"
            )
        # Images are parts of pages, and no browser asks for the others.
        for path in [*out.rglob("*.map"), *out.rglob("*webpack-macros.html"), *out.glob("_images/*.svg")]:
            path.unlink()


def without_outputs(app: Any, name: str) -> Any:
    """Return the notebook of a section that a page offers, with links to the other pages of the site."""
    address = app.config.html_theme_options["repository_url"]

    def resolve(link: str) -> str | None:
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link
        source = os_normal(f"experiments/{path}")
        page = source.removeprefix("docs/").removesuffix(".py").removesuffix(".md")
        if page in app.env.found_docs:
            return os.path.relpath(f"{page}.html", "experiments") + mark + anchor
        return f"{address}/blob/main/{source}{mark}{anchor}" if address else None

    script = ROOT / "experiments" / f"{name}.py"
    nodes = [cell.node() for cell in cells.read(script)]
    return notebooks.finish(nodes, script, resolve, address)


def setup(app: Any) -> dict[str, Any]:
    """Tell Sphinx."""
    app.add_config_value("book_results", "../benchmarks/results/book", "env", [str])
    app.add_config_value("book_kept_results", "../benchmarks/results/book", "env", [str])
    app.add_config_value("book_gpu_results", "../benchmarks/results/book-gpu", "env", [str])
    app.add_html_math_renderer("mathml", (inline_math, None), (display_math, None))
    app.add_post_transform(OfThePage)
    app.connect("builder-inited", on_begin)
    app.connect("source-read", on_source)
    app.connect("autodoc-process-docstring", on_docstring)
    app.connect("html-page-context", on_page, priority=100)
    app.connect("build-finished", on_finished)
    return {"parallel_read_safe": True}
