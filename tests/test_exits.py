"""How programs end: a status for every end, and one line where the surroundings are at fault."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from jaxperf import exits
from jaxperf.errors import JaxperfError
from jaxperf.exits import FAILED, INTERRUPTED, PIPE_CLOSED, USER_MISTAKE, ended
from jaxperf.launch import child_environment
from jaxperf.report import terminal


def raising(error: BaseException) -> int:
    raise error


def test_every_end_has_its_status_and_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    for main, status, line in (
        (lambda: 7, 7, ""),
        (lambda: raising(JaxperfError("no such thing; give another")), USER_MISTAKE, "error: no such thing"),
        (lambda: raising(KeyboardInterrupt()), INTERRUPTED, "stopped"),
    ):
        assert ended(main) == status
        said = capsys.readouterr().err
        assert said.startswith(line) and said.count("\n") == bool(line)
    for error in (ZeroDivisionError(), OSError(28, "No space left on device", "some/file")):  # bugs of ours
        with pytest.raises(type(error)):
            ended(lambda error=error: raising(error))  # type: ignore[misc]


def test_surroundings_in_which_nothing_works_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert ended(lambda: 0) == USER_MISTAKE
    assert capsys.readouterr().err == "error: the working directory was deleted; change to another\n"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdout", None)  # as Python starts after `>&-`
    assert ended(lambda: 0) == USER_MISTAKE
    monkeypatch.undo()
    assert capsys.readouterr().err.startswith("error: standard output is closed; ")


SCRIPT = """
import sys
from jaxperf import cli
from jaxperf.exits import ended
from jaxperf.report import terminal
def show():
    for i in range(5000): terminal.console().print("± row")
    return 0
sys.exit(ended(show) if sys.argv[1] == "show" else cli.main(sys.argv[1:]))
"""


def process(word: str, stdout: int, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, word],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=child_environment() | variables,
        timeout=60,
    )


def test_a_pipe_closed_early_leaves_no_traceback() -> None:
    """Standard output is a pipe that nobody reads any more, as after `| head -0`."""
    reader, writer = os.pipe()
    os.close(reader)
    for word in ("list", "--help", "show"):  # rich, which shows results, has its own way to end a program
        done = process(word, writer)
        assert (done.returncode, done.stderr) == (PIPE_CLOSED, ""), word
    os.close(writer)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line() -> None:
    with Path("/dev/full").open("w") as full:
        done = process("list", full.fileno())
    assert done.returncode == FAILED
    assert done.stderr == "error: cannot write the output: No space left on device; send it elsewhere\n"


def test_a_terminal_without_utf_8_shows_what_it_can() -> None:
    done = process("show", subprocess.PIPE, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "? row\n" * 5000


def test_a_console_leaves_the_closed_pipe_to_us() -> None:
    with pytest.raises(BrokenPipeError):
        terminal.console().on_broken_pipe()
    assert exits.PIPE_CLOSED == 141
