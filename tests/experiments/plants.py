"""Judge a section's claim by planted values: each claim must be able to hold, and to fail."""

from __future__ import annotations

import ast
import contextlib
import io
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxperf.chapter import cells
from jaxperf.chapter.cells import FOLDED, Cell
from jaxperf.result import Measurement, Ratio

ROUNDS = 8


class Judge:
    """A section that keeps only what its claims decide, whatever they need."""

    def __init__(self, section: Any) -> None:
        self._section, self.decisions = section, dict[str, Any]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._section, name)

    def claim(self, statement: str, *, holds: Any, **_: Any) -> None:
        """Keep the decision, also at toy size and on a CPU."""
        self.decisions[statement] = None if holds is None else bool(holds)

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Show nothing."""

    fact = figure = say = grid = table = on_one_gpu = timeline = _nothing


def judging_cells(path: Path, statement: str) -> list[Cell]:
    """Return the folded cells up to the one with the statement, from the first of that run on."""
    run: list[Cell] = []
    for cell in cells.read(path):
        if cell.markdown:
            continue
        run = [*run, cell] if FOLDED in cell.tags else []
        if run and statement in claims_of(cell):
            return run
    raise AssertionError(f"{path.name} has no folded cell that claims {statement!r}")


def claims_of(cell: Cell) -> set[str]:
    """Return the statements that a cell claims, where they are written out."""
    return {
        node.args[0].value
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "s.claim"
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip


def all_claims(path: Path) -> set[str]:
    """Return the statements of all claims of a section."""
    return set().union(*(claims_of(cell) for cell in cells.read(path) if not cell.markdown))


def decide(module: ModuleType, path: Path, statement: str, planted: dict[str, Any]) -> bool | None:
    """Return what the claim decides where the names of `planted` have other values."""
    judge = Judge(module.s)
    names = {**vars(module), **planted, "s": judge}
    *before, last = judging_cells(path, statement)
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in before:  # may need what only a full run has
            with contextlib.suppress(Exception):
                cell.run(path, names)
            names |= planted
        last.run(path, names)
    decision: bool | None = judge.decisions[statement]
    return decision


def exactly(value: float) -> Ratio:
    """Return a ratio that is known without doubt."""
    return Ratio(value, value, value, ROUNDS)


def took(**seconds: float) -> dict[str, Measurement]:
    """Return measurements of the same rounds that took exactly so long."""
    return {
        name: Measurement(name, "s", (float(value),) * ROUNDS, rounds="planted")
        for name, value in seconds.items()
    }
