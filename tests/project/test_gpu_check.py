"""The check of a GPU machine: every step ends, the next one runs, and each statement has its verdict."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxperf.chapter.run_sections import choose_sections
from jaxperf.errors import JaxperfError
from jaxperf.frameworks.device_workloads import DEVICE_SMOKE, DeviceSizes, device_workloads
from jaxperf.models.lenet import PARAM_SHAPES

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.gpu_check import check, pack, steps
from tools.gpu_check.steps import Run, Step, Verdict

WELL = "print('well')"
BAD = "raise SystemExit(3)"
HANGS = "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); time.sleep(600)"
COMPILES = """
import sys, time
print("WARNING: Compiling jit(step) with global shapes and types", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(130)
"""


def ended_well(run: Run) -> Verdict:
    return run.status == 0, run.ending


def step(name: str, program: str, *, limit_s: float = 60, **options: Any) -> Step:
    options.setdefault("judge", ended_well)
    return Step(name, f"{name} ends well", ("-c", program), limit_s, **options)


@pytest.fixture
def checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    def run(*there: Step, seconds: float = 300, **options: Any) -> dict[str, Any]:
        monkeypatch.setattr(check, "steps", lambda folder, rehearse: list(there))
        monkeypatch.setattr(check, "GRACE_S", 1.0)
        assert check.main(tmp_path / "out", seconds=seconds, **options) == 0
        summary: dict[str, Any] = json.loads((tmp_path / "out" / "summary.json").read_text())
        return {name: row["verdict"] for name, row in summary["steps"].items()}

    return run


def test_after_a_failure_and_a_hang_the_next_step_runs_and_one_archive_holds_all(
    checked: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    there = [step("bad", BAD), step("hangs", HANGS, limit_s=0.5), step("well", WELL)]
    assert checked(*there) == {"bad": "does not hold", "hangs": "does not hold", "well": "holds"}
    with tarfile.open(tmp_path / "out" / "gpu_check.tar.gz") as archive:
        assert {"bad.log", "hangs.log", "well.log", "summary.json", "summary.md"} == set(archive.getnames())
    lines = (tmp_path / "out" / "summary.md").read_text().splitlines()
    assert lines[-1].startswith("| well ends well | holds | status 0 after ")


def test_what_is_not_reached_is_said_and_a_second_call_goes_on_there(
    checked: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    there = [step("first", WELL), step("second", BAD)]
    assert checked(*there, only=["first"]) == {"first": "holds", "second": "not reached"}
    before = (tmp_path / "out" / "first.log").stat().st_mtime_ns
    assert checked(*there) == {"first": "holds", "second": "does not hold"}
    assert (tmp_path / "out" / "first.log").stat().st_mtime_ns == before


def test_no_step_begins_that_has_no_time_left(checked: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    there = [step("first", WELL), step("second", WELL)]
    checked(*there, only=["first"])
    assert checked(*there, seconds=5) == {"first": "holds", "second": "not reached"}


def test_the_kit_sends_ctrl_c_during_a_compilation(checked: Callable[..., dict[str, Any]]) -> None:
    seen: list[Run] = []

    def judge(run: Run) -> Verdict:
        seen.append(run)
        return run.status == 130, run.ending

    assert checked(step("interrupt", COMPILES, interrupt=True, judge=judge)) == {"interrupt": "holds"}
    assert "Compiling" in seen[0].output


def test_output_that_is_not_what_it_should_be_decides_nothing(checked: Callable[..., dict[str, Any]]) -> None:
    assert checked(step("odd", WELL, judge=lambda run: (True, str(run.result("x")["y"])))) == {
        "odd": "undecided"
    }


def test_a_name_that_no_step_has_is_one_line(checked: Callable[..., dict[str, Any]]) -> None:
    with pytest.raises(JaxperfError, match=r"^no step 'second'; there are first$"):
        checked(step("first", WELL), only=["second"])


# --- what the outputs decide

EPOCHS = {"measurements": [{"values": [1.0, 0.4, 0.5]}], "facts": {"compile_s": 9.0, "test_accuracy": 0.9}}
FAST = {"claims": [{"statement": "The fast recipe reaches", "verdict": "holds", "observed": "5 of 5"}]}
WATCHED = {"windows_s": [[0.5, 0.2], [0.2], []]}
ROWS = [
    {"workload": workload, "system": system, "configuration": configuration, "values": [1.0] * 3}
    for workload in (*steps.MAIN_TRAINING, *steps.SMALL)
    for system, configuration in (
        ("jax", "jit"), ("torch", "eager"), ("torch", "channels-last"), ("torch", "CUDA graphs"),
        ("torch", "compiled"), ("torch", "compiled, CUDA graphs"),
    )
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "result", "status", "expected"),
    [
        ("resnet-bf16", EPOCHS, 0, True),  # 0.45 s, without the first epoch
        ("lenet", EPOCHS, 0, False),
        ("resnet-bf16", EPOCHS, None, None),
        ("resnet-bf16", {}, 0, None),
        ("fast", FAST | {"facts": {"seconds_mean": 3.9}}, 0, True),
        ("fast", FAST | {"facts": {"seconds_mean": 4.1}}, 0, False),
        ("fast", FAST | {"facts": {"seconds_mean": None}}, 0, False),
        ("roofline", {}, 0, False),  # it took 30 s
        ("interrupt", {}, 130, False),
        ("plan", {"low_s": 1.0, "high_s": 2.0, "measured_s": 1.5}, 0, True),
        ("plan", {"low_s": 1.0, "high_s": 2.0, "measured_s": 2.5}, 0, False),
        ("watch", {"rows": [WATCHED | {"mean": 1.05, "low": 1.0, "high": 1.09}]}, 0, True),
        ("watch", {"rows": [WATCHED | {"mean": 1.2, "low": 1.15, "high": 1.3}]}, 0, False),
        ("watch", {"rows": [WATCHED | {"mean": 1.1, "low": 1.0, "high": 1.3}]}, 0, None),
        ("watch", {"rows": [WATCHED | {"mean": 1.05, "low": 1.0, "high": 1.09}]}, 1, None),
        ("peers", {"measurements": ROWS}, 0, True),
        ("peers", {"measurements": ROWS}, None, False),  # the rows are there, but it did not end
        ("peers", {"measurements": ROWS[1:]}, 0, False),
        ("peers", {"measurements": []}, 0, None),
    ],
)
def test_each_statement_is_decided_by_what_its_command_wrote(
    name: str, result: dict[str, Any], status: int | None, expected: bool | None, tmp_path: Path
) -> None:
    there = {s.name: s for s in steps.steps(tmp_path, rehearse=False)}
    (tmp_path / f"{name}.json").write_text(json.dumps(result))
    assert there[name].judge(Run(status, 30.0, "", tmp_path))[0] is expected


def test_the_main_workloads_are_those_of_the_comparison(tmp_path: Path) -> None:
    sizes = replace(DEVICE_SMOKE, batches=DeviceSizes().batches)
    images, labels = np.zeros((1024, 28, 28), np.uint8), np.zeros(1024)
    there = device_workloads(sizes, tmp_path, images, labels, lenet=PARAM_SHAPES, platform="gpu")
    assert tuple(w.name for w in there if w.main) == (*steps.MAIN_TRAINING, *steps.SMALL)


@pytest.mark.parametrize(
    ("ending", "longest_s", "failed", "expected"),
    [
        ((0, 290.0), 60.0, [], True),
        ((0, 310.0), 60.0, [], False),
        ((0, 290.0), 95.0, [], False),
        ((1, 290.0), 60.0, ["hybridize.py, line 3: KeyError: 1"], False),
        ((None, 330.0), 60.0, [], False),
        ((None, 170.0), 60.0, [], None),
    ],
)
def test_the_chapter_has_five_minutes_and_each_section_90_s(
    ending: tuple[int | None, float],
    longest_s: float,
    failed: list[str],
    expected: bool | None,
    tmp_path: Path,
) -> None:
    for name in [section.name for section in choose_sections(["all"])]:
        result = {"wall_s": longest_s if name == "hybridize" else 20.0, "failed": failed}
        (tmp_path / f"{name}.json").write_text(json.dumps(result))
    [chapter] = [s for s in steps.steps(tmp_path, rehearse=False) if s.name == "chapter"]
    holds, figures = chapter.judge(Run(*ending, "", tmp_path))
    assert holds is expected
    assert "10 of 10 sections" in figures and all(message in figures for message in failed)


def test_what_is_undecided_comes_first_and_a_rehearsal_asks_the_same(tmp_path: Path) -> None:
    real, toy = (steps.steps(tmp_path, rehearse=rehearse) for rehearse in (False, True))
    assert [s.name for s in real] == [s.name for s in toy]
    assert [s.name for s in real[:3]] == ["peers", "watch", "chapter"]
    assert all("--smoke" not in s.command and "--rehearse" not in s.command for s in real)
    assert sum(s.limit_s for s in real[:2]) + real[2].least_s > 480  # two calls decide all of them


def test_a_step_that_needs_more_time_than_is_left_waits_for_the_next_call(
    checked: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    there = [step("long", WELL, least_s=200), step("short", WELL)]
    assert checked(*there, seconds=150) == {"long": "not reached", "short": "holds"}
    assert checked(*there) == {"long": "holds", "short": "holds"}


# --- what travels


def test_the_sources_are_those_of_the_checkout_with_its_commit(tmp_path: Path) -> None:
    root = tmp_path / "checkout"
    root.mkdir()
    for name, text in {
        "a.py": "1\n",
        ".gitignore": "ignored\n",
        "ignored": "",
        "benchmarks/results/r": "",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    git = ["git", "-C", str(root), "-c", "user.name=x", "-c", "user.email=x@x"]
    for arguments in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "first"]):
        subprocess.run([*git, *arguments], check=True)
    (root / "a.py").write_text("2\n")
    (root / "new.py").write_text("3\n")
    assert pack.pack_sources(tmp_path / "out", root) == 3
    with tarfile.open(tmp_path / "out" / "sources.tar.gz") as archive:
        archive.extractall(tmp_path / "there", filter="data")
    there = tmp_path / "there"
    assert sorted(p.name for p in there.iterdir()) == [".git", ".gitignore", "a.py", "new.py"]
    assert (there / "a.py").read_text() == "2\n"
    commits = [
        subprocess.run(["git", "-C", str(p), "rev-parse", "HEAD"], capture_output=True, check=True).stdout
        for p in (root, there)
    ]
    assert commits[0] == commits[1]


def test_a_folder_too_large_to_travel_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack, "MOST", 1 << 20)
    monkeypatch.setattr(pack, "pack_sources", lambda out: 1)
    monkeypatch.setattr(pack, "collect_wheels", lambda out: 1)
    monkeypatch.setattr(
        pack.bundle, "collect_data", lambda out: (out / "data").write_bytes(b"x" * (2 << 20)) and out
    )
    (tmp_path / "out").mkdir()
    with pytest.raises(JaxperfError, match=r"out has 2 MiB; at most 1 may travel$"):
        pack.main(tmp_path / "out")


@pytest.mark.thorough
def test_a_rehearsed_profile_finds_products_and_other_kernels_of_both_steps(tmp_path: Path) -> None:
    file, root = tmp_path / "profile.json", Path(__file__).parents[2]
    command = [sys.executable, "-m", "tools.gpu_check.profile_step", str(file), "--rehearse"]
    subprocess.run(command, cwd=root, check=True, capture_output=True)
    profiles = json.loads(file.read_text())
    assert [each["dtype"] for each in profiles] == ["bfloat16", "float32"]
    for each in profiles:
        assert each["kinds"]["products"]["flops"] > 0 and each["kinds"]["others"]["bytes"] > 0
        assert all(seconds > 0 for _, seconds, _, _ in each["largest"])
