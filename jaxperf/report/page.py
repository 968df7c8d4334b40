"""The report as one HTML page: everything in it, nothing from outside, no script, every word escaped."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jaxperf.measure.record import Result
from jaxperf.report import figure, rows, systems
from jaxperf.report.machine import machine, settings
from jaxperf.report.pictures import pictures
from jaxperf.report.plots import Picture
from jaxperf.report.text import VERDICTS, plain

SYMBOLS = {True: "✓", False: "✗", None: "?"}
CLASSES = {True: "held", False: "not-held", None: "open"}


@dataclass(frozen=True)
class Drawing:
    """A picture as the page holds it; `svg` is markup, the rest is words."""

    title: str
    caption: str
    svg: Any


@dataclass(frozen=True)
class Section:
    """One result as the page shows it."""

    id: str
    result: Result
    tally: rows.Tally
    drawings: tuple[Drawing, ...]
    groups: tuple[rows.Group, ...]
    peers: tuple[Drawing, ...]
    settings: tuple[tuple[str, str], ...]

    @property
    def remarks(self) -> list[str]:
        """The result's notes but for the one on smoke runs, which the page gives a place of its own."""
        return [note for note in self.result.notes if not note.startswith("--smoke")]

    @property
    def traces(self) -> list[str]:
        """Files with the raw traces of its timelines."""
        return [t.trace for t in self.result.timelines if t.trace]

    @property
    def sources(self) -> list[str]:
        """Where the published figures beside its rows come from, each once."""
        return list(dict.fromkeys(source for group in self.groups for source in group.sources))

    @property
    def number(self) -> str:
        """The book's number, or nothing."""
        return self.result.section

    @property
    def title(self) -> str:
        """The title; the experiment's name where it has none."""
        return self.result.title or self.result.experiment


def render_html(results: Sequence[Result], *, left_out: Sequence[str] = ()) -> str:
    """The whole page.

    Args:
      results: what to show, in any order; none gives a page that says so.
      left_out: a line for every file that could not be read.
    """
    ordered = rows.in_order(results)
    peers = [r for r in ordered if r.experiment == "peers"]
    adopt = _drawer()
    names = _names(ordered)
    sections = [_section(r, name, peers, adopt) for r, name in zip(ordered, names)]
    page = _environment().get_template("report.html.j2")
    return page.render(
        sections=sections,
        tally=rows.tally(ordered),
        machine=machine(ordered),
        smoke=[s for s in sections if s.result.smoke],
        fake=[s for s in sections if s.result.environment.devices_are_fake],
        left_out=list(left_out),
    )


def _environment() -> Any:
    """Jinja with escaping on, undefined names as errors, and no control character in anything shown."""
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
    env.globals |= {"verdicts": VERDICTS, "symbols": SYMBOLS, "classes": CLASSES, "facts": rows.facts}
    env.globals["elsewhere"] = rows.elsewhere
    return env


def _drawer() -> Callable[[Picture], Drawing]:
    """Turns pictures into drawings, each with identifiers of its own."""
    from markupsafe import Markup

    count = 0

    def adopt(picture: Picture) -> Drawing:
        nonlocal count
        count += 1
        drawn = figure.svg(
            picture.draw,
            title=picture.title,
            description=picture.description,
            prefix=f"plot{count}-",
            height_in=picture.height_in,
        )
        return Drawing(picture.title, picture.caption, Markup(drawn))  # escaped by who wrote it

    return adopt


def _section(
    result: Result, name: str, peers: Sequence[Result], adopt: Callable[[Picture], Drawing]
) -> Section:
    """A result with everything drawn."""
    own = systems.runs(result) if result.experiment == "peers" else {}
    if own:
        drawings = [systems.picture(title, some, result) for title, some in own.items()]
        drawings += [*systems.curves(result), *pictures(replace(result, measurements=(), series=()))]
        groups = [systems.group(title, some, result) for title, some in own.items()]
    else:
        drawings, groups = pictures(result), rows.groups(result)
    theirs = [
        systems.picture(title, some, peer)
        for peer in peers
        if result.experiment != "peers"
        for title, some in systems.runs(peer).items()
        if systems.belongs_to(title, result)
    ]
    return Section(
        id=name,
        result=result,
        tally=rows.tally([result]),
        drawings=tuple(map(adopt, drawings)),
        groups=tuple(groups),
        peers=tuple(map(adopt, theirs)),
        settings=tuple(settings(result)),
    )


def _names(results: Sequence[Result]) -> list[str]:
    """An identifier for every section, from its name; numbered where two have the same."""
    found: list[str] = []
    for result in results:
        slug = re.sub(r"[^a-z0-9]+", "-", result.experiment.lower()).strip("-")[:40] or "section"
        same, i = f"s-{slug}", 2
        while same in found:
            same, i = f"s-{slug}-{i}", i + 1
        found.append(same)
    return found
