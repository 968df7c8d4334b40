"""Tables and words as Markdown, escaped, so that they show as they are."""

import re
from collections.abc import Sequence

from jaxperf.errors import escape_control

_MEANT = re.compile(r"([\\`*_{}\[\]<>|~$&#])")
_LINE_START = re.compile(r"^(\d{1,9}(?=[.)](?:\s|$))|(?=[-+=](?:[-+=\s]|$)))")


def escape(text: str) -> str:
    """Return text escaped for Markdown, so that it fits in one cell of a table."""
    return _LINE_START.sub(r"\1\\", _MEANT.sub(r"\\\1", " ".join(escape_control(text).split())))


def table(heads: Sequence[str], cells: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> list[str]:
    """Return the lines of a table, columns `right` aligned to the right, and an empty line after it."""
    body = [[escape(cell) for cell in row] for row in cells]
    return [*table_of_markdown([escape(head) for head in heads], body, right=right), ""]


def table_of_markdown(
    heads: Sequence[str], cells: Sequence[Sequence[str]], *, right: Sequence[int] = ()
) -> list[str]:
    """Return the lines of a table whose cells are Markdown, columns `right` aligned to the right."""
    rule = ["---:" if i in right else "---" for i in range(len(heads))]
    return [f"| {' | '.join(row)} |" for row in (heads, rule, *cells)]


def strong(text: str) -> str:
    return f"**{escape(text)}**" if text.strip() else ""
