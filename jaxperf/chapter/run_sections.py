"""Run each section in its own process, since the number of CPU devices is fixed before JAX starts.

A child writes directly to our terminal; we only wait for it, and end it when we are ended.
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxperf.chapter import catalogue
from jaxperf.errors import JaxperfError
from jaxperf.process import PIPE_CLOSED, QUIET, child_environment, how_it_ended, run_child
from jaxperf.result.store import so_far

PEERS = "peers"  # the section that other frameworks take part in: not one of `all`


@dataclass(frozen=True)
class Outcome:
    """How one section ended: `error` is "" if it succeeded; `status` is the exit status to pass on."""

    section: catalogue.SectionEntry
    path: Path
    status: int
    wall_s: float
    error: str = ""


def choose_sections(names: Sequence[str]) -> tuple[catalogue.SectionEntry, ...]:
    """Return the sections that `names` name, each once, in that order; "all" means every one but `peers`."""
    if not names:
        raise JaxperfError("no section named; give names or numbers from `jaxperf list`, or `all`")
    chosen: dict[str, catalogue.SectionEntry] = {}
    for name in names:
        sections = catalogue.SECTIONS if name == "all" else (catalogue.find(name),)
        chosen |= {s.name: s for s in sections if name != "all" or s.name != PEERS}
    return tuple(chosen.values())


def run_section(section: catalogue.SectionEntry, out: Path, arguments: Sequence[str]) -> Outcome:
    """Run one section to its end, with these flags; its output goes where ours goes."""
    path = out / f"{section.name}.json"
    partial = so_far(path)
    before, partial_before, began = _stamp(path), _stamp(partial), time.perf_counter()
    sys.stdout.flush()  # our output comes before the child's
    script = catalogue.folder() / f"{section.name}.py"
    files = (f"--json={path}", f"--notebook={path.with_suffix('.ipynb')}")
    # Ctrl-C, SIGTERM and SIGHUP (see `process.ended`) end the child first and are then raised here
    status = run_child([sys.executable, "-u", str(script), *arguments, *files], QUIET | child_environment())
    if status == PIPE_CLOSED:
        raise BrokenPipeError
    fresh = _stamp(path) not in (None, before)
    error = how_it_ended(status, fresh=fresh or not {"-h", "--help"}.isdisjoint(arguments))
    if error and not fresh and _stamp(partial) not in (None, partial_before):
        error += f"; what it found until then is in {partial}"
    if error and not fresh and before is not None:
        error += f"; {path} is from an earlier run"
    return Outcome(section, path, status or (1 if error else 0), time.perf_counter() - began, error)


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when the file is written again; None if there is no file."""
    stat = path.stat() if path.exists() else None
    return (stat.st_mtime_ns, stat.st_ino) if stat else None
