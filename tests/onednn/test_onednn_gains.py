"""`benchmarks/onednn_gains.py`: its rows, workers that end, and the real ones at toy size."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from studies import study

from jaxperf.errors import JaxperfError
from jaxperf.onednn import trial

gains = study("onednn_gains")
# Answers with so many seconds per step, whatever it is asked
FIXED = "import sys\nprint('ready', flush=True)\nfor line in sys.stdin: print({0}, flush=True)"
SMOKE = gains.Config(smoke=True)


def python(program: str) -> list[str]:
    return [sys.executable, "-c", program]


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = SimpleNamespace(state="missing", python=Path("none"), detail="")
    monkeypatch.setattr(gains, "look", lambda peer: missing)


def test_a_row_has_the_ratios_of_each_pair(
    no_torch: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seconds = {gains.INSTALLED: 0.4, gains.ENABLED: 0.2, gains.TORCH: 0.3}
    workers = {system: python(FIXED.format(s)) for system, s in seconds.items()}
    monkeypatch.setattr(gains, "commands", lambda name, batch, torch: workers)
    assert gains.main(SMOKE) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "PyTorch: missing; `jaxperf peers install torch` installs it" in lines
    row = "2.00 (2.00 to 2.00) | 0.75 (0.75 to 0.75) | 1.50 (1.50 to 1.50) |"
    assert [line for line in lines if line.endswith(row)] == [
        f"| {name}, batch 2 | {row}" for name in gains.BATCH
    ]
    assert lines[-1] == (
        "5 x 5 kernels, batch 2, 3 rounds: "
        "JAX as installed 400.0 ms; JAX with enable() 200.0 ms; PyTorch 300.0 ms"
    )


def test_a_system_that_cannot_take_part_is_left_out_and_one_that_fails_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    workers = {gains.INSTALLED: python(FIXED.format(0.4)), gains.ENABLED: python("")}
    monkeypatch.setattr(gains, "commands", lambda name, batch, torch: workers)
    seconds = gains.measured(SMOKE, "LeNet", None)
    assert seconds == {gains.INSTALLED: [0.4] * gains.LEAST_ROUNDS}
    assert gains.ratio(seconds, gains.INSTALLED, gains.ENABLED) == "-"
    workers[gains.ENABLED] = python("raise SystemExit(3)")
    with pytest.raises(JaxperfError, match=r"the worker of JAX with enable\(\) failed, .* status 3"):
        gains.measured(SMOKE, "LeNet", None)
    workers[gains.ENABLED] = python("import sys\nprint('ready', flush=True)\nsys.stdin.readline()")
    with pytest.raises(JaxperfError, match=r"the worker of JAX with enable\(\) ended, .* status 0"):
        gains.measured(SMOKE, "LeNet", None)


def test_the_median_and_the_range_are_those_of_the_rounds() -> None:
    seconds = {"a": [1.0, 4.0, 6.0], "b": [1.0, 2.0, 2.0]}
    assert gains.ratio(seconds, "a", "b") == "2.00 (1.00 to 3.00)"


@pytest.mark.skipif(trial._jaxlib() is None, reason="jaxlib carries oneDNN for x86 alone")
@pytest.mark.thorough
def test_jaxs_real_workers_train_with_and_without_enable(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(trial.BY_NAME, "1")  # as where this process itself uses oneDNN
    seconds = gains.measured(SMOKE, "5 x 5 kernels", None)
    assert seconds.keys() == {gains.INSTALLED, gains.ENABLED}, capfd.readouterr().err
    assert all(len(values) == gains.LEAST_ROUNDS and min(values) > 0 for values in seconds.values())


@pytest.mark.real
@pytest.mark.thorough
@pytest.mark.parametrize("name", gains.BATCH)
def test_pytorchs_real_worker_trains(name: str) -> None:
    torch = gains.look(gains.PEERS["torch"])
    if torch.state != "ready":
        pytest.skip("PyTorch's environment is not installed")
    command = {gains.TORCH: gains.commands(name, 2, torch.python)[gains.TORCH]}
    with gains.workers(command) as ready:
        assert gains.step_s(gains.TORCH, ready[gains.TORCH], 1e-9) > 0
