"""Compare the savings that `jaxperf watch` promised with what the changes gained.

    python docs/gallery.py record && python docs/gallery.py measure    # on an idle machine, 40 minutes
    python benchmarks/watch_savings.py                     # the table of all programs
    python benchmarks/watch_savings.py new_jit weak_types  # of these

`record` keeps what watch found in five runs of each program of tests/slow_programs, `measure` the seconds of
the program and of its repaired twin in turns. A promise is the median of the runs that named the cause, over
the sum of a run's findings. A gain is the difference of the medians, and its interval is that of the rounds:
the program and its twin are paired. A promise is right within a factor of 1.5; a finding whose change gains
less than 5 % is a false one.

With --processors, a gain is seconds of processors, which other programs of the machine hardly change. What
waits (for data, for a device) gains none of these.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
STORE = ROOT / "docs" / "gallery.json"
FACTOR = 1.5
LEAST = 0.05  # share of the program's seconds below which a gain makes its finding a false one


class Row(NamedTuple):
    """A program: what watch promised, and what its repair gained, in seconds."""

    name: str
    cause: str
    promised_s: float
    gained_s: float
    slow_s: float
    others: tuple[str, ...]  # causes that watch named besides

    @property
    def verdict(self) -> str:
        """Say whether the promise was kept."""
        if self.gained_s < LEAST * self.slow_s:
            return "false finding"
        ratio = self.promised_s / self.gained_s
        if 1 / FACTOR <= ratio <= FACTOR:
            return "right"
        return "too much" if ratio > 1 else "too little"


def row(name: str, values: dict[str, Any], processors: bool) -> Row:
    """Return the row of a program that was recorded and measured."""
    record, measured = values["record"], values["measure"]
    slow, repaired = measured["processors"] if processors else (measured["slow"], measured["repaired"])
    named = [
        found
        for found in record["found"]
        if [record["cause"], record["line"]] in [each[:2] for each in found]
    ]
    promised_s = statistics.median(sum(seconds for _, _, seconds in found) for found in named)
    gained_s = statistics.median(before - after for before, after in zip(slow, repaired, strict=True))
    others = {cause for found in named for cause, _, _ in found} - {record["cause"]}
    return Row(name, record["cause"], promised_s, gained_s, statistics.median(slow), tuple(sorted(others)))


def table(rows: list[Row]) -> str:
    """Return the rows as Markdown."""
    lines = [
        "| program | cause | before, s | promised, s | gained, s | ratio | |",
        "| --- | --- | ---: | ---: | ---: | ---: | --- |",
    ]
    for each in rows:
        ratio = f"{each.promised_s / each.gained_s:.2f}" if each.gained_s > 0 else ""
        more = f" and {', '.join(each.others)}" if each.others else ""
        lines.append(
            f"| {each.name} | {each.cause}{more} | {each.slow_s:.2f} | {each.promised_s:.3f} | "
            f"{each.gained_s:.3f} | {ratio} | {each.verdict} |"
        )
    right = sum(each.verdict == "right" for each in rows)
    false = sum(each.verdict == "false finding" for each in rows)
    lines += [
        "",
        f"{right} of {len(rows)} promises are within a factor of {FACTOR} of the gain, "
        f"{false} findings are false ones (their change gains less than {LEAST:.0%}).",
    ]
    return "\n".join(lines)


def main() -> int:
    """Print the table; return 1 if fewer than four of five promises are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("programs", nargs="*", help="names of programs; all that are recorded and measured")
    parser.add_argument("--processors", action="store_true", help="compare with seconds of processors")
    options = parser.parse_args()
    stored = json.loads(STORE.read_text(encoding="utf-8"))
    chosen = options.programs or list(stored)
    rows = [
        row(name, stored[name], options.processors)
        for name in chosen
        if {"record", "measure"} <= {*stored.get(name, {})} and "processors" in stored[name]["measure"]
    ]
    if not rows:
        parser.error("none of them is recorded and measured: see the commands above")
    print(table(rows))
    return 0 if sum(each.verdict == "right" for each in rows) >= 0.8 * len(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
