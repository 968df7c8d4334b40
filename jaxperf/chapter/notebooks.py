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
GITHUB = "https://github.com/"
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


def finish(nodes: Iterable[Any], script: Path, resolve: Resolve, address: str = "", **metadata: Any) -> Any:
    """Return a section's notebook, ready to be opened anywhere.

    Args:
      nodes: the section's cells, whose texts are changed.
      script: the section's script; its pictures are beside it.
      resolve: returns where a link leads from the notebook, or None if nowhere, which leaves its text.
      address: of the repository from which the first cell installs jaxperf, and where Colab finds the
        notebook if that is GitHub; "" for the package index, and no link to Colab.
      **metadata: of the notebook, beside its kernel.
    """
    title, *cells = nodes
    for cell in (title, *cells):
        if cell.cell_type == "markdown":
            _make_portable(cell, script.parent, resolve)
    if address.startswith(GITHUB):
        path = (
            f"{address.removeprefix(GITHUB).strip('/')}/blob/main/benchmarks/results/book/{script.stem}.ipynb"
        )
        heading, _, text = title.source.partition("\n")
        link = f"[Open in Colab](https://colab.research.google.com/github/{path})"
        title.source = f"{heading}\n\n{link}\n\n{text}"
    requirement = f"jaxperf[chapter] @ git+{address}" if address else "jaxperf[chapter]"
    first = v4.new_code_cell(PREPARE.format(requirement=requirement), metadata={"tags": [FIRST]})
    return v4.new_notebook(cells=[title, first, *cells], metadata=KERNEL | metadata)


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


def _make_portable(cell: Any, folder: Path, resolve: Resolve) -> None:
    """Attach a cell's drawings, each with its caption below, and let its links lead somewhere."""

    def embed(picture: re.Match[str]) -> str:
        path = folder / picture[2]
        if not path.is_file():
            return picture[0]
        content = base64.b64encode(path.read_bytes()).decode()
        cell.setdefault("attachments", {})[path.name] = {"image/svg+xml": content}
        caption = f"\n\n*{' '.join(picture[3].split())}*" if picture[3] else ""
        return f"![{' '.join(picture[1].split())}](attachment:{path.name}){caption}"

    def lead(link: re.Match[str]) -> str:
        target = resolve(link[2])
        return link[1] if target is None else f"[{link[1]}]({target})"

    cell.source = outside_code(cell.source, lambda text: LINK.sub(lead, PICTURE.sub(embed, text)))
