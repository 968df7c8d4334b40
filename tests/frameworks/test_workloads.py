"""The one definition of the work: files that fit the models, sizes refused in time, and JAX's own side."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import nnx

from jaxperf import frameworks
from jaxperf.chapter import comparison, run_sections
from jaxperf.errors import JaxperfError
from jaxperf.frameworks import GPU, SMOKE, Limits, Pool, Sizes, System, Workload, inputs
from jaxperf.frameworks.workers import files
from jaxperf.models import MLP, ResNet, from_gluon, to_gluon
from jaxperf.models.lenet import PARAM_SHAPES
from jaxperf.models.resnet import RESNET18_STAGES
from jaxperf.onednn import trial
from jaxperf.processes.exit_status import USER_MISTAKE
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
    for stages in (((8, 1), (16, 2)), RESNET18_STAGES):
        weights = inputs.draw(inputs.resnet_shapes(stages), np.random.default_rng(0))
        empty = nnx.eval_shape(lambda stages=stages: ResNet(10, stages=stages, rngs=nnx.Rngs(0)))
        held = to_gluon(from_gluon(empty, list(weights.values())))  # by their order, as Gluon goes
        assert list(held) == list(weights)
        assert all(np.array_equal(held[name], weights[name]) for name in held)
    assert Sizes().stages == RESNET18_STAGES


def test_the_same_seed_writes_the_same_files_and_another_others(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("a", "b", "c")]
    for folder, seed in zip(folders, (1, 1, 2)):
        folder.mkdir()
        defined(folder, seed=seed)
    for name in ("mlp", "lenet", "resnet", "square", "x", "x824"):
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
    selected = defined(tmp_path, Sizes(lenet_batch=64, batches=(1, 16)))
    assert all(set(w.configurations) == {"jax", "mxnet", "torch"} for w in selected.values())
    for part in ("8.1 ", "8.2 ", "8.3 ", "8.4 ", "8.5 ", "LeNet forward", "ResNet-18 forward"):
        assert any(name.startswith(part) for name in selected), part
    assert selected["8.1 MLP"].configurations == {
        "jax": ("eager", "nnx.jit", "jit", "aot"),
        "mxnet": ("imperative", "hybridized", "static"),
        "torch": ("eager", "traced", "compiled", "frozen"),
    }


def test_onednn_is_a_row_of_its_own_where_one_device_convolves_and_only_if_asked_for(tmp_path: Path) -> None:
    assert not any(frameworks.ONEDNN in w.configurations for w in defined(tmp_path).values())
    rows = {n for n, w in defined(tmp_path, onednn=True).items() if frameworks.ONEDNN in w.configurations}
    assert rows == {
        "8.4 LeNet, 1 device", "8.5 ResNet-18, 1 device", "LeNet forward, batch 1", "LeNet forward, batch 8",
        "ResNet-18 forward, batch 1",
    }  # fmt: skip


def test_all_systems_have_the_users_settings_and_jax_is_as_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(trial.BY_NAME, "1")
    monkeypatch.setenv("XLA_FLAGS", " ".join(("--a=1", *trial.SWITCH)))
    monkeypatch.setattr(comparison.psutil, "cpu_percent", lambda interval: 50.0)
    messages: list[str] = []
    shared = comparison.environment("auto", messages.append)
    assert trial.BY_NAME not in shared
    assert (shared["XLA_FLAGS"], shared["OMP_WAIT_POLICY"]) == ("--a=1", "passive")
    assert {k for k in shared if k.startswith("MALLOC_")} == {
        k for k in os.environ if k.startswith("MALLOC_")
    }
    assert messages == ["others use 50% of the machine: OpenMP's threads sleep while they wait"]
    assert "OMP_WAIT_POLICY" not in comparison.environment("default", messages.append)


def test_one_device_leaves_out_what_needs_more(tmp_path: Path) -> None:
    assert {w.devices for w in defined(tmp_path, devices=1).values()} == {1}
    assert {w.devices for w in defined(tmp_path, devices=4).values()} == {1, 4}


def test_in_bfloat16_there_are_the_networks_that_have_a_dtype(tmp_path: Path) -> None:
    selected = defined(tmp_path, devices=1, platform="gpu", precision="bfloat16").values()
    assert {(w.settings["task"], w.settings["net"]) for w in selected} == {
        (task, net) for task in ("train", "forward") for net in ("lenet", "resnet")
    }
    assert {w.settings["precision"] for w in selected} == {"bfloat16"}


def test_a_gpu_gets_cuda_graphs_and_nothing_that_is_about_the_host(tmp_path: Path) -> None:
    sizes = Sizes(lenet_batch=64, batches=(1, 16))
    cpu, gpu = (defined(tmp_path, sizes, devices=1, platform=kind) for kind in ("cpu", "gpu"))
    assert cpu.keys() - gpu.keys() == {"8.2 memory"}
    for name, workload in gpu.items():
        assert (workload.settings["platform"], workload.settings["precision"]) == ("gpu", "float32")
        more = set(workload.configurations["torch"]) - set(cpu[name].configurations["torch"])
        assert more == ({"CUDA graphs"} if workload.settings["task"] in ("forward", "train") else set())
        assert workload.configurations["jax"] == cpu[name].configurations["jax"]


def test_sizes_for_a_gpu_are_at_least_those_for_a_cpu() -> None:
    for name, on_cpu in vars(Sizes()).items():
        assert name == "stages" or np.all(np.asarray(getattr(GPU, name)) >= np.asarray(on_cpu)), name


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
    import dataclasses

    with pytest.raises(JaxperfError, match=f"^{line}"):
        defined(tmp_path, dataclasses.replace(SMOKE, **change))  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("field", ["calls", "rounds", "batches", "stages"])
def test_sizes_below_one_are_refused(field: str) -> None:
    for value in (0, -1) if field in ("calls", "rounds") else ((), (0,)):
        with pytest.raises(JaxperfError, match=f"^{field} is "):
            Sizes(**{field: value})


@pytest.mark.parametrize("lr", [0.0, -0.1, float("inf"), float("nan")])
def test_a_rate_that_is_none_is_refused(lr: float) -> None:
    with pytest.raises(JaxperfError, match=r"^resnet_lr is .*; a learning rate is a positive number"):
        Sizes(resnet_lr=lr)


# --- JAX's own side, without any peer


@pytest.mark.thorough
def test_jax_agrees_with_itself_in_all_its_configurations(tmp_path: Path) -> None:
    system = System("jax", Path(sys.executable))
    environment = comparison.environment("default", print)
    wanted = ("8.1 MLP", "8.1 export", "8.2 dot", "8.2 loop")
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
    from jaxperf.cli import command_line

    monkeypatch.setenv("JAXPERF_PEERS", str(tmp_path / "none"))
    out = tmp_path / "out"
    arguments = ["run", "peers", "--smoke", "--out", str(out), "--", "--only", "8.2 dot"]
    assert command_line.main(arguments) == 0, capfd.readouterr().err
    result = load_result(out / "peers.json")
    notes = [note for note in result.notes if "is not measured" in note]
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
        (["--", "--precision", "tf32"], "--precision tf32 is a GPU's; add --platform gpu, or leave it out"),
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
    from jaxperf.cli import command_line

    if "gpu" in arguments and any(d.platform == "gpu" for d in jax.devices()):
        pytest.skip("there is a GPU here")
    monkeypatch.setenv("JAXPERF_PEERS", str(tmp_path / "none"))
    assert command_line.main(["run", "peers", "--smoke", "--out", str(tmp_path), *arguments]) == USER_MISTAKE
    error = next(row for row in capfd.readouterr().err.splitlines() if row.startswith("error: "))
    assert line in error
    assert not (tmp_path / "peers.json").exists()


def test_all_leaves_the_peers_out_unless_they_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [s.name for s in run_sections.choose_sections(["all"])]
    assert "peers" not in names
    assert [s.name for s in run_sections.choose_sections(["all"], peers=True)] == [*names, "peers"]
    assert [s.name for s in run_sections.choose_sections(["peers"])] == ["peers"]
    section = run_sections.choose_sections(["peers"])[0]
    options = run_sections.RunOptions(Path("out"), peers=("mxnet", "torch"))
    assert run_sections.section_command(section, Path("out/peers.json"), options)[-3:] == [
        "--peers",
        "mxnet",
        "torch",
    ]
    assert "--peers" not in run_sections.section_command(
        run_sections.choose_sections(["8.1"])[0], Path("x.json"), options
    )
    options = run_sections.RunOptions(Path("out"), peers=("torch",), peer_python=("torch=/a b/python",))
    assert run_sections.section_command(section, Path("x.json"), options)[-2:] == [
        "--peer-python",
        "torch=/a b/python",
    ]
    assert not any(
        "torch" in w
        for w in run_sections.section_command(
            run_sections.choose_sections(["8.1"])[0], Path("x.json"), options
        )
    )
