"""The one definition of the work: files that fit the models, sizes refused in time, and JAX's own side."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
import pytest
from cases import cases
from flax import nnx
from report_results import notes_of

from jaxperf import frameworks
from jaxperf.chapter import comparison, run_sections
from jaxperf.errors import JaxperfError
from jaxperf.frameworks import SMOKE, Limits, Pool, Sizes, System, Workload, environments, inputs
from jaxperf.frameworks.device_workloads import DEVICE_SMOKE, DeviceSizes, device_workloads
from jaxperf.frameworks.environments import Peer, PeerEnvironment, running_python
from jaxperf.frameworks.workers import files, jax_device, jax_train
from jaxperf.models import MLP, ResNet, from_gluon, to_gluon
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.models.resnet import RESNET18_STAGES
from jaxperf.parallel import make_step, model_of
from jaxperf.process import USER_MISTAKE
from jaxperf.result.store import load_result

IMAGES = np.arange(64 * 28 * 28, dtype=np.uint8).reshape(64, 28, 28, 1)
LABELS = np.arange(64) % 10


def defined(folder: Path, sizes: Sizes = SMOKE, **options: Any) -> dict[str, Workload]:
    return {
        w.name: w for w in frameworks.workloads(sizes, folder, IMAGES, LABELS, lenet=PARAM_SHAPES, **options)
    }


def shapes(net: nnx.Module) -> dict[str, tuple[int, ...]]:
    return {name: a.shape for name, a in to_gluon(net).items()}


def test_the_weights_fit_our_models_name_by_name() -> None:
    assert inputs.mlp_shapes((512, 256, 128, 2)) == shapes(MLP(rngs=nnx.Rngs(0)))
    stages = ((8, 1), (16, 2))
    weights = inputs.draw(inputs.resnet_shapes(stages), np.random.default_rng(0))
    empty = nnx.eval_shape(lambda: ResNet(10, stages=stages, rngs=nnx.Rngs(0)))
    arrays = to_gluon(from_gluon(empty, list(weights.values())))  # by their order, as Gluon goes
    assert list(arrays) == list(weights)
    assert all(np.array_equal(arrays[name], weights[name]) for name in arrays)
    assert Sizes().stages == DeviceSizes().stages == RESNET18_STAGES


def test_the_same_seed_writes_the_same_files_and_another_others(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, (1, 1, 2)):
        folder.mkdir()
        defined(folder, seed=seed)
    for name in ("mlp", "lenet", "resnet", "square", "x"):
        a, b, c = (files.arrays(str(folder / f"{name}.npz")) for folder in folders)
        assert all(np.array_equal(a[k], b[k]) and a[k].dtype == np.float32 for k in a)
        assert any(not np.array_equal(a[k], c[k]) for k in a)


def test_batches_are_the_pictures_in_order_scaled_to_one(tmp_path: Path) -> None:
    train = defined(tmp_path)["8.4 LeNet, 1 device"]
    batches = files.batches(dict(train.settings))
    assert [X.shape for X, _ in batches] == [(16, 1, 28, 28)] * 4
    assert all(X.dtype == np.float32 and y.dtype == np.int32 for X, y in batches)
    joined = np.concatenate([X for X, _ in batches])
    assert np.array_equal(joined, IMAGES.reshape(-1, 1, 28, 28).astype(np.float32) / 255)
    assert np.concatenate([y for _, y in batches]).tolist() == LABELS.tolist()


def test_settings_are_plain_enough_for_a_line_of_json(tmp_path: Path) -> None:
    for workload in defined(tmp_path).values():
        assert json.loads(json.dumps(workload.settings)).keys() == workload.settings.keys()
        assert next(iter(workload.configurations)) == "jax"  # the first answers are what all must agree with


def test_every_workload_is_done_by_all_three_and_names_its_section(tmp_path: Path) -> None:
    selected = defined(tmp_path, Sizes(lenet_batch=64))
    assert all(set(w.configurations) == {"jax", "mxnet", "torch"} for w in selected.values())
    for part in ("8.1 ", "8.2 ", "8.3 ", "8.4 ", "8.5 "):
        assert any(name.startswith(part) for name in selected), part
    assert selected["8.1 MLP"].configurations == {
        "jax": ("eager", "nnx.jit", "jit", "aot"),
        "mxnet": ("imperative", "hybridized", "static"),
        "torch": ("eager", "traced", "compiled", "frozen"),
    }


def test_onednn_is_a_row_of_its_own_where_one_device_convolves_and_only_if_asked_for(tmp_path: Path) -> None:
    assert not any(frameworks.ONEDNN in w.configurations for w in defined(tmp_path).values())
    rows = {n for n, w in defined(tmp_path, onednn=True).items() if frameworks.ONEDNN in w.configurations}
    assert rows == {"8.4 LeNet, 1 device", "8.5 ResNet-18, 1 device"}


def test_all_systems_have_the_users_settings_and_jax_is_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", " ".join(("--a=1", *comparison.ONEDNN_FLAGS)))
    monkeypatch.setattr(comparison.psutil, "cpu_percent", lambda interval: 50.0)
    messages: list[str] = []
    shared = comparison.environment("auto", messages.append)
    assert (shared["XLA_FLAGS"], shared["OMP_WAIT_POLICY"]) == ("--a=1", "passive")
    assert {k for k in shared if k.startswith("MALLOC_")} == {
        k for k in os.environ if k.startswith("MALLOC_")
    }
    assert messages == ["others use 50% of the machine: OpenMP's threads sleep while they wait"]
    assert "OMP_WAIT_POLICY" not in comparison.environment("default", messages.append)


def test_on_a_gpu_pytorch_is_the_one_beside_jax_if_it_has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = comparison.Choice(peers=("mxnet", "torch"), platform="gpu", on_device=True)
    here, messages = Path(sys.executable), list[str]()
    has_cuda = {"torch 2.11.0 (CUDA 13.0)": True, "torch 2.13.0": False}
    for versions, measured in has_cuda.items():
        environment = PeerEnvironment("ready", here, versions)
        monkeypatch.setattr(comparison, "running_python", lambda peer: environment if measured else None)  # noqa: B023
        monkeypatch.setattr(comparison, "look", lambda peer: environment)  # noqa: B023
        names = [system.name for system in comparison.systems(choice, {}, messages.append)]
        assert names == ["jax", *(["torch"] if measured else [])]
    left_out = "MXNet is left out: the package of its last release computes on CPUs only"
    assert messages == [
        left_out, f"torch is the one of {here}: torch 2.11.0 (CUDA 13.0)",
        left_out, "torch is not measured: torch 2.13.0 has no CUDA; --peer-python names another",
    ]  # fmt: skip


def test_the_running_python_serves_only_with_a_build_for_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    json_as_peer = Peer("json", (), (), "")
    assert running_python(json_as_peer) is None
    assert running_python(Peer("no_such_framework", (), (), "")) is None
    versions = "json 2 (CUDA 13.0), numpy 2, Python 3.12.3"
    monkeypatch.setattr(environments, "imported_versions", lambda peer, python: (versions, ""))
    assert running_python(json_as_peer) == PeerEnvironment("ready", Path(sys.executable), versions)


def test_one_device_leaves_out_what_needs_more(tmp_path: Path) -> None:
    assert {w.devices for w in defined(tmp_path, devices=1).values()} == {1}
    assert {w.devices for w in defined(tmp_path, devices=4).values()} == {1, 4}


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"lenet_batch": 65}, "a batch of 65 needs as many images, there are 64"),
        ({"resnet_batch": 9}, "batch size 9 is not divisible by 2 devices"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_before_anything_is_written(
    change: dict[str, int], line: str, tmp_path: Path
) -> None:
    with pytest.raises(JaxperfError, match=f"^{line}"):
        defined(tmp_path, dataclasses.replace(SMOKE, **change))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


# --- with the images on the device


def on_device(folder: Path, platform: str = "cpu") -> dict[str, Workload]:
    there = device_workloads(DEVICE_SMOKE, folder, IMAGES, LABELS, lenet=PARAM_SHAPES, platform=platform)
    return {w.name: w for w in there}


def test_the_main_rows_come_first_and_a_name_says_network_precision_and_batch(tmp_path: Path) -> None:
    names = list(on_device(tmp_path, "gpu"))
    assert names[:3] == ["ResNet-18 bfloat16, batch 16", "ResNet-18 TF32, batch 8", "LeNet TF32, batch 8"]
    assert names[3] == "8.1 MLP, waiting once"
    trained = {name for name in names if name[0] != "8"}
    assert trained == {
        f"{net} {precision}, batch {batch}"
        for net in ("LeNet", "ResNet-18") for precision in ("TF32", "bfloat16") for batch in (8, 16)
    }  # fmt: skip
    assert not any("TF32" in name for name in on_device(tmp_path))  # a CPU has none
    assert DeviceSizes().batches == (256, 1024)


def test_cuda_graphs_are_a_gpus(tmp_path: Path) -> None:
    cpu, gpu = (next(iter(on_device(tmp_path, kind).values())) for kind in ("cpu", "gpu"))
    assert cpu.configurations["torch"] == ("channels-last", "eager", "compiled")
    assert set(gpu.configurations["torch"]) - set(cpu.configurations["torch"]) == {
        "CUDA graphs", "compiled, CUDA graphs"
    }  # fmt: skip
    assert (cpu.settings["device"], gpu.settings["device"]) == ("cpu", "cuda")


def test_all_systems_train_on_the_same_rows_in_the_same_random_order(tmp_path: Path) -> None:
    rows = files.rows(dict(on_device(tmp_path)["LeNet float32, batch 8"].settings))
    assert sorted(rows.ravel()) == list(range(64))
    assert rows.shape == (8, 8)
    assert rows.ravel().tolist() != list(range(64))
    with pytest.raises(JaxperfError, match=r"^a batch of 16 needs as many images, there are 3"):
        device_workloads(DEVICE_SMOKE, tmp_path, IMAGES[:3], LABELS[:3], lenet=PARAM_SHAPES)


STEPS = [("LeNet", "float32", 1e-5), ("ResNet-18", "float32", 1e-5), ("ResNet-18", "bfloat16", 1e-2)]


@pytest.mark.parametrize(("net", "precision", "rtol"), cases(STEPS, lambda net, *_: net == "LeNet"))
def test_a_step_on_bytes_is_the_step_on_pictures(
    net: str, precision: str, rtol: float, tmp_path: Path
) -> None:
    """One jitted step and a scan of several compute the losses of `jaxperf.parallel`'s step on floats."""
    settings = dict(on_device(tmp_path)[f"{net} {precision}, batch 8"].settings)
    settings |= {"chunk": 2, "batch": 2, "steps": 4}  # in a scan, a CPU's convolutions are slow
    losses = [jax_device.train(settings, way).answers["loss"] for way in ("jit", "scan")]
    assert losses[0].shape == (4,)
    np.testing.assert_allclose(losses[0], losses[1], rtol=rtol)
    step = make_step("jit", model_of(jax_train.build(settings, files.arrays(settings["weights"]))),
                     optax.sgd(settings["lr"]), jax.devices()[:1])  # fmt: skip
    state = step.init()
    for rows, loss in zip(files.rows(settings), losses[0]):
        state, metrics = step(state, IMAGES[rows].astype(np.float32) / 255, LABELS[rows])
        assert loss == pytest.approx(float(metrics["loss"]), rel=2e-2 if precision == "bfloat16" else 1e-4)


@pytest.mark.parametrize("operation", ["mlp", "increment", "product"])
def test_small_operations_in_a_row_are_one_program(operation: str, tmp_path: Path) -> None:
    there = [w for w in on_device(tmp_path).values() if w.settings.get("operation") == operation]
    settings = dict(there[0].settings)
    tasks = [jax_device.small(settings, way) for way in there[0].configurations["jax"]]
    np.testing.assert_allclose(*(task.answers["result"] for task in tasks), rtol=1e-4, atol=1e-5)
    assert there[0].calls == settings["chain"]  # operations; a turn lasts as long by the time of one
    assert all(task.turn(2)[""] > 0 for task in tasks)
    square = files.arrays(settings["square"])["x"]
    if operation == "increment":
        np.testing.assert_allclose(tasks[0].answers["result"], square + settings["chain"], rtol=1e-5)
    if operation == "product":
        power = np.linalg.matrix_power(square.astype(float), settings["chain"] + 1)
        np.testing.assert_allclose(tasks[0].answers["result"], power, atol=1e-4)


# --- JAX's own side, without any peer


@pytest.mark.thorough
def test_jax_agrees_with_itself_in_all_its_configurations(tmp_path: Path) -> None:
    system = System("jax", Path(sys.executable))
    environment = comparison.environment("default", print)
    wanted = ("8.1 MLP", "8.2 dot", "8.2 loop")
    there = defined(tmp_path)
    with Pool([system], scratch=tmp_path, environment=environment) as pool:
        for name in wanted:
            messages: list[str] = []
            study = frameworks.study(there[name], pool, limits=Limits(settle_s=0), say=messages.append)
            assert messages == []
            assert [e.configuration for e in study.timed] == list(there[name].configurations["jax"])
            for quantity in there[name].quantities:
                assert all(m.median > 0 for m in frameworks.measurements(study, quantity))


# --- the section


@pytest.mark.thorough
def test_the_section_runs_without_any_peer_and_says_which_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from jaxperf import cli

    monkeypatch.setenv("JAXPERF_PEERS", str(tmp_path / "none"))
    out = tmp_path / "out"
    arguments = ["run", "peers", "--smoke", "--out", str(out), "--", "--only", "8.2 dot"]
    assert cli.main(arguments) == 0, capfd.readouterr().err
    result = load_result(out / "peers.json")
    notes = [note for note in notes_of(result) if "is not measured" in note]
    assert [note.split(" ")[0] for note in notes] == ["mxnet", "torch"]
    assert all("jaxperf peers install" in note or "none is here" in note for note in notes)
    assert {(m.system, m.workload, m.quantity, m.configuration) for m in result.measurements} == {
        ("jax", "8.2 dot", quantity, way) for quantity in ("queued", "finished") for way in ("eager", "jit")
    }
    assert "jax" in str(result.facts["versions_jax"])
    assert not any(c.verdict == "does not hold" for c in result.claims if "computes" in c.statement)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--", "--only", "8.9"], "no workload holds 8.9; there are 8.1 MLP,"),
        (["--", "--omp-wait", "maybe"], "--omp-wait is 'maybe'; there are auto, default, passive"),
        (["--platform", "gpu"], "JAX finds no GPU"),
    ],
)
def test_what_cannot_be_compared_is_one_line(
    arguments: list[str],
    line: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from jaxperf import cli

    if "gpu" in arguments and any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("there is a GPU here")
    monkeypatch.setenv("JAXPERF_PEERS", str(tmp_path / "none"))
    assert cli.main(["run", "peers", "--smoke", "--out", str(tmp_path), *arguments]) == USER_MISTAKE
    error = next(row for row in capfd.readouterr().err.splitlines() if row.startswith("error: "))
    assert line in error
    assert not (tmp_path / "peers.json").exists()


def test_all_leaves_the_peers_out_unless_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [s.name for s in run_sections.choose_sections(["all"])]
    assert "peers" not in names
    assert [s.name for s in run_sections.choose_sections(["all"], peers=True)] == [*names, "peers"]
    assert [s.name for s in run_sections.choose_sections(["peers"])] == ["peers"]
    [peers], [other] = (run_sections.choose_sections([name]) for name in ("peers", "8.1"))
    for section, options, end in (
        (peers, {"peers": ("mxnet", "torch")}, ["--peers", "mxnet", "torch"]),
        (
            peers,
            {"peers": ("torch",), "peer_python": ("torch=/a b/python",)},
            ["--peer-python", "torch=/a b/python"],
        ),
        (other, {"peers": ("torch",), "peer_python": ("torch=/a b/python",)}, []),
    ):
        command = run_sections.section_command(
            section, Path("x.json"), run_sections.RunOptions(Path("out"), **options)
        )
        assert command[len(command) - len(end) :] == end
        assert bool(end) == any("torch" in word for word in command)
