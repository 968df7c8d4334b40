"""A result as rows of words and figures, for the page and for Markdown alike."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from jaxperf.measure.record import Measurement, Reference, Result
from jaxperf.report.axes import shown
from jaxperf.report.text import VERDICTS, ratio, scalar

UNIT_ENDS = (("_bytes_per_s", "bytes/s"), ("_bytes", "bytes"), ("_per_s", ""), ("_s", "s"), ("_s_error", "s"))


@dataclass(frozen=True)
class Published:
    """A published figure beside a row: the figure, whose it is, and ours as a multiple of it."""

    value: str
    system: str
    source: str
    ours: str


@dataclass(frozen=True)
class Row:
    """One measurement: `of_base` is the multiple of the group's base ("" where it has none)."""

    name: str
    median: str
    spread: str
    noise: str
    of_base: str
    published: tuple[Published, ...]
    note: str


@dataclass(frozen=True)
class Group:
    """Rows that stand together; `base` is what their ratios are multiples of."""

    title: str
    base: str
    rows: tuple[Row, ...]

    @property
    def sources(self) -> list[str]:
        """Where the published figures beside its rows come from."""
        return [f"{p.system} ({p.source})" for row in self.rows for p in row.published]


def groups(result: Result) -> list[Group]:
    """Measurements by the part of the story they were told in, and by what they are compared with."""
    found = []
    for (title, base), members in groupby(result.measurements, key=lambda m: (m.group, m.base)):
        rows = tuple(row(m, result) for m in members)
        found.append(Group(title, base if any(r.of_base for r in rows) else "", rows))
    return found


def row(m: Measurement, result: Result) -> Row:
    """One measurement of a result as words."""
    base = next((b for b in result.measurements if b.name == m.base and b.unit == m.unit), None)
    beside = [r for r in result.references if r.beside == m.name]
    return Row(
        name=m.name,
        median=shown(m.median, m.unit),
        spread=_spread(m),
        noise=_noise(m),
        of_base=ratio(m.median, base.median) if base else "",
        published=tuple(_published(r, m) for r in beside),
        note=m.note,
    )


def _spread(m: Measurement) -> str:
    if len(m.values) < 2:
        return ""
    return f"{m.rel_iqr * 100:.1f} %" if m.rel_iqr < 10 else "> 999 %"  # a median near zero


def _noise(m: Measurement) -> str:
    count = len(m.values)
    few = "1 value" if count == 1 else f"{count} values"
    return {"quiet": "quiet", "noisy": "noisy"}.get(m.noise, few)


def _published(r: Reference, m: Measurement | None) -> Published:
    ours = ratio(m.median, r.value) if m and m.unit == r.unit else ""
    return Published(shown(r.value, r.unit), r.system, f"{r.source}; hardware {r.hardware}", ours)


def elsewhere(result: Result) -> list[tuple[str, Published]]:
    """Published figures, by name, that stand beside no measurement of this result."""
    names = {m.name for m in result.measurements}
    return [(r.name, _published(r, None)) for r in result.references if r.beside not in names]


def facts(result: Result) -> list[tuple[str, str]]:
    """Named scalars with the unit that their name ends with."""
    return [(name, _fact(name, value)) for name, value in result.facts.items()]


def _fact(name: str, value: float | int | str | bool | None) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    unit = next((u for end, u in UNIT_ENDS if re.split(r"[/,]", name)[0].endswith(end)), "")
    return shown(value, unit) if isinstance(value, int | float) and unit else scalar(value)


@dataclass(frozen=True)
class Tally:
    """How many claims held, did not hold and were not measured."""

    held: int
    not_held: int
    open: int

    @property
    def total(self) -> int:
        """All claims."""
        return self.held + self.not_held + self.open

    def __str__(self) -> str:
        counts = zip((self.held, self.not_held, self.open), VERDICTS.values())
        return ", ".join(f"{n} {word}" for n, (word, _) in counts if n) or "no claims"


def tally(results: Iterable[Result]) -> Tally:
    """Count the claims of some results."""
    counts = Counter(claim.held for result in results for claim in result.claims)
    return Tally(counts[True], counts[False], counts[None])


def in_order(results: Iterable[Result]) -> list[Result]:
    """By the book's section; what has no number after those, the peers last."""

    def place(result: Result) -> tuple[bool, bool, list[int]]:
        numbers = [int(n) for n in re.findall(r"\d{1,9}", result.section)]
        return result.experiment == "peers", not numbers, numbers

    return sorted(results, key=place)


def distinct(results: Sequence[Result], words: Sequence[str]) -> list[tuple[str, str]]:
    """Each different word once, with the sections it is true of ("" where it is true of all)."""
    found: dict[str, list[str]] = {}
    for result, word in zip(results, words, strict=True):
        if word:
            found.setdefault(word, []).append(result.section or result.experiment)
    whole = len(found) == 1
    return [(word, "" if whole else ", ".join(dict.fromkeys(where))) for word, where in found.items()]
