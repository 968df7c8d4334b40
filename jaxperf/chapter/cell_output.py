"""What a running cell prints and shows: on the terminal at once, and as outputs of the notebook."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any, TextIO

from nbformat import v4
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import Progress, TimeElapsedColumn

from jaxperf.chapter import display


class CellOutput(io.TextIOBase):
    """Standard output that prints each line at once, and keeps it as an output of the running cell."""

    def __init__(self, terminal: TextIO, *, verbose: bool = False) -> None:
        self.outputs: list[Any] = []
        self.verbose = verbose
        self._rest = ""
        # On a terminal, a last line says which cell runs and for how long; drawing it takes a millisecond.
        self.progress = Progress(
            "{task.description}", TimeElapsedColumn(), transient=True, refresh_per_second=1,
            console=Console(file=terminal, highlight=False, soft_wrap=True), disable=not terminal.isatty(),
            redirect_stdout=False, redirect_stderr=False,
        )  # fmt: skip
        self._task = self.progress.add_task("", total=None)

    def begin(self, outputs: list[Any], description: str) -> None:
        self.outputs = outputs
        self.progress.reset(self._task, description=description)

    def text(self, source: str, *, first: bool = False) -> None:
        """Print a Markdown cell: its headings, of the first cell also the question; all with `verbose`."""
        if self.verbose:
            self.progress.console.print(Markdown(re.sub(r"</?\w[^>]*>|^:{3,}.*$", "", source, flags=re.M)))
            return
        lines = [line for line in source.split("\n") if re.match("#+ ", line) or (first and line.strip())]
        for line in lines:
            self.progress.console.out(line, style="bold" if line.startswith("#") else None)

    def write(self, text: str) -> int:
        if not self.outputs or self.outputs[-1].output_type != "stream":
            self.outputs.append(v4.new_output("stream", name="stdout"))
        self.outputs[-1].text += text
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self.progress.console.out(line)
        return len(text)

    def flush(self) -> None:
        """Print what is there of an unfinished line only at its end."""

    def show(self, item: display.Shown) -> None:
        """Print a table, claim or figure, and keep it in the forms that notebooks show."""
        self.outputs.append(v4.new_output("display_data", data=display.bundle(item)))
        with contextlib.redirect_stdout(self.progress.console.file):
            display.on_terminal(item, verbose=self.verbose)
