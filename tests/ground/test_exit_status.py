import os
import signal
import subprocess
import sys
from pathlib import Path

import children
import pytest

from jaxperf import flags
from jaxperf import process as exit_status
from jaxperf.errors import JaxperfError
from jaxperf.process import INTERRUPTED, PIPE_CLOSED, USER_MISTAKE, child_environment, ended
from jaxperf.result import Environment, Note, Result, save_result


def raising(error):
    raise error


def test_every_end_has_its_status_and_its_line(capsys):
    for main, status, line in (
        (lambda: 7, 7, ""),
        (lambda: raising(JaxperfError("no such thing; give another")), USER_MISTAKE, "error: no such thing"),
        (lambda: raising(JaxperfError("no \x1b[31mfile")), USER_MISTAKE, "error: no \\x1b[31mfile\n"),
        (lambda: raising(JaxperfError("no a\nb.json")), USER_MISTAKE, "error: no a\\nb.json\n"),
        (lambda: raising(KeyboardInterrupt()), INTERRUPTED, "stopped"),
        (lambda: raising(PermissionError(13, "Permission", "a")), USER_MISTAKE, "error: a: Permission"),
        (lambda: Path("x" * 300).stat().st_size, USER_MISTAKE, f"error: {'x' * 300}: File name too long; "),
    ):
        assert ended(main) == status
        err = capsys.readouterr().err
        assert err.startswith(line) and err.count("\n") == bool(line)
    for error in (ZeroDivisionError(), FileNotFoundError(2, "No such file", "some/file")):  # bugs of ours
        with pytest.raises(type(error)):
            ended(lambda error=error: raising(error))


def test_a_working_directory_that_is_gone_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert ended(lambda: 0) == USER_MISTAKE
    assert capsys.readouterr().err == "error: the working directory was deleted; change to another\n"


def test_a_signal_unwinds_what_runs_and_leaves_the_handlers_as_they_were():
    before = [signal.getsignal(number) for number in exit_status.SIGNALS]
    for number, status in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGINT, INTERRUPTED)):
        cleaned = []

        def main(number=number, cleaned=cleaned):
            try:
                signal.raise_signal(number)
            finally:
                cleaned.append(number)
            return 0

        assert (ended(main), cleaned) == (status, [number])
    assert [signal.getsignal(number) for number in exit_status.SIGNALS] == before


def test_a_signal_that_is_repeated_soon_does_not_disturb_what_the_first_has_set_off(monkeypatch):
    cleaned = []

    def main():
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append(exit_status.SAME_S)
        return 0

    for same_s in (1e9, 0.0):
        monkeypatch.setattr(exit_status, "SAME_S", same_s)
        assert ended(main) == 143 and len(cleaned) == 1


def test_what_parses_flags_does_not_take_a_signal_for_a_mistake(capsys):
    def stops(word):
        signal.raise_signal(signal.SIGTERM)
        return word

    parser = flags.Parser("x")
    parser.add_argument("--word", type=stops)
    assert ended(lambda: len(vars(parser.parse_args(["--word", "x"])))) == 143
    assert capsys.readouterr().err == "stopped\n"


DROPPED = """
import signal, time
class Swallows:
    def __del__(self):
        signal.raise_signal(signal.SIGTERM)
def step():
    Swallows()
    time.sleep(600)
"""


@pytest.mark.parametrize("command", [
    "from jaxperf import cli; sys.exit(cli.main(['plan', '--setup', 'drops:step', 'drops:step']))",
    "from jaxperf import cli; sys.exit(cli.main(['measure', 'drops:step']))",
    "from jaxperf.distributed import together; sys.exit(ended(lambda: together(drops.step)))",
], ids=["plan", "measure", "a training"])  # fmt: skip
def test_a_signal_that_arrives_where_python_drops_exceptions_is_not_lost(command, tmp_path):
    (tmp_path / "drops.py").write_text(DROPPED)
    code = f"import sys; sys.path.insert(0, '.')\nimport drops\nfrom jaxperf.process import ended\n{command}"
    done = children.run("-c", code, folder=tmp_path)
    assert done.returncode == 143 and done.stderr.endswith("stopped\n"), done.stderr


def test_a_handler_that_the_block_has_set_itself_decides():
    before, received = signal.getsignal(signal.SIGTERM), []
    with pytest.MonkeyPatch.context() as patch, exit_status.forced_end():
        patch.setattr(exit_status, "GRACE_S", 0.0)
        patch.setattr(exit_status, "_end_now", lambda number, clean_up: received.append("ended"))
        signal.signal(signal.SIGTERM, lambda number, frame: received.append("saved"))
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.signal(signal.SIGTERM, before)
    assert received == ["saved"]


def test_what_was_told_to_ignore_a_signal_ignores_it():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as by `nohup`
    try:
        assert ended(lambda: signal.raise_signal(signal.SIGHUP) or 7) == 7
    finally:
        signal.signal(signal.SIGHUP, before)


ONCE = """
import signal, sys
from jaxperf.process import end_at_once, ended
end_at_once()
if "inside" in sys.argv:
    sys.exit(ended(lambda: signal.raise_signal(int(sys.argv[1]))))
signal.raise_signal(int(sys.argv[1]))
"""


def test_outside_of_ended_a_signal_ends_the_process_without_a_word():
    ends = ((["2"], -2, ""), (["15"], -15, ""), (["1"], -1, ""), (["2", "inside"], 130, "stopped\n"))
    for arguments, status, message in ends:
        done = subprocess.run(
            [sys.executable, "-c", ONCE, *arguments], capture_output=True, text=True, env=child_environment(),
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (status, message), arguments


def test_a_signal_that_arrives_while_a_child_starts_ends_the_child_too(monkeypatch):
    children = []

    def start(*args, start=subprocess.Popen, **options):
        children.append(start(*args, **options, preexec_fn=exit_status.release_signals))
        signal.raise_signal(signal.SIGTERM)  # to this thread: JAX's threads keep nothing back
        return children[0]

    monkeypatch.setattr(subprocess, "Popen", start)
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    assert ended(lambda: exit_status.run_child(command, os.environ)) == 143
    assert children[0].returncode == -signal.SIGTERM


SCRIPT = """
import sys
from jaxperf import cli
from jaxperf.process import ended
from jaxperf.result import terminal
def show():
    for i in range(5000): terminal.console().print("± row")
    return 0
for command in sys.argv[1:]:
    if status := ended(show) if command == "show" else cli.main(command.split()):
        sys.exit(status)
"""


def process(*commands, stdout, **variables):
    return subprocess.run(
        [sys.executable, "-c", SCRIPT, *commands], stdout=stdout, stderr=subprocess.PIPE, text=True,
        env=child_environment() | variables,
    )  # fmt: skip


def test_a_pipe_closed_early_leaves_no_traceback():
    reader, writer = os.pipe()
    os.close(reader)
    for command in ("list", "--help", "show"):  # rich, which shows results, has its own way to end a program
        done = process(command, stdout=writer)
        assert (done.returncode, done.stderr) == (PIPE_CLOSED, ""), command
    os.close(writer)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_a_full_disk_is_one_line():
    for command in ("list", "doctor --help"):
        with Path("/dev/full").open("w") as full:
            done = process(command, stdout=full.fileno())
        assert done.returncode == USER_MISTAKE  # 1 would be a verdict: something became slower
        assert done.stderr == "error: cannot write the output: No space left on device; send it elsewhere\n"


def test_a_closed_standard_output_is_like_one_that_nobody_reads():
    command = ["sh", "-c", 'exec "$0" -m jaxperf list >&-', sys.executable]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=child_environment())
    assert (done.returncode, done.stderr) == (0, "")


def test_a_terminal_without_utf_8_shows_what_it_can(tmp_path):
    path = tmp_path / "é.json"
    save_result(Result("first", "9.1", "A × B", "編譯?", {}, Environment(), blocks=(Note("±"),)), path)
    commands = ("show", "--help", f"report {path}")
    done = process(*commands, stdout=subprocess.PIPE, PYTHONIOENCODING="ascii", LC_ALL="C")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("? row\n" * 5000) and "usage: jaxperf" in done.stdout
    assert done.stdout.isascii() and "A ? B" in done.stdout
