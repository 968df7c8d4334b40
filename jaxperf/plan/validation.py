"""Validate the model against published measurements: all-reduces, steps on one GPU, scaling.

The figures are in `data/`, each file with its sources; `jaxperf plan --validate` prints every error.
"""

from __future__ import annotations

import csv
import functools
import itertools
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from jaxperf.plan import kernels, links
from jaxperf.plan.cards import CARDS, DATA

COMPUTE_ERROR = 0.25  # relative error of a step on one device, which no measured step exceeds
BACKWARD = 2 / 3  # share of a step's backward pass, during which gradients may be exchanged


@dataclass(frozen=True)
class Row:
    """One published figure beside the prediction.

    Attributes:
      table: name of its table.
      name: name of the row.
      published, predicted: the two figures, in the same unit.
      reason: why the prediction is wrong, if that is known.
    """

    table: str
    name: str
    published: float
    predicted: float
    reason: str = ""

    @property
    def ratio(self) -> float:
        """Return the predicted over the published figure."""
        return self.predicted / self.published

    @property
    def error(self) -> float:
        """Return the relative error of the prediction."""
        return abs(self.ratio - 1)


def _read(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


OTHER_TIME = "a larger message of the same table takes less than half of this time"


def other_times(seconds: Mapping[int, float]) -> set[int]:
    """Return the sizes with implausible times: a larger size in the same table takes less than half."""
    return {
        size
        for size, time in seconds.items()
        if any(larger > size and 2 * other < time for larger, other in seconds.items())
    }


@functools.cache
def published_all_reduces() -> tuple[Row, ...]:
    """Return published all-reduces from 32 KiB to 1 GiB, in seconds; rows with a reason do not count."""
    rows = []
    for table, of_table in itertools.groupby(_read("all_reduce.csv"), lambda row: row["table"]):
        published, predicted = {}, {}
        for row in of_table:
            size, devices, nodes = int(row["bytes"]), int(row["devices"]), int(row["nodes"])
            network = links.NETWORKS[row["network"]]
            published[size] = size * 2 * (devices - 1) / devices / (float(row["bus_gb_per_s"]) * 1e9)
            predicted[size] = links.exchange_s(
                CARDS[row["card"]], "all-reduce", size, devices, nodes, network
            )
        other = other_times(published)
        rows += [
            Row(table, f"{size / 2**10:,.0f} KiB", time, predicted[size], OTHER_TIME if size in other else "")
            for size, time in published.items()
        ]
    return tuple(rows)


def all_reduces() -> tuple[Row, ...]:
    """Return the published all-reduces that count, without implausible times."""
    return tuple(row for row in published_all_reduces() if not row.reason)


@functools.cache
def steps() -> tuple[Row, ...]:
    """Return steps that were measured on one H200, in seconds, and predictions from their kernels."""
    work: dict[str, float] = {}
    card = CARDS["h200"]
    for row in _read("kernels.csv"):
        products: tuple[kernels.Product, ...] = ()
        if row["rows"]:
            batch, rows, columns, inner = (int(row[name]) for name in ("batch", "rows", "columns", "inner"))
            aligned = row["aligned"] == "1"
            products = (kernels.Product(batch, rows, columns, inner, row["dtype"], aligned=aligned),)
        one = kernels.Kernel("", float(row["bytes"]), products)
        work[row["step"]] = work.get(row["step"], 0.0) + float(row["times"]) * one.seconds(card)
    return tuple(
        Row(
            "h200",
            row["step"],
            float(row["seconds"]),
            work[row["step"]] + kernels.CALL_S / int(row["turns"]),
            row["role"],
        )
        for row in _read("steps.csv")
    )  # fmt: skip


@functools.cache
def scaling() -> tuple[Row, ...]:
    """Return published throughput on several devices; the first row of each model predicts the others."""
    setups = {row["setup"]: row for row in _read("setups.csv")}
    reasons = {(row["setup"], row["model"]): row["reason"] for row in _read("reasons.csv")}
    rows: list[Row] = []
    bases: dict[tuple[str, str], float] = {}  # seconds of a step without its exchange
    for row in _read("scaling.csv"):
        setup, key = setups[row["setup"]], (row["setup"], row["model"])
        devices, published = int(row["devices"]), float(row["per_s"])
        examples = float(row["examples"]) * devices
        exchange = _exchange(setup, float(row["bytes"]), devices)
        calls = devices if setup["overlapped"] == "host" else 1
        if key not in bases:
            step = examples / published
            bases[key] = (step - _waits(setup, exchange, step)) / calls
            continue
        predicted = examples / (calls * bases[key] + _waits(setup, exchange, bases[key]))
        reason = reasons.get(key, "") if abs(predicted / published - 1) > 0.15 else ""
        rows.append(Row(row["setup"], f"{row['model']} x {devices}", published, predicted, reason))
    return tuple(rows)


def _exchange(setup: dict[str, str], size: float, devices: int) -> float:
    """Return the seconds of exchanging `size` bytes of gradients, from the bandwidth only."""
    per_node = min(devices, int(setup["per_node"]))
    nodes = math.ceil(devices / int(setup["per_node"]))
    inside = 2 * (per_node - 1) / per_node * size / float(setup["link"])
    if nodes == 1:
        return inside
    return max(inside, 2 * (nodes - 1) / nodes * size / per_node / float(setup["network"]))


def _waits(setup: dict[str, str], exchange: float, step: float) -> float:
    return max(0.0, exchange - BACKWARD * step) if setup["overlapped"] == "yes" else exchange


def share_within(rows: Sequence[Row], error: float) -> float:
    """Return the share of rows whose error is at most `error`."""
    return sum(row.error <= error for row in rows) / len(rows)


def median_error(rows: Sequence[Row]) -> float:
    """Return the median of the errors."""
    return statistics.median(row.error for row in rows)


@functools.cache
def factor(between_nodes: bool) -> float:
    """Return the factor within which nine of ten predicted all-reduces are right."""
    tables = ("b200-32", "h100-16") if between_nodes else ("a100-8", "h200-8", "b200-8")
    ratios = sorted(max(row.ratio, 1 / row.ratio) for row in all_reduces() if row.table in tables)
    return ratios[math.ceil(0.9 * len(ratios)) - 1]


def summary() -> str:
    """Return the errors of the three validations in one line."""
    worst = max(row.error for row in steps())
    return (
        f"checked: {len(steps())} steps on one H200 within {worst:.0%}; nine of ten all-reduces in a node"
        f" within a factor of {factor(False):.1f}, between nodes {factor(True):.1f}; {len(scaling())}"
        f" published scaling rows with a median error of {median_error(scaling()):.1%}"
    )


def lines() -> Iterator[str]:
    """Yield every row with its error, a summary of each validation, and the rows that do not count."""
    for title, rows in (
        ("steps, s", steps()),
        ("all-reduces, s", all_reduces()),
        ("scaling, per s", scaling()),
    ):
        yield f"{title}: published, predicted, ratio"
        yield from map(_line, rows)
        yield (
            f"  {len(rows)} rows: median error {median_error(rows):.1%}, within 15% "
            f"{share_within(rows, 0.15):.0%}, within 25% {share_within(rows, 0.25):.0%}, "
            f"largest {max(row.error for row in rows):.0%}"
        )
    yield "all-reduces that do not count: published, predicted, ratio"
    yield from (_line(row) for row in published_all_reduces() if row.reason)


def _line(row: Row) -> str:
    figures = f"{row.published:12.5g} {row.predicted:12.5g} {row.ratio:6.2f}"
    reason = f"  ({row.reason})" if row.reason else ""
    return f"  {row.table:17s} {row.name:28s} {figures}{reason}"
