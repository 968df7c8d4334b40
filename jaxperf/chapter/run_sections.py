"""Run each section in its own process, since the number of CPU devices is fixed before JAX starts.

A child writes directly to our terminal; we only wait for it, and end it when we are ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxperf.chapter import catalogue
from jaxperf.errors import JaxperfError
from jaxperf.processes.exit_status import PIPE_CLOSED, SIGNALS, held_back
from jaxperf.processes.parent import PATIENCE_S, SAVING_S, named_parent
from jaxperf.result.store import so_far

PEERS = "peers"  # the section that other frameworks take part in
_GRACE_S = 0.4  # how long a child may take to end by itself, before it gets SIGTERM


@dataclass(frozen=True)
class RunOptions:
    """What `jaxperf run` passes on to every script.

    Attributes:
      out: folder of the results and notebooks.
      flags: flags without a value that all sections share ("--smoke").
      devices: how many devices; None leaves it to the script.
      platform: "auto", "cpu" or "gpu".
      peers: systems besides JAX, for the section of that name.
      peer_python: NAME=PATH of those that do not run in one of our environments.
      extra: further arguments for the script.
    """

    out: Path
    flags: tuple[str, ...] = ()
    devices: int | None = None
    platform: str = "auto"
    peers: tuple[str, ...] = ()
    peer_python: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How one section ended: `trouble` is "" if it succeeded; `status` is the exit status to pass on."""

    section: catalogue.SectionEntry
    path: Path
    status: int
    wall_s: float
    trouble: str = ""


def choose_sections(names: Sequence[str], *, peers: bool = False) -> tuple[catalogue.SectionEntry, ...]:
    """Return the sections that `names` name, each once, in that order; "all" means every one but `peers`.

    Args:
      names: names, numbers or "all".
      peers: whether to include the section `peers` even if it is not named.

    Raises:
      JaxperfError: no word, or one that names no section.
    """
    if not names:
        raise JaxperfError("no section named; give names or numbers from `jaxperf list`, or `all`")
    chosen: dict[str, catalogue.SectionEntry] = {}
    for word in names:
        sections = catalogue.SECTIONS if word == "all" else (catalogue.find(word),)
        chosen |= {s.name: s for s in sections if word != "all" or s.name != PEERS}
    if peers:
        chosen.setdefault(PEERS, catalogue.find(PEERS))
    return tuple(chosen.values())


def check_options(sections: Sequence[catalogue.SectionEntry], options: RunOptions) -> None:
    """Reject what cannot work before anything is started; makes the folder of the results.

    Raises:
      JaxperfError: a missing script, arguments for more than one script, or a folder that cannot be written.
    """
    if options.extra and len(sections) != 1:
        names = ", ".join(s.name for s in sections)
        raise JaxperfError(f"flags after -- go to one section, but {len(sections)} are named: {names}")
    for section in sections:
        if not section_script(section).is_file():
            raise JaxperfError(
                f"section {section.name} has no script {section_script(section)}; install jaxperf again"
            )
    make_folder(options.out, flag="--out")


def make_folder(folder: Path, *, flag: str) -> None:
    """Make the folder that a flag names, and check that files can be written to it.

    Raises:
      JaxperfError: they cannot; the message names the flag.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise JaxperfError(f"cannot make the folder {folder}: {e.strerror}; give another {flag}") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise JaxperfError(f"cannot write to the folder {folder}; give another {flag}")


def run_section(section: catalogue.SectionEntry, options: RunOptions) -> Outcome:
    """Run one section to its end; its output goes where ours goes.

    Ctrl-C, SIGTERM and SIGHUP (see `exit_status.ended`) end the child first and are then raised here.

    Raises:
      BrokenPipeError: nobody reads the child's output any more, so nobody reads ours.
    """
    path = options.out / f"{section.name}.json"
    partial = so_far(path)
    before, partial_before, began = _stamp(path), _stamp(partial), time.perf_counter()
    sys.stdout.flush()  # our output comes before the child's
    status = run_child(section_command(section, path, options), child_environment())
    if status == PIPE_CLOSED:
        raise BrokenPipeError
    fresh = _stamp(path) not in (None, before)
    trouble = how_it_ended(status, fresh=fresh or not {"-h", "--help"}.isdisjoint(options.extra))
    if trouble and not fresh and _stamp(partial) not in (None, partial_before):
        trouble += f"; what it found until then is in {partial}"
    if trouble and not fresh and before is not None:
        trouble += f"; {path} is from an earlier run"
    return Outcome(section, path, shell_status(status, trouble), time.perf_counter() - began, trouble)


def section_script(section: catalogue.SectionEntry) -> Path:
    """Return the section's script."""
    return catalogue.folder() / f"{section.name}.py"


def section_command(section: catalogue.SectionEntry, path: Path, options: RunOptions) -> list[str]:
    """Return the command that runs the section's script, which writes its result to `path` and a notebook."""
    arguments = [sys.executable, "-u", str(section_script(section)), *options.extra, *options.flags]
    arguments += [f"--json={path}", f"--notebook={path.with_suffix('.ipynb')}"]
    arguments += [f"--devices={options.devices}"] if options.devices else []
    if section.name == PEERS:
        arguments += ["--peers", *options.peers] if options.peers else []
        arguments += ["--peer-python", *options.peer_python] if options.peer_python else []
    return arguments + ([f"--platform={options.platform}"] if options.platform != "auto" else [])


def child_environment(inherited: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return our environment (or `inherited`), with which children in a checkout import this very package."""
    environment = dict(os.environ if inherited is None else inherited)
    root = Path(__file__).resolve().parents[2]
    if (root / "pyproject.toml").exists():  # a script's import path starts at experiments/, not at the root
        paths = [str(root), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def startable_command(command_line: Sequence[str]) -> tuple[str, ...]:
    """Return a command with the `jaxperf` and `python` that run here, if PATH has none.

    A user who types `.venv/bin/jaxperf gate ... -- jaxperf ...` may not have this environment on PATH.
    """
    replacements = {"jaxperf": (sys.executable, "-m", "jaxperf"), "python": (sys.executable,)}
    if command_line[0] in replacements and shutil.which(command_line[0]) is None:
        return (*replacements[command_line[0]], *command_line[1:])
    return tuple(command_line)


def run_child(command_line: Sequence[str], environment: Mapping[str, str], **options: Any) -> int:
    """Return a child's exit status, or minus the signal that ended it; interrupting the wait ends the child.

    Args:
      command_line: the command and its arguments.
      environment: all of its environment, to which our process id is added.
      **options: further ones of `subprocess.Popen`, such as `stdout`; by default it has our streams.

    Raises:
      OSError: it cannot be started.
    """
    with held_back() as release:
        child = subprocess.Popen(command_line, env={**environment, **named_parent()}, **options)
        try:
            release()
            status = child.wait()
        except BaseException:
            _end(child, patience_s(command_line))
            raise
    # A child that cleaned up first reports with its exit status which signal it was.
    return 128 - status if status - 128 in SIGNALS else status


def patience_s(command_line: Sequence[str]) -> float:
    """Return how long a command's process may take to end after SIGTERM, before it gets SIGKILL."""
    return SAVING_S if any(word.split("=")[0] == "--checkpoints" for word in command_line) else PATIENCE_S


def _end(child: subprocess.Popen[Any], patience: float) -> None:
    """End the child; it may already have received Ctrl-C, so it first gets a moment to end by itself."""
    try:
        if not _gone(child, _GRACE_S):
            child.terminate()
            _gone(child, patience)
    finally:  # also runs after a second Ctrl-C or SIGTERM
        child.kill()
        child.wait()


def _gone(child: subprocess.Popen[Any], patience: float) -> bool:
    try:
        child.wait(patience)
    except subprocess.TimeoutExpired:
        return False
    return True


def _stamp(path: Path) -> tuple[int, int] | None:
    """Return what changes when the file is written again; None if there is no file."""
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def how_it_ended(status: int, *, fresh: bool = True) -> str:
    """Return what went wrong when a process ended, "" if nothing; `fresh` is whether it wrote its result."""
    if status < 0:
        hint = " (out of memory?)" if -status == signal.SIGKILL else ""
        return f"ended by signal {-status}, {signal.strsignal(-status)}{hint}"
    if status:
        return f"exit status {status}"
    return "" if fresh else "ended well but wrote no result"


def shell_status(status: int, trouble: str = "") -> int:
    """Return the exit status to pass on, which is never negative, and not 0 if there was trouble."""
    return 128 - status if status < 0 else status or int(bool(trouble))
