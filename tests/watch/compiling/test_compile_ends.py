import json
import os
import signal

import children
import pytest

from jaxperf import cli

STEP = "import jax\nprint(float(jax.jit(lambda x: x * 2)(1.5)), flush=True)\n"


def start(folder, text, **variables):
    (folder / "train.py").write_text(STEP + text)
    flags = () if "JAXPERF_COMPILES" in variables else ("--compiles", "out")
    variables |= {"JAX_NUM_CPU_DEVICES": "1", "PYTHONUNBUFFERED": ""}
    return children.start("-m", "jaxperf", "watch", *flags, "train.py", folder=folder, **variables)


@pytest.mark.parametrize(
    ("text", "status", "ended"),
    [
        ("raise ValueError('no such batch')", 1, "until it failed with ValueError"),
        ("import signal; signal.raise_signal(signal.SIGINT)", 130, "until it was interrupted"),
        ("import os; print('lost', end=''); os._exit(7)", 7, "until it called os._exit"),
        (
            "import os\nif not (child := os.fork()):\n    os._exit(3)\n"
            "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))",
            0, "",
        ),
    ],
)  # fmt: skip
def test_the_report_is_written_at_any_end(tmp_path, text, status, ended):
    process = start(tmp_path, text)
    out, err = process.communicate()
    assert process.returncode == status, err
    # what os._exit leaves in the streams stays lost
    assert out == ("3.0\n3\n" if "fork" in text else "3.0\n")
    report = json.loads((tmp_path / "out" / "train.json").read_text())
    assert report["ended"] == ended and report["programs"] >= 1
    assert (tmp_path / "out" / "train.html").is_file() and err.count("Page: ") == 1
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["train.html", "train.json"]


def test_processes_that_share_a_folder_have_reports_of_their_own(tmp_path):
    waits = "import pathlib, time\nwhile not pathlib.Path('go').exists():\n    time.sleep(0.05)\n"
    processes = [start(tmp_path, waits, JAXPERF_COMPILES="out") for _ in range(2)]
    for process in processes:
        assert process.stdout and process.stdout.readline() == "3.0\n"
    (tmp_path / "go").touch()
    for process in processes:
        _, err = process.communicate()
        assert process.returncode == 0, err
    names = sorted(path.name for path in (tmp_path / "out").glob("*.json"))
    assert "train.json" in names and len(names) == 2
    # a later run replaces what the first one of them wrote
    last = start(tmp_path, "")
    last.communicate()
    assert last.returncode == 0
    assert sorted(path.name for path in (tmp_path / "out").glob("*.json")) == names


def test_a_mistake_is_one_line(tmp_path, capfd):
    (tmp_path / "train.py").write_text("print('never')\n")
    (tmp_path / "file").touch()
    script = str(tmp_path / "train.py")
    mistakes = {
        ("--compiles", str(tmp_path / "file"), script): "cannot write",
        ("--compiles", str(tmp_path), "--json", "x.json", script): "--compiles has its own JSON",
        ("--compiles", str(tmp_path), "--fail-on", "retrace", script): "--compiles has its own JSON",
        ("--compiles-compare", script): "expected 2 arguments",
        ("--compiles-compare", str(tmp_path / "a.json"), script): "No such file",
    }
    if os.geteuid():
        (tmp_path / "closed").mkdir(mode=0o500)
        mistakes["--compiles", str(tmp_path / "closed"), script] = "cannot write"
    for arguments, message in mistakes.items():
        assert cli.main(["watch", *arguments]) == 2
        out, err = capfd.readouterr()
        assert err.startswith("error: ") and message in err and len(err.splitlines()) == 1, (arguments, err)
        assert not out


@pytest.mark.skipif(not hasattr(signal, "SIGTERM"), reason="there is no SIGTERM")
def test_sigterm_in_the_middle_of_a_trace_still_gives_its_line(tmp_path):
    text = (
        "import time\n@jax.jit\ndef step(x):\n    print('traces', flush=True)\n"
        "    while True:\n        time.sleep(0.01)\nstep(1.0)\n"
    )
    process = start(tmp_path, text)
    assert process.stdout and [process.stdout.readline() for _ in range(2)] == ["3.0\n", "traces\n"]
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate()
    assert process.returncode == 143, err
    assert json.loads((tmp_path / "out" / "train.json").read_text())["ended"] == "until SIGTERM ended it"
