"""Write docs/coverage.md: where the book teaches each row of docs/coverage.toml.

    python docs/coverage.py

A row of coverage.toml is a thing that the seeds teach, and a phrase of the page that teaches it. The table
links to the heading above the phrase.
"""

import re
import sys
import tomllib
from functools import cache
from pathlib import Path

from jaxperf.chapter import catalogue, cells
from jaxperf.errors import JaxperfError

HERE = Path(__file__).resolve().parent
ROWS, PAGE = HERE / "coverage.toml", HERE / "coverage.md"
SCRIPTS = HERE.parent / "experiments"
HEAD = """# Coverage

The book teaches the chapter *Computational Performance* of [Dive into Deep Learning](https://d2l.ai), in its
first edition (in Chinese, with MXNet), with what retellings and readers of it added. This table has each of
their headings, cells, printed figures, exercises and remarks, {count} rows in all, with the heading below
which the book teaches it.
`python docs/coverage.py` writes it from `docs/coverage.toml`, and a test checks that each place exists.
"""


def main() -> int:
    """Write the page; return 1 if a row's phrase is on no page."""
    try:
        PAGE.write_text(page(), encoding="utf-8")
    except JaxperfError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    return 0


def rows() -> dict[str, dict[str, str]]:
    """Return the phrase of each row, by the page and the row's text."""
    return tomllib.loads(ROWS.read_text(encoding="utf-8"))


def page() -> str:
    """Return the page.

    Raises:
      JaxperfError: phrases that are on no page, all of them in one message.
    """
    phrases, lines = rows(), []
    order = {name: place for place, name in enumerate(["index", *(s.name for s in catalogue.SECTIONS)])}
    missing = [f"no page {name!r}" for name in phrases if name not in order]
    for name in sorted(phrases.keys() & order, key=lambda name: order[name]):
        title, _ = parts(name)[0]
        lines += ["", f"## {title}", "", "| row | taught in |", "| --- | --- |"]
        for row, phrase in phrases[name].items():
            heading = next((head for head, text in parts(name) if plain(phrase) in text), None)
            if heading is None:
                missing.append(f"{name}: no {phrase!r}, of the row {row!r}")
            else:
                lines.append(f"| {row} | [{heading}]({target(name)}#{slug(heading)}) |")
    if missing:
        raise JaxperfError("; ".join(missing))
    return HEAD.format(count=sum(map(len, phrases.values()))) + "\n".join(lines) + "\n"


def target(name: str) -> str:
    """Return the file of a page, from this folder."""
    return "index.md" if name == "index" else f"../experiments/{name}.py"


@cache
def parts(name: str) -> list[tuple[str, str]]:
    """Return the headings of a page, each with all that stands below it until the next, as one line."""
    if name == "index":
        blocks = [(HERE.joinpath("index.md").read_text(encoding="utf-8"), True)]
    else:
        blocks = [(cell.source, cell.markdown) for cell in cells.read(SCRIPTS / f"{name}.py")]
    parts: list[tuple[str, list[str]]] = []
    for text, markdown in blocks:
        in_code = not markdown
        for line in text.split("\n"):
            if markdown and line.startswith("```"):
                in_code = not in_code  # where a line with # is a comment
            head = None if in_code else re.match(r"#{1,4} (.*)", line)
            if head:
                parts.append((head[1].strip(), []))
            if parts:
                parts[-1][1].append(line)
    return [(head, plain("\n".join(lines))) for head, lines in parts]


def plain(text: str) -> str:
    """Return text on one line, with single spaces."""
    return " ".join(text.split())


def slug(heading: str) -> str:
    """Return the anchor of a heading, as MyST and GitHub make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
