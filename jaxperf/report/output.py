"""Results rendered: one HTML page, Markdown or text, from the results alone."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from jaxperf.errors import JaxperfError
from jaxperf.measure.record import Result
from jaxperf.measure.store import write_whole

Format = Literal["html", "md", "text"]
PAGE = "report.html"


def render(results: Sequence[Result], fmt: Format, *, left_out: Sequence[str] = ()) -> str:
    """Results in the book's order, in one of the formats.

    Args:
      results: what to show, in any order.
      fmt: "html" (a whole page), "md" or "text".
      left_out: a line for every file that could not be read; named in every format.

    Raises:
      JaxperfError: `fmt` is none of these.
    """
    if fmt == "html":
        from jaxperf.report.page import render_html  # matplotlib and Jinja, which text need not wait for

        return render_html(results, left_out=left_out)
    if fmt == "md":
        from jaxperf.report.markdown import render_markdown

        return render_markdown(results, left_out=left_out)
    if fmt == "text":
        from jaxperf.report import rows, text

        parts = [text.render_text(result) for result in rows.in_order(results)]
        return "\n".join([*parts, *(text.plain(f"left out: {line}\n") for line in left_out)])
    raise JaxperfError(f"no format {fmt!r}; there are html, md and text")


def write_report(results: Sequence[Result], folder: Path, *, left_out: Sequence[str] = ()) -> Path:
    """Write `folder/report.html` whole or not at all, and return its path.

    Args:
      results: what to show, in any order.
      folder: made where missing.
      left_out: a line for every file that could not be read; the page names them.

    Raises:
      JaxperfError: the folder cannot be written.
    """
    path = folder / PAGE
    write_whole(path, render(results, "html", left_out=left_out))
    return path
