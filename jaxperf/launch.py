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

from jaxperf import catalogue
from jaxperf.errors import JaxperfError
from jaxperf.exits import PIPE_CLOSED, SIGNALS, held_back
from jaxperf.onednn import with_onednn
from jaxperf.orphans import PATIENCE_S, SAVING_S, named_parent
from jaxperf.result.store import so_far

# glibc returns large temporaries to the kernel after every step, and the next step faults them in again.
# LeNet's training step on 2 cores (batch 256, jitted, 45 steps): 1,434,000 page faults and 1,783 images/s
# by default, 112,000 faults and 3,190 images/s (1.8 times) with these three on JAX 0.10; 1.35 times on JAX
# 0.12. Either threshold alone changes nothing; the pad saves another quarter of the faults. Memory in use
# grows by about 40 %, which is why results record these variables.
ALLOCATOR = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(8 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
# A thread's own heap holds at most 64 MB, and what is larger is mapped anew each time. The temporaries of
# ResNet-18's step (batch 32) are one block of 332 MB, so each step faults 81,000 times. With one heap for
# all threads it never does, and takes 0.80 of the time. But threads then share a lock: beside other
# frameworks, a call of the MLP of 8.1 took nearly twice as long. So only a section that trains ResNet-18
# gets this.
ONE_HEAP = {"MALLOC_ARENA_MAX": "1"}
PEERS = "peers"  # the section that other frameworks take part in
_OWN_END_S = 1.0  # how long a child may take to end by itself, before it gets SIGTERM


@dataclass(frozen=True)
class Options:
    """What `jaxperf run` passes on to every script.

    Attributes:
      out: folder of the results.
      smoke: toy sizes, seconds.
      verbose: the long log.
      onednn: let a CPU convolve with oneDNN, if XLA can.
      devices: how many devices; None leaves it to the script.
      platform: "auto", "cpu" or "gpu".
      peers: systems besides JAX, for the section of that name.
      peer_python: NAME=PATH of those that do not run in one of our environments.
      extra: further words for the script.
    """

    out: Path
    smoke: bool = False
    verbose: bool = False
    onednn: bool = True
    devices: int | None = None
    platform: str = "auto"
    peers: tuple[str, ...] = ()
    peer_python: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


@dataclass(frozen=True)
class Outcome:
    """How one section ended: `trouble` is "" if it succeeded; `status` is the exit status to pass on."""

    section: catalogue.Section
    path: Path
    status: int
    wall_s: float
    trouble: str = ""


def choose(words: Sequence[str], *, peers: bool = False) -> tuple[catalogue.Section, ...]:
    """The sections that `words` name, each once, in the order named; "all" means every one but `peers`.

    Args:
      words: names, numbers or "all".
      peers: whether to include the section `peers` even if it is not named.

    Raises:
      JaxperfError: no word, or one that names no section.
    """
    if not words:
        raise JaxperfError("no section named; give names or numbers from `jaxperf list`, or `all`")
    found: dict[str, catalogue.Section] = {}
    for word in words:
        sections = catalogue.SECTIONS if word == "all" else (catalogue.find(word),)
        found |= {s.name: s for s in sections if word != "all" or s.name != PEERS}
    if peers:
        found.setdefault(PEERS, catalogue.find(PEERS))
    return tuple(found.values())


def check(sections: Sequence[catalogue.Section], options: Options) -> None:
    """Reject what cannot work before anything is started; makes the folder of the results.

    Raises:
      JaxperfError: a missing script, words for more than one script, or a folder that cannot be written.
    """
    if options.extra and len(sections) != 1:
        names = ", ".join(s.name for s in sections)
        raise JaxperfError(f"flags after -- go to one section, but {len(sections)} are named: {names}")
    for section in sections:
        if not script(section).is_file():
            raise JaxperfError(
                f"section {section.name} has no script {script(section)}; install jaxperf again"
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


def run_section(section: catalogue.Section, options: Options) -> Outcome:
    """Run one section to its end; its output goes where ours goes.

    Ctrl-C, SIGTERM and SIGHUP (see `exits.ended`) end the child first and are then raised here.

    Raises:
      BrokenPipeError: nobody reads the child's output any more, so nobody reads ours.
    """
    path = options.out / f"{section.name}.json"
    partial = so_far(path)
    before, kept, began = _stamp(path), _stamp(partial), time.perf_counter()
    sys.stdout.flush()  # our output comes before the child's
    environment = child_environment(one_heap=section.one_heap)
    if options.onednn:
        environment = with_onednn(environment)
    status = run_child(command(section, path, options), environment)
    if status == PIPE_CLOSED:
        raise BrokenPipeError
    fresh = _stamp(path) not in (None, before)
    trouble = how_it_ended(status, fresh=fresh or not {"-h", "--help"}.isdisjoint(options.extra))
    if trouble and not fresh and _stamp(partial) not in (None, kept):
        trouble += f"; what it found until then is in {partial}"
    if trouble and not fresh and before is not None:
        trouble += f"; {path} is from an earlier run"
    return Outcome(section, path, shell_status(status, trouble), time.perf_counter() - began, trouble)


def script(section: catalogue.Section) -> Path:
    """The section's script."""
    return catalogue.folder() / f"{section.name}.py"


def command(section: catalogue.Section, path: Path, options: Options) -> list[str]:
    """The words that start the section's script, which writes its result to `path`."""
    words = [sys.executable, "-u", str(script(section)), *options.extra, f"--json={path}"]
    words += ["--smoke"] * options.smoke + ["--verbose"] * options.verbose
    words += [f"--devices={options.devices}"] if options.devices else []
    if section.name == PEERS:
        words += ["--peers", *options.peers] if options.peers else []
        words += [f"--peer-python={word}" for word in options.peer_python]
    return words + ([f"--platform={options.platform}"] if options.platform != "auto" else [])


def child_environment(
    inherited: Mapping[str, str] | None = None, *, one_heap: bool = False
) -> dict[str, str]:
    """Our environment (or `inherited`) with good allocator settings and, in a checkout, this very package."""
    environment = dict(os.environ if inherited is None else inherited)
    if uses_glibc() and "malloc" not in environment.get("GLIBC_TUNABLES", ""):
        # the user's settings take precedence
        environment = ALLOCATOR | (ONE_HEAP if one_heap else {}) | environment
    root = Path(__file__).resolve().parents[1]
    if (root / "pyproject.toml").exists():  # a script's import path starts at experiments/, not at the root
        paths = [str(root), *filter(None, [environment.get("PYTHONPATH")])]
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


def uses_glibc() -> bool:
    """Whether this interpreter allocates through glibc, which reads MALLOC_ variables."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # another C library, or Windows
        return False


def startable(words: Sequence[str]) -> tuple[str, ...]:
    """Return a command with the `jaxperf` and `python` that run here, if PATH has none.

    A user who types `.venv/bin/jaxperf gate ... -- jaxperf ...` may not have this environment on PATH.
    """
    ours = {"jaxperf": (sys.executable, "-m", "jaxperf"), "python": (sys.executable,)}
    if words[0] in ours and shutil.which(words[0]) is None:
        return (*ours[words[0]], *words[1:])
    return tuple(words)


def run_child(words: Sequence[str], environment: Mapping[str, str], **streams: Any) -> int:
    """The exit status of a child, or minus the signal that ended it; interrupting the wait ends the child.

    Args:
      words: the command.
      environment: all of its environment, to which our process id is added.
      **streams: its `stdin`, `stdout` and `stderr`, as for `subprocess.Popen`; ours by default.

    Raises:
      OSError: it cannot be started.
    """
    with held_back() as release:
        child = subprocess.Popen(words, env={**environment, **named_parent()}, **streams)
        try:
            release()
            status = child.wait()
        except BaseException:
            _end(child, patience_s(words))
            raise
    # A child that cleaned up first reports with its exit status which signal it was.
    return 128 - status if status - 128 in SIGNALS else status


def patience_s(words: Sequence[str]) -> float:
    """How long the process of a command may take to end after SIGTERM, before it gets SIGKILL."""
    return SAVING_S if any(word.split("=")[0] == "--checkpoints" for word in words) else PATIENCE_S


def _end(child: subprocess.Popen[Any], patience: float) -> None:
    """End the child; it may already have received Ctrl-C, so it first gets a second to end by itself."""
    try:
        if not _gone(child, _OWN_END_S):
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
    """What changes when the file is written again; None if there is no file."""
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
