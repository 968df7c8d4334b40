"""Score what watch said of variants: found, at the right line, with the right saving, and nothing false."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BUSY = 0.25  # cores that others used, beside one that is kept busy, from which on processor seconds decide
LEAST = 0.1  # share of the program that a repair must gain, so that its cause must be found
FACTOR = 1.5  # within which a saving is right
GOALS = {"found": 0.95, "right": 0.8, "false": 0.02}


@dataclass
class Counts:
    """Counts over causes that were planted and whose repair gains a tenth or more."""

    planted: int = 0
    found: int = 0
    located: int = 0
    right: int = 0


@dataclass
class Score:
    """The score of a run.

    Attributes:
      by_cause: counts for each cause, of programs with one cause; those of two are in `pairs`.
      small: causes whose repair gains less, which need not be found.
      clean: programs without a cause, the repaired ones included.
      false: those of them in which watch found something.
    """

    by_cause: dict[str, Counts] = field(default_factory=dict)
    pairs: Counts = field(default_factory=Counts)
    small: int = 0
    clean: int = 0
    false: int = 0
    beside: int = 0

    @property
    def total(self) -> Counts:
        """Return the counts over all programs with one cause."""
        rows = self.by_cause.values()
        return Counts(*(sum(getattr(row, name) for row in rows) for name in Counts().__dict__))

    @property
    def good(self) -> bool:
        """Return whether all goals are reached."""
        all_ = self.total
        return (
            all_.located >= GOALS["found"] * all_.planted
            and all_.right >= GOALS["right"] * all_.planted
            and self.false <= GOALS["false"] * self.clean
        )


def gain(row: dict[str, Any], cause: str = "") -> tuple[float, float]:
    """Return the seconds that the repair of a cause, or of all, gains, and their share of the program.

    A core that is kept busy is so before and after the repair, so seconds of the clock can be compared.
    """
    kind = "cpu" if row["others"] >= BUSY else "wall"
    before = row[f"{kind}_slow"]
    after = row.get(f"{kind}_without {cause}", row[f"{kind}_repaired"])
    return before - after, (before - after) / before


def score(kept: dict[str, Any]) -> Score:
    """Return the score of a run's variants; those that failed do not count."""
    result = Score()
    for row in kept["variants"]:
        if "failed" in row:
            continue
        result.clean += 1
        result.false += bool(row["found_repaired"])
        causes = row["causes"]
        if not causes:
            continue
        gained_s, _ = gain(row)
        said = sum(seconds for *_, seconds in row["found_slow"])
        places = {tuple(place) for each in row["places"].values() for place in each}
        result.beside += any(not _at(found, places, row) for found in row["found_slow"])
        worth = [cause for cause in causes if gain(row, cause)[1] >= LEAST]
        result.small += len(causes) - len(worth)
        for cause in worth:
            counts = result.by_cause.setdefault(cause, Counts()) if len(causes) == 1 else result.pairs
            matching = [found for found in row["found_slow"] if found[0] == cause]
            counts.planted += 1
            counts.found += bool(matching)
            own = {tuple(place) for place in row["places"][cause]}
            counts.located += any(_at(found, own, row) for found in matching)
            counts.right += gained_s / FACTOR <= said <= gained_s * FACTOR
    return result


def _at(found: list[Any], places: set[tuple[str, int]], row: dict[str, Any]) -> bool:
    """Return whether a finding is at one of the places; a cell has a name that IPython chooses."""
    _, file, line, _ = found
    return any(line == at and (row["layout"] == "cell" or file == Path(name).name) for name, at in places)


def score_lines(kept: dict[str, Any]) -> Iterator[str]:
    """Yield the score as Markdown."""
    result = score(kept)
    failed = [row for row in kept["variants"] if "failed" in row]
    all_ = result.total
    yield (
        f"{len(kept['variants'])} programs of a seed, {kept['made']}, commit {kept['commit'][:7]}, "
        f"{kept['machine']['cpu']}, "
        f"{kept['machine']['cores']} cores, JAX {kept['versions'].get('jax', '?')}. The generator knows the "
        "line of each cause that it plants. The gain was measured by running the repaired program. A cause "
        f"counts if its repair gains {LEAST:.0%} of the program or more."
    )
    yield ""
    yield "| cause | planted | found | at its line | saving within 1.5 |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for cause, row in sorted(result.by_cause.items()):
        yield f"| {cause} | {row.planted} | {row.found} | {row.located} | {row.right} |"
    yield f"| **all with one cause** | {all_.planted} | {all_.found} | {all_.located} | {all_.right} |"
    pairs = result.pairs
    yield f"| causes in pairs | {pairs.planted} | {pairs.found} | {pairs.located} | {pairs.right} |"
    yield ""
    slow = [row for row in kept["variants"] if row["causes"] and "failed" not in row]
    yield (
        f"Of {result.clean} programs without a cause, or repaired, {result.false} have a finding. "
        f"Causes that gain less than {LEAST:.0%} and need not be found: {result.small}. "
        f"Watch also named another line in {result.beside} of {len(slow)} slow programs."
    )
    if any(row["others"] >= BUSY for row in slow):
        yield ""
        yield (
            f"Rounds: {kept.get('rounds', 1)}. Other programs ran, so the gain is in seconds of processors, "
            "and the seconds that watch names are too long."
        )
    if failed:
        yield ""
        yield f"{len(failed)} programs failed: {'; '.join(row['failed'] for row in failed)}."
