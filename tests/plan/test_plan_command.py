"""The flags of `jaxperf plan`, and its mistakes, each one line."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from jaxperf import cli
from jaxperf.errors import JaxperfError
from jaxperf.plan import command, deviceless
from jaxperf.plan.command import Plan

TRAIN = """
import jax, jax.numpy as jnp

@jax.jit
def step(w, x, y):
    return w - 0.1 * jax.grad(lambda w: ((x @ w - y) ** 2).mean())(w)

def plain(w, x, y):
    return w

def moves():
    import os
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    return shapes()

def shapes():
    return tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((5, 3), (16, 5), (16, 3)))
"""
ARGS = ("f32[5,3]", "f32[16,5]", "f32[16,3]")


@pytest.fixture
def train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    path = tmp_path / "train_to_plan.py"
    path.write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "train_to_plan", raising=False)  # another test's
    return str(path)


@pytest.mark.parametrize("flag", ["--per-device", "--total"])
@pytest.mark.parametrize("value", ["0", "99999999999999999999"])
def test_examples_out_of_bounds(flag: str, value: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["plan", "train:step", flag, value]) == 2
    assert f"error: {flag} is {value}; give at least 1 and at most " in capsys.readouterr().err


def test_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = [
        "train:step",
        "--for",
        "a100",
        "--devices",
        "1,16",
        "--per-device",
        "8",
        "--mesh",
        "data=8,model=2",
    ]
    asked: list[Plan] = []
    monkeypatch.setattr(command, "main", lambda plan: asked.append(plan) or 0)
    assert cli.main(["plan", *arguments]) == 0
    assert asked == [Plan("train:step", for_="a100", devices="1,16", per_device=8, mesh="data=8,model=2")]


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
@pytest.mark.parametrize(
    "source", [{"args": ARGS}, {"setup": "train_to_plan.py:shapes"}], ids=["args", "setup"]
)
def test_a_plan(
    source: dict[str, Any], train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    asked = Plan(f"{train}:step", **source, devices="1,8", per_device=4, json=path)
    assert command.main(asked) == 0
    out = capsys.readouterr().out
    assert "Predicted step" in out and f"plan: {path}" in out
    body = json.loads(path.read_text())
    assert [size["batch"] for size in body["sizes"]] == [4, 32]
    assert body["sizes"][1]["collectives"] == {"all-reduce": 1}
    assert body["sizes"][1]["exchanges"][0]["collective"]["source"] == "train_to_plan.py:6"


@pytest.mark.usefixtures("cpus_as_gpus")
def test_a_plan_is_written_where_the_command_began(
    train: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = Plan(f"{train}:step", setup="train_to_plan.py:moves", devices="1", json=Path("plan.json"))
    assert command.main(asked) == 0
    assert (tmp_path / "plan.json").is_file() and not list(tmp_path.glob("elsewhere/*"))
    assert capsys.readouterr().out.endswith("plan: plan.json\n")


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_a_mesh_counts_for_one_number_of_devices_and_its_first_axis_grows(train: str, tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    asked = Plan(f"{train}:step", args=ARGS, devices="4,8", mesh="data=2,model=2", json=path)
    assert command.main(asked) == 0
    meshes = [size["mesh"] for size in json.loads(path.read_text())["sizes"]]
    assert meshes == [{"data": 2, "model": 2}, {"data": 4, "model": 2}]


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_an_equal_program_in_the_compile_cache_does_not_give_its_lines(train: str, tmp_path: Path) -> None:
    Path("moved.py").write_text("\n\n" + TRAIN)
    lines = []
    for path in (train, "moved.py"):
        assert command.main(Plan(f"{path}:step", args=ARGS, devices="8", json=tmp_path / "plan.json")) == 0
        size = json.loads((tmp_path / "plan.json").read_text())["sizes"][0]
        lines.append(size["exchanges"][0]["collective"]["source"])
    assert lines == ["train_to_plan.py:6", "moved.py:8"]


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices")
def test_threads_that_compile_leave_the_cache_setting_as_it_was(
    train: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of the two has ended before the second begins to compile."""
    done, settings = threading.Event(), []

    def compiled(card: object, lowered: Any, options: object, *, count: int) -> Any:
        if count > 1:
            assert done.wait(60)
        settings.append(jax.config.jax_compilation_cache_include_metadata_in_key)
        program = lowered.compile()
        done.set()
        return program

    monkeypatch.setattr(deviceless, "compile_for", compiled)
    assert command.main(Plan(f"{train}:step", args=ARGS, devices="1,8")) == 0
    assert settings == [True, True]
    assert not jax.config.jax_compilation_cache_include_metadata_in_key


@pytest.mark.usefixtures("cpus_as_gpus")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": "1,x"}, "--devices: 'x' is not a number from 1 on"),
        ({"devices": "0"}, "'0' is not a number from 1 on"),
        ({"mesh": "data"}, "--mesh: 'data' is not NAME=N"),
        ({"mesh": "data=2,data=4"}, "'data=4' is not NAME=N"),
        (
            {"devices": "8", "mesh": "data=3"},
            "--mesh data=3 takes 3 devices, which are not among --devices 8",
        ),
        ({"devices": "8", "mesh": "data=2"}, "--mesh data=2 takes 2 devices"),
        ({"batch": "one"}, "--batch: 'one' is not a number from 0 on; give positions as in --batch 1,2 or"),
        ({"batch": "1:axis=x"}, "--batch: '1:axis=x' is not a number"),
        ({"kernel": ("flash=fast",)}, "--kernel: 'flash=fast' is not NAME=FLOPS,BYTES"),
        ({"batch": "7"}, "--batch names argument 7, but the step has 3, counted from 0"),
        ({"args": ()}, "step needs arguments"),
        ({"for_": "k80"}, "no card 'k80'"),
        ({"for_": "v5e", "step_ms": 1.0}, "v5e has no model of kernels"),
        ({"network": "token ring"}, "no network 'token ring'"),
        ({"step": "train_to_plan:other"}, "there is no 'other'"),
        ({"step": "train_to_plan:plain"}, "plain is not jitted, so nothing can be compiled"),
        ({"args": ("f32[5,3",)}, "not understood"),
        ({"args": ("f64[5,3]", "f32[16,5]", "f32[16,3]")}, "no 64 bits"),
        ({"args": ARGS, "setup": "train_to_plan:plain"}, "one of the three"),
        ({"per_device": 2, "total": 4}, "exclude each other"),
    ],
)
@pytest.mark.usefixtures("train")
def test_mistakes(options: dict[str, Any], message: str) -> None:
    asked = {"step": "train_to_plan:step", "args": ARGS, **options}
    with pytest.raises(JaxperfError, match=message) as raised:
        command.main(Plan(**asked))
    assert "\n" not in str(raised.value)


def test_no_step() -> None:
    with pytest.raises(JaxperfError, match="no step to plan; give one, jaxperf plan train:step"):
        command.main(Plan())


def test_no_plugin(train: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deviceless, "_PLUGINS", ("jax_plugins.no_such_plugin",))
    with pytest.raises(JaxperfError, match=r'install it: pip install "jax-cuda12-plugin==\d'):
        command.main(Plan(f"{train}:step", args=ARGS))


def test_shapes_take_no_memory() -> None:
    call_arguments = command.shapes(["f32[1000000,1000000]", "key", "n=3"])
    assert call_arguments.by_position[0] == jax.ShapeDtypeStruct((1_000_000, 1_000_000), jnp.float32)
    assert call_arguments.by_name == {"n": 3}


def test_the_plugin_is_got_aside_on_the_readers_word(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[list[str]] = []

    def run(words: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        calls.append(words)
        failed = len(calls) > 1
        return subprocess.CompletedProcess(words, int(failed), "", "ERROR: no network\n" if failed else "")

    monkeypatch.setattr(deviceless, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(deviceless.subprocess, "run", run)
    assert command.main(Plan(get=True)) == 0
    folder = str(deviceless.own_folder())
    assert folder in capsys.readouterr().out and folder.startswith(str(tmp_path))
    assert f"jax-cuda12-plugin=={jax.__version__}" in calls[0] and "--target" in calls[0]
    with pytest.raises(JaxperfError, match=r"cannot install .* ERROR: no network; install it: uv run --with"):
        command.main(Plan(get=True))


def test_a_plugin_aside_is_found_only_where_the_environment_has_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(deviceless, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    deviceless.own_folder().mkdir(parents=True)
    for there in (True, False):
        monkeypatch.setattr(deviceless, "_there", lambda module, there=there: there)
        deviceless.use_own_plugin()
        assert (str(deviceless.own_folder()) in sys.path) is not there
