import contextlib
import json
import os
import re
import runpy
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jupytext
import nbformat
import pytest
from cases import cases

from jaxperf.chapter import catalogue, cells, display, section
from jaxperf.measure.other_load import OtherLoad
from jaxperf.process import child_environment

SECTIONS = [catalogue.folder() / f"{entry.name}.py" for entry in catalogue.SECTIONS]
HEAD = """# %% [markdown]
# # A page
# What is three?

# %%
from jaxperf.chapter.section import section

s = section("8.4", n=3, smoke={"n": 2}, full={"n": 30}, gpu={"n": 300})
s.claim("Three is three", holds=s.n == 3, expected="3", observed=str(s.n))
s.fact("n", s.n, meaning="a number")
"""
OUTPUT_FLAGS = ("--json=page.json", "--notebook=page.ipynb")


def start(folder, script, *flags, stem="page"):
    (folder / f"{stem}.py").write_text(HEAD + script)
    environment = child_environment({k: v for k, v in os.environ.items() if k != "JAX_NUM_CPU_DEVICES"})
    command = [sys.executable, f"{stem}.py", *OUTPUT_FLAGS, *flags]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, **pipes)


def run_process(folder, script, *flags, stem):
    process = start(folder, script, *flags, stem=stem)
    printed, errors = process.communicate()
    return process.returncode, printed, errors


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """`run(script, *flags)` runs a page as a script in this process, and returns what `run_process` does."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(section, "leave", sys.exit)
    monkeypatch.setattr(cells, "end_at_once", lambda: None)
    # the runner replaces these for good
    for owner, name in ((cells, "current"), (cells, "begun"), (display, "printer")):
        monkeypatch.setattr(owner, name, getattr(owner, name))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])

    def run_page(script, *flags):
        Path("page.py").write_text(HEAD + script)
        monkeypatch.setattr(sys, "argv", ["page.py", *OUTPUT_FLAGS, *flags])
        cells.current = None
        with pytest.raises(SystemExit) as end:
            runpy.run_path("page.py", run_name="__main__")
        return end.value.code, *capsys.readouterr()

    platforms = jax.config.jax_platforms
    yield run_page
    jax.config.update("jax_platforms", platforms)


def result(folder, name="page.json"):
    return json.loads((folder / name).read_text())


def notebook(folder, name="page.ipynb"):
    read = nbformat.read(folder / name, as_version=4)
    nbformat.validate(read)
    return read


def outputs(folder, name="page.ipynb"):
    return [output.output_type for cell in notebook(folder, name).cells for output in cell.get("outputs", [])]


@pytest.mark.parametrize("path", SECTIONS, ids=lambda path: path.stem)
def test_cells_are_those_of_jupytext(path):
    expected = jupytext.reads(path.read_text(), fmt="py:percent").cells
    script = cells.read(path)
    for cell, other in zip(script, expected, strict=True):
        assert (cell.source, cell.markdown) == (other.source, other.cell_type == "markdown")
        assert list(cell.tags) == other.metadata.get("tags", [])
    lines = path.read_text().splitlines()
    assert all(lines[c.line - 1] == c.source.splitlines()[0] for c in script if not c.markdown)


def test_flags_reach_the_section_and_everything_is_kept(tmp_path):
    script = "\n# %%\nprint('done')\n"
    status, printed, errors = run_process(tmp_path, script, "--n", "4", "--devices", "2", stem="flags")
    assert (status, errors) == (0, "")
    assert "# A page\nWhat is three?" in printed and "[does not hold] Three is three" in printed
    assert "a number: 4" in printed and "done" in printed
    body = result(tmp_path)
    assert (body["config"], body["facts"], body["failed"]) == ({"devices": 2, "n": 4}, {"n": 4}, [])
    assert [claim["verdict"] for claim in body["claims"]] == ["does not hold"]
    assert len(body["environment"]["devices"]) == 2 and body["environment"]["accelerated"] == []
    assert outputs(tmp_path) == ["display_data", "display_data", "stream"]
    about = notebook(tmp_path).metadata["jaxperf"]
    assert about["config"] == {"devices": "2", "n": "4"} and "jaxperf.chapter.section" in about["modules"]


@pytest.mark.parametrize("flag, n", [("--smoke", 2), ("--full", 30)])
def test_sizes_follow_the_flag(run, tmp_path, flag, n):
    assert run("", flag)[0] == 0
    assert result(tmp_path)["facts"] == {"n": n}
    assert run("", flag, "--n=7")[0] == 0
    assert result(tmp_path)["facts"] == {"n": 7}


def test_answers_run_only_when_asked_for(run):
    answer = '\n# %% tags=["answer"]\nprint("forty-two")\n'
    assert "forty-two" not in run(answer)[1]
    assert "forty-two" in run(answer, "--answers")[1]


def test_a_failing_cell_is_reported_and_the_others_run(run, tmp_path):
    script = "\n# %%\nprint('before')\nx = undefined\n\n# %%\nprint(x)\n\n# %%\nprint('after')\n"
    status, printed, errors = run(script)
    assert status == 1 and "before" in printed and "after" in printed
    assert errors.count("Traceback") == 1 and 'page.py", line 14, in <module>\n    x = undefined' in errors
    assert "cells.py" not in errors and "section.py" not in errors
    failed = result(tmp_path)["failed"]
    assert [line.split(": ")[0] for line in failed] == ["page.py, line 13", "page.py, line 17"]
    assert "name 'x' is not defined" in failed[1]
    assert outputs(tmp_path).count("error") == 2


def test_a_run_on_a_busy_machine_says_so(run, tmp_path, monkeypatch):
    monkeypatch.setattr(cells, "other_load", lambda: contextlib.nullcontext(OtherLoad(others=1.25)))
    status, printed, _ = run("")
    assert status == 0 and re.search(r"note: other programs used 1\.25 of \d+ cores meanwhile", printed)
    notes = [block["text"] for block in result(tmp_path)["blocks"] if block["kind"] == "note"]
    assert notes[-1].endswith("meanwhile, so times are noisy")
    assert notebook(tmp_path).metadata["jaxperf"]["busy"].startswith("other programs used ")


def test_a_mistake_is_one_line_and_status_2(run, tmp_path):
    for flags, line in (
        (["--nn", "4"], "there is no flag --nn (did you mean --n?)"),
        (["--n", "four"], "give a whole number"),
        (["--devices", "0"], "--devices is 0; give at least 1"),
        (["--platform", "gpu"], "JAX finds no GPU; use the CPU"),
        (["--json", str(tmp_path)], "it is a folder; give another path"),
    ):
        status, printed, errors = run("", *flags)
        assert (status, errors.count("\n")) == (2, 1) and "Three is" not in printed, errors
        assert errors.startswith("error: ") and line in errors


def test_load_gives_the_names_of_the_cells_that_are_not_slow(tmp_path):
    path = tmp_path / "page.py"
    path.write_text(HEAD + '\n# %%\ndef f():\n    return s.n\n\n# %% tags=["slow"]\ng = 1\n')
    page = cells.load(path, "--n", "5")
    assert page.f() == 5 and not hasattr(page, "g")


# --- ends that need a process


def start_waiting(folder, script):
    process = start(folder, script)
    assert "waiting\n" in iter(process.stdout.readline, "")
    return process


def test_control_c_keeps_what_there_is(tmp_path):
    (tmp_path / "page.json").write_text("of an earlier run")
    script = "\n# %%\nimport time\nprint('waiting', flush=True)\ntime.sleep(60)\n"
    with start_waiting(tmp_path, script) as process:
        process.send_signal(signal.SIGINT)
        errors = process.communicate()[1]
    assert process.returncode == 130 and "Traceback" not in errors and "page.incomplete.json" in errors
    assert (tmp_path / "page.json").read_text() == "of an earlier run"
    assert result(tmp_path, "page.incomplete.json")["facts"] == {"n": 3}
    assert outputs(tmp_path, "page.incomplete.ipynb")[-1] == "error"


SIGNALS = cases([(signal.SIGINT, 130), (signal.SIGTERM, 143)], quick=lambda _, n: n == 130)


@pytest.mark.parametrize("number, status", SIGNALS)
def test_ctrl_c_ends_a_section_whose_main_thread_stays_in_c_as_in_a_compilation(tmp_path, number, status):
    script = (
        "\n# %%\nimport hashlib, subprocess\nfrom pathlib import Path\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "Path('.page.json.x.part').touch()\nprint('waiting', flush=True)\n"
        "hashlib.pbkdf2_hmac('sha256', b'', b'', 2**31 - 1)\nPath('after').touch()\n"
    )
    with start_waiting(tmp_path, script) as process:
        process.send_signal(number)
        errors = process.communicate()[1]  # also waits for the child, which has the same pipe
    assert process.returncode == status and errors.endswith("stopped\n"), errors
    names = {path.name for path in tmp_path.iterdir()}
    assert names == {"page.py", "page.incomplete.json", "page.incomplete.ipynb"}
    assert result(tmp_path, "page.incomplete.json")["facts"] == {"n": 3}


def test_why_jax_cannot_start_is_on_the_terminal(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--nosuch")
    status, _, errors = run_process(tmp_path, "", stem="starts")
    assert status != 0 and "Unknown flag in XLA_FLAGS: --nosuch" in errors
