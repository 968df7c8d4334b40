"""The one error for a user's mistake, as opposed to a bug in jaxperf, and text made safe to print."""

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

_MOST = 900  # characters of a line: enough for a path and what is wrong with it
_MOST_OF_ERROR = 300  # characters of an error that is quoted in a line
# All control characters but tab and newline, and what no encoding can represent.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]")


class JaxperfError(Exception):
    """A mistake that the user can fix; its text is one line: the fact, the value, the fix.

    Scripts and the command line print that line and exit with status 2, without a traceback.
    """


def escape_control(text: str) -> str:
    """Return the text with characters that control a terminal or text direction escaped, as in "\\x1b"."""
    return _CONTROL.sub(lambda m: m.group().encode("unicode_escape").decode(), text)


def to_one_line(text: str) -> str:
    """Return the text as one line of limited length: as `escape_control`, and "\\n", "\\t" too."""
    text = escape_control(text).replace("\n", "\\n").replace("\t", "\\t")
    return text if len(text) <= _MOST else f"{text[: _MOST // 2]} ... {text[-_MOST // 2 :]}"


def first_line(error: BaseException, *, with_class: bool = False) -> str:
    """Return the first line of an error's text, after its class if wanted; the class alone if it has none."""
    name, lines = type(error).__name__, str(error).strip().splitlines()
    if not lines:
        return name
    return f"{name}: {lines[0]}"[:_MOST_OF_ERROR] if with_class else lines[0][:_MOST_OF_ERROR]


@contextlib.contextmanager
def warnings_hidden(category: type[Warning], message: str = "") -> Iterator[None]:
    """Ignore warnings of a category whose message begins with a regular expression, and leave no trace.

    `warnings.catch_warnings` tells every module that the filters have changed, so that Python shows the
    warnings of a watched program once more. This puts one filter in front of the others without saying so.
    """
    ignored = ("ignore", re.compile(message, re.I) if message else None, category, None, 0)
    filters: Any = warnings.filters
    filters.insert(0, ignored)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):  # the filters were reset meanwhile
            filters.remove(ignored)
