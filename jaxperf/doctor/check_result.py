"""The result of a check of the doctor, and the commands that install what is missing."""

from __future__ import annotations

import importlib.metadata
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

State = Literal["ok", "note", "warn", "broken"]


@dataclass(frozen=True)
class CheckResult:
    """One line of the doctor's report.

    Attributes:
      topic: what was checked, one word.
      state: "ok"; "note" (nothing to do, good to know); "warn" (works, but not as well as it could); "broken"
        (an essential part is missing).
      text: one line.
      fix: the command that fixes it, ready to paste; "" if there is none.
    """

    topic: str
    state: State
    text: str
    fix: str = ""


def report_lines(results: Sequence[CheckResult]) -> Iterator[str]:
    """Yield the results as lines of text, each command under the problem that it fixes."""
    wide = max((len(f.topic) for f in results), default=0)
    for f in results:
        yield f"{f.state:<7} {f.topic:<{wide}}  {f.text}"
        if f.fix:
            yield f"{'':<7} {'':<{wide}}  -> {f.fix}"


def checkout_folder() -> Path | None:
    """Return the folder of the checkout that this package runs from; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def pip_install(*arguments: str) -> str:
    """Return pip's command with these arguments for the running environment."""
    return shlex.join([sys.executable, "-m", "pip", "install", *arguments])


def stated_requirements(extra: str = "") -> list[Requirement]:
    """Return what this package requires, or what `extra` adds, from the checkout's file or pip's metadata."""
    root = checkout_folder()
    if root:
        project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
        return [Requirement(line) for line in lines]
    every = [Requirement(line) for line in importlib.metadata.requires("jaxperf") or []]
    # An extra's requirements have a marker that is true only for that extra.
    plain = [r for r in every if r.marker is None or r.marker.evaluate({"extra": ""})]
    return [r for r in every if r not in plain and r.marker and r.marker.evaluate({"extra": extra})] or plain


def install_self(extra: str = "") -> str:
    """Return the command that installs what this package requires (again), or what an extra adds.

    For an installed package, it names the requirements one by one, since its own source file is unknown.
    """
    root = checkout_folder()
    if root:
        return pip_install("-e", f"{root}[{extra}]" if extra else str(root))
    return pip_install(*(str(r).split(";")[0].strip() for r in stated_requirements(extra)))
