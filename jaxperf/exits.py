"""How our programs end: the exit statuses, and one line in place of a traceback for what a user can fix."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

from jaxperf.errors import JaxperfError

FAILED = 1
USER_MISTAKE = 2
INTERRUPTED = 130
TERMINATED = 143  # by SIGTERM; a training that is being saved ends its step first (train/folder.py)
PIPE_CLOSED = 141


def ended(main: Callable[[], int]) -> int:
    """Run `main` and return the exit status.

    It is what `main` returns; 2 after a `JaxperfError`, whose line goes to standard error; 1 where our output
    cannot be written (a full disk); 130 after Ctrl-C; 141 where the reader of our output has gone, e.g.
    `| head`. A training that saves checkpoints ends with 143 after SIGTERM, and 129 after SIGHUP.
    """
    try:
        _check_surroundings()
        try:
            return main()
        finally:
            sys.stdout.flush()
    except JaxperfError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_MISTAKE
    except BrokenPipeError:
        _drop_output()
        return PIPE_CLOSED
    except OSError as e:
        if e.errno != errno.ENOSPC or e.filename:  # files of ours raise a JaxperfError, so it is the output
            raise
        _drop_output()
        print(f"error: cannot write the output: {e.strerror}; send it elsewhere", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED


def _check_surroundings() -> None:
    """Refuse what no command can work in, and let a terminal without UTF-8 show what it can of our signs."""
    if sys.stdout is None:  # `>&-`; the next file that is opened would get its number, and a child's words
        raise JaxperfError("standard output is closed; send it to a file, or to /dev/null")
    try:
        Path.cwd()
    except FileNotFoundError:
        raise JaxperfError("the working directory was deleted; change to another") from None
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def _drop_output() -> None:
    """Keep the interpreter, as it ends, from writing again what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
