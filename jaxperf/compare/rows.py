"""The rows of results: the key of a measurement, and its values in one or several results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jaxperf.errors import JaxperfError
from jaxperf.result import Heading, Measurement, Result, Table


class RowKey(NamedTuple):
    """The key of a row: the experiment, the title of the table or the part, and the name of the row."""

    experiment: str
    title: str
    name: str

    def __str__(self) -> str:
        return ": ".join(filter(None, self))


Rows = dict[RowKey, Measurement]


def pooled(results: Sequence[Result]) -> Rows:
    """Return the measurements of one experiment, whose values are the medians of its results."""
    measurements: dict[RowKey, list[Measurement]] = {}
    for result in results:
        for key, m in measurements_by_key(result).items():
            measurements.setdefault(key, []).append(m)
    rows: Rows = {}
    for key, measured in measurements.items():
        if len({m.unit for m in measured}) > 1:
            raise JaxperfError(f"results of {key.experiment} on one side have different units; compare fewer")
        medians = tuple(m.median for m in measured)
        disturbed = sum(not m.trusted for m in measured)
        rows[key] = Measurement(key.name, measured[0].unit, medians, disturbed=disturbed)
    return rows


def measurements_by_key(result: Result) -> Rows:
    """Return the measurements by their keys; if several have the same name, the second is "name (2)"."""
    rows: Rows = {}
    part = ""
    for block in result.blocks:
        if isinstance(block, Heading):
            part = block.title
        if not isinstance(block, Table):
            continue
        for m in block.rows:
            key, i = RowKey(result.experiment, block.title or part, m.name), 2
            while key in rows:
                key, i = key._replace(name=f"{m.name} ({i})"), i + 1
            rows[key] = m
    return rows


def measured_often(results: Sequence[Result]) -> set[RowKey]:
    """Return the keys of rows that have several values in some result."""
    return {key for r in results for key, m in measurements_by_key(r).items() if len(m.values) > 1}


def differences(a: Sequence[Result], b: Sequence[Result]) -> list[str]:
    """Return other differences between two runs of an experiment, by their first results, one per line."""
    lines = []
    smoke_a, smoke_b = (any(result.smoke for result in side) for side in (a, b))
    if smoke_a != smoke_b:
        lines.append(f"only {'A' if smoke_a else 'B'} is a smoke run, whose toy sizes take other times")
    for side, results in (("A", a), ("B", b)):
        if any(r.incomplete for r in results):
            lines.append(f"{side} is incomplete: its run has not come to its end")
    for name, x, y in (
        ("config", a[0].config, b[0].config),
        ("", vars(a[0].environment), vars(b[0].environment)),
    ):
        lines += _difference(name, x, y)
    return lines


def _difference(name: str, a: object, b: object) -> list[str]:
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        pairs = ((k, a.get(k, "unset"), b.get(k, "unset")) for k in dict.fromkeys([*a, *b]))
        return [line for k, x, y in pairs for line in _difference(f"{name} {k}".strip(), x, y)]
    return [f"{name}: {a} and {b}"] if a != b else []
