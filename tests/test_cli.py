import json
import os
import subprocess
import sys
import time

import children
import pytest
from disks import bound_by_permissions, make_read_only

from jaxperf import cli
from jaxperf.chapter import catalogue
from jaxperf.process import child_environment
from jaxperf.result import Environment, Measurement, Result, Table, load_result, save_result
from jaxperf.result.store import to_json

GOOD = """
import pathlib, shutil, sys
path = next(a.removeprefix("--json=") for a in sys.argv if a.startswith("--json="))
shutil.copy(pathlib.Path(__file__).with_suffix(".sample"), path)
arguments = [a for a in sys.argv[1:] if not a.startswith(("--json=", "--notebook="))]
print("run of", pathlib.Path(__file__).stem, *arguments)
"""


def sample(name):
    return to_json(timed(name, (1.0, 2.0)))


def timed(name, values):
    table = Table("Times", (Measurement(f"time of {name}", "s", values),))
    return Result(name, "9.1", name.title(), "What?", {}, Environment(), blocks=(table,))


@pytest.fixture
def out(tmp_path, monkeypatch):
    folder = tmp_path / "experiments"
    folder.mkdir()
    rows = (("first", "9.1"), ("second", "9.2"))
    sections = tuple(catalogue.SectionEntry(name, number, name.title(), "What?", 60) for name, number in rows)
    monkeypatch.setattr(catalogue, "SECTIONS", sections)
    monkeypatch.setattr(catalogue, "folder", lambda: folder)
    for name, _ in rows:
        (folder / f"{name}.py").write_text(GOOD)
        (folder / f"{name}.sample").write_text(sample(name))
    return tmp_path / "results"


# --- talking only


def test_what_only_talks_imports_neither_jax_nor_numpy():
    code = (
        "import sys; from jaxperf import cli\n"
        "for arguments in ('--help', 'list', '--version', 'help', 'run --help'):\n"
        "    assert cli.main(arguments.split()) == 0\n"
        "    loaded = sorted({'jax', 'flax', 'numpy', 'psutil'} & set(sys.modules))\n"
        "    assert not loaded, (arguments, loaded)"
    )
    done = children.run("-c", code)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout


def test_help_names_every_command_however_it_is_asked_for(capsys):
    shown = []
    for arguments in (["--help"], ["-h"], ["help"], ["run", "--help"], ["help", "run"]):
        assert cli.main(arguments) == 0
        shown.append(capsys.readouterr().out)
    assert all(f"  {command} " in shown[0] for command in cli.COMMANDS)
    assert shown[0] == shown[1] == shown[2] and shown[3] == shown[4] != shown[0]


def test_the_list_tells_number_name_time_and_question_of_each_section(capsys):
    assert cli.main(["list"]) == 0
    shown = capsys.readouterr().out
    for section in catalogue.SECTIONS:
        assert all(part in shown for part in (section.number, section.name, section.title, section.question))
    assert shown.count("about") == len(catalogue.SECTIONS) + 1  # and all together


# --- mistakes

MISTAKES = {
    "": "no command given",
    "rnu first": "did you mean run?",
    "help nothing": "no command 'nothing'; there are watch, measure, ",
    "version x": "no command 'version'; there are watch, measure, ",
    "run": "no section named",
    "run frist": "did you mean first?",
    "run alll": "did you mean all?",
    "run first 9.3": "no section '9.3'",
    "run first --smok": "did you mean --smoke",
    "run first --size 3": "what it runs, with its flags, comes after `--`",
    "run first --devices two": "--devices",
    "run first --devices -2": "--devices is -2",
    "run first --devices 0": "--devices is 0; give at least 1",
    "run first --devices 999999999999999999999": "at most 1024",
    "run first --platform tpu": "--platform invalid choice: 'tpu'",
    "run first --smoke --full": "--full not allowed with argument --smoke",
    "run all -- --size=3": "first, second",
    "list all": "list --help`",
    "list -- --size=3": "`list` takes no arguments after --",
    "-- run": "no flag '--'",
    "gate baselines jaxperf measure f {}": "what it runs, with its flags, comes after `--`",
    "report nowhere": "cannot read nowhere: No such file",
    "report nowhere.json": "cannot read nowhere.json: No such file",
    f"report {__file__}/x": f"cannot read {__file__}/x: Not a directory",
    "--nonsense": "--nonsense",
}


def test_a_mistake_is_one_line_and_status_2_before_anything_runs(out, capfd):
    for mistake, says in MISTAKES.items():
        arguments = mistake.split()
        if arguments[:1] == ["run"] and "--" not in arguments:
            arguments.append(f"--out={out}")
        assert cli.main(arguments) == 2, mistake
        shown = capfd.readouterr()
        assert shown.out == "", mistake
        assert shown.err.startswith("error: ") and shown.err.count("\n") == 1 and says in shown.err, mistake
    assert not out.exists()


# --- running


def test_run_leaves_a_result_for_each_section_which_gets_its_flags_and_what_follows_two_dashes(out, capfd):
    assert cli.main(["run", "all", "--out", str(out), "--smoke"]) == 0
    shown = capfd.readouterr().out
    assert shown.index("run of first --smoke") < shown.index("[2/2] second") < shown.index("run of second")
    assert all(str(out / f"{name}.json") in shown for name in ("first", "second"))
    assert f"report {out}`" in shown.splitlines()[-1]
    assert cli.main(["run", "first", f"--out={out}", "--full", "--devices=4", "--platform=cpu"]) == 0
    assert "run of first --full --devices=4 --platform=cpu" in capfd.readouterr().out
    assert cli.main(["run", "9.2", f"--out={out}", "--", "--size", "3", "--", "x"]) == 0
    assert "run of second --size 3 -- x" in capfd.readouterr().out


def test_a_failing_section_is_named_and_the_others_still_run(out, capfd):
    (catalogue.folder() / "first.py").write_text("raise SystemExit(7)")
    assert cli.main(["run", "all", "--out", str(out)]) == 1
    shown = capfd.readouterr()
    assert "run of second" in shown.out and "1 of 2 sections succeeded" in shown.out
    assert "failed: first: exit status 7" in shown.err
    assert [p.name for p in out.iterdir()] == ["second.json"]
    assert cli.main(["run", "first", "--out", str(out)]) == 7  # a single section's own status


def test_two_runs_into_one_folder_leave_one_whole_result_of_either(out):
    source = f"""
import sys, time
from pathlib import Path
from jaxperf.chapter.catalogue import SectionEntry
from jaxperf.result import Environment, save_result
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import save_so_far
path = Path({str(out / "first.json")!r})
about = SectionEntry("first", "9.1", "First", "?", 1)
recorder = Recorder(about, Environment(), {{"run": sys.argv[1]}}, command="")
for i in range(40):
    recorder.fact(f"fact {{i}}", sys.argv[1])
    save_so_far(recorder.result(), path)
    while i == 20 and not path.with_name("go").exists():
        time.sleep(0.01)
save_result(recorder.result(), path)
"""
    runs = [children.start("-c", source, run) for run in "ab"]
    halfway = out / "first.incomplete.json"
    while not halfway.exists() and all(run.poll() is None for run in runs):
        time.sleep(0.01)
    assert load_result(halfway).incomplete
    (out / "go").touch()
    assert [(run.communicate()[1], run.returncode) for run in runs] == [("", 0)] * 2
    (out / "go").unlink()
    result = load_result(out / "first.json")
    assert not result.incomplete and list(result.facts.values()) == [result.config["run"]] * 40
    assert {path.suffix for path in out.iterdir()} == {".json"}


# --- reporting


def test_the_report_shows_good_results_and_names_what_it_leaves_out(out, capsys):
    out.mkdir()
    for name in ("second", "first"):
        (out / f"{name}.json").write_text(sample(name))
    assert cli.main(["report", str(out / "first.json")]) == 0
    assert "time of first" in capsys.readouterr().out
    (out / "cut.json").write_text(sample("first")[:200])
    (out / "foreign.json").write_text(json.dumps({"rows": [1, 2]}))
    (out / "notes.txt").write_text("not looked at")
    assert cli.main(["report", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.out.index("time of first") < shown.out.index("time of second")  # the chapter's order
    left_out = [line for line in shown.err.splitlines() if line.startswith("left out: ")]
    assert ["cut.json" in left_out[0], "foreign.json" in left_out[1], len(left_out)] == [True, True, 2]
    assert "cut.json" not in shown.out and str(out / "first.json") in shown.out


# --- comparing


def test_a_result_is_no_slower_than_itself_but_than_a_faster_one(tmp_path, capsys):
    for side, factor in (("a", 1.0), ("b", 1.5)):
        for i in range(6):
            values = tuple(factor * (0.010 + 0.00001 * (i + k)) for k in range(20))
            save_result(timed("first", values), tmp_path / side / f"{i}.json")
    files, lists, folders = [], [], []
    for folder in (tmp_path / "a", tmp_path / "b"):
        paths = [str(path) for path in sorted(folder.iterdir())]
        files.append(paths[0])
        lists.append(",".join(paths))  # longer than a file's name may be
        folders.append(f"{folder}/")
    for a, b in (files, lists, folders):
        assert cli.main(["compare", a, a]) == 0
        assert cli.main(["compare", b, a]) == 0
        several = a != files[0]  # one result per side decides nothing
        assert cli.main(["compare", a, b]) == several
        shown = capsys.readouterr().out
        assert ("1 slower" in shown) == several
        assert ("What would decide: 4 results per side instead of 1 and 1" in shown) != several


def test_a_mistake_in_a_comparison_is_one_line_and_status_2(tmp_path, capsys):
    good, empty = tmp_path / "a.json", tmp_path / "empty"
    save_result(timed("first", (1.0,)), good)
    empty.mkdir()
    for arguments, says in (
        ([str(tmp_path / "none.json")], "cannot read"),
        ([f"{good},"], "has nothing on one side of a comma; give A1,A2 without blanks"),
        ([f"{good},{empty}/../a.json"], "a.json is named twice; each result counts once"),
        ([f"{tmp_path},{good}"], f"{good} is named twice; each result counts once"),
        (["x" * 300], "cannot read"),
        ([str(empty)], "no result to compare on one side"),
        ([str(good), "--alpha", "2"], "--alpha is 2; give more than 0 and at most 1"),
        ([str(good), "--least", "-1"], "--least is -1"),
    ):
        assert cli.main(["compare", str(good), *arguments]) == 2
        message = capsys.readouterr().err
        assert message.startswith("error: ") and message.count("\n") == 1 and says in message


def test_what_is_not_a_file_is_left_out_and_never_waited_for(tmp_path, capsys):
    (tmp_path / "first.json").write_text("{")
    for path, says in ((tmp_path, "no result to show"), (tmp_path / "first.json", "first.json is not JSON")):
        assert cli.main(["report", str(path)]) == 2
        assert says in capsys.readouterr().err.splitlines()[-1]
    save_result(timed("first", (1.0,)), tmp_path / "first.json")
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "endless.json").symlink_to("/dev/zero")
    (tmp_path / "gone.json").symlink_to(tmp_path / "nowhere")
    (tmp_path / "folder.json").mkdir()
    assert cli.main(["report", str(tmp_path)]) == 0
    shown = capsys.readouterr()
    assert shown.err.count("left out: cannot read") == 4
    assert "time of first" in shown.out and "left out" not in shown.out


@pytest.mark.real
def test_a_read_only_disk_is_one_line_where_something_is_to_be_written(small_disk, capsys):
    save_result(timed("first", (1.0,)), small_disk / "first.json")
    make_read_only(small_disk)
    for folder in (small_disk, small_disk / "new"):
        assert cli.main(["run", "use_gpu", "--out", str(folder)]) == 2
        message = capsys.readouterr().err
        says = f"error: cannot write {folder}/use_gpu.json: Read-only file"
        assert message.startswith(says) and message.count("\n") == 1, message
    for command in (f"report {small_disk}", f"compare {small_disk} {small_disk}"):
        assert cli.main(command.split()) == 0


@pytest.mark.skipif(bound_by_permissions() is None, reason="no setpriv, which makes root obey permissions")
def test_what_permissions_forbid_is_one_line(tmp_path):
    good, shut, fixed = (tmp_path / name for name in ("good", "shut", "fixed"))
    for folder in (good, shut, fixed):
        save_result(timed("first", (1.0,)), folder / "first.json")
    shut.chmod(0o000)
    fixed.chmod(0o500)
    commands = {
        f"report {shut}": f"error: {shut}: Permission denied; check the path and its permissions",
        f"report {shut}/first.json": f"error: cannot read {shut}/first.json: Permission denied",
        f"compare {shut} {good}": f"error: {shut}: Permission denied",
        f"compare {shut}/first.json {good}": f"error: cannot read {shut}/first.json: Permission denied",
        f"run use_gpu --out {fixed}": f"error: cannot write {fixed}/use_gpu.json: Permission denied",
        f"run use_gpu --out {fixed}/new": f"error: cannot write {fixed}/new/use_gpu.json: Permission denied",
    }
    program = (
        "import shlex, sys; from jaxperf import cli\n"
        "for line in sys.argv[1:]: print('status', cli.main(shlex.split(line)), file=sys.stderr, flush=True)"
    )
    command = [*(bound_by_permissions() or ()), sys.executable, "-c", program, *commands]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment())
    shut.chmod(0o700)
    lines = done.stderr.splitlines()
    assert (done.stdout, lines[1::2]) == ("", ["status 2"] * len(commands))
    assert all(line.startswith(says) for line, says in zip(lines[::2], commands.values(), strict=True)), lines


def test_names_of_files_command_no_terminal(out, capsys):
    save_result(timed("first", (1.0,)), out / "first.json")
    save_result(timed("second", (1.0,)), out / "\x1b[31mgood.json")
    (out / "\x1b[31mred.json").write_text("{")
    os.close(os.open(os.fsencode(out / "not utf-8 ") + b"\xff.json", os.O_CREAT))
    for arguments, named in (["report", str(out)], "\\x1b[31mgood.json"), (["compare", *[str(out)] * 2], ""):
        assert cli.main(arguments) == 0
        shown = capsys.readouterr()
        assert not set("\x1b\udcff") & set(shown.out + shown.err), arguments
        assert "\\x1b[31mred.json is not JSON" in shown.err
        assert named in shown.out
    for arguments in (["report", "\x1b[31m"], ["compare", "\x1b[31m", str(out)], ["report", "x" * 300]):
        assert cli.main(arguments) == 2
        assert capsys.readouterr().err.startswith(("error: cannot read \\x1b", "error: cannot read xxx"))
