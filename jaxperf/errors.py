"""The one error that stands for a user's mistake rather than for a defect of ours."""

from __future__ import annotations


class JaxperfError(Exception):
    """A mistake that the reader can fix; its text is one line: the fact, the value, the way out.

    Scripts and the command line print that line and exit with status 2, without a traceback.
    """
