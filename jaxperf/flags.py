"""Flags: argparse, whose mistakes are one line here, and numbers with bounds.

    parser = Parser("demo.py", "What is shown.")
    parser.add_argument("--size", type=whole(1), default=2000, metavar="N", help="rows of the matrices")
    options = parser.parse_args()

A mistake raises `JaxperfError` with the flag, the value and what to give, or the nearest flag that there is.
"""

import argparse
import dataclasses
import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from jaxperf.errors import JaxperfError, to_one_line

Config = TypeVar("Config")


class Parser(argparse.ArgumentParser):
    """The parser of one command or script.

    Args:
      prog: what the user types to run it.
      about: paragraphs above the list of flags.
      usage: in place of the usage that argparse makes from the flags; "--" if a program may follow.
    """

    def __init__(self, prog: str, about: str = "", *, usage: str | None = None) -> None:
        super().__init__(prog, usage, about, formatter_class=_Help, allow_abbrev=False)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Return the flags in `args`, by default the script's own; words may stand among flags."""
        words = sys.argv[1:] if args is None else list(args)
        if "" in words:
            self.error("a word is empty; give a value, or leave the flag out")
        options, unknown = self.parse_known_intermixed_args(words, namespace)
        hint = "; what it runs, with its flags, comes after `--`" if "-- " in (self.usage or "") else ""
        flags = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if flags:
            known = [flag.strip("-") for flag in self._option_string_actions if flag != flags[0]]
            suggestion = did_you_mean(flags[0].strip("-"), known, start="--")
            self.error(f"there is no flag {flags[0]}{suggestion}{hint}")
        if unknown:
            self.error(f"{' '.join(unknown)}: not understood{hint}")
        return options

    def print_help(self, file: Any = None) -> None:
        """Print the help; argparse's own hides that it cannot be written."""
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        """Refuse the flags in a sentence that begins with the one that is wrong."""
        about = re.match(r"argument (?:[^:]*/)?([^:]+): (.*)", message, re.DOTALL)
        sentence = f"{about[1]} {about[2]}" if about else message
        raise JaxperfError(f"{to_one_line(sentence)}; see `{self.prog} --help`")


class _Help(argparse.HelpFormatter):
    """Keeps paragraphs apart, and names the defaults that say something."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = re.split(r"\n\s*\n", text.strip())
        fill = super()._fill_text
        return "\n\n".join(fill(paragraph, width, indent) for paragraph in paragraphs)

    def _expand_help(self, action: argparse.Action) -> str:
        """Return the help of a flag with its default; nothing in it is a pattern, so it may contain "%"."""
        text, default = action.help or "", _default_text(action.default)
        return text if default in text else f"{text} {default}"


def _default_text(value: Any) -> str:
    """Return a default as help shows it; "" if it says nothing."""
    if value in (None, argparse.SUPPRESS, "", (), []) or isinstance(value, bool):
        return ""
    return f"(default: {' '.join(map(str, value)) if isinstance(value, tuple | list) else value})"


def did_you_mean(word: str, words: Iterable[str], *, start: str = "") -> str:
    """Return a question with the word that is nearest to the one typed, after `start`; "" if none is."""
    nearest = difflib.get_close_matches(word, list(words), n=1, cutoff=0.6)
    return f" (did you mean {start}{nearest[0]}?)" if nearest else ""


def whole(low: float = -math.inf, high: float = math.inf) -> Callable[[str], int]:
    """Return the type of a flag that takes a whole number within bounds, both included."""
    return _bounded(int, "a whole number", low, high)


def number(low: float = -math.inf, high: float = math.inf, *, above: bool = False) -> Callable[[str], float]:
    """Return the type of a flag that takes a finite number within bounds; `above` excludes `low` itself."""
    return _bounded(float, "a number", low, high, above=above)


def _bounded(
    of_word: Callable[[str], Any], name: str, low: float, high: float, *, above: bool = False
) -> Callable[[str], Any]:
    bounds = []
    if low > -math.inf:
        bounds.append(f"more than {low:g}" if above else f"at least {low:g}")
    if high < math.inf:
        bounds.append(f"at most {high:g}")
    allowed = " and ".join(bounds)

    def convert(word: str) -> Any:
        try:
            value = of_word(word)
        except ValueError:
            raise argparse.ArgumentTypeError(f"is {word!r}; give {name}") from None
        if not -math.inf < value < math.inf:
            bound = f" of {allowed}" if allowed else ""
            raise argparse.ArgumentTypeError(f"is {word}; give a finite number{bound}")
        if not low <= value <= high or (above and value == low):
            raise argparse.ArgumentTypeError(f"is {word}; give {allowed}")
        return value

    return convert


def file_path(word: str) -> Path:
    """Return a flag's value as the path of a file to write, whose folder need not exist yet."""
    if word == "-":
        raise argparse.ArgumentTypeError("is '-'; give a file, since the report goes to standard output")
    path = Path(word)
    above = path.parent.parent
    if not os.path.exists(path.parent) and not os.path.exists(above):  # noqa: PTH110  # False if forbidden
        raise argparse.ArgumentTypeError(f"is {word!r}, but there is no folder {above}; make it")
    return path


def add_parameter(parser: Parser, name: str, default: Any) -> None:
    """Add a flag for a parameter, whose type is that of its default.

    Args:
      parser: takes the flag.
      name: of the parameter; `batch_size` is the flag `--batch-size`.
      default: False or True is a switch, a tuple takes one value or more of its first element's type, and
        None is a path that need not be given. A number is not below 0, or 1 if its default is a count, unless
        the default itself is.
    """
    flag = name.replace("_", "-")
    if isinstance(default, bool):
        action = "store_false" if default else "store_true"
        parser.add_argument(f"--no-{flag}" if default else f"--{flag}", dest=name, action=action)
        return
    options: dict[str, Any] = {"default": default, "help": _default_text(default)}
    like = default
    if isinstance(default, tuple):
        options |= {"action": _Tuple, "nargs": "+"}
        like = default[0] if default else ""
    if isinstance(like, int):
        options |= {"type": whole(min(like, 1)), "metavar": "N"}
    elif isinstance(like, float):
        options |= {"type": number(min(like, 0.0)), "metavar": "X"}
    elif like is None or isinstance(like, Path):
        options |= {"type": Path, "metavar": "PATH"}
    else:
        options |= {"metavar": "WORD"}
    parser.add_argument(f"--{flag}", **options)


class _Tuple(argparse.Action):
    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        setattr(namespace, self.dest, tuple(values))


def parse_config(config_class: type[Config], about: str | None = None) -> Config:
    """Return the flags of the running script, one for each field of a dataclass, whose defaults they have."""
    parser = Parser(Path(sys.argv[0]).name, (about or "").split("\n", maxsplit=1)[0])
    for field in dataclasses.fields(config_class):  # type: ignore[arg-type]
        add_parameter(parser, field.name, field.default)
    return config_class(**vars(parser.parse_args()))
