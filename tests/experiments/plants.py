"""Judge a section's claim by planted values: a claim that nothing makes fail says nothing."""

import ast
import contextlib
import io
from pathlib import Path

import matplotlib.pyplot as plt

from jaxperf.chapter import cells
from jaxperf.chapter.cells import FOLDED
from jaxperf.result import Measurement, Ratio
from jaxperf.result.recorder import VERDICTS

ROUNDS = 8


class Judge:
    """A section that keeps only the verdicts on its claims; `everywhere`, each is taken to be measurable."""

    def __init__(self, section, *, everywhere):
        self._section, self._everywhere, self.verdicts = section, everywhere, dict[str, str]()

    def __getattr__(self, name):
        return getattr(self._section, name)

    def claim(self, statement, *, holds, needs=(), cannot="", **_):
        lacks = not self._everywhere and (cannot or self._section._lacks(needs))
        decided = VERDICTS[None if holds is None else bool(holds)]
        self.verdicts[statement] = "not measurable here" if lacks else decided

    def figure(self, drawn, *_, **__):
        plt.close(drawn)

    def _nothing(self, *_, **__):
        pass

    fact = say = grid = table = on_one_gpu = timeline = _nothing


def judging_cells(path, statement):
    """Return the folded cells up to the one whose claim begins so, from the first of that run on."""
    run = []
    for cell in cells.read(path):
        if cell.markdown:
            continue
        run = [*run, cell] if FOLDED in cell.tags else []
        if run and any(claimed.startswith(statement) for claimed in claims_of(cell)):
            return run
    raise AssertionError(f"{path.name} has no folded cell that claims {statement!r}")


def claims_of(cell):
    return {
        node.args[0].value
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "s.claim"
        and isinstance(node.args[0], ast.Constant)
    }  # fmt: skip


def all_claims(path):
    return set().union(*(claims_of(cell) for cell in cells.read(path) if not cell.markdown))


def verdict(section, statement, /, *, everywhere=False, **planted):
    """Return the verdict on the claim that begins so, where the names of `planted` have other values."""
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


def fails(section, statement, /, **options):
    """Return whether the claim does not hold where the names have other values."""
    return verdict(section, statement, **options) == "does not hold"


def exactly(value):
    return Ratio(value, value, value, ROUNDS)


def rounds_of(name, seconds):
    return Measurement(name, "s", tuple(seconds + i / 1e4 for i in range(9)), rounds="one")


def took(**seconds):
    return {
        name: Measurement(name, "s", (float(s),) * ROUNDS, rounds="planted") for name, s in seconds.items()
    }
