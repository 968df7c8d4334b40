"""How our programs end: the exit statuses, and one line in place of a traceback for what a user can fix."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from jaxperf.errors import JaxperfError

FAILED = 1
USER_MISTAKE = 2
INTERRUPTED = 130
PIPE_CLOSED = 141


def ended(main: Callable[[], int]) -> int:
    """Run `main` and return the exit status.

    It is what `main` returns; 2 after a `JaxperfError`, whose line goes to standard error; 130 after Ctrl-C;
    141 where the reader of our output has gone, e.g. `| head`.
    """
    try:
        try:
            return main()
        finally:
            sys.stdout.flush()
    except JaxperfError as e:
        print(f"error: {e}", file=sys.stderr)
        return USER_MISTAKE
    except BrokenPipeError:  # keep the interpreter from flushing into it again
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return INTERRUPTED
