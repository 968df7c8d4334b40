"""Command-line flags from frozen dataclasses, with errors of one line.

tyro reads the dataclass (types, defaults, docstrings); what is added here is that a wrong flag ends in one
line on standard error instead of a box of many.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import tyro

from jaxperf.errors import JaxperfError


def parse(kind: Any, *, args: Sequence[str], default: Any = None, prog: str, description: str = "") -> Any:
    """Flags `args` as an instance of the dataclass `kind`.

    Args:
      kind: a dataclass (or an `Annotated` one); each field is a flag, its docstring the help.
      args: the words after the program's name.
      default: an instance whose values hold where no flag is given.
      prog: the program's name in messages.
      description: text above the list of flags.

    Raises:
      JaxperfError: an unknown flag, a value of the wrong type, or one the dataclass refuses.
    """
    shown = io.StringIO()
    extra: dict[str, Any] = {} if default is None else {"default": default}
    try:
        asks_help = bool({"-h", "--help"} & set(args))
        with contextlib.redirect_stderr(shown), _columns(None if asks_help else 400):
            return tyro.cli(
                kind,
                args=list(args),
                prog=prog,
                description=description,
                config=(tyro.conf.FlagCreatePairsOff,),
                **extra,
            )
    except SystemExit as e:
        if e.code in (0, None):  # --help
            sys.stderr.write(shown.getvalue())
            raise
        raise JaxperfError(f"{_first_paragraph(shown.getvalue())}; see `{prog} --help`") from None


@contextlib.contextmanager
def _columns(count: int | None) -> Iterator[None]:
    """Let the terminal seem `count` columns wide, so that tyro breaks no sentence of its error box."""
    before = os.environ.get("COLUMNS")
    if count:
        os.environ["COLUMNS"] = str(count)
    try:
        yield
    finally:
        if count and before is None:
            del os.environ["COLUMNS"]
        elif before is not None:
            os.environ["COLUMNS"] = before


def _first_paragraph(box: str) -> str:
    """The sentence in tyro's box: what stands before the first rule, plus its suggestion.

    The title is in the frame, or, where the terminal has no UTF-8 and so no frame, a part of its own.
    """
    framed = "╭" in box
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        words = line.strip(" │")
        if re.fullmatch("[─-]{3,}", words):
            parts.append([])
        elif words and words[0] not in "╭╰":
            parts[-1].append(words)
    said = [" ".join(rows) for rows in parts[0 if framed else 1 :]] or [""]
    text = "".join(c for c in said[0].rstrip(".") if c.isprintable())  # no escape codes from the words given
    hint = next((p for p in said[1:] if p.startswith("Perhaps you meant")), "")
    flag = re.search(r"--[\w-]+", hint)
    return f"{text} (did you mean {flag.group()}?)" if flag else text or "these flags are not understood"
