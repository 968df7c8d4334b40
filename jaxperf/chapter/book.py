"""The figures that the book prints, and those of its readers: hardware unstated in every source."""

from __future__ import annotations

from jaxperf.result import Reference


def book(name: str, value: float, part: str, *, beside: str = "", unit: str = "s") -> Reference:
    """A figure of the book's section `part` (MXNet), next to the measurement called `beside`."""
    return Reference(name, value, unit, "MXNet, the book", f"section {part}", beside=beside)
