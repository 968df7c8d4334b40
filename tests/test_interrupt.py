"""Runs that are stopped at random moments end soon, say no traceback and leave nothing behind."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import interrupt
from interrupt import WAYS, Config

from jaxperf.errors import JaxperfError


@pytest.mark.thorough
@pytest.mark.parametrize("times", [2 * len(WAYS)])
def test_a_run_that_is_stopped_at_a_random_moment_leaves_nothing_behind(times: int) -> None:
    interrupt.main(Config(times=times, latest_s=4.0))


def test_what_a_run_must_not_leave_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial of a program that does everything wrong."""
    program = tmp_path / "use_gpu.py"
    program.write_text(
        "import pathlib, signal, subprocess, sys, time\n"
        "for n in (1, 2, 15): signal.signal(n, lambda *_: 1 / 0)\n"
        "folder = pathlib.Path(sys.argv[1].removeprefix('--json=')).parent\n"
        "(folder / '.x.part').touch()\n"
        "(folder / 'use_gpu.json').write_text('{')\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], stdout=subprocess.DEVNULL,\n"
        "                 stderr=subprocess.DEVNULL, start_new_session=True)\n"
        "pathlib.Path(__file__).with_name('ready').touch()\n"
        "time.sleep(60)\n"
    )

    def sleep(seconds: float) -> None:
        while not (tmp_path / "ready").exists():
            time.sleep(0.05)

    monkeypatch.setattr(interrupt, "time", SimpleNamespace(sleep=sleep, monotonic=time.monotonic))
    monkeypatch.setattr(interrupt.catalogue, "folder", lambda: tmp_path)
    monkeypatch.setattr(interrupt, "PATIENCE_S", 0.5)
    trial = interrupt.stopped(Config(), "Ctrl-C", 1.0, by_hand=True)
    assert sorted(words.split(":")[0].split(" is not")[0].split("/")[-1] for words in trial.trouble) == [
        "exit status 1",
        "left .x.part",
        "process left",
        "traceback",
        "use_gpu.json",
    ]
    monkeypatch.setattr(interrupt, "stopped", lambda *_, **__: trial)
    with pytest.raises(JaxperfError, match="2 of 2 stopped runs left something behind"):
        interrupt.main(Config(times=2, latest_s=1.0))
