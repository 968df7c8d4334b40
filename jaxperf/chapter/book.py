"""The figures that the book prints."""

from __future__ import annotations

from jaxperf.measure import Reference


def book(name: str, value: float, part: str, beside: str, unit: str = "s") -> Reference:
    """A figure of the book's, next to the measurement called `beside`."""
    return Reference(name, value, unit, "MXNet, the book", f"section {part}", beside=beside)
