"""What a check of the doctor found."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

State = Literal["ok", "note", "mend", "broken"]


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's.

    Attributes:
      topic: what was looked at, one word.
      state: "ok"; "note" (nothing to do, good to know); "mend" (works, but not as well as it could); "broken"
        (an essential part is missing).
      text: one line.
      mend: the command that mends it, ready to paste; "" where there is none.
    """

    topic: str
    state: State
    text: str
    mend: str = ""


def show(findings: Sequence[Finding]) -> Iterator[str]:
    """The findings as lines of text, the mending command under what it mends."""
    wide = max((len(f.topic) for f in findings), default=0)
    for f in findings:
        yield f"{f.state:<7} {f.topic:<{wide}}  {f.text}"
        if f.mend:
            yield f"{'':<7} {'':<{wide}}  -> {f.mend}"


def checkout() -> Path | None:
    """The folder of the checkout that this package runs from; None for an installed package."""
    root = Path(__file__).resolve().parents[2]
    return root if (root / "pyproject.toml").is_file() else None


def pip_install(*words: str) -> str:
    """The command that installs `words` into the environment that runs now."""
    return shlex.join([sys.executable, "-m", "pip", "install", *words])


def install_self(extra: str = "") -> str:
    """The command that installs this package (again), with an extra if one is named."""
    root = checkout()
    bracket = f"[{extra}]" if extra else ""
    return pip_install("-e", f"{root}{bracket}") if root else pip_install(f"jaxperf{bracket}")
