"""Number figures and tables of a page, make drawings part of it, and write formulas as MathML."""

import html
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.transforms.post_transforms import SphinxPostTransform

# Of figures.mplstyle and of the drawings: what takes the page's text color.
INK = re.compile("#1f2328|#6b7280")
QUIET = "#b4b9c1"  # of bars that wait, under words in the ink
NUMBER, ANCHOR, UNIQUE = "%number%", "%anchor%", "%unique%"  # what `OfThePage` fills in


# Drawings that have a figure with sliders below them, which _static/sliders.js makes.
SLIDERS = {"async_timelines.svg": "timeline", "two_levels.svg": "collectives", "scaling.svg": "scaling"}


def figure(svg: str, caption: str, kind: str, alt: str = "") -> str:
    """Return a drawing as part of the page, so that its text takes the page's font and color.

    Args:
      svg: the drawing.
      caption: what there is to see in it; for `kind` "bare" the alternative text.
      kind: "plot", "drawing" or "bare", which has no caption and no number.
      alt: the drawing in words, for readers who cannot see it; by default the caption.
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
    drawing = drawing.replace(QUIET, f"var(--quiet, {QUIET})")
    if kind == "bare":
        label = html.escape(caption)
        return f'<figure class="drawing" role="group" aria-label="{label}"><div>{drawing}</div></figure>'
    label, shown = html.escape(alt or caption), with_formulas(html.escape(caption))
    line = f'<figcaption><a href="#{ANCHOR}">{NUMBER}</a> {shown}</figcaption>'
    return (
        f'<figure class="drawing {kind}" id="{ANCHOR}">'
        f'<div role="img" aria-label="{label}">{drawing}</div>{line}</figure>'
    )


def with_formulas(text: str) -> str:
    """Write what stands between dollars as MathML."""
    return re.sub(r"\$([^$]+)\$", lambda math: tex2mathml(math[1], as_block=False), text)


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
        self.drawings = self.figures = self.tables = 0
        for node in list(self.document.findall()):
            if isinstance(node, nodes.image) and node["uri"].endswith(".svg"):
                path = Path(self.env.srcdir, node["uri"])
                svg = path.read_text(encoding="utf-8") if path.is_file() else "<svg/>"  # Sphinx warns of it
                text = node.get("alt", "")
                drawing = figure(svg, node.get("title", text), "drawing" if lesson else "bare", text)
                if moves := SLIDERS.get(path.name):
                    drawing = drawing.replace("<figure ", f'<figure data-slider="{moves}" ', 1)
                self.place(node, drawing)
            elif isinstance(node, nodes.raw) and UNIQUE in node.astext():
                self.place(node, node.astext())
            elif (
                lesson
                and isinstance(node, nodes.raw)
                and '<details class="evidence"><summary>' in node.astext()
            ):
                number = f"<summary><strong>{self.next_table()}</strong> "
                text = node.astext().replace("<summary>", number, 1)
                node.replace_self(nodes.raw("", text, format="html"))
            elif lesson and isinstance(node, nodes.table):
                self.caption(node)
        if lesson and (repository := self.config.html_theme_options["repository_url"]):
            self.lines(f"{repository}/blob/main/{docname}.py")

    def place(self, node: nodes.Node, drawing: str) -> None:
        """Put a drawing where a node was, with its number and with ids that no other drawing has."""
        self.drawings += 1
        if NUMBER in drawing:
            self.figures += 1
        name = f"Figure {self.prefix}{self.figures}"
        filled = drawing.replace(UNIQUE, f"f{self.drawings}-").replace(NUMBER, name)
        filled = filled.replace(ANCHOR, re.sub(r"\W+", "-", name.lower()))
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
        name = self.next_table()
        anchor = re.sub(r"\W+", "-", name.lower())
        table.insert(0, nodes.title("", "", nodes.strong("", name), nodes.Text(f" {above.astext()}")))
        table["ids"].append(anchor)
        table.parent.remove(above)

    def lines(self, script: str) -> None:
        """Link each cell to its lines of the script."""
        for cell in list(self.document.findall(nodes.container)):
            if lines := cell.get("cell_metadata", {}).get("lines"):
                text = f"lines {lines.replace('L', '').replace('-', '–')}"
                link = (
                    f'<a class="lines" href="{script}#{lines}" title="these lines of the script">{text}</a>'
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
