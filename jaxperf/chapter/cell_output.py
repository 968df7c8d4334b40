"""What a running cell prints and shows: on the terminal at once, and as outputs of the notebook."""

from __future__ import annotations

import contextlib
import io
import re
from typing import Any, TextIO

from nbformat import v4
from rich.console import Console

from jaxperf.chapter import display


class CellOutput(io.TextIOBase):
    """Standard output that prints each line at once, and keeps it in `outputs`, those of the running cell."""

    def __init__(self, terminal: TextIO) -> None:
        self.outputs: list[Any] = []
        self._rest = ""
        self._console = Console(file=terminal, highlight=False, soft_wrap=True)

    def text(self, source: str, *, first: bool = False) -> None:
        """Print the headings of a Markdown cell, and of the first cell also the question."""
        for line in source.split("\n"):
            if re.match("#+ ", line) or (first and line.strip()):
                self._console.out(line, style="bold" if line.startswith("#") else None)

    def write(self, text: str) -> int:
        if not self.outputs or self.outputs[-1].output_type != "stream":
            self.outputs.append(v4.new_output("stream", name="stdout"))
        self.outputs[-1].text += text
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            self._console.out(line)
        return len(text)

    def flush(self) -> None:
        """Print what is there of an unfinished line only at its end."""

    def show(self, item: display.Shown) -> None:
        """Print a table, claim or figure, and keep it in the forms that notebooks show."""
        self.outputs.append(v4.new_output("display_data", data=display.bundle(item)))
        with contextlib.redirect_stdout(self._console.file):
            display.on_terminal(item)
