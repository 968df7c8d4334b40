"""Results as text for a terminal: tables with median, spread, ratio and the book's figures at the side."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from jaxperf.measure.record import Claim, Measurement, Reference, Result

PREFIXES = tuple(
    (10.0**e, p) for e, p in zip(range(15, -10, -3), ("P", "T", "G", "M", "k", "", "m", "u", "n"))
)
# All but tab and newline, and what no encoding can hold.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")
VERDICTS = {True: ("held", "green"), False: ("did not hold", "red"), None: ("not measured", "yellow")}


def plain(words: str) -> str:
    """Words that can be shown anywhere: what controls a terminal or turns letters around, as "\\x1b"."""
    return _CONTROL.sub(lambda m: m.group().encode("unicode_escape").decode(), words)


def literal(words: str, *, style: str = "") -> Text:
    """Words that mean nothing to the terminal: no markup, no control characters."""
    return Text(plain(words), style=style)


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit, scaled for reading: 1.23e-5 s is "12.3 us", 4.1e7 bytes "41.0 MB"."""
    if value is None or not math.isfinite(value):
        return "-"
    if unit not in ("s", "bytes", "FLOP", "FLOP/s", "bytes/s"):
        return f"{_digits(value)} {unit}".strip()
    factor, prefix = next(((f, p) for f, p in PREFIXES if abs(value) >= f), (1.0, ""))
    if (factor > 1) == (unit == "s"):  # neither kiloseconds nor millibytes
        factor, prefix = 1.0, ""
    symbol = unit.replace("bytes", "B") if prefix or unit != "bytes" else unit
    return f"{_digits(value / factor)} {prefix}{symbol}"


def scalar(value: float | int | str | bool | None, unit: str = "") -> str:
    """A fact for reading: counts in full, other numbers to three digits with their unit, the rest as is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or (isinstance(value, int) and not unit):
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
    """Measurements as rows: median, inter-quartile range, ratio to the one named `base`, the book's figures.

    References stand in the row of the measurement that their `beside` names, with ours as a multiple of each;
    a ratio of different units is none. What stands between two slashes is left out where all rows share it.

    Raises:
      ValueError: no measurement is called `base`.
    """
    named = {m.name: m for m in measurements}
    if base is not None and base not in named:
        raise ValueError(f"no measurement {base!r} to compare with; there are {list(named)}")
    shown = Table(title=literal(title) if title else None, title_justify="left", title_style="bold", box=None)
    shown.pad_edge = False
    published = any(r.beside in named for r in references)
    shown.add_column("", overflow="fold")
    labels = dict(zip(named, _without_shared_middle(list(named))))
    heads = ["median", "IQR", f"of {labels[base]}" if base is not None else ""]
    for head in [*heads, *(["published", "ours / published"] if published else [])]:
        if head:
            shown.add_column(literal(head), justify="right", overflow="fold")  # folds rather than loses
    for m in measurements:
        row = [literal(labels[m.name]), Text(quantity(m.median, m.unit)), _spread(m)]
        if base is not None:
            row.append(Text(_ratio(m, named[base].median, named[base].unit)))
        beside = [r for r in references if r.beside == m.name]
        if published:
            row.append(literal("\n".join(f"{quantity(r.value, r.unit)} ({r.system})" for r in beside)))
            row.append(Text("\n".join(_ratio(m, r.value, r.unit) for r in beside)))
        shown.add_row(*row)
    return shown


def _without_shared_middle(names: list[str]) -> list[str]:
    """ "jax/8.1 MLP/eager", "torch/8.1 MLP/jit" as "jax/eager", "torch/jit"; the heading says the rest."""
    parts = [name.split("/", 1)[:1] + name.split("/", 1)[-1].rsplit("/", 1) for name in names]
    if len(names) < 2 or any(len(p) != 3 for p in parts) or len({p[1] for p in parts}) != 1:
        return names
    return [f"{first}/{last}" for first, _, last in parts]


def _ratio(m: Measurement, base: float, unit: str) -> str:
    return ratio(m.median, base) if m.unit == unit else "-"


def reference_line(r: Reference) -> Text:
    """A published figure on one line, with all that is known of where it comes from."""
    return literal(
        f"published: {r.name} {quantity(r.value, r.unit)} ({r.system}; hardware {r.hardware}; {r.source})"
    )


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
    text.append(literal(claim.statement))
    text.append(literal(f"\n    predicted: {claim.predicted}\n    observed:  {claim.observed}", style="dim"))
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
    con.print(literal(f"{result.section} {result.title}".strip(), style="bold"))
    con.print(literal(result.question))
    for line in environment_lines(result):
        con.print(literal(line, style="dim"))
    if result.measurements:
        con.print()
        con.print(table(result.measurements, references=result.references))
    if result.references:
        con.print()
        for reference in result.references:
            con.print(reference_line(reference))
    if result.facts:
        con.print()
        for name, value in result.facts.items():
            con.print(literal(f"{name} = {scalar(value)}"))
    if result.claims:
        con.print()
        for claim in result.claims:
            con.print(claim_line(claim))
    for note in result.notes:
        con.print(literal(f"note: {note}"))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"
