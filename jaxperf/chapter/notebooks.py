"""Make notebooks that can be opened anywhere: with drawings, links that lead somewhere, and a kernel."""

import base64
import importlib.metadata
import os
import re
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nbformat import v4

ROOT = Path(__file__).resolve().parents[2]
FIRST = "first"  # the tag of the cell that prepares a fresh environment
KERNEL = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python", "file_extension": ".py", "mimetype": "text/x-python"},
}
PREPARE = """\
# In a fresh environment, such as Colab's: install jaxperf, and divide the
# CPU into eight devices.
import importlib.util
import os

if importlib.util.find_spec("jaxperf") is None:
    %pip install --quiet "{requirement}"
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")"""
FENCE = re.compile(r"^( *)(```+|~~~+).*?^\1\2 *$", re.M | re.S)
PICTURE = re.compile(r"!\[([^]]*)\]\(([^()\s]+)(?:\s+\"([^\"]*)\")?\)")
LINK = re.compile(r"(?<!!)\[((?:[^][]|\[[^][]*\])*)\]\(([^()\s]+)\)")
Resolve = Callable[[str], str | None]


def repository() -> str:
    """Return the address of the repository; "" while its owner is a placeholder."""
    project = ROOT / "pyproject.toml"
    if project.is_file():
        urls = tomllib.loads(project.read_text(encoding="utf-8"))["project"].get("urls", {})
    else:
        stated = importlib.metadata.metadata("jaxperf").get_all("Project-URL") or []
        urls = dict(line.split(", ", 1) for line in stated)
    address = urls.get("Repository", "")
    return "" if "/OWNER/" in address else address


def finish(
    nodes: Iterable[Any], folder: Path, resolve: Resolve, *, colab: str = "", address: str = ""
) -> list[Any]:
    """Return the cells of a section's notebook, ready to be opened anywhere.

    Args:
      nodes: the section's cells, whose texts are changed.
      folder: the folder of the script, from which its pictures come.
      resolve: returns where a link leads from the notebook, or None if nowhere, which leaves its text.
      colab: where Colab finds the notebook; "" for no link to Colab.
      address: of the repository from which the first cell installs jaxperf; "" for the package index.
    """
    cells = list(nodes)
    for cell in cells:
        if cell.cell_type == "markdown":
            _embed_pictures(cell, folder)
            cell.source = outside_code(
                cell.source, lambda text: LINK.sub(lambda link: _link(link, resolve), text)
            )
    if colab:
        title, _, text = cells[0].source.partition("\n")
        cells[0].source = f"{title}\n\n[Open in Colab]({colab})\n\n{text}"
    requirement = f"jaxperf[chapter] @ git+{address}" if address else "jaxperf[chapter]"
    first = v4.new_code_cell(PREPARE.format(requirement=requirement), metadata={"tags": [FIRST]})
    return [cells[0], first, *cells[1:]]


def colab_address(name: str, address: str) -> str:
    """Return where Colab opens the kept notebook of a section; "" without a repository at GitHub."""
    if not address.startswith("https://github.com/"):
        return ""
    path = address.removeprefix("https://github.com/").strip("/")
    return f"https://colab.research.google.com/github/{path}/blob/main/benchmarks/results/book/{name}.ipynb"


def resolve_in_checkout(notebook: Path, address: str) -> Resolve:
    """Return the rule for a kept notebook: sections are beside it, files in the checkout or repository."""
    folder = notebook.resolve().parent

    def resolve(link: str) -> str | None:
        path, mark, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", path):
            return link
        source = (ROOT / "experiments" / path).resolve()
        if "/" not in path and source.with_suffix(".py").is_file():
            return f"{source.stem}.ipynb"  # whose headings have other anchors than a page's
        if not source.exists():
            source = source.with_suffix(".md")
        if source.exists() and folder.is_relative_to(ROOT):
            return os.path.relpath(source, folder) + mark + anchor
        known = path.removeprefix("../")
        return f"{address}/blob/main/{known}{mark}{anchor}" if address else None

    return resolve


def outside_code(text: str, change: Callable[[str], str]) -> str:
    """Change a Markdown text outside of its fenced code."""
    parts, at = [], 0
    for fence in FENCE.finditer(text):
        parts += [change(text[at : fence.start()]), fence[0]]
        at = fence.end()
    return "".join([*parts, change(text[at:])])


def _link(link: re.Match[str], resolve: Resolve) -> str:
    target = resolve(link[2])
    return link[1] if target is None else f"[{link[1]}]({target})"


def _embed_pictures(cell: Any, folder: Path) -> None:
    """Attach a cell's drawings; a caption stands below its drawing."""

    def embed(picture: re.Match[str]) -> str:
        path = folder / picture[2]
        if not path.is_file():
            return picture[0]
        content = base64.b64encode(path.read_bytes()).decode()
        cell.setdefault("attachments", {})[path.name] = {"image/svg+xml": content}
        caption = f"\n\n*{' '.join(picture[3].split())}*" if picture[3] else ""
        return f"![{' '.join(picture[1].split())}](attachment:{path.name}){caption}"

    cell.source = outside_code(cell.source, lambda text: PICTURE.sub(embed, text))
