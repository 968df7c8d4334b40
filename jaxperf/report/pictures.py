"""Which pictures a result gets: all that a rule makes of it, then plain lines for the curves no rule knew."""

from __future__ import annotations

from collections.abc import Iterator

from jaxperf.measure.record import Result
from jaxperf.report import lanes, plots, stacks
from jaxperf.report.curves import by, family, listed, member, points, unique
from jaxperf.report.plots import Curve, Picture
from jaxperf.report.rules import (
    FAMILIES,
    SPREAD,
    break_even,
    groups,
    learning,
    prediction,
    scaling,
    step,
    ways,
)

RULES = (groups, ways, break_even, prediction, learning, step, scaling)
MOST = 8  # curves in one picture


def pictures(result: Result) -> list[Picture]:
    """Every picture of one result, in the order in which the page shows them; none for a result of facts."""
    drawn: set[str] = set()
    found: list[Picture] = []
    for rule in RULES:
        for picture, used in rule(result):
            found.append(picture)
            drawn.update(used)
    found += [*_plain(result, drawn), *_timelines(result)]
    return found or list(_anything(result))


def _plain(result: Result, drawn: set[str]) -> Iterator[Picture]:
    """What no rule knew: lines by family, at most eight in a picture; a row of dots over seeds."""
    left = [s for s in result.series if s.name not in drawn and points(s)]
    for (kind, x_unit, y_unit), members in by(left, lambda s: (family(s), s.x_unit, s.y_unit)):
        title, caption = FAMILIES.get(kind, (f"{kind or y_unit} over {x_unit}", ""))
        if x_unit == "seed":
            yield stacks.strip(title, caption, members)
            continue
        if len(members) > 2 and max(len(s.x) for s in members) > stacks.DENSE:
            yield stacks.panels(title, caption, members)
            continue
        for start in range(0, len(members), MOST):
            some = members[start : start + MOST]
            curves = [Curve(member(s), s.x, s.y, i, i // 6) for i, s in enumerate(some)]
            more = f" ({start // MOST + 1})" if len(members) > MOST else ""
            yield plots.lines(title + more, caption, curves, x_unit=x_unit, y_unit=y_unit)


def _timelines(result: Result) -> Iterator[Picture]:
    """Runs that follow each other and share their name's first or last word share their axis too."""
    together: list[list[int]] = []
    ends = [{words[0], words[-1]} if (words := t.name.split()) else set() for t in result.timelines]
    for i in range(len(ends)):
        near = together[-1] if together else []
        if near and len(near) < 3 and all(not ends[i].isdisjoint(ends[j]) for j in near):
            near.append(i)
        else:
            together.append([i])
    for places in together:
        runs = [result.timelines[i] for i in places]
        yield lanes.timelines(
            f"Timeline: {listed([t.name for t in runs])}",
            "When each lane was busy; the pale track is idle time.",
            runs,
        )


def _anything(result: Result) -> Iterator[Picture]:
    """For a result without curves or timelines: its timings, else its first unit's figures, as bars."""
    units = unique(m.unit for m in result.measurements)
    unit = "s" if "s" in units else next(iter(units), "")
    if rows := [m for m in result.measurements if m.unit == unit][:12]:
        yield plots.bars("What was measured", SPREAD, rows, references=result.references)
