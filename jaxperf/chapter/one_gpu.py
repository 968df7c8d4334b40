"""What the sections measured on one GPU: figures of a kept run, for readers who have none.

`one_gpu.json` names card, version and date of each run once. `tools/keep_gpu_run.py` writes it from the
results of `jaxperf run all --platform gpu`. Every section may show JAX's rows of the comparison with PyTorch.
"""

import functools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxperf.result import Block, Fact, Table
from jaxperf.result.formatting import format_on_page

FILE = Path(__file__).with_name("one_gpu.json")
COMPARISON = "peers"  # whose figures every section may show
Key = str | tuple[str, str]  # a row's or fact's name; or a part of the table's title, and the row's name
SIZE = re.compile(r"\d+(?:[.,]\d+)*(?: [x×] \d+)?(?: MB)?")  # in the title of a table


@dataclass(frozen=True)
class GpuRun:
    """A kept run: the card, the version of JAX, the date, and where its results are."""

    card: str
    jax: str
    date: str
    source: str


@dataclass(frozen=True)
class Figure:
    """One figure: a row of a table, or a fact, whose `title` is ""."""

    title: str
    name: str
    value: float | int | str
    unit: str = ""
    run: str = ""


@functools.cache
def kept() -> tuple[dict[str, GpuRun], dict[str, tuple[Figure, ...]]]:
    body = json.loads(FILE.read_text(encoding="utf-8"))
    runs = {name: GpuRun(**run) for name, run in body["runs"].items()}
    return runs, {name: tuple(Figure(*row) for row in rows) for name, rows in body["figures"].items()}


def figures_of(blocks: Iterable[Block], run: str = "") -> list[Figure]:
    """Return the medians of all tables, and the facts, in order."""
    figures: list[Figure] = []
    for block in blocks:
        if isinstance(block, Table):
            figures += [Figure(block.title, m.name, m.median, m.unit, run) for m in block.rows]
        elif isinstance(block, Fact) and not isinstance(block.value, bool | str | None):
            figures.append(Figure("", block.name, block.value, block.unit, run))
    return figures


def find(figures: Sequence[Figure], key: Key) -> Figure | None:
    """Return the figure that a key names; the first, if several have its name."""
    title, name = ("", key) if isinstance(key, str) else key
    return next((f for f in figures if f.name == name and title in f.title), None)


def rows(
    section: str, wanted: Mapping[str, Key], here: Iterable[Block]
) -> tuple[str, list[str], list[list[str]]]:
    """Return title, heads and rows of a section's small table: the kept figures, and those of this run."""
    runs, figures = kept()
    of_gpu, of_this_run = [*figures.get(section, ()), *figures.get(COMPARISON, ())], figures_of(here)
    cells, used = [], []
    for label, key in wanted.items():
        there, here_too = find(of_gpu, key), find(of_this_run, key)
        if there:
            cells.append([label, shown(there, here_too), shown(here_too, there) if here_too else ""])
            used.append(runs[there.run])
    cards = f"On one {', '.join(sorted({run.card for run in used}))}"
    dates = [f"JAX {run.jax}, {run.date}" for run in used]
    if len(set(dates)) < 2:
        return f"{cards} ({', '.join(set(dates))})", ["", "GPU", "here"], cells
    return cards, ["", "GPU", "here", "run"], [[*row, date] for row, date in zip(cells, dates)]


def shown(figure: Figure, beside: Figure | None) -> str:
    """Return a figure with its unit, and with the sizes in its title that the figure beside it lacks."""
    text = figure.value if isinstance(figure.value, str) else format_on_page(figure.value, figure.unit)
    others = SIZE.findall(beside.title if beside else figure.title)
    sizes = [size for size in SIZE.findall(figure.title) if size not in others]
    return f"{text} ({', '.join(sizes)})" if sizes else text
