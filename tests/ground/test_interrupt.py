"""Runs that are stopped at random moments end soon, say no traceback and leave nothing behind."""

import ast
import contextlib
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import jax
import psutil
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import interrupt
from interrupt import WAYS, Config

from jaxperf.errors import JaxperfError

ROOT = Path(__file__).parents[2]


@pytest.mark.thorough
@pytest.mark.parametrize("latest_s", [1.0, 4.0])
def test_a_run_that_is_stopped_at_a_random_moment_leaves_nothing_behind(latest_s: float) -> None:
    interrupt.main(Config(times=2 * len(WAYS), latest_s=latest_s))


@pytest.mark.parametrize(
    "path",
    [
        ROOT / "experiments" / "train.py",
        *(
            path
            for folder in ("tools", "benchmarks")
            for path in sorted((ROOT / folder).glob("*.py"))
            if "jaxperf.process import" in path.read_text()
        ),
    ],
    ids=lambda p: p.name,
)
def test_a_script_sees_to_ctrl_c_before_it_imports_anything_but_the_standard_library(path: Path) -> None:
    """But for two that other Pythons run, which have no jaxperf."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.If):
            assert "end_at_once()" in ast.unparse(node)
            return
        match node:
            case ast.Import(names=names):
                imported = [name.name for name in names]
            case ast.ImportFrom(module=str(module)):
                imported = [module]
            case _:
                imported = []
        others = {name.split(".")[0] for name in imported} - sys.stdlib_module_names
        if others:
            assert path.name in ("make_mxnet_fixtures.py",)
            assert others == {"numpy"}
            return


def test_only_a_traceback_from_before_our_first_lines_is_pythons_own() -> None:
    def traceback(*files: Path | str, error: str = "KeyboardInterrupt") -> str:
        return "".join(f'  File "{file}", line 1, in <module>\n' for file in files) + error

    script, library = ROOT / "experiments" / "train.py", Path(os.__file__).parent
    first = (
        "<frozen importlib>",
        script,
        ROOT / "jaxperf" / "process.py",
        library / "shutil.py",
    )
    assert interrupt.by_python(traceback(*first))
    assert not interrupt.by_python(traceback(*first, error="ZeroDivisionError"))
    for later in (ROOT / "jaxperf" / "jax_internals.py", Path(psutil.__file__), Path(jax.__file__)):
        assert not interrupt.by_python(traceback(*first, later))


def test_what_a_run_must_not_leave_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of a program that does everything wrong."""
    program = tmp_path / "train.py"
    program.write_text(
        "import pathlib, signal, subprocess, sys, time\n"
        "for n in (1, 2, 15): signal.signal(n, lambda *_: 1 / 0)\n"
        "folder = pathlib.Path(sys.argv[1].removeprefix('--json=')).parent\n"
        "(folder / '.x.part').touch()\n"
        "(folder / 'train.json').write_text('{')\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdout=subprocess.DEVNULL,\n"
        "                 stderr=subprocess.DEVNULL, start_new_session=True)\n"
        "pathlib.Path(__file__).with_name('ready').touch()\n"
        "time.sleep(60)\n"
    )

    def sleep(seconds: float) -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)

    of_trial = interrupt.of_trial

    def left_by_the_program(mark: str) -> list[psutil.Process]:
        """What still runs once the program itself is over, however long that takes."""
        while True:
            running = list(of_trial(mark))
            if not any(str(program) in commands(process) for process in running):
                return running
            time.sleep(0.05)

    monkeypatch.setattr(interrupt, "of_trial", left_by_the_program)
    monkeypatch.setattr(interrupt, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(interrupt.catalogue, "folder", lambda: tmp_path)
    monkeypatch.setattr(interrupt, "PATIENCE_S", 0.5)
    trial = interrupt.stopped(Config(), "Ctrl-C", 1.0, by_hand=True)
    assert sorted(line.split(":")[0].split(" is not")[0].split("/")[-1] for line in trial.trouble) == [
        "exit status 1",
        "left .x.part",
        "process left",
        "traceback",
        "train.json",
    ]
    monkeypatch.setattr(interrupt, "stopped", lambda *_, **__: trial)
    with pytest.raises(JaxperfError, match="2 of 2 stopped runs left something behind"):
        interrupt.main(Config(times=2, latest_s=1.0))


def commands(process: psutil.Process) -> list[str]:
    """Return a process's command line; [] if it has ended."""
    with contextlib.suppress(psutil.Error):
        return process.cmdline()
    return []
