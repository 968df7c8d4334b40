"""The book's `Animator`: curves that grow while a network trains, on a terminal and as a picture."""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.text import Text

from jaxperf.errors import JaxperfError
from jaxperf.result.store import check_writable, write_whole

BLOCKS = " ▁▂▃▄▅▆▇█"
WIDTH = 40


class Animator:
    """Add points to named curves one by one; on a terminal the curves are redrawn each time.

    Args:
      xlabel: what x counts, e.g. "epoch".
      legend: the curves' names, in the order in which `add` takes their values.
      ylim: the range drawn; the range of the data if None.
      console: where to draw; nothing is drawn when it is not a terminal.

    Use it as a context manager, so that the terminal is restored::

        with Animator("epoch", ["train acc", "test acc"], ylim=(0, 1)) as animator:
            animator.add(1, (0.4, 0.5))
        animator.save(Path("curve.svg"))
    """

    def __init__(
        self,
        xlabel: str,
        legend: Sequence[str],
        *,
        ylim: tuple[float, float] | None = None,
        console: Console | None = None,
    ) -> None:
        self.xlabel, self.legend, self.ylim = xlabel, tuple(legend), ylim
        self.X: list[float] = []
        self.Y: list[list[float]] = [[] for _ in self.legend]
        self._console = console or Console()
        self._live: Live | None = None

    def __enter__(self) -> Animator:
        if self._console.is_terminal:
            self._live = Live(console=self._console, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    def add(self, x: float, y: Sequence[float]) -> None:
        """Add a point to each curve.

        Raises:
          JaxperfError: the number of values differs from the number of curves.
        """
        if len(y) != len(self.legend):
            raise JaxperfError(f"{len(y)} values for {len(self.legend)} curves; give one for each")
        self.X.append(x)
        for curve, value in zip(self.Y, y):
            curve.append(float(value))
        if self._live:
            self._live.update(Text(self.text()), refresh=True)

    def text(self) -> str:
        """Return the curves as lines of block characters, the newest value at the end."""
        names = max((len(name) for name in self.legend), default=0)
        rows = [
            f"{name:{names}} {_bars(curve[-WIDTH:], *self._range(curve))} {curve[-1]:.4g}"
            for name, curve in zip(self.legend, self.Y)
            if curve
        ]
        return "\n".join([*rows, f"{self.xlabel} {self.X[-1]:g}"] if self.X else rows)

    def save(self, path: Path) -> None:
        """Draw the curves into a picture file; its ending (.svg, .png, .pdf) gives the format.

        Raises:
          JaxperfError: nothing to draw, or a path or ending that cannot be written.
        """
        if not self.X:
            raise JaxperfError(f"nothing to draw into {path}: no point was added")
        check_picture(path)
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5, 3), layout="constrained")
        axes: Any = figure.subplots()
        for name, curve in zip(self.legend, self.Y):
            axes.plot(self.X, curve, label=name, marker="o" if len(self.X) < 30 else None)
        axes.set_xlabel(self.xlabel)
        if self.ylim:
            axes.set_ylim(*self.ylim)
        axes.legend()
        axes.grid(alpha=0.3)
        drawn = io.BytesIO()
        figure.savefig(drawn, format=path.suffix.removeprefix("."))
        write_whole(path, drawn.getvalue())

    def _range(self, curve: Sequence[float]) -> tuple[float, float]:
        if self.ylim:
            return self.ylim
        finite = [v for v in curve if math.isfinite(v)]
        return (min(finite), max(finite)) if finite else (0.0, 1.0)


def check_picture(path: Path) -> None:
    """Check that a picture can be drawn at `path`, before the work rather than after it.

    Raises:
      JaxperfError: an ending that is not a picture format, or a path that cannot be written.
    """
    from matplotlib.backend_bases import FigureCanvasBase

    kind = path.suffix.removeprefix(".")
    if kind.lower() not in FigureCanvasBase.filetypes:
        raise JaxperfError(
            f"cannot draw {path}: {kind or 'no ending'} is not a picture format; use .svg or .png"
        )
    check_writable(path)


def _bars(values: Sequence[float], low: float, high: float) -> str:
    """Return each value as one of nine block heights, and values that are not finite as question marks."""
    span = (high - low) or 1.0
    steps = len(BLOCKS) - 1
    return "".join(
        BLOCKS[min(steps, max(0, round((v - low) / span * steps)))] if math.isfinite(v) else "?"
        for v in values
    )
