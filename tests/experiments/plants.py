"""Judge a section's claim by planted values: a claim that nothing makes fail says nothing."""

from __future__ import annotations

import ast
import contextlib
import io
from pathlib import Path
from types import ModuleType
from typing import Any

import matplotlib.pyplot as plt

from jaxperf.chapter import cells
from jaxperf.chapter.cells import FOLDED, Cell
from jaxperf.result import Measurement, Ratio
from jaxperf.result.recorder import VERDICTS

ROUNDS = 8


class Judge:
    """A section that keeps only the verdicts on its claims.

    Args:
      section: the real one.
      everywhere: whether to decide also at toy size and on a CPU, whatever the claims need.
    """

    def __init__(self, section: Any, *, everywhere: bool) -> None:
        self._section, self._everywhere, self.verdicts = section, everywhere, dict[str, str]()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._section, name)

    def claim(self, statement: str, *, holds: Any, needs: Any = (), cannot: str = "", **_: Any) -> None:
        """Keep the verdict."""
        lacks = not self._everywhere and (cannot or self._section._lacks(needs))
        decided = VERDICTS[None if holds is None else bool(holds)]
        self.verdicts[statement] = "not measurable here" if lacks else decided

    def figure(self, drawn: Any, *_: Any, **__: Any) -> None:
        """Close a figure: Matplotlib warns of twenty open ones."""
        plt.close(drawn)

    def _nothing(self, *_: Any, **__: Any) -> None:
        """Show nothing."""

    fact = say = grid = table = on_one_gpu = timeline = _nothing


def judging_cells(path: Path, statement: str) -> list[Cell]:
    """Return the folded cells up to the one whose claim begins so, from the first of that run on."""
    run: list[Cell] = []
    for cell in cells.read(path):
        if cell.markdown:
            continue
        run = [*run, cell] if FOLDED in cell.tags else []
        if run and any(claimed.startswith(statement) for claimed in claims_of(cell)):
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


def verdict(section: ModuleType, statement: str, /, *, everywhere: bool = False, **planted: Any) -> str:
    """Return the verdict on a claim where the names of `planted` have other values.

    Args:
      section: the names of the section, as `cells.load` returns them.
      statement: the claim, or how it begins.
      everywhere: whether to decide also where the claim cannot be measured.
      **planted: the values that replace those of the section.
    """
    path, judge = Path(str(section.__file__)), Judge(section.s, everywhere=everywhere)
    names = {**vars(section), **planted, "s": judge}
    *before, last = judging_cells(path, statement)
    with contextlib.redirect_stdout(io.StringIO()):
        for cell in before:  # may need what only a full run has
            with contextlib.suppress(Exception):
                cell.run(path, names)
            names |= planted
        last.run(path, names)
    (found,) = (said for claimed, said in judge.verdicts.items() if claimed.startswith(statement))
    return found


def exactly(value: float) -> Ratio:
    """Return a ratio that is known without doubt."""
    return Ratio(value, value, value, ROUNDS)


def took(**seconds: float) -> dict[str, Measurement]:
    """Return measurements of the same rounds that took exactly so long."""
    return {
        name: Measurement(name, "s", (float(value),) * ROUNDS, rounds="planted")
        for name, value in seconds.items()
    }
