"""Rules for pictures: each yields the pictures that it can make of a result, with the series it drew.

What is in a result decides, not its name, so that a reader's own results get their pictures too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby

from jaxperf.measure.record import Result
from jaxperf.report import axes, plots, stacks
from jaxperf.report.curves import by, head, listed, member, middle, number, points, seconds, tail, unique
from jaxperf.report.plots import Curve, Picture

# Series by the part of their name before the slash (or the comma): title and caption of their picture.
FAMILIES = {
    "memory": ("Memory over time", "Resident memory above what it was at the start of the run."),
    "produced": ("When each batch was made", "Time at which the front end had made so many batches."),
    "accuracy": ("Test accuracy over epochs", "Thin lines are single seeds, the thick one is their median."),
    "loss": ("Training loss over epochs", "Thin lines are single seeds, the thick one is their median."),
    "idle": ("Idle share of a pipeline", "Measured, and by (p - 1) / (m + p - 1)."),
    "small products": ("Many small products", "Time of all of them together, by their size."),
    "inflight": ("How far the front end runs ahead", "Computations begun and not yet finished."),
    "grid": ("Batch size and learning rate", "A dot for each seed, a stroke at the median."),
}
SPREAD = "Median and inter-quartile range."

Made = Iterator[tuple[Picture, Sequence[str]]]


def groups(result: Result) -> Made:
    """A bar plot for every part of the story that compares at least three timings with one of them."""
    for group, members in groupby(result.measurements, key=lambda m: m.group):
        rows = [m for m in members if m.base and m.unit == "s" and not m.name.startswith("step")]
        if len(rows) >= 3 and len({m.base for m in rows}) == 1:
            yield plots.bars(group, SPREAD, rows, references=result.references), ()


def ways(result: Result) -> Made:
    """Names like "eager, batch 8" over a common x: the colour tells the way, the dash what comes after it."""
    chosen = [s for s in result.series if ", " in s.name and "/" not in s.name and points(s)]
    for (x_unit, y_unit), family in by(chosen, lambda s: (s.x_unit, s.y_unit)):
        heads, tails = unique(map(head, family)), unique(map(tail, family))
        if len(family) < 2 or len(family) != len(heads) * len(tails):
            continue
        if len(heads) == 1:
            title, caption = FAMILIES.get(heads[0], (f"{heads[0]}, per {x_unit}", ""))
            curves = [Curve(tail(s), s.x, s.y, i) for i, s in enumerate(family)]
        else:
            title, caption = f"{listed(heads)}, per {x_unit}", ""
            looks = [(heads.index(head(s)), tails.index(tail(s))) for s in family]
            curves = [Curve(s.name, s.x, s.y, *look) for s, look in zip(family, looks)]
        names = [s.name for s in family]
        yield plots.lines(title, caption, curves, x_unit=x_unit, y_unit=y_unit), names


def break_even(result: Result) -> Made:
    """Time spent after n calls, op by op and compiled first: where the lines cross compiling has paid."""
    stages = [number(result, name) for name in ("trace_s", "lower_s", "compile_s")]
    slow, fast = seconds(result, "eager"), seconds(result, "hybridize")
    if slow is None or fast is None or None in stages or slow <= fast:
        return
    first = sum(s for s in stages if s is not None)
    calls = first / (slow - fast)
    x = (0.0, 2.5 * calls)
    curves = [
        Curve("op by op", x, tuple(n * slow for n in x), 0, marker=False),
        Curve("compiled first", x, tuple(first + n * fast for n in x), 1, marker=False),
    ]
    caption = f"Tracing, lowering and compiling take {axes.shown(first, 's')} before the first call."
    mark = (f"{calls:.0f} calls", calls, calls * slow)
    title = "Calls until compiling pays"
    yield plots.lines(title, caption, curves, x_unit="calls", y_unit="s", mark=mark), ()


def prediction(result: Result) -> Made:
    """Series "way/measured" and "way/predicted": points on lines."""
    named = [s for s in result.series if s.name.endswith(("/measured", "/predicted")) and points(s)]
    pairs = [(way, pair) for way, pair in by(named, lambda s: s.name.rpartition("/")[0]) if len(pair) == 2]
    kept = [s for _, pair in pairs for s in pair]
    order = [way for way, _ in pairs]
    for (x_unit, y_unit), family in by(kept, lambda s: (s.x_unit, s.y_unit)):
        curves = []
        for s in family:
            way, _, kind = s.name.rpartition("/")
            looks = {"marker": kind == "measured", "line": kind == "predicted"}
            curves.append(Curve(f"{way}, {kind}", s.x, s.y, order.index(way), **looks))
        caption = "Points are measured, lines are what the fitted model predicts."
        title, names = "Predicted and measured", [s.name for s in family]
        yield plots.lines(title, caption, curves, x_unit=x_unit, y_unit=y_unit, height_in=3.4), names


def scaling(result: Result) -> Made:
    """Series "scaling/..." over devices beside the line that so many times one device would be."""
    family = [s for s in result.series if s.name.startswith("scaling/") and len(points(s)) > 1]
    if not family:
        return
    (x0, y0), x = points(family[0])[0], family[0].x
    curves = [Curve(member(s), s.x, s.y, i) for i, s in enumerate(family)]
    curves.append(Curve("ideal", x, tuple(y0 * n / x0 for n in x), 5, 1, marker=False))
    caption = "The dashed line is one device's rate times the number of devices."
    if result.environment.devices_are_fake:
        caption += " These devices are fake: they share one host's cores."
    names, first = [s.name for s in family], family[0]
    units = first.x_unit, first.y_unit
    yield plots.lines("Scaling", caption, curves, x_unit=units[0], y_unit=units[1], zero=True), names


def learning(result: Result) -> Made:
    """Series "accuracy/2 devices, seed 0": a colour for each setting, its seeds' median, published points."""
    for kind in ("accuracy", "loss"):
        family = [s for s in result.series if s.name.startswith(f"{kind}/") and points(s)]
        if not family:
            continue
        curves: list[Curve] = []
        for i, (who, seeds) in enumerate(by(family, lambda s: re.sub(r",? ?seed \d+$", "", member(s)))):
            curves.append(Curve(who or kind, *middle(seeds), i))
            if len(seeds) > 1:
                curves += [Curve(member(s), s.x, s.y, i, marker=False, thin=True) for s in seeds]
        published = [
            (r.system, float(at.group(1)), r.value)
            for r in result.references
            if (at := re.fullmatch(rf"{kind}/(?:.*\D)?(\d+)", r.beside))
        ]
        title, caption = FAMILIES[kind]
        caption = caption if any(c.thin for c in curves) else ""
        caption = f"{caption} Hollow marks are published.".strip() if published else caption
        x_unit, y_unit, names = family[0].x_unit, family[0].y_unit, [s.name for s in family]
        yield plots.lines(title, caption, curves, x_unit=x_unit, y_unit=y_unit, points=published), names


def step(result: Result) -> Made:
    """Measurements "step" and "step/...": where the time of a training step goes."""
    parts = [m for m in result.measurements if m.name.startswith("step/") and m.unit == "s"]
    whole = seconds(result, "step")
    if len(parts) < 2 or not whole:
        return
    rows = [(m.name.removeprefix("step/"), m.median) for m in parts]
    caption = "Each part timed alone, medians; percentages are of the whole step."
    yield stacks.waterfall("Where a step's time goes", caption, rows, ("the whole step", whole)), ()
