"""`with jaxperf.watch():` around a part of a program, in a notebook or in a test."""

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from jaxperf.errors import JaxperfError
from jaxperf.process import Stopped, drop_output, say
from jaxperf.result import Result, save_result
from jaxperf.watch.guard import collector_paused
from jaxperf.watch.log import Log
from jaxperf.watch.observe import hooks
from jaxperf.watch.report import text
from jaxperf.watch.report.analysis import Analysis
from jaxperf.watch.session import Watcher


@dataclass
class Watched:
    """What a watch found: the `log` of all events, and the report as a `result`; None in the block."""

    log: Log | None = None
    result: Result | None = None


@contextlib.contextmanager
def watch(
    name: str = "this block", *, profile: bool = True, show: bool = True, json: Path | None = None
) -> Iterator[Watched]:
    """Watch a block of code, and print a report to standard error at its end, also after an error.

    Args:
      name: the block's name in the report.
      profile: run JAX's profiler in short windows, which show what devices do.
      show: print the report.
      json: file in which to save the report as a result, for `jaxperf report`.

    Yields:
      A `Watched`, filled in at the end of the block.

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
        watched.log = watcher.close()
        with report_guarded():
            watched.result = text.make_result(Analysis(watched.log), ended=ended)
            deliver_report(watched.result, show=show, json=json)


@contextlib.contextmanager
def report_guarded() -> Iterator[None]:
    """Say in one line that a report is lost, since the program has ended as it should."""
    try:
        with collector_paused():
            yield
    except JaxperfError:
        raise
    except Exception as e:
        say(f"error: the report of jaxperf watch is lost ({type(e).__name__}: {e}); please report it")


def how_it_ended(error: BaseException) -> str:
    """Return a phrase for how a program ended early, such as "until it was interrupted"; "" for an exit."""
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
    """Print a report to `stream`, by default standard error, and save it to a file.

    Of several JAX processes, the first one prints, and each writes its own file: "watch.json",
    "watch-1.json".
    """
    number = process_number()
    stream = stream or sys.stderr
    if show and number == 0:
        from jaxperf.result.terminal import render_text

        # its figures for comparisons are in the JSON only
        shown = tuple(block for block in result.blocks if not getattr(block, "detail", False))
        try:
            color = stream.isatty() and "NO_COLOR" not in os.environ
            stream.write(render_text([replace(result, blocks=shown)], color=color))
            stream.flush()
        except (OSError, ValueError):  # nobody reads it, it is closed, or the disk is full
            drop_output(stream)
    if json:
        save_result(result, json.with_stem(f"{json.stem}-{number}") if number else json)


def process_number() -> int:
    """Return the JAX process index; 0 if JAX's backend has not started."""
    jax = sys.modules.get("jax")
    return int(jax.process_index()) if jax and hooks.is_running(otherwise=True) else 0
