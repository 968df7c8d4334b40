"""The small tables "on one GPU": every figure is from a kept run, whose card and date have one place."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxperf.chapter import one_gpu
from jaxperf.chapter.catalogue import SectionEntry as About
from jaxperf.errors import JaxperfError
from jaxperf.result import Environment, Fact, Measurement, Result, Table, load_result, save_result
from jaxperf.result.recorder import Recorder
from tools import keep_gpu_run

ROOT = Path(__file__).resolve().parents[2]
GPU = Environment(backend="gpu", devices=("cuda:0 NVIDIA H200",), versions={"jax": "0.12.0"})
CALLS = Table(
    "Calls of 100", (Measurement("jit", "s", (1e-3, 2e-3, 3e-3)), Measurement("eager", "s", (1.0,)))
)


def result(name: str, environment: Environment = GPU, **changes: Any) -> Result:
    made = Result(
        name, "8.1", "A", "?", {}, environment, (CALLS, Fact("t1", 2e-5, "s")), started_at="2026-11-28T05:00"
    )
    return dataclasses.replace(made, **changes)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file of kept figures: one run, taken over by hand."""
    body = {
        "runs": {
            "old": {"card": "NVIDIA H200", "jax": "0.11.2", "date": "2026-11-27", "source": "an old folder"}
        },
        "figures": {
            "hybridize": [["Epoch", "LeNet", "80 ms", "", "old"], ["Calls of 10", "jit", "9 ms", "", "old"]]
        },
    }
    path = tmp_path / "one_gpu.json"
    path.write_text(json.dumps(body))
    monkeypatch.setattr(one_gpu, "FILE", path)
    monkeypatch.setattr(keep_gpu_run, "KEPT", tmp_path / "kept")
    one_gpu.kept.cache_clear()
    yield path
    one_gpu.kept.cache_clear()


def keep(monkeypatch: pytest.MonkeyPatch, folder: Path) -> int:
    monkeypatch.setattr(sys, "argv", ["keep_gpu_run.py", str(folder)])
    one_gpu.kept.cache_clear()
    return keep_gpu_run.main()


def test_figures_of_other_sizes_say_their_sizes() -> None:
    gpu = one_gpu.Figure("x * 0.5 + 1, 8192 × 8192: ready", "ten lines", 1e-3, "s")
    mine = one_gpu.Figure("x * 0.5 + 1, 2000 × 2000: ready", "ten lines", 2e-3, "s")
    assert one_gpu.words(gpu, mine) == "1 ms (8192 × 8192)"
    assert one_gpu.words(mine, gpu) == "2 ms (2000 × 2000)"
    assert one_gpu.words(gpu, gpu) == one_gpu.words(gpu) == "1 ms"
    copies = [one_gpu.Figure(f"{size} MB of float32", "copy", 1.0, "s") for size in (64, 256)]
    assert one_gpu.words(*copies) == "1 s (64 MB)"


def test_a_run_is_kept_and_shown_beside_ones_own(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_result(result("hybridize"), tmp_path / "run" / "hybridize.json")
    save_result(result("scaling", dataclasses.replace(GPU, backend="cpu")), tmp_path / "run" / "scaling.json")
    for _ in range(2):  # a second time changes nothing
        assert keep(monkeypatch, tmp_path / "run") == 0
    runs, figures = one_gpu.kept()
    assert figures.keys() == {"hybridize"} and runs["2026-11-28"].jax == "0.12.0"
    assert [(f.name, f.value) for f in figures["hybridize"]] == [
        ("jit", 2e-3), ("eager", 1.0), ("t1", 2e-5), ("LeNet", "80 ms"),
    ]  # fmt: skip
    assert (tmp_path / "kept" / "hybridize.json").is_file() and not (
        tmp_path / "kept" / "scaling.json"
    ).exists()

    recorder = Recorder(About("hybridize", "8.1", "A", "?", 1), Environment(), {}, command="")
    recorder.fact("t1", 5e-6, unit="s")
    shown = one_gpu.rows(
        "hybridize", {"a call": ("Calls", "jit"), "queued": "t1", "absent": "nowhere"}, recorder.blocks
    )
    assert shown == (
        "On one NVIDIA H200 (JAX 0.12.0, 2026-11-28)", ["", "GPU", "here"],
        [["a call", "2 ms", ""], ["queued", "20.0 µs", "5.00 µs"]],
    )  # fmt: skip
    _, _, cells = one_gpu.rows("hybridize", {"a call": "jit", "an epoch": "LeNet"}, recorder.blocks)
    assert [row[-1] for row in cells] == ["JAX 0.12.0, 2026-11-28", "JAX 0.11.2, 2026-11-27"]
    assert one_gpu.rows("hybridize", {"absent": "nowhere"}, recorder.blocks)[2] == []


def test_only_a_whole_run_on_a_gpu_is_kept(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before, path = file.read_text(), tmp_path / "run" / "hybridize.json"
    path.parent.mkdir()
    wrong = {
        "": None,
        "is not a whole run": result("hybridize", smoke=True),
        "ran on a GPU": result("hybridize", Environment()),
    }
    for message, made in wrong.items():
        if made:
            save_result(made, path)
        assert keep(monkeypatch, path.parent) == 2
        assert message in capsys.readouterr().err
    assert file.read_text() == before
    with pytest.raises(JaxperfError, match="no section's result"):
        keep_gpu_run.figures_of_run(tmp_path)


def test_every_kept_figure_is_in_the_results_of_its_run() -> None:
    one_gpu.kept.cache_clear()
    runs, figures = one_gpu.kept()
    for section, rows in figures.items():
        for figure in rows:
            folder = ROOT / runs[figure.run].source
            if section == one_gpu.COMPARISON:
                assert figure in keep_gpu_run.figures_of_comparison(folder)[1][section]
            elif isinstance(figure.value, str):  # taken over from a log
                assert figure.value in (folder / f"{section}.log").read_text(), figure
            else:
                found = one_gpu.figures_of(load_result(folder / f"{section}.json").blocks, figure.run)
                assert figure in found
