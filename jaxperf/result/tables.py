"""Tables of measurements as text, for every renderer alike."""

from __future__ import annotations

from jaxperf.result import Grid, Measurement, Table
from jaxperf.result.formatting import format_multiple, format_on_page, format_spread


def as_grid(table: Table | Grid) -> Grid:
    """Return measurements as a table of text, with their spreads, multiples and published figures."""
    if isinstance(table, Grid):
        return table
    base = next((m for m in table.rows if m.name == table.base), None)
    columns = [
        ("", [_label(m) for m in table.rows]),
        ("median", [format_on_page(m.median, m.unit) for m in table.rows]),
        ("spread", [format_spread(m) for m in table.rows]),
    ]
    if any(m.items_per_s for m in table.rows):
        rates = [format_on_page(m.items_per_s, "") if m.items else "" for m in table.rows]
        columns.append(("per second", rates))
    if base:
        columns.append((f"over {base.name}", [format_multiple(m, base) for m in table.rows]))
    remarks: tuple[str, ...] = ()
    if table.references:
        published = {r.name: f"{format_on_page(r.value, r.unit)} ({r.system})" for r in table.references}
        columns.append(("published", [published.get(m.name, "") for m in table.rows]))
        sources = dict.fromkeys(f"{r.system}, {r.source}" for r in table.references)
        remarks = (f"Published by {'; '.join(sources)}, hardware unstated.",)
    heads, cells = zip(*columns)
    right = tuple(range(1, len(heads)))
    return Grid(table.title, heads, tuple(zip(*cells)), right, table.detail, remarks=remarks)


def _label(m: Measurement) -> str:
    basis = "" if m.basis == "measured" else m.basis
    remarks = ", ".join(filter(None, (basis, m.note)))
    return f"{m.name} ({remarks})" if remarks else m.name
