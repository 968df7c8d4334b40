"""MXNet and PyTorch themselves, at smoke size: they compute what JAX does; a wrong setting is found out."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from jaxperf import frameworks
from jaxperf.chapter import comparison
from jaxperf.data import fashion_mnist
from jaxperf.frameworks import EVENTS, PEERS, SMOKE, Limits, Pool, System, Workload
from jaxperf.frameworks.worker import PROGRAM
from jaxperf.frameworks.workloads import COMPILED
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.processes import exit_status
from jaxperf.result import load_result

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
LIMITS = Limits(settle_s=0)
ONE_ROUND = dataclasses.replace(SMOKE, rounds=1, resnet_rounds=1)
NAMES = [
    "8.1 MLP",
    "8.1 export",
    "8.2 dot",
    "8.2 loop",
    "8.2 memory",
    "8.3 products",
    "8.4 LeNet, 1 device",
    "8.5 ResNet-18, 1 device",
    "8.4 LeNet, 2 devices",
    "8.5 ResNet-18, 2 devices",
    "LeNet forward, batch 1",
    "LeNet forward, batch 8",
    "ResNet-18 forward, batch 1",
]


def ready(peer: str) -> Path:
    """The Python of a peer that is installed."""
    environment = frameworks.look(PEERS[peer])
    if environment.state != "ready":
        pytest.skip(f"{peer} is {environment.state}: `jaxperf peers install {peer}`")
    return environment.python


@pytest.fixture(scope="module", params=list(PEERS))
def pool(request: pytest.FixtureRequest) -> Iterator[Pool]:
    """JAX and one peer, live for all tests of this file."""
    systems = [System("jax", Path(sys.executable)), System(request.param, ready(request.param))]
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder,
        Pool(systems, scratch=Path(folder), environment=comparison.environment("default", print)) as pool,
    ):
        yield pool


@pytest.fixture(scope="module")
def there(pool: Pool) -> dict[str, Workload]:
    data = fashion_mnist(source="mini")
    images = data.train_images[:64], data.train_labels[:64]
    return {w.name: w for w in frameworks.workloads(ONE_ROUND, pool.scratch, *images, lenet=PARAM_SHAPES)}


def run_jaxperf(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "jaxperf", "run", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)


def peer_of(pool: Pool) -> str:
    return next(name for name in pool.systems if name != "jax")


def test_every_workload_is_tried_here(there: dict[str, Workload]) -> None:
    assert list(there) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_it_computes_what_jax_does_and_is_timed(name: str, pool: Pool, there: dict[str, Workload]) -> None:
    messages: list[str] = []
    workload = there[name]
    study = frameworks.study(workload, pool, limits=LIMITS, say=messages.append)
    if name == "8.2 memory":
        runs = frameworks.memory(study, pool, limits=LIMITS, say=messages.append)
        assert {run.mode for run in runs} == {"synchronous", "asynchronous"}
        assert all(run.increase >= 0 and run.finished_s > 0 for run in runs)
    if name == "8.1 export":
        reloads = frameworks.reload(study, pool, limits=LIMITS, say=messages.append)
        assert len(reloads) == len(study.timed)
        assert all(read.verdict.agrees for read in reloads)
    assert messages == []
    configurations = [f"{s}/{c}" for s in ("jax", peer_of(pool)) for c in workload.configurations[s]]
    assert [e.name for e in study.timed] == configurations
    assert all(study.fair(e, q) for e in study.timed for q in workload.quantities)
    compared = len(workload.quantities) if workload.rounds else 0
    assert [c.framework.system for c in frameworks.comparisons(study)] == [peer_of(pool)] * compared


def test_an_interpreter_that_has_the_framework_serves_as_it_is(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = peer_of(pool)
    python = pool.systems[name].python
    monkeypatch.setenv("JAXPERF_PEERS", str(tmp_path / "none"))
    assert frameworks.look(PEERS[name]).state == "missing"
    arguments = [
        "peers",
        "--smoke",
        f"--out={tmp_path}",
        f"--peer-python={name}={python}",
        "--",
        "--only",
        "loop",
    ]
    done = run_jaxperf(*arguments)
    assert done.returncode == 0, done.stderr
    result = load_result(tmp_path / "peers.json")
    assert {m.system for m in result.measurements} == {"jax", name}
    assert any(str(python) in note for note in result.notes)
    version, _, _ = str(result.facts[f"versions_{name}"]).partition(",")
    assert any(version in note for note in result.notes)


def test_an_interpreter_without_the_framework_is_refused_in_one_line(pool: Pool, tmp_path: Path) -> None:
    name = peer_of(pool)
    done = run_jaxperf("all", f"--out={tmp_path / 'out'}", f"--peer-python={name}={sys.executable}")
    assert done.returncode == exit_status.USER_MISTAKE
    assert done.stdout == ""
    assert f"importing {name} fails: ModuleNotFoundError: No module named {name!r}" in done.stderr
    assert done.stderr.count("\n") == 1


PRETENDED = {  # a GPU, for programs that have none: the same calls, on the CPU
    "jax": """
import jax
def devices(kind=None, real=jax.devices):
    return real("cpu" if kind == "gpu" else kind)
jax.devices = devices
""",
    "torch": """
import time
import torch
def on_the_cpu(real):
    return lambda self, *args, **options: real(self, *("cpu" if a == "cuda" else a for a in args), **options)
for kind in (torch.Tensor, torch.nn.Module):
    kind.to = on_the_cpu(kind.to)
torch.cuda.synchronize = lambda: None
class Event:
    def __init__(self, enable_timing):
        assert enable_timing
    def record(self):
        self.at = time.perf_counter()
    def elapsed_time(self, end):
        return 1e3 * (end.at - self.at)
torch.cuda.Event = Event
autocast = torch.autocast
torch.autocast = lambda device, *args, **options: autocast("cpu", *args, **options)
""",
}


@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_the_work_for_a_gpu_runs_on_a_pretended_one(precision: str, tmp_path: Path) -> None:
    pythons = {"jax": Path(sys.executable), "torch": ready("torch")}
    systems = []
    for name, patch in PRETENDED.items():
        program = tmp_path / f"pretended_{name}.py"
        program.write_text(f"import runpy\n{patch}\nrunpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n")
        systems.append(System(name, pythons[name], program=program))
    data = fashion_mnist(source="mini")
    images = data.train_images[:64], data.train_labels[:64]
    there = frameworks.workloads(
        ONE_ROUND, tmp_path, *images, lenet=PARAM_SHAPES, devices=1, platform="gpu", precision=precision
    )
    wanted = {"8.1 MLP", "8.2 dot", "8.2 loop", "8.4 LeNet, 1 device"}
    if precision == "bfloat16":
        wanted = {"8.4 LeNet, 1 device", "8.5 ResNet-18, 1 device", "LeNet forward, batch 8"}
    shared = comparison.environment("default", print)
    with Pool(systems, scratch=tmp_path, environment=shared) as pretended:
        for workload in [w for w in there if w.name in wanted]:
            messages: list[str] = []
            if precision == "tf32":  # torch.compile, which takes 20 s, only where a GPU has a mode of its own
                compiled = ("CUDA graphs",) if workload.settings["task"] == "train" else ()
                others = tuple(c for c in workload.configurations["torch"] if c not in COMPILED)
                both = {**workload.configurations, "torch": (*others, *compiled)}
                workload = dataclasses.replace(workload, configurations=both)
            study = frameworks.study(workload, pretended, limits=LIMITS, say=messages.append)
            assert messages == []
            assert [e.name for e in study.timed] == [
                f"{system}/{c}"
                for system, names in workload.configurations.items()
                for c in names
                if system in PRETENDED
            ]
            for e in study.timed:
                clocked = e.system == "torch" and workload.quantities == ("",)
                assert (EVENTS in e.values) == clocked
                assert not clocked or all(a <= b for a, b in zip(e.values[EVENTS], e.values[""], strict=True))


@pytest.mark.parametrize("change", ["rate", "weights", "batch"])
@pytest.mark.parametrize("name", ["8.4 LeNet, 1 device", "8.5 ResNet-18, 2 devices"])
def test_a_peer_that_trains_otherwise_is_found_out(
    name: str, change: str, pool: Pool, there: dict[str, Workload]
) -> None:
    """Tolerances would be worth nothing if a rate off by a tenth or one array by a twentieth passed them."""
    peer = peer_of(pool)
    workload = dataclasses.replace(there[name], rounds=0)
    jax = {"jax": ("jit",)}
    wrong = dataclasses.replace(
        workload, settings=changed(workload, change, pool.scratch), configurations=jax
    )
    right = dataclasses.replace(workload, configurations=jax | {peer: workload.configurations[peer][:1]})
    [told_wrongly] = frameworks.study(wrong, pool, limits=LIMITS).entries
    _, honest = frameworks.study(right, pool, limits=LIMITS).entries
    base = np.array(list(told_wrongly.losses.values()))
    error = np.abs(np.array(list(honest.losses.values())) - base).max() / np.abs(base).max()
    assert error > 2 * workload.rtol


def changed(workload: Workload, change: str, folder: Path) -> dict[str, object]:
    """The workload's settings with one thing wrong."""
    settings = dict(workload.settings)
    if change == "rate":
        settings["lr"] *= 1.1
    elif change == "batch":
        settings["batch"] //= 2
    else:
        arrays = dict(np.load(settings["weights"]))
        last = [name for name, a in arrays.items() if a.ndim == 2][-1]  # BatchNorm would undo a convolution's
        arrays[last] *= 1.05
        settings["weights"] = str(folder / "changed.npz")
        np.savez(settings["weights"], **arrays)  # type: ignore[arg-type]
    return settings
