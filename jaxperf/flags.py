"""Command-line flags from frozen dataclasses, with errors of one line.

tyro reads the dataclass (types, defaults, comments). This module adds that a wrong flag gives one line on
standard error instead of a large box, and that types can have bounds, `rounds: Annotated[int, at_least(1)]`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import io
import math
import os
import re
import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro

from jaxperf.errors import JaxperfError

NARROWEST, WIDEST = 40, 400  # columns that help and errors are laid out for


@dataclass(frozen=True)
class Bounds:
    """The range of a number; `open_low` excludes `low` itself."""

    low: float = -math.inf
    high: float = math.inf
    open_low: bool = False

    def allow(self, value: float) -> bool:
        """Return whether a number is finite and within the bounds."""
        above = value > self.low if self.open_low else value >= self.low
        return above and value <= self.high and abs(value) < math.inf

    def __str__(self) -> str:
        low = f"more than {self.low:g}" if self.open_low else f"at least {self.low:g}"
        return low + (f" and at most {self.high:g}" if self.high < math.inf else "")


def at_least(low: float) -> Bounds:
    """Return bounds for `Annotated`: `low` or more."""
    return Bounds(low)


def more_than(low: float) -> Bounds:
    """Return bounds for `Annotated`: more than `low`."""
    return Bounds(low, open_low=True)


def between(low: float, high: float) -> Bounds:
    """Return bounds for `Annotated`: from `low` to `high`, both included."""
    return Bounds(low, high)


def check_bounds(instance: Any) -> None:
    """Reject a dataclass with a number outside the bounds in its type; tuples are checked by element.

    Raises:
      JaxperfError: a number is outside; the message names the flag, the value and the bounds.
    """
    for name, hint in get_type_hints(type(instance), include_extras=True).items():
        value = getattr(instance, name)
        if dataclasses.is_dataclass(value):
            check_bounds(value)
        bounds = [b for b in get_args(hint) if isinstance(b, Bounds)] if get_origin(hint) is Annotated else []
        flag = f"--{name.replace('_', '-')}"
        if bounds and isinstance(value, tuple) and not value:
            raise JaxperfError(f"{flag} is empty; give at least one number")
        for number in value if isinstance(value, tuple) else (value,):
            if bounds and number is not None and not bounds[0].allow(number):
                raise JaxperfError(f"{flag} is {number}; give {bounds[0]}")


def check_exclusive(**given: bool) -> None:
    """Reject switches that exclude each other, by their names.

    Raises:
      JaxperfError: more than one is given.
    """
    if sum(given.values()) > 1:
        raise JaxperfError(f"{' and '.join(f'--{name}' for name in given)} exclude each other; give one")


def parse(kind: Any, *, args: Sequence[str], default: Any = None, prog: str, description: str = "") -> Any:
    """Parse the flags `args` into an instance of the dataclass `kind`.

    Args:
      kind: a dataclass (or an `Annotated` one); each field is a flag, and its docstring is the help.
      args: the arguments after the program's name.
      default: an instance whose values apply where no flag is given.
      prog: the program's name in messages.
      description: text above the list of flags.

    Raises:
      JaxperfError: an unknown flag, a value of the wrong type, or one that the dataclass rejects.
    """
    shown = io.StringIO()
    extra: dict[str, Any] = {} if default is None else {"default": default}
    try:
        asks_help = bool({"-h", "--help"} & set(args))
        with contextlib.redirect_stderr(shown), _columns(_help_columns() if asks_help else WIDEST):
            parsed = tyro.cli(
                kind,
                args=list(args),
                prog=prog,
                description=description,
                config=(tyro.conf.FlagCreatePairsOff,),
                **extra,
            )
        check_bounds(parsed)
        return parsed
    except SystemExit as e:
        if e.code in (0, None):  # --help
            sys.stderr.write(shown.getvalue())
            raise
        raise JaxperfError(f"{_first_paragraph(shown.getvalue(), args, prog)}; see `{prog} --help`") from None


def parse_argv(kind: Any, about: str = "") -> Any:
    """Parse the flags of the running script into an instance of the dataclass `kind`.

    Args:
      kind: as for `parse`.
      about: the script's docstring, whose first line is shown above the list of flags.

    Raises:
      JaxperfError: as `parse`.
    """
    name, title = Path(sys.argv[0]).name, about.split("\n", maxsplit=1)[0]
    return parse(kind, args=sys.argv[1:], prog=name, description=title)


def _help_columns() -> int:
    """Return the terminal's width, within limits: for 1 to 5 columns, rich lays out the help for minutes."""
    return min(max(NARROWEST, shutil.get_terminal_size().columns), WIDEST)


@contextlib.contextmanager
def _columns(count: int) -> Iterator[None]:
    """Make the terminal appear `count` columns wide; at 400, tyro breaks no sentence in its error box."""
    before = os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(count)
    try:
        yield
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before


def _first_paragraph(box: str, args: Sequence[str], prog: str) -> str:
    """Return the sentence in tyro's box: the text before the first rule, plus a suggestion.

    The title is in the frame, or, if the terminal has no UTF-8 and so no frame, a separate part.
    """
    framed = "╭" in box
    parts: list[list[str]] = [[]]
    for line in box.splitlines():
        content = line.strip(" │")
        if re.fullmatch("[─-]{3,}", content):
            parts.append([])
        elif content and content[0] not in "╭╰":
            parts[-1].append(content)
    parts = parts[0 if framed else 1 :] or [[]]
    text = "".join(c for c in " ".join(parts[0]).rstrip(".") if c.isprintable())  # no escape codes from args
    number = r"(\bINT\b.* instantiated from \[|int\(\) with base 10: |float: )'(.*?)'"
    if value := re.search(rf"Error parsing (?:-\w/)?(--[\w-]+): .*{number}", text):
        text = f"{value[1]} is {value[3]!r}; give a {'number' if 'float' in value[2] else 'whole number'}"
    near = next((_near_flag(rows, args, prog) for rows in parts[1:] if "Perhaps you meant:" in rows), "")
    if wrong := re.match(r"invalid choice '(.*)' for argument .*Expected one of \((.+)\)", text):
        choices = sorted(set(re.findall("'(.*?)'", wrong[2])) - {"None"})  # tyro's order varies
        text = text.replace(wrong[2], ", ".join(map(repr, choices)))
        near = next(iter(difflib.get_close_matches(wrong[1], choices, n=1)), "")
    return f"{text} (did you mean {near}?)" if near else text or "these flags are not understood"


def _near_flag(rows: Sequence[str], args: Sequence[str], prog: str) -> str:
    """Return the first flag among tyro's suggestions that was not typed and that the command has, or ""."""
    commands: dict[str, list[str]] = {}  # of each flag; none if the program has no commands
    flag = ""
    for row in rows:
        if option := re.match(r"(?:-\w, )?(--[\w-]+)", row):
            flag = option[1]
            commands.setdefault(flag, [])
        elif flag and re.fullmatch(r"in .* --help", row):
            commands[flag].append(row)
    own = f"in {prog} {args[0]} --help"
    return next((f for f, where in commands.items() if f not in args and (not where or own in where)), "")
