"""The report as one HTML page that reads as a chapter: no script, nothing from outside, all words escaped."""

from __future__ import annotations

import functools
import io
import itertools
import keyword
import re
import tokenize
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxperf.errors import plain
from jaxperf.report import draw
from jaxperf.report.draw import Picture
from jaxperf.report.machine import machine, settings
from jaxperf.report.story import Item, walk
from jaxperf.report.tables import Tally, counted, tally
from jaxperf.report.words import INCOMPLETE, scalar
from jaxperf.result import Heading, Result
from jaxperf.result.store import write_whole

PAGE = "report.html"
# How a verdict looks: a mark next to its word, and a class that gives the color. Red is reserved for wrong
# predictions: a sentence that does not hold here is a finding, and its prediction may well be right.
MARKS = {
    "holds": ("●", "yes"),
    "does not hold": ("○", "no"),
    "cannot be measured here": ("–", "none"),
    "right": ("✓", "yes"),
    "wrong": ("✗", "wrong"),
    "undecided": ("?", "open"),
}


@dataclass(frozen=True)
class Shown:
    """An item as the templates show it: `kind` names its macro, `svg` is a picture's drawing as markup."""

    kind: str
    item: Item
    svg: Any = None


@dataclass(frozen=True)
class Part:
    """What a section tells under one heading ("" for what comes before the first heading)."""

    id: str
    title: str
    shown: tuple[Shown, ...]


@dataclass(frozen=True)
class Section:
    """One result as the page shows it."""

    id: str
    result: Result
    title: str
    parts: tuple[Part, ...]
    tally: Tally
    settings: tuple[tuple[str, str], ...]


def write_report(results: Sequence[Result], folder: Path, *, left_out: Sequence[str] = ()) -> Path:
    """Write `folder/report.html` completely or not at all, and return its path.

    Args:
      results: what to show, in this order.
      folder: made if missing.
      left_out: a line for every file that could not be read; the page names them.

    Raises:
      JaxperfError: the folder cannot be written.
    """
    path = folder / PAGE
    write_whole(path, render_html(results, left_out=left_out))
    return path


def render_html(results: Sequence[Result], *, left_out: Sequence[str] = ()) -> str:
    """The whole page.

    Args:
      results: what to show, in this order; none gives a page that says so.
      left_out: a line for every file that could not be read.
    """
    peers = [r for r in results if r.experiment == "peers"]
    show = _shower()
    sections = [
        Section(
            id=name,
            result=result,
            title=result.title or result.experiment,
            parts=tuple(_parts(name, map(show, walk(result, peers=peers)))),
            tally=tally([result]),
            settings=tuple(settings(result)),
        )
        for result, name in zip(results, _names(results))
    ]
    return (
        _environment()
        .get_template("report.html.j2")
        .render(
            sections=sections,
            tally=tally(results),
            machine=machine(results),
            incomplete=[s for s in sections if s.result.incomplete],
            smoke=[s for s in sections if s.result.smoke],
            fake=any(r.environment.devices_are_fake for r in results),
            left_out=list(left_out),
        )
    )


@functools.cache
def _environment() -> Any:
    """Jinja with escaping on, undefined names as errors, and no control characters in anything shown."""
    import jinja2
    from markupsafe import Markup

    def finalize(value: Any) -> Any:
        if value is None:
            return ""
        return plain(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    env = jinja2.Environment(
        loader=jinja2.PackageLoader("jaxperf.report", "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=finalize,
    )
    env.filters |= {"prose": prose, "code": code}
    env.globals |= {"marks": MARKS, "scalar": scalar, "counted": counted, "INCOMPLETE": INCOMPLETE}
    return env


def prose(words: str) -> Any:
    """A paragraph in which words between backticks are code; an unpaired backtick stays a backtick."""
    from markupsafe import Markup, escape

    pieces = re.split(r"`([^`]+)`", plain(words))
    marked = [Markup("<code>{}</code>").format(p) if i % 2 else escape(p) for i, p in enumerate(pieces)]
    return Markup("").join(marked)


def code(source: str) -> Any:
    """Python source with its keywords, strings and comments marked; anything but Python stays as it is."""
    from markupsafe import Markup, escape

    source, shown, done = plain(source), Markup(""), 0
    for start, end, kind in _tokens(source):
        shown += escape(source[done:start]) + Markup("<span class={}>{}</span>").format(
            kind, source[start:end]
        )
        done = end
    return shown + escape(source[done:])


def _tokens(source: str) -> Iterator[tuple[int, int, str]]:
    """Where keywords, strings and comments start and end: as far as the source is Python."""
    starts = list(itertools.accumulate((len(line) + 1 for line in source.split("\n")), initial=0))
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            kind = {tokenize.COMMENT: "c", tokenize.STRING: "s"}.get(token.type)
            if token.type == tokenize.NAME and keyword.iskeyword(token.string):
                kind = "k"
            if kind:
                (row, column), (last, until) = token.start, token.end
                yield starts[row - 1] + column, starts[last - 1] + until, kind
    except (tokenize.TokenError, SyntaxError, IndexError):
        return


def _shower() -> Callable[[Item], Shown]:
    """A function that prepares items to be shown; each drawing gets its own identifiers."""
    from markupsafe import Markup

    count = itertools.count(1)

    def show(item: Item) -> Shown:
        if not isinstance(item, Picture):
            return Shown(type(item).__name__, item)
        try:
            drawn = draw.svg(
                item.draw,
                title=item.title,
                description=item.description,
                prefix=f"plot{next(count)}-",
                height_in=item.height_in,
            )
        except ValueError:
            return Shown("Undrawn", item)
        return Shown("Picture", item, Markup(drawn))  # escaped when it was drawn

    return show


def _parts(section: str, shown: Iterable[Shown]) -> Iterator[Part]:
    """Items by the heading that they follow."""
    parts: list[tuple[str, list[Shown]]] = [("", [])]
    for one in shown:
        if isinstance(one.item, Heading):
            parts.append((one.item.title, []))
        else:
            parts[-1][1].append(one)
    for i, (title, some) in enumerate(parts):
        if i or some:
            yield Part(f"{section}_{i}", title, tuple(some))


def _names(results: Sequence[Result]) -> list[str]:
    """An identifier for every section, from its name; numbered if two are the same."""
    found: list[str] = []
    for result in results:
        slug = re.sub(r"[^a-z0-9]+", "-", result.experiment.lower()).strip("-")[:40] or "section"
        same, i = f"s-{slug}", 2
        while same in found:
            same, i = f"s-{slug}-{i}", i + 1
        found.append(same)
    return found
