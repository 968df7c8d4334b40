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
from report_results import notes_of

from jaxperf import frameworks
from jaxperf import process as exit_status
from jaxperf.chapter import comparison
from jaxperf.data import fashion_mnist
from jaxperf.frameworks import PEERS, SMOKE, Limits, Pool, System, Workload
from jaxperf.frameworks.agree import compare_answers
from jaxperf.frameworks.device_workloads import COMPILED, DEVICE_SMOKE, device_workloads
from jaxperf.frameworks.worker import PROGRAM
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.result import load_result

pytestmark = [pytest.mark.real, pytest.mark.thorough, pytest.mark.timeout(600)]
LIMITS = Limits(settle_s=0)
NO_COMPILER = {  # it takes 20 s each time
    f"{net} {precision}": dict.fromkeys(COMPILED, 1e9)
    for net in ("lenet", "resnet")
    for precision in ("float32", "TF32", "bfloat16")
}
ONE_ROUND = dataclasses.replace(SMOKE, rounds=1, resnet_rounds=1)
NAMES = [
    "8.1 MLP",
    "8.2 dot",
    "8.2 loop",
    "8.3 products",
    "8.4 LeNet, 1 device",
    "8.5 ResNet-18, 1 device",
    "8.4 LeNet, 2 devices",
    "8.5 ResNet-18, 2 devices",
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
    assert messages == []
    configurations = [f"{s}/{c}" for s in ("jax", peer_of(pool)) for c in workload.configurations[s]]
    assert [e.name for e in study.timed] == configurations
    assert all(study.fair(e, q) for e in study.timed for q in workload.quantities)
    compared = [peer_of(pool)] * len(workload.quantities)
    assert [c.framework.system for c in frameworks.comparisons(study)] == compared


def test_an_interpreter_that_has_the_framework_serves_as_it_is(
    pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = peer_of(pool)
    python = pool.systems[name].python
    monkeypatch.setenv("JAXPERF_PEERS", str(tmp_path / "none"))
    assert frameworks.look(PEERS[name]).state == "missing"
    interpreter = f"--peer-python={name}={python}"
    done = run_jaxperf("peers", "--smoke", f"--out={tmp_path}", interpreter, "--", "--only", "loop")
    assert done.returncode == 0, done.stderr
    result = load_result(tmp_path / "peers.json")
    assert {m.system for m in result.measurements} == {"jax", name}
    assert any(str(python) in note for note in notes_of(result))
    version, _, _ = str(result.facts[f"versions_{name}"]).partition(",")
    assert any(version in note for note in notes_of(result))


def test_an_interpreter_without_the_framework_is_refused_in_one_line(pool: Pool, tmp_path: Path) -> None:
    name = peer_of(pool)
    done = run_jaxperf("all", f"--out={tmp_path / 'out'}", f"--peer-python={name}={sys.executable}")
    assert done.returncode == exit_status.USER_MISTAKE
    assert done.stdout == ""
    assert f"importing {name} fails: ModuleNotFoundError: No module named {name!r}" in done.stderr
    assert done.stderr.count("\n") == 1


PRETENDED = """
import contextlib
import torch
def on_the_cpu(real):
    return lambda self, *args, **options: real(self, *("cpu" if a == "cuda" else a for a in args), **options)
for kind in (torch.Tensor, torch.nn.Module):
    kind.to = on_the_cpu(kind.to)
torch.cuda.synchronize = lambda: None
class Stream:
    def wait_stream(self, other):
        pass
torch.cuda.Stream = torch.cuda.current_stream = Stream
torch.cuda.stream = lambda stream: contextlib.nullcontext()
class Graph:  # records nothing and replays nothing
    def replay(self):
        pass
torch.cuda.CUDAGraph = Graph
torch.cuda.graph = lambda graph, stream=None: contextlib.nullcontext()
autocast = torch.autocast
torch.autocast = lambda device, *args, **options: autocast("cpu", *args, **options)
"""


def on_device(folder: Path, platform: str = "cpu") -> list[Workload]:
    data = fashion_mnist(source="mini")
    images = data.train_images[:64], data.train_labels[:64]
    return list(device_workloads(DEVICE_SMOKE, folder, *images, lenet=PARAM_SHAPES, platform=platform))


def test_with_images_on_the_device_pytorch_computes_what_jax_does(tmp_path: Path) -> None:
    systems = [System("jax", Path(sys.executable)), System("torch", ready("torch"))]
    names = ("LeNet bfloat16, batch 8", "ResNet-18 float32, batch 8", "8.1 MLP, waiting once",
             "8.2 loop, waiting each time", "8.2 product, waiting once")  # fmt: skip
    there = [w for w in on_device(tmp_path) if w.name in names]
    assert len(there) == len(names)
    budget = frameworks.Budget(1e6, there, starts=NO_COMPILER)
    with Pool(systems, scratch=tmp_path, environment=comparison.environment("default", print)) as pool:
        for workload in there:
            messages: list[str] = []
            study = frameworks.study(workload, pool, limits=LIMITS, budget=budget, say=messages.append)
            expected = [
                f"{s}/{c}" for s, names in workload.configurations.items() for c in names if c != "compiled"
            ]
            assert [e.name for e in study.timed] == expected, messages
            assert frameworks.agreement([study], "torch").agrees is True


def test_the_calls_for_a_gpu_run_on_a_pretended_one(tmp_path: Path) -> None:
    """A pretended graph replays nothing, so the losses of replayed steps stay the same, which is noticed."""
    program = tmp_path / "pretended.py"
    program.write_text(f"import runpy\n{PRETENDED}\nrunpy.run_path({str(PROGRAM)!r}, run_name='__main__')\n")
    systems = [System("jax", Path(sys.executable)), System("torch", ready("torch"), program=program)]
    there = {w.name: w for w in on_device(tmp_path, "gpu")}
    with Pool(systems, scratch=tmp_path, environment=comparison.environment("default", print)) as pool:
        messages: list[str] = []
        names = ("LeNet TF32, batch 8", "8.1 MLP, waiting once", "8.2 product, waiting each time")
        budget = frameworks.Budget(1e6, [there[name] for name in names], starts=NO_COMPILER)
        timed = [
            (name, e.name)
            for name in names
            for e in frameworks.study(
                there[name], pool, limits=LIMITS, budget=budget, say=messages.append
            ).timed
        ]
    expected = [("jax/jit", "jax/scan", "torch/channels-last", "torch/eager")]
    expected += [("jax/jit", "jax/scan", "torch/eager", "torch/CUDA graphs"), ("jax/jit", "torch/eager")]
    assert timed == [(name, entry) for name, entries in zip(names, expected) for entry in entries]
    assert messages[0] == f"{names[0]}: no time to start torch/compiled, torch/compiled, CUDA graphs"
    assert messages[1].startswith(
        f"{names[0]}: torch/CUDA graphs is lost: not timed: it differs from JAX by "
    )
    assert len(messages) == 2


@pytest.mark.parametrize("change", ["rate", "weights", "batch"])
@pytest.mark.parametrize("name", ["8.4 LeNet, 1 device", "8.5 ResNet-18, 2 devices"])
def test_a_peer_that_trains_otherwise_is_found_out(
    name: str, change: str, pool: Pool, there: dict[str, Workload]
) -> None:
    """Tolerances would be worth nothing if a rate off by a tenth or one array by a twentieth passed them."""
    peer = peer_of(pool)
    workload = dataclasses.replace(there[name], rounds=1)
    jax = {"jax": ("jit",)}
    wrong = dataclasses.replace(
        workload, settings=changed(workload, change, pool.scratch), configurations=jax
    )
    right = dataclasses.replace(workload, configurations=jax | {peer: workload.configurations[peer][:1]})
    [changed_entry] = frameworks.study(wrong, pool, limits=LIMITS).entries
    _, honest = frameworks.study(right, pool, limits=LIMITS).entries
    assert changed_entry.answers
    assert honest.answers
    assert compare_answers(changed_entry.answers, honest.answers, rtol=0).error > 2 * workload.rtol


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
