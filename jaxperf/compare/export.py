"""Export results for other programs: CSV with a line per value, and pyperf's JSON."""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Iterator, Sequence

from jaxperf.compare.rows import measurements_by_key
from jaxperf.result import Measurement, Result

COLUMNS = ("section", "measurement", "unit", "round", "value", "loops", "warmup", "set_aside")
PYPERF_UNITS = {"s": "second", "bytes": "byte"}


def to_csv(results: Sequence[Result]) -> str:
    """Return every measured value as a line of CSV (RFC 4180), below a line of column names.

    `round` counts a measurement's values from 0. `value` is in `unit`, unscaled, and the mean of `loops`
    calls. `warmup` and `set_aside` are 1 for values that no statistic uses.
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for section, name, m in _measurements(results):
        for kind, values in (((1, 0), m.warmup), ((0, 0), m.values), ((0, 1), m.set_aside)):
            writer.writerows(
                (section, name, m.unit, i, repr(v), m.loops, *kind) for i, v in enumerate(values)
            )
    return out.getvalue()


def to_pyperf(results: Sequence[Result]) -> str:
    """Return the times and sizes as a pyperf suite, JSON of version 1.0, for `pyperf stats` and `compare_to`.

    Each result is one run of its benchmarks. Units other than seconds and bytes are left out.
    """
    benchmarks: dict[str, dict[str, object]] = {}
    for section, name, m in _measurements(results):
        if m.unit in PYPERF_UNITS and min(m.values) > 0:
            full_name = f"{section}: {name}"
            metadata = {"name": full_name, "unit": PYPERF_UNITS[m.unit], "loops": m.loops}
            benchmark = benchmarks.setdefault(full_name, {"metadata": metadata, "runs": []})
            benchmark["runs"].append(_pyperf_run(m))  # type: ignore[attr-defined]
    return json.dumps({"version": "1.0", "benchmarks": list(benchmarks.values())}, indent=1)


def _pyperf_run(m: Measurement) -> dict[str, object]:
    run: dict[str, object] = {"values": list(m.values)}
    if m.warmup:
        run["warmups"] = [[m.loops, value] for value in m.warmup]
    return run


def _measurements(results: Sequence[Result]) -> Iterator[tuple[str, str, Measurement]]:
    """Yield every measurement with its section and a name that is unique in its result."""
    for result in results:
        rows = measurements_by_key(result)
        repeated = Counter(key.name for key in rows)
        for key, m in rows.items():
            name = ": ".join(filter(None, key[1:])) if repeated[key.name] > 1 else key.name
            yield result.experiment, name, m
