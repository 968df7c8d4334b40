"""Results as text for a terminal: tables with median, spread, ratio and the book's figures at the side."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxperf.measure.record import Claim, Measurement, Reference, Result

PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "u"), (1e-9, "n"))
VERDICTS = {True: ("held", "green"), False: ("did not hold", "red"), None: ("not measured", "yellow")}


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, scaled for reading: 1.23e-5 s is "12.3 us", 4.1e7 bytes "41.0 MB"."""
    if value is None or not math.isfinite(value):
        return "-"
    if unit not in ("s", "bytes", "FLOP", "FLOP/s", "bytes/s"):
        return f"{_digits(value)} {unit}".strip()
    factor, prefix = next(((f, p) for f, p in PREFIXES if abs(value) >= f), (1.0, ""))
    if unit == "s" and factor > 1:
        factor, prefix = 1.0, ""
    symbol = unit.replace("bytes", "B") if prefix or unit != "bytes" else unit
    return f"{_digits(value / factor)} {prefix}{symbol}"


def scalar(value: float | int | str | bool | None, unit: str = "") -> str:
    """A fact for reading: numbers to three digits with their unit, anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return quantity(value, unit) if math.isfinite(value) else str(value)


def _digits(value: float) -> str:
    if value == 0 or (float(value).is_integer() and abs(value) < 1e6):
        return f"{value:.0f}"
    if not 1e-3 <= abs(value) < 1e6:
        return f"{value:.3g}"
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"


def ratio(value: float, base: float) -> str:
    """`value` as a multiple of `base`: "12.5x", "0.31x"."""
    return f"{value / base:.3g}x" if base else "-"


def console(*, color: bool | None = None, width: int | None = None) -> Console:
    """A console that is coloured on a terminal and plain, 100 columns wide, when piped."""
    if color is False:
        return Console(no_color=True, width=width or 100, highlight=False, force_terminal=False)
    plain = Console(highlight=False, force_terminal=color, width=width)
    return plain if plain.is_terminal else Console(highlight=False, width=width or 100)


def table(
    measurements: Sequence[Measurement],
    *,
    references: Sequence[Reference] = (),
    base: str | None = None,
    title: str = "",
) -> Table:
    """Measurements as rows: median, inter-quartile range, ratio to the one named `base`, the book's figure.

    A reference stands in the row of the measurement that its `beside` names, with ours as a multiple of it.
    """
    beside = {r.beside: r for r in references if r.beside}
    shown = Table(title=title or None, title_justify="left", title_style="bold", box=None, pad_edge=False)
    shown.add_column("", no_wrap=True)
    shown.add_column("median", justify="right", no_wrap=True)
    shown.add_column("IQR", justify="right", no_wrap=True)
    if base is not None:
        shown.add_column(f"of {base}", justify="right", no_wrap=True)
    if any(m.name in beside for m in measurements):
        shown.add_column("published", justify="right")
        shown.add_column("ours / published", justify="right", no_wrap=True)
    named = {m.name: m for m in measurements}
    for m in measurements:
        row: list[Text | str] = [m.name, quantity(m.median, m.unit), _spread(m)]
        if base is not None:
            row.append(ratio(m.median, named[base].median))
        if (r := beside.get(m.name)) is not None:
            row += [f"{quantity(r.value, r.unit)} ({r.system})", ratio(m.median, r.value)]
        shown.add_row(*row)
    return shown


def _spread(m: Measurement) -> Text:
    text = Text(f"{m.rel_iqr * 100:.1f} %" if len(m.values) > 1 else "1 value")
    if m.noise == "noisy":
        text.append(" noisy", style="yellow")
    return text


def claim_line(claim: Claim) -> Text:
    """A claim in three lines: verdict and sentence, what was predicted, what was observed."""
    word, style = VERDICTS[claim.held]
    text = Text()
    text.append(f"[{word}] ", style=f"bold {style}")
    text.append(claim.statement)
    text.append(f"\n    predicted: {claim.predicted}\n    observed:  {claim.observed}", style="dim")
    return text


def environment_lines(result: Result) -> list[str]:
    """Machine, versions and data in a few lines, with the remark that devices are fake where they are."""
    e = result.environment
    lines = [
        f"{e.cpu}, {e.cores} cores, {quantity(e.memory_bytes, 'bytes')}; Python {e.python}, "
        + ", ".join(f"{k} {v}" for k, v in e.versions.items() if k in ("jax", "flax")),
        f"{e.backend}: {', '.join(e.devices)}",
    ]
    if e.devices_are_fake:
        lines.append(
            f"devices are fake: {len(e.devices)} CPU devices share the {e.cores} cores of one host, "
            "so times say nothing of real devices"
        )
    if e.data_source:
        lines.append(f"data: {e.data_source}")
    return lines


def render_text(result: Result, *, color: bool = False, width: int | None = None) -> str:
    """A whole result as text: environment, table of measurements, facts, claims, references."""
    out = io.StringIO()
    con = Console(file=out, width=width or 100, highlight=False, force_terminal=color, no_color=not color)
    con.print(Text(f"{result.section} {result.title}".strip(), style="bold"))
    con.print(Text(result.question))
    for line in environment_lines(result):
        con.print(Text(line, style="dim"))
    if result.measurements:
        con.print()
        con.print(table(result.measurements, references=result.references))
    if result.facts:
        con.print()
        for name, value in result.facts.items():
            con.print(Text(f"{name} = {scalar(value)}"))
    if result.claims:
        con.print()
        for claim in result.claims:
            con.print(claim_line(claim))
    for note in result.notes:
        con.print(Text(f"note: {note}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
