"""`with jaxperf.watch():` around a part of a program, in a notebook or in a test."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from jaxperf.processes.exit_status import Stopped
from jaxperf.result import Result, save_result
from jaxperf.watch.observe import backend
from jaxperf.watch.report import text
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.session import Record, Watcher


class Watched:
    """What a watch found, once its block has ended: the `record` of all events and the report, a `result`."""

    def __init__(self) -> None:
        self.record: Record | None = None
        self.result: Result | None = None


@contextlib.contextmanager
def watch(
    name: str = "this block", *, profile: bool = True, show: bool = True, json: Path | None = None
) -> Iterator[Watched]:
    """Watch what happens inside, and print a report to standard error at the end, also after an error.

    Args:
      name: of the block, for the report.
      profile: take short windows of JAX's profiler, which show what devices do.
      show: print the report.
      json: file that takes the report as a result, for `jaxperf report`.

    Yields:
      A `Watched`, filled in when the block has ended.

    Raises:
      JaxperfError: another watch is open in this process, or `json` cannot be written.
    """
    watched, watcher, ended = Watched(), Watcher(name, profile=profile), ""
    json = json.absolute() if json else None  # the program may change the working directory
    watcher.open()
    try:
        yield watched
    except BaseException as e:
        ended = how_it_ended(e)
        raise
    finally:
        watched.record = watcher.close()
        watched.result = text.make_result(Analysis(watched.record), ended=ended)
        deliver_report(watched.result, show=show, json=json)


def how_it_ended(error: BaseException) -> str:
    """Say how a program ended that stopped early; "" for an ordinary exit."""
    if isinstance(error, KeyboardInterrupt):
        return "until it was interrupted"
    if isinstance(error, Stopped):
        return f"until {signal.Signals(error.number).name} ended it"
    if isinstance(error, SystemExit | GeneratorExit):
        return ""
    return f"until it failed with {type(error).__name__}"


def deliver_report(
    result: Result, *, show: bool = True, json: Path | None = None, stream: TextIO | None = None
) -> None:
    """Print a report to `stream`, by default standard error, and write it to a file.

    With several processes, the first one prints, and each writes its own file: "watch.json", "watch-1.json".
    """
    number = _process()
    if show and number == 0:
        from jaxperf.report.terminal import render_text

        stream = stream or sys.stderr
        color = stream.isatty() and "NO_COLOR" not in os.environ
        stream.write(render_text([result], color=color))
        stream.flush()
    if json:
        save_result(result, json.with_stem(f"{json.stem}-{number}") if number else json)


def _process() -> int:
    """Return which of several processes this is; 0 if it is the only one, or has not started JAX."""
    jax = sys.modules.get("jax")
    return int(jax.process_index()) if jax and backend.is_running(otherwise=True) else 0
