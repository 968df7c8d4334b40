import json
import math
import shlex
import subprocess
import sys
import threading
from pathlib import Path

import jax
import pytest

from jaxperf import cli
from jaxperf.errors import JaxperfError
from jaxperf.plan import deviceless
from jaxperf.plan.cards import CARDS

TRAIN = """
import jax, jax.numpy as jnp

@jax.jit
def step(w, x, y):
    return w - 0.1 * jax.grad(lambda w: ((x @ w - y) ** 2).mean())(w)

def plain(w, x, y):
    return w - 0.1 * jax.grad(lambda w: ((x @ w - y) ** 2).mean())(w)

def moves():
    import os
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    return shapes()

def shapes():
    return tuple(jax.ShapeDtypeStruct(s, jnp.float32) for s in ((5, 3), (16, 5), (16, 3)))
"""
STEP = "train_to_plan.py:step"
ARGS = "--args f32[5,3] f32[16,5] f32[16,3]"


@pytest.fixture
def train(tmp_path, monkeypatch):
    (tmp_path / "train_to_plan.py").write_text(TRAIN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "train_to_plan", raising=False)  # another test's


def planned(words):
    assert cli.main(["plan", *shlex.split(words), "--json", "plan.json"]) == 0
    return json.loads(Path("plan.json").read_text())


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices", "train")
@pytest.mark.parametrize("source", [ARGS, "--setup train_to_plan.py:shapes"])
def test_a_plan(source, capsys):
    body = planned(f"{STEP} {source} --devices 1,8 --per-device 4")
    out = capsys.readouterr().out
    assert "Predicted step" in out and "plan: plan.json" in out
    assert [size["batch"] for size in body["sizes"]] == [4, 32]
    assert body["sizes"][1]["collectives"] == {"all-reduce": 1}
    assert body["sizes"][1]["exchanges"][0]["source"] == "train_to_plan.py:6"


@pytest.mark.usefixtures("cpus_as_gpus", "train")
def test_a_plan_is_written_where_the_command_began(tmp_path):
    words = f"plan {STEP} --setup train_to_plan.py:moves --devices 1 --json plan.json"
    assert cli.main(words.split()) == 0
    assert (tmp_path / "plan.json").is_file() and not list(tmp_path.glob("elsewhere/*"))


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices", "train")
def test_a_mesh_counts_for_one_number_of_devices_and_a_plain_function_is_one_program(capsys):
    body = planned(f"{STEP} {ARGS} --devices 4,8 --mesh data=2,model=2")
    assert [size["mesh"] for size in body["sizes"]] == [{"data": 2, "model": 2}, {"data": 4, "model": 2}]
    body = planned(f"train_to_plan:plain {ARGS} --devices 1,8")
    assert body["sizes"][1]["collectives"] == {"all-reduce": 1}
    assert "plain is not jitted: it is planned as one program" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices", "train")
def test_an_equal_program_in_the_compile_cache_does_not_give_its_lines():
    Path("moved.py").write_text("\n\n" + TRAIN)
    for path, line in (("train_to_plan.py", 6), ("moved.py", 8)):
        (size,) = planned(f"{path}:step {ARGS} --devices 8")["sizes"]
        assert size["exchanges"][0]["source"] == f"{path}:{line}"


@pytest.mark.usefixtures("cpus_as_gpus", "several_devices", "train")
def test_threads_that_compile_leave_the_cache_setting_as_it_was(monkeypatch):
    """The first of the two has ended before the second begins to compile."""
    done, settings = threading.Event(), []
    before = jax.config.jax_persistent_cache_min_compile_time_secs

    def compiled(card, lowered, options, *, count):
        if count > 1:
            done.wait()
        settings.append(jax.config.jax_persistent_cache_min_compile_time_secs)
        program = lowered.compile()
        done.set()
        return program

    monkeypatch.setattr(deviceless, "compile_for", compiled)
    planned(f"{STEP} {ARGS} --devices 1,8")
    assert settings == [math.inf, math.inf]
    assert jax.config.jax_persistent_cache_min_compile_time_secs == before


@pytest.mark.usefixtures("cpus_as_gpus", "train")
@pytest.mark.parametrize(("words", "message"), [
    (f"{STEP} {ARGS} --devices 1,x", "--devices has 'x'; give numbers from 1 on, as in 1,8,64"),
    (f"{STEP} {ARGS} --devices 0", "--devices has '0'"),
    (f"{STEP} {ARGS} --per-device 0", "--per-device is 0; give at least 1 and at most "),
    (f"{STEP} {ARGS} --total 99999999999999999999", "--total is 99999999999999999999; give at least 1"),
    (f"{STEP} {ARGS} --per-device 2 --total 4", "--total not allowed with argument --per-device"),
    (f"{STEP} {ARGS} --devices 8 --total 30", "30 examples do not divide by 8; give --total a multiple"),
    (f"{STEP} {ARGS} --mesh data", "--mesh has 'data'; give NAME=N for each axis"),
    (f"{STEP} {ARGS} --mesh data=2,data=4", "--mesh has 'data=2,data=4', in which an axis comes twice"),
    (f"{STEP} {ARGS} --devices 8 --mesh data=3", "--mesh takes 3 devices, which are not among --devi"),
    (f"{STEP} {ARGS} --batch one", "--batch has 'one'; give positions from 0 on, as in 1,2 or"),
    (f"{STEP} {ARGS} --batch 1:axis=x", "--batch has '1:axis=x'"),
    (f"{STEP} {ARGS} --batch 7", "--batch names argument 7, but the step has 3, counted from 0"),
    (f"{STEP} {ARGS} --kernel flash=fast", "--kernel is 'flash=fast'; give the work of one run"),
    (f"{STEP} {ARGS} --for k80", "no card 'k80'"), (f"{STEP} {ARGS} --network ring", "no network 'ring'"),
    (f"{STEP} {ARGS} --setup train_to_plan:shapes", "arguments come from --args or from --setup"),
    (f"{STEP} --args f32[5,3", "not understood"),
    (f"{STEP} --args f64[5,3] f32[16,5] f32[16,3]", "no 64 bits"),
    (f"{STEP} --args f32[5,3] f32[16,5] f32[17,3]", "step raised TypeError"),
    (STEP, "step needs arguments (w, x, y), but none are given"),
    (f"train_to_plan:other {ARGS}", "there is no 'other'"),
    ("train_to_plan:plain", "plain is no jitted step; give what jax.jit returned"),
    ("", "no step to plan; give one, jaxperf plan train:step --setup train:arguments"),
    (f"{STEP} -- python train_to_plan.py", "give a step and its arguments, or a program after --"),
])  # fmt: skip
def test_mistakes(words, message, capsys):
    assert cli.main(["plan", *words.split()]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1 and message in lines[0]


@pytest.mark.usefixtures("train")
def test_no_plugin(monkeypatch):
    monkeypatch.setattr(deviceless, "_PLUGINS", ("jax_plugins.no_such_plugin",))
    with pytest.raises(JaxperfError, match=r"install it: .* -m pip install jax-cuda12-plugin==\d"):
        deviceless.check_plugin(CARDS["h100"])


def test_the_plugin_is_got_aside_on_the_users_word(monkeypatch, tmp_path, capsys):
    calls = []

    def run(words, **_):
        calls.append(words)
        failed = len(calls) > 1
        return subprocess.CompletedProcess(words, int(failed), "", "ERROR: no network\n" if failed else "")

    monkeypatch.setattr(deviceless, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(deviceless.subprocess, "run", run)
    assert cli.main(["plan", "--get"]) == 0
    folder = str(deviceless.plugin_folder())
    assert folder in capsys.readouterr().out and folder.startswith(str(tmp_path))
    assert f"jax-cuda12-plugin=={jax.__version__}" in calls[0] and "--target" in calls[0]
    assert cli.main(["plan", "--get"]) == 2
    error = capsys.readouterr().err
    assert "cannot install" in error and "ERROR: no network; try: uv run --with" in error


def test_a_plugin_aside_is_found_only_where_the_environment_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr(deviceless, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    deviceless.plugin_folder().mkdir(parents=True)
    for missing in (False, True):
        monkeypatch.setattr(deviceless, "_no_plugin", lambda missing=missing: missing)
        deviceless.use_plugin_folder()
        assert (str(deviceless.plugin_folder()) in sys.path) is missing
