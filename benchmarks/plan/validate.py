"""Hold the model of `jaxperf plan` against published figures: `python benchmarks/plan/validate.py`.

Tables that set constants ("fits") and tables that test them are disjoint. The errors that a plan prints,
`jaxperf/plan/accuracy.py`, come from the tests alone.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxperf.hlo import Product
from jaxperf.plan import accuracy as printed
from jaxperf.plan import kernels, links
from jaxperf.plan.cards import CARDS

FOLDER = Path(__file__).parent
# tables of collectives.csv, with what they set
FITS = {
    "a100-8": "the A100's links",
    "h200-8": "the bandwidth and the pipeline of Hopper's links",
    "b200-8": "the bandwidth of Blackwell's links",
    "b200-8-ib": "the latency and the pipeline of links whose switches reduce",
    "h100-16-ib": "the network infiniband, and the shares of all networks",
    "h100-16-efa": "the latency of the network efa",
    "h100-16": "the network tcpxo",
}
TESTS = (
    "h100-8", "b200-8-ib-gather", "b200-8-ib-scatter", "b200-8-ib-to-all", "h200-16", "h100-16-efa-old",
    "b200-32", "a100-16-efa",
)  # fmt: skip
OTHER_TIME = "a larger message of the same table takes less than half of this time"
SMALLEST = 32 * 2**10  # bytes


@dataclass(frozen=True)
class Row:
    """One published figure beside the prediction, in seconds; `aside` says why a row does not count."""

    table: str
    name: str
    published: float
    predicted: float
    aside: str = ""

    @property
    def ratio(self) -> float:
        """Return the predicted over the published figure."""
        return self.predicted / self.published

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return abs(self.ratio - 1)


def read(name: str) -> list[dict[str, str]]:
    """Return the rows of a table in this folder."""
    with (FOLDER / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def implausible(seconds: dict[int, float]) -> set[int]:
    """Return the sizes whose times are of something else: a larger size takes less than half of them."""
    return {
        size for size, time in seconds.items()
        if any(larger > size and 2 * other < time for larger, other in seconds.items())
    }  # fmt: skip


def collectives(tables: Sequence[str]) -> list[Row]:
    """Return the published collectives of some tables, from 32 KiB on."""
    rows: list[Row] = []
    for table in tables:
        of_table = [row for row in read("collectives.csv") if row["table"] == table]
        published = {int(row["bytes"]): float(row["us"]) / 1e6 for row in of_table}
        aside = implausible(published)
        for row in of_table:
            size = int(row["bytes"])
            predicted = links.exchange_s(
                CARDS[row["card"]], row["kind"], size, int(row["devices"]), int(row["nodes"]),
                links.NETWORKS[row["network"]],
            )  # fmt: skip
            name = f"{size / 2**10:,.0f} KiB"
            rows.append(Row(table, name, published[size], predicted, OTHER_TIME if size in aside else ""))
    return rows


def counted(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that count."""
    return [row for row in rows if not row.aside]


def factor(rows: Sequence[Row], share: float = 0.9) -> float:
    """Return the factor within which a share of the rows is right."""
    ratios = sorted(max(row.ratio, 1 / row.ratio) for row in rows)
    return ratios[math.ceil(share * len(ratios)) - 1]


def median_error(rows: Sequence[Row]) -> float:
    """Return the median of the errors."""
    return statistics.median(row.error for row in rows)


def within(rows: Sequence[Row], error: float) -> int:
    """Return how many rows have at most this error."""
    return sum(row.error <= error for row in rows)


def published_steps() -> list[Row]:
    """Return the published training steps, with the predictions of `published.py`."""
    return [
        Row(
            row["card"], f"{row['step']} x {row['devices']} {row['card']}",
            float(row["published_s"]), float(row["predicted_s"]),
        )
        for row in read("published.csv")
    ]  # fmt: skip


def held_out_steps() -> list[Row]:
    """Return steps that were measured on one H200 and set nothing, with the predictions of held_out.py."""
    return [
        Row("h200", row["step"], float(row["measured_s"]), float(row["predicted_s"]))
        for row in read("held_out.csv")
    ]


def measured_steps() -> list[Row]:
    """Return steps of the chapter that were measured on one H200; `aside` names what two of them set."""
    card, work = CARDS["h200"], dict[str, float]()
    for row in read("kernels.csv"):
        products: tuple[Product, ...] = ()
        if row["rows"]:
            batch, rows, columns, inner = (int(row[name]) for name in ("batch", "rows", "columns", "inner"))
            aligned = row["aligned"] == "1"
            products = (Product(batch, rows, columns, inner, row["dtype"], aligned=aligned),)
        one = kernels.Kernel(float(row["bytes"]), products)
        work[row["step"]] = work.get(row["step"], 0.0) + float(row["times"]) * one.seconds(card)
    return [
        Row(
            "h200", row["step"], float(row["seconds"]),
            work[row["step"]] + kernels.CALL_S / int(row["turns"]),
            row["role"] if row["role"].startswith("fits") else "",
        )
        for row in read("steps.csv")
    ]  # fmt: skip


def lines() -> Iterator[str]:
    """Yield every row with its error, and a summary of each table."""
    steps = published_steps()
    yield from _block("tests: published training steps, s", steps)
    yield from _block("tests: other steps measured on one H200, s", held_out_steps())
    yield from _block("the chapter's steps measured on one H200, s", measured_steps())
    for table in TESTS:
        yield from _block(f"tests: {table}, s", collectives([table]))
    for table, sets in FITS.items():
        yield from _block(f"fits: {table}, s: sets {sets}", collectives([table]))
    tests = counted(collectives(TESTS))
    in_node, between = in_node_and_between(tests)
    yield (
        f"collectives of the tests: {len(tests)} rows, median error {median_error(tests):.1%}; nine of ten "
        f"within a factor of {factor(in_node):.2f} in a node ({len(in_node)} rows), "
        f"{factor(between):.2f} between nodes ({len(between)} rows)"
    )
    yield f"accuracy.py: {accuracy()}"


def in_range(row: dict[str, str]) -> bool:
    """Return whether the range that a plan prints has the published or measured seconds of a step."""
    waits, factor = float(row.get("waits_s", 0)), printed.collective_factor("infiniband", True)
    kernels_s = float(row["predicted_s"]) - waits
    low = kernels_s * printed.COMPUTE[0] + waits / factor
    high = kernels_s * printed.COMPUTE[1] + waits * factor
    return low <= float(row.get("published_s") or row["measured_s"]) <= high


def sentences_for_page() -> list[str]:
    """Return the sentences of docs/plan.md that count rows."""
    rows, facts = [*read("published.csv"), *read("held_out.csv")], read("memory.csv")
    steps, inside = [*published_steps(), *held_out_steps()], sum(map(in_range, rows))
    fitted = [row for row in measured_steps() if not row.aside]
    kinds, tests = {row["table"]: row["kind"] for row in read("collectives.csv")}, counted(collectives(TESTS))
    reduces = [row for row in tests if kinds[row.table] == "all-reduce"]
    others = [row for row in tests if kinds[row.table] != "all-reduce"]
    return [
        f"The {len(reduces)} all-reduces among them have a median error of {median_error(reduces):.0%}, and "
        "nine of ten of those in a node are within a factor of "
        f"{factor(in_node_and_between(reduces)[0]):.2f}",
        f"The {len(others)} others, all in one node of B200s, have a median error of "
        f"{median_error(others):.0%}",
        f"Of these {len(steps)} steps, {within(steps, 0.25)} are within 25%, the median error is "
        f"{median_error(steps):.0%}, and {inside} are in the range that the plan prints.",
        f"{sum(row.ratio < 1 for row in steps)} predictions are too short",
        f"the other {len(fitted)} are within {max(row.error for row in fitted):.0%}.",
        f"{sum(fact['right'] == 'yes' for fact in facts)} of {len(facts)} are right",
    ]


def tables_for_page() -> list[str]:
    """Return the tables of docs/plan.md, as Markdown: steps, collectives, memory, and what sets constants."""

    def table(heads: str, rows: Sequence[Sequence[object]]) -> str:
        lines = [heads.split(", "), ["---"] * (heads.count(", ") + 1), *rows]
        return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)

    def step_row(row: dict[str, str], where: str, seconds: str) -> list[object]:
        ratio = float(row["predicted_s"]) / float(seconds)
        within = "yes" if in_range(row) else "no"
        return [row["step"], where, seconds, row["predicted_s"], f"{ratio:.2f}", within]

    published = [
        step_row(row, f"{row['devices']} {row['card'].upper()}", row["published_s"])
        for row in read("published.csv")
    ]
    own = [step_row(row, "1 H200", row["measured_s"]) for row in read("held_out.csv")]
    tests: list[Sequence[object]] = []
    for name in TESTS:
        rows = counted(collectives([name]))
        close = sum(2 / 3 <= row.ratio <= 1.5 for row in rows)
        tests.append([name, len(rows), f"{median_error(rows):.0%}", close, f"{factor(rows):.2f}"])
    facts = [
        [row["step"], f"{row['devices']} {row['card'].upper()}, {row['card_gb']} GB", row["published"],
         row["published_gb"] or "-", row["planned_gb"], row["right"]]
        for row in read("memory.csv")
    ]  # fmt: skip
    heads = "step, GPUs, {}, predicted, ratio, in the range"
    return [
        table(heads.format("published"), published),
        table(heads.format("measured"), own),
        table("table, rows, median error, within a factor of 1.5, nine of ten within", tests),
        table("step, GPUs, published, published GB, planned GB, right", facts),
        ", ".join(f"{name} ({sets})" for name, sets in FITS.items()),
    ]


def accuracy() -> dict[str, object]:
    """Return the figures of `jaxperf/plan/accuracy.py`, from the tests."""
    steps, tests = [*published_steps(), *held_out_steps()], counted(collectives(TESTS))
    ratios = sorted(1 / row.ratio for row in steps)
    in_node, _ = in_node_and_between(tests)
    networks = {row["table"]: row["network"] for row in read("collectives.csv") if int(row["nodes"]) > 1}
    between = {
        name: round(factor([row for row in tests if networks.get(row.table) == name]), 2)
        for name in sorted({networks[table] for table in TESTS if table in networks})
    }
    return {
        "COMPUTE": (round(ratios[1], 2), round(ratios[-2], 2)),
        "STEPS": (len(steps), round(median_error(steps), 2), within(steps, 0.25)),
        "COLLECTIVES": (len(tests), round(median_error(tests), 2)),
        "IN_NODE": round(factor(in_node), 2),
        "BETWEEN": between,
    }


def in_node_and_between(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Return the rows of one node, and those of several."""
    several = {row["table"] for row in read("collectives.csv") if int(row["nodes"]) > 1}
    return [r for r in rows if r.table not in several], [r for r in rows if r.table in several]


def _block(title: str, rows: Sequence[Row]) -> Iterator[str]:
    yield f"{title}: published, predicted, ratio"
    for row in rows:
        aside = f"  ({row.aside})" if row.aside else ""
        yield f"  {row.name:34s} {row.published:12.5g} {row.predicted:12.5g} {row.ratio:6.2f}{aside}"
    good = counted(rows)
    yield (
        f"  {len(good)} rows: median error {median_error(good):.0%}, largest "
        f"{max(row.error for row in good):.0%}, within 25% {within(good, 0.25)}, within a factor of 1.5 "
        f"{sum(2 / 3 <= row.ratio <= 1.5 for row in good)}"
    )


if __name__ == "__main__":
    print("\n".join(lines()))
