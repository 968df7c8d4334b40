"""Values as words: scaled quantities, facts, multiples; and measurements as a table of words."""

import math
import sys
from collections.abc import Sequence

from jaxperf.result import Grid, Measurement, Table, ratio

PREFIXES = {1e15: "P", 1e12: "T", 1e9: "G", 1e6: "M", 1e3: "k", 1.0: "", 1e-3: "m", 1e-6: "u", 1e-9: "n"}
LARGEST = sys.float_info.max
SCALED = ("s", "bytes", "FLOP", "FLOP/s", "bytes/s")  # units that take a prefix


def format_quantity(value: float | None, unit: str) -> str:
    """Return a value with its unit, scaled to read: 1.23e-5 s is "12.3 us", 4.1e7 bytes "41.0 MB"."""
    if value is None or not -LARGEST <= value <= LARGEST:  # also excludes NaN; an integer may have any size
        return "-"
    if unit not in SCALED:
        return f"{_digits(value)} {unit}".strip()
    factor, prefix = next(((f, p) for f, p in PREFIXES.items() if abs(value) >= f), (1.0, ""))
    if (factor > 1) == (unit == "s"):  # neither kiloseconds nor millibytes
        factor, prefix = 1.0, ""
    symbol = unit.replace("bytes", "B") if prefix or unit != "bytes" else unit
    return f"{_digits(value / factor)} {prefix}{symbol}"


def format_on_page(value: float | None, unit: str) -> str:
    """Return a value with its unit as a page writes it: "12.3 µs"."""
    digits, _, symbol = format_quantity(value, unit).partition(" ")
    return f"{digits} {symbol.replace('u', 'µ', 1) if unit == 's' else symbol}".strip()


def format_scalar(value: float | int | str | bool | None, unit: str = "") -> str:
    """Return a fact in readable form: counts in full, other numbers to three digits with their unit."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and unit not in SCALED:
        return f"{value:,} {unit}".strip()
    return format_on_page(value, unit) if isinstance(value, int | float) else value


def _digits(value: float) -> str:
    if value == 0 or (float(value).is_integer() and abs(value) < 1e6):
        return f"{value:.0f}"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def format_spread(m: Measurement) -> str:
    """Return the interquartile range in percent of the median, or how few values there are.

    If the median itself is not known to 10 %, it says so, and how far its interval reaches.
    """
    if len(m.values) < 4:
        return format_count(len(m.values), "value")
    spread = _percent(m.rel_iqr, ".1f")
    return f"{spread}, noisy (± {_percent(m.off_by, '.0f')})" if m.noise == "noisy" else spread


def _percent(share: float, digits: str) -> str:
    """Return a share in percent; a median near zero makes any share."""
    return f"{share * 100:{digits}} %" if share < 10 else "> 999 %"


def format_multiple(m: Measurement, base: Measurement) -> str:
    """Return `m` as a multiple of `base`: with an interval if they share rounds, else from the medians."""
    if m is base:
        return "1"
    if m.unit != base.unit or not all(base.values):
        return ""
    if m.rounds and m.rounds == base.rounds:
        return str(ratio(m, base))
    return f"{m.median / base.median:.3g}"


def format_count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"


def format_list(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"


def as_grid(table: Table | Grid) -> Grid:
    """Return measurements as a table of text, with their spreads, multiples and published figures."""
    if isinstance(table, Grid):
        return table
    rows = table.rows
    columns = {
        "": [_label(m) for m in rows],
        "median": [format_on_page(m.median, m.unit) for m in rows],
        "spread": [format_spread(m) for m in rows],
    }
    if any(m.items_per_s for m in rows):
        columns["per second"] = [format_on_page(m.items_per_s, "") if m.items else "" for m in rows]
    base = next((m for m in rows if m.name == table.base), None)
    if base:
        columns[f"over {base.name}"] = [format_multiple(m, base) for m in rows]
    remarks: tuple[str, ...] = ()
    if table.references:
        published = {r.name: f"{format_on_page(r.value, r.unit)} ({r.system})" for r in table.references}
        columns["published"] = [published.get(m.name, "") for m in rows]
        sources = dict.fromkeys(f"{r.system}, {r.source}" for r in table.references)
        remarks = (f"Published by {'; '.join(sources)}, hardware unstated.",)
    cells = tuple(zip(*columns.values()))
    right = tuple(range(1, len(columns)))
    return Grid(table.title, tuple(columns), cells, right, table.detail, remarks=remarks)


def _label(m: Measurement) -> str:
    remarks = [remark for remark in (m.basis, m.note) if remark not in ("measured", "")]
    return f"{m.name} ({', '.join(remarks)})" if remarks else m.name
