"""What all section scripts share, from the first flag to the last line."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import tyro
from disks import fill

from jaxperf import catalogue, cli, script
from jaxperf.doctor import driver
from jaxperf.doctor.driver import Driver, Gpu
from jaxperf.errors import JaxperfError
from jaxperf.flags import at_least
from jaxperf.measure import environment
from jaxperf.result import Environment, load_result

# A script finds its section by its file's name, so this one poses as section 8.1's.
SCRIPT = '''"""8.1 A toy: how many devices are there?

More that --help does not show.
"""
from dataclasses import dataclass
from jaxperf import script

@dataclass(frozen=True)
class Config:
    size: int = 1000
    """Rows."""
    sizes: tuple[int, ...] = (1, 2)
    """Sizes to try."""

    @staticmethod
    def smoke() -> "Config":
        return Config(size=10, sizes=(1,))

FLAGS = script.parse(Config, devices=2) if __name__ == "__main__" else None

import jax

def main(config, story):
    story.fact("devices", len(jax.devices("cpu")))
    story.fact("size", config.size)

if __name__ == "__main__":
    script.run(main, FLAGS)
'''


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    (tmp_path / "hybridize.py").write_text(SCRIPT)
    return tmp_path / "hybridize.py"


def python(*words: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1]), "JAX_PLATFORMS": "cpu", **variables}
    env.pop("JAX_NUM_CPU_DEVICES", None)
    return subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=env)


def test_a_run_makes_its_devices_and_leaves_its_result(toy: Path, tmp_path: Path) -> None:
    out = tmp_path / "new" / "r.json"
    done = python(toy, "--devices", "3", "--size", "7", "--json", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == f"result: {out}"
    body = json.loads(out.read_text())
    assert {b["name"]: b["value"] for b in body["blocks"]} == {"devices": 3, "size": 7}
    assert body["config"] == {"size": 7, "sizes": [1, 2], "devices": 3}
    assert body["environment"]["devices_are_fake"] is True
    assert "devices are fake: 3 CPU devices" in done.stdout
    found = load_result(out)
    assert (found.experiment, found.section, found.smoke) == ("hybridize", "8.1", False)
    assert found.script == toy.read_text()
    assert found.command == f"python experiments/hybridize.py --devices 3 --size 7 --json {out}"


@pytest.mark.thorough
def test_a_smoke_run_with_the_scripts_own_devices_and_a_given_size(toy: Path) -> None:
    done = python(toy, "--smoke", "--verbose", "--size", "7")
    assert (done.returncode, done.stderr) == (0, "")
    assert {"devices: 2", "size: 7"} <= set(done.stdout.splitlines())
    assert "toy sizes, the times mean nothing" in done.stdout
    assert done.stdout.splitlines()[-1] == "result: not kept; give --json PATH to keep it"


def test_help_comes_before_jax_is_imported(toy: Path) -> None:
    program = (
        "import runpy, sys; sys.argv = [sys.argv[1], '--help']\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as e: print('status', e.code, {'jax', 'flax', 'numpy'} & set(sys.modules))"
    )
    done = python("-c", program, toy)
    assert done.stdout.splitlines()[-1] == "status 0 set()"
    assert "--size INT" in done.stdout
    assert "--devices INT" in done.stdout


def test_a_mistake_ends_the_process_with_one_line_and_status_2(toy: Path) -> None:
    done = python(toy, "--devices", "0")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


@dataclass(frozen=True)
class Config:
    size: Annotated[int, at_least(1)] = 1000
    rate: float = 0.1

    @staticmethod
    def smoke() -> Config:
        return Config(size=10, rate=0.5)


Parse = Callable[..., script.Flags[Config]]


@pytest.fixture
def parse(monkeypatch: pytest.MonkeyPatch) -> Parse:
    """`script.parse` for a command line; what it sets in the process is put back."""
    monkeypatch.setattr(script, "end_at_once", lambda: None)
    for name in ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.setenv(name, os.environ.get(name, ""))

    def parse(*words: str, devices: int = 1) -> script.Flags[Config]:
        monkeypatch.setattr(sys, "argv", ["hybridize.py", *words])
        return script.parse(Config, devices=devices)

    return parse


def test_flags_win_over_smoke_and_smoke_over_the_defaults(parse: Parse) -> None:
    assert parse().config == Config(1000, 0.1)
    assert parse("--smoke").config == Config(10, 0.5)
    for words in (["--smoke", "--size", "7"], ["--size", "7", "--smoke"]):
        assert parse(*words).config == Config(7, 0.5)


def test_a_folder_to_save_in_is_refused_before_the_work(tmp_path: Path) -> None:
    assert isinstance(script.Saving().folder(), contextlib.nullcontext)
    with pytest.raises(JaxperfError, match=r"^--resume is given without a folder; add --checkpoints DIR$"):
        script.Saving(resume=True)
    (tmp_path / "1-device" / "step-00000001").mkdir(parents=True)
    script.Saving(tmp_path, resume=True).check()
    with pytest.raises(JaxperfError, match="holds checkpoints; add --resume to go on"):
        script.Saving(tmp_path).check()


def test_devices_and_platform_are_set_for_jax_to_read(parse: Parse) -> None:
    assert parse(devices=4).devices == 4
    assert os.environ["JAX_NUM_CPU_DEVICES"] == "4"
    parse("--devices", "2", "--platform", "cpu", devices=4)
    assert os.environ["JAX_NUM_CPU_DEVICES"] == "2"
    assert os.environ["JAX_PLATFORMS"] == "cpu"
    parse("--platform", "gpu")
    assert os.environ["JAX_PLATFORMS"] == "cuda,cpu"


def test_a_setting_that_jax_refuses_is_one_line(toy: Path) -> None:
    done = python(toy, JAX_ENABLE_X64="maybe")
    assert (done.returncode, done.stdout) == (2, "")
    assert "JAX_ENABLE_X64" in done.stderr and "jaxperf doctor" in done.stderr
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


def test_a_jax_that_cannot_be_imported_is_one_line_for_commands_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)  # importing it now raises an error
    for words in (["measure", "train:step"], ["roofline"]):
        assert cli.main(words) == 2
        said = capsys.readouterr()
        assert said.out == "" and said.err.startswith("error: JAX cannot be imported: "), said
        assert said.err.endswith("jaxperf doctor` says why\n") and said.err.count("\n") == 1


@pytest.mark.thorough
def test_a_setting_that_jax_refuses_is_one_line_for_commands_and_a_watched_programs_own_error(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text("import jax\n")
    program = (
        "import sys; from jaxperf import cli\n"
        "for line in sys.argv[1:]: print('status', cli.main(line.split()), file=sys.stderr, flush=True)"
    )
    commands = ("measure train:step", "roofline", f"watch {tmp_path}/train.py")
    done = python("-c", program, *commands, JAX_ENABLE_X64="maybe")
    first, status, second, same, *watched = done.stderr.splitlines()
    assert first.startswith("error: JAX cannot be imported: ") and "JAX_ENABLE_X64" in first
    assert (second, status, same, watched[-1]) == (first, "status 2", "status 2", "status 1")
    assert "train.py" in watched[1] and "until it failed with ValueError" in done.stderr


def test_a_data_folder_that_is_not_there_is_one_line_before_jax_starts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Named in the environment too, where no flag is at fault."""

    @dataclass(frozen=True)
    class Images(Config):
        data: Annotated[script.Data, tyro.conf.OmitArgPrefixes] = script.Data()

    monkeypatch.setattr(script, "end_at_once", lambda: None)
    monkeypatch.setattr(script, "import_jax", lambda: pytest.fail("JAX was imported"))
    for words, folder in (([], "~nosuch/x"), (["--data-folder", "/none"], "")):
        monkeypatch.setenv("JAXPERF_DATA", folder)
        monkeypatch.setattr(sys, "argv", ["hybridize.py", *words])
        with pytest.raises(SystemExit) as caught:
            script.parse(Images)
        said = capsys.readouterr().err
        assert caught.value.code == 2
        assert said.startswith(f"error: {folder or '/none'}: no such folder; ") and said.count("\n") == 1


def test_nothing_is_written_or_set_after_a_mistake(
    parse: Parse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = dict(os.environ)
    for mistake in (
        "--nope",
        "--size x",
        "--size 0",
        "--devices 0",
        "--devices -1",
        "--devices two",
        "--platform tpu",
        "--json",
    ):
        with pytest.raises(SystemExit) as caught:
            parse("--json", str(tmp_path / "new" / "r.json"), *mistake.split())
        assert caught.value.code == 2, mistake
        said = capsys.readouterr()
        assert said.out == ""
        assert said.err.startswith("error: ")
        assert said.err.count("\n") == 1
        assert not list(tmp_path.iterdir())
        assert dict(os.environ) == before


def test_a_path_that_cannot_be_written_is_told_before_the_work(
    parse: Parse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse("--json", str(tmp_path))
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"error: cannot write {tmp_path}: it is a folder; give another path\n"


def test_a_mistake_found_by_the_section_is_one_line_and_writes_nothing(
    parse: Parse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def main(config: Config, story: script.Story) -> None:
        story.fact("half", 1)
        raise JaxperfError("batch size 100 is not divisible by 8 devices; use 96 or 104")

    with pytest.raises(SystemExit) as caught:
        script.run(main, parse("--json", str(tmp_path / "r.json")))
    assert caught.value.code == 2
    said = capsys.readouterr()
    assert said.err == "error: batch size 100 is not divisible by 8 devices; use 96 or 104\n"
    assert "result:" not in said.out
    assert not list(tmp_path.iterdir())


def test_a_part_that_fails_costs_itself_and_the_status(
    parse: Parse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def breaks(story: script.Story) -> None:
        raise RuntimeError("no luck")

    def main(config: Config, story: script.Story) -> None:
        story.part(breaks)
        story.fact("after", 1)

    with pytest.raises(SystemExit) as caught:
        script.run(main, parse("--json", str(tmp_path / "r.json")))
    assert caught.value.code == 1
    assert "failed: breaks: RuntimeError: no luck" in capsys.readouterr().out
    assert load_result(tmp_path / "r.json").facts == {"after": 1}


def test_a_run_that_is_stopped_keeps_what_it_has_found_marked_incomplete_next_to_an_earlier_result(
    parse: Parse, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def found(story: script.Story, **facts: int) -> None:
        for name, value in facts.items():
            story.fact(name, value)

    def stops(story: script.Story) -> None:
        story.fact("begun", 1)
        signal.raise_signal(signal.SIGTERM)

    def main(config: Config, story: script.Story) -> None:
        story.part(found, a=1)
        if config.size == 1:
            story.part(stops)
        story.part(found, b=2)

    path, partial = tmp_path / "r.json", tmp_path / "r.incomplete.json"
    for size, status, files in ((2, 0, [path]), (1, 143, [partial, path]), (3, 0, [path])):
        with pytest.raises(SystemExit) as caught:
            script.run(main, parse("--json", str(path), "--size", str(size)))
        assert caught.value.code == status
        assert sorted(tmp_path.iterdir()) == files
        whole = load_result(path)
        assert (whole.incomplete, whole.facts, whole.config["size"]) == (
            False,
            {"a": 1, "b": 2},
            max(size, 2),
        )
        said = capsys.readouterr()
        assert said.err == (f"result so far, incomplete: {partial}\nstopped\n" if status else "")
        if status:
            so_far = load_result(partial)
            assert (so_far.incomplete, so_far.facts) == (True, {"a": 1, "begun": 1})


@pytest.mark.real
def test_a_full_disk_costs_a_line_per_part_and_the_result_but_not_the_run(
    parse: Parse, small_disk: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (small_disk / "r.json").write_text("the old")
    told = []

    def tells(story: script.Story) -> None:
        told.append(story.fact("a", 1))

    def main(config: Config, story: script.Story) -> None:
        for _ in range(2):
            story.part(tells)

    flags = parse("--json", str(small_disk / "r.json"))
    ballast = fill(small_disk)
    with pytest.raises(SystemExit) as caught:
        script.run(main, flags)
    ballast.unlink()
    assert (caught.value.code, len(told)) == (2, 2)
    said = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in said] == ["warning", "warning", "error"]
    assert all(line.endswith("No space left on device; give another path") for line in said)
    assert [(p.name, p.read_text()) for p in small_disk.iterdir()] == [("r.json", "the old")]


def test_a_defect_of_the_section_is_not_dressed_up(parse: Parse) -> None:
    def main(config: Config, story: script.Story) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        script.run(main, parse())


def test_a_platform_that_is_not_there_is_one_line(
    parse: Parse, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """JAX raises one of two errors, or goes on to the next platform of the list without a word."""

    def no_devices(error: Exception) -> Environment:
        raise error

    for found in (
        lambda **_: no_devices(RuntimeError("Unknown backend")),
        lambda **_: no_devices(AssertionError()),
        lambda **_: Environment(backend="cpu"),
    ):
        monkeypatch.setattr(environment, "current_environment", found)
        with pytest.raises(SystemExit) as caught:
            script.run(lambda config, story: None, parse("--platform", "gpu"))
        assert caught.value.code == 2
        line = capsys.readouterr().err
        assert line.startswith("error: JAX finds no GPU; use --platform cpu, or see `")
        assert line.endswith("jaxperf doctor`\n") and line.count("\n") == 1


def test_a_default_number_of_devices_is_reduced_to_what_exists_and_an_explicit_one_is_not(
    parse: Parse, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = Environment(backend="gpu", devices=("gpu:0 H100",))
    monkeypatch.setattr(environment, "current_environment", lambda **_: one)
    for words, default, used in (([], 2, 1), ([], 1, 1), (["--devices", "2"], 1, 2), (["--devices=2"], 1, 2)):
        story = script.begin(catalogue.find("hybridize"), parse(*words, devices=default))
        assert story.devices == used


def test_a_gpus_result_names_its_driver_clock_and_power(monkeypatch: pytest.MonkeyPatch) -> None:
    h100 = Driver("570.86", (Gpu("NVIDIA H100", clock_mhz=345, most_clock_mhz=1980),))
    monkeypatch.setattr(driver, "ask_driver", lambda: h100)
    for backend, told in (
        ("gpu", ("NVIDIA driver 570.86", "0: NVIDIA H100, 345 of at most 1980 MHz")),
        ("cpu", ()),
    ):
        here = Environment(backend=backend)
        monkeypatch.setattr(environment, "current_environment", lambda here=here, **_: here)
        monkeypatch.delenv("JAX_PLATFORMS", raising=False)
        assert script.environment().gpus == told


def test_a_notebook_gets_a_story_with_its_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "current_environment", lambda **_: Environment(devices=("a", "b")))
    for name in ("JAX_PLATFORMS", "JAX_NUM_CPU_DEVICES"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    story = script.notebook("hybridize", Config(size=7), devices=2, smoke=True)
    assert (story.config, story.smoke) == ({"size": 7, "rate": 0.1, "devices": 2}, True)
    assert os.environ["JAX_NUM_CPU_DEVICES"] == "2"
