import random
import re
import signal
import sys
import time
from pathlib import Path

import children
import jax
import numpy as np
import pytest
import several

from experiments import train as program
from jaxperf.process import ended
from jaxperf.result.store import load_result

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "experiments" / "train.py"
SMOKE = (sys.executable, str(PROGRAM), "--smoke")
LONG = ("--seeds", "3", "--epochs", "2", "--updates", "20")


def run(*flags, **variables):
    return children.run(*SMOKE[1:], *flags, **variables)


def saved_steps(folder):
    return sorted(int(path.name) for path in folder.glob("seed-*/*") if path.name.isdecimal())


def wait_for_step(processes, folder, *, beyond):
    while all(process.poll() is None for process in processes) and max([*saved_steps(folder), 0]) <= beyond:
        time.sleep(0.01)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """A training of two epochs of 20 updates on two devices: the result, and what was printed."""
    path = tmp_path_factory.mktemp("train") / "new" / "r.json"
    done = run("--devices", "2", *LONG, "--json", path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return load_result(path), done.stdout


def test_a_smoke_run_prints_its_epochs_and_keeps_them(undisturbed):
    result, printed = undisturbed
    lines = printed.splitlines()
    assert lines[0] == "lenet, data: mini, devices: cpu:0, cpu:1"
    assert re.fullmatch(r"compiling took \d+\.\d sec", lines[1]) and lines[2] == "seed 3"
    for number, line in enumerate(lines[3:5], 1):
        assert line.startswith(f"epoch {number}, time ") and " test acc 0." in line
    assert (result.experiment, result.smoke, result.incomplete) == ("train", True, False)
    assert (result.config["devices"], result.config["processes"], result.config["seeds"]) == (2, 1, (3,))
    [seconds] = result.measurements
    assert (seconds.name, seconds.unit, len(seconds.values)) == ("seed 3", "s", 2)
    assert len(result.facts["state_3"]) == 64 and 0 <= result.facts["test_accuracy"] <= 1
    [claim] = result.claims
    assert claim.verdict == "not measurable here"
    assert result.environment.data_source == "mini" and result.environment.devices_are_fake


def test_two_processes_have_the_bits_of_one_with_two_devices(tmp_path, undisturbed):
    done = several.run([*SMOKE, *LONG, "--json", tmp_path / "r.json"])
    assert [status for status, _, _ in done] == [0, 0], done
    assert ["epoch 2, time" in out for _, out, _ in done] == [True, False]
    result = load_result(tmp_path / "r.json")
    assert (result.config["processes"], result.config["devices"]) == (2, 2)
    assert result.facts["state_3"] == undisturbed[0].facts["state_3"]


def test_a_subset_of_devices_changes_the_sums_only_by_rounding(undisturbed):
    """Another number of devices adds in another order; the figures of 40 updates are still these."""
    assert figures(run(*LONG).stdout) == pytest.approx(figures(undisturbed[1]), abs=5e-3)


def figures(printed):
    lines = re.findall(r"^epoch.*loss (.*)$", printed, re.M)
    return [float(number) for line in lines for number in re.findall(r"\d\.\d+", line)]


# A training that is killed soon after it has begun to save a number of checkpoints
KILLED = """
import os, signal, sys, threading, time
from experiments import train
saves, delay_s = int(sys.argv.pop(1)), float(sys.argv.pop(1))
save = train.Checkpoints.save
def save_and_die(*args, **about):
    global saves
    save(*args, **about)
    saves -= 1
    if saves == 0:
        threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
train.Checkpoints.save = save_and_die
sys.argv[0] = "train.py"
train.ended(train.main)
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("kills", "seed"), [(1, 0), *(pytest.param(5, seed, marks=pytest.mark.thorough) for seed in range(1, 5))]
)
def test_a_killed_training_ends_with_the_same_bits(kills, seed, tmp_path, undisturbed):
    """SIGKILL up to 30 ms after a checkpoint has begun, so that many come while one is written."""
    rng, folder = random.Random(seed), tmp_path / "saved"
    flags = ("--devices", "2", *LONG, "--checkpoints", folder, "--every-steps", "1", "--resume")
    for _ in range(kills):
        # the second checkpoint is complete before the third begins, and 40 are to come
        saves, delay_s = rng.randint(3, 7), rng.uniform(0, 0.03)
        killed = children.run("-c", KILLED, str(saves), str(delay_s), "--smoke", *flags, folder=ROOT)
        assert killed.returncode == -signal.SIGKILL, killed.stderr
    done = run(*flags, "--json", tmp_path / "r.json")
    assert done.returncode == 0 and done.stderr.startswith("going on after step "), done.stderr
    assert load_result(tmp_path / "r.json").facts["state_3"] == undisturbed[0].facts["state_3"]


@pytest.mark.thorough
@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_of_two_processes_is_killed_the_other_ends_and_both_go_on(victim, tmp_path, undisturbed):
    flags = (*LONG, "--checkpoints", str(tmp_path / "saved"), "--every-steps", "1", "--resume")
    processes = several.start([*SMOKE, *flags])
    wait_for_step(processes, tmp_path / "saved", beyond=2)
    processes[victim].kill()
    done = several.finish(processes)
    assert done[victim][0] == -signal.SIGKILL
    status, _, err = done[1 - victim]
    ours, jaxs = "error: another process left the run", "another task died"
    assert (status == 1 and ours in err) or (status == -signal.SIGABRT and jaxs in err), done
    done = several.run([*SMOKE, *flags, "--json", tmp_path / "r.json"])
    assert [status for status, _, _ in done] == [0, 0], done
    assert all("going on after step " in err for _, _, err in done)
    assert load_result(tmp_path / "r.json").facts["state_3"] == undisturbed[0].facts["state_3"]


@pytest.mark.parametrize(("sent", "status", "last"), [
    (signal.SIGTERM, 143, r"SIGTERM: stopped after step \d+; go on with --resume"),
    pytest.param(signal.SIGINT, 130, "stopped", marks=pytest.mark.thorough),
])  # fmt: skip
def test_sigterm_saves_the_step_and_ctrl_c_ends_at_once(sent, status, last, tmp_path):
    flags = ("--devices", "2", "--updates", "2000", "--checkpoints", tmp_path, "--every-steps", "2")
    with children.start(*SMOKE[1:], *flags) as process:
        wait_for_step([process], tmp_path, beyond=2)
        process.send_signal(sent)
        _, err = process.communicate()
    assert process.returncode == status
    assert re.fullmatch(last, err.splitlines()[-1]), err
    if sent == signal.SIGTERM:
        assert err.split("step ")[1].startswith(f"{saved_steps(tmp_path)[-1]};")


@pytest.mark.thorough
def test_sigterm_to_one_of_two_processes_saves_one_step_of_both(tmp_path):
    flags = ("--updates", "5000", "--checkpoints", str(tmp_path), "--every-steps", "5")
    processes = several.start([*SMOKE, *flags])
    wait_for_step(processes, tmp_path, beyond=5)
    processes[1].send_signal(signal.SIGTERM)
    done = several.finish(processes)
    lines = [err.splitlines()[-1] for _, _, err in done]
    assert [status for status, _, _ in done] == [143, 143] and lines[0] == lines[1], done
    assert lines[0] == f"SIGTERM: stopped after step {saved_steps(tmp_path)[-1]}; go on with --resume"


@pytest.mark.thorough
def test_what_a_checkpoint_folder_holds_is_not_mixed_up(tmp_path):
    flags = ("--checkpoints", tmp_path, "--updates", "2", "--epochs", "2")
    assert run(*flags).returncode == 0
    for added, message in (
        ((), "holds checkpoints; add --resume to go on, or give another folder"),
        (("--resume", "--lr", "0.1"), "lr is 0.2 in the checkpoint, and 0.1 here; give what"),
        (("--resume", "--epochs", "1"), "is beyond epoch 1; give more --epochs"),
    ):
        done = run(*flags, *added)
        errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
        assert done.returncode == 2 and len(errors) == 1 and message in errors[0], done.stderr
    done = run(*flags, "--resume", "--epochs", "3")
    assert done.returncode == 0 and "epoch 3, time" in done.stdout and "epoch 2, time" not in done.stdout


COUNTED = """
import sys, jax
names = []
def listen(event, duration, **about):
    if event.endswith("/backend_compile_duration"):
        names.append(about.get("fun_name"))
jax.monitoring.register_event_duration_secs_listener(listen)
sys.argv[0] = "train.py"
from experiments import train
status = train.ended(train.main)
print(status, *names)
"""


@pytest.mark.parametrize("flags", [
    ("--seeds", "0", "1", "--epochs", "2"),
    pytest.param(("--recipe", "fast", "--dtype", "bfloat16"), marks=pytest.mark.thorough),
])  # fmt: skip
def test_a_run_compiles_two_programs_whatever_the_number_of_seeds_and_epochs(flags):
    done = children.run("-c", COUNTED, "--smoke", *flags, folder=ROOT)
    status, *names = done.stdout.splitlines()[-1].split()
    assert status == "0", done.stdout + done.stderr
    assert sorted(name.removeprefix("jit(").removesuffix(")") for name in names) == ["evaluate", "update"]


def test_an_update_of_the_fast_recipe_is_optaxs():
    """Nesterov's momentum with decay of the kernels, by Optax's own transformations, on a linear model."""
    import optax

    from jaxperf.parallel import model_of_function

    recipe = program.Recipe("linear", epochs=1, batch_size=4, lr=0.1, updates=3, fast=True)
    rng = np.random.default_rng(0)
    params = {"W": np.float32(rng.normal(size=(784, 10))), "b": np.zeros(10, np.float32)}
    model = model_of_function(lambda X, p: X.reshape(len(X), -1) @ p["W"] + p["b"], params)
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("devices",))
    update, _ = program.programs_of(model.apply, recipe, mesh)
    images = rng.integers(0, 256, (4, 28, 28, 1), dtype=np.uint8)
    labels = rng.integers(0, 10, 4).astype(np.int32)
    order = np.array([[0, 1, 2, 3], [4, 1, 6, 3], [7, 6, 5, 4]], np.int32)  # 4 and more are mirrored
    zeros = jax.tree.map(np.zeros_like, params)
    state = {"params": params, "stats": {}, "momentum": zeros, "loss": np.float32(0), "hits": np.int32(0)}

    decay = optax.add_decayed_weights(program.DECAY, mask={"W": True, "b": False})
    optimizer = optax.chain(decay, optax.sgd(0.1, momentum=program.MOMENTUM, nesterov=True))
    expected, moments = params, optimizer.init(params)
    for i, rows in enumerate(order):
        X = np.where((rows >= 4)[:, None, None, None], images[rows % 4][:, :, ::-1], images[rows % 4])

        def loss(params, X=X, y=labels[rows % 4]):
            logits, _ = model.apply(params, {}, X, train=True)
            return optax.softmax_cross_entropy_with_integer_labels(logits, y).mean()

        updates, moments = optimizer.update(jax.grad(loss)(expected), moments, expected)
        expected = optax.apply_updates(expected, updates)
        state, _ = update(state, images, labels, order, np.int32(i), np.float32(0.1))
    for name, value in expected.items():
        np.testing.assert_allclose(state["params"][name], value, rtol=0, atol=1e-6)


@pytest.mark.thorough
def test_the_fast_recipe_trains_on_two_devices_and_keeps_its_programs(tmp_path):
    flags = ("--devices", "2", "--recipe", "fast", "--seeds", "0", "1", "--compile-cache", tmp_path / "cache")
    done = run(*flags, "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    result = load_result(tmp_path / "r.json")
    assert result.config["model"] == "resnet18" and result.config["seeds"] == (0, 1)
    assert result.facts["state_0"] != result.facts["state_1"]
    kept = sorted(path.name for path in (tmp_path / "cache").glob("jit_*-cache"))
    assert [name.split("-")[0] for name in kept] == ["jit_evaluate", "jit_update"]
    [digest] = re.findall(r"last state: ([0-9a-f]{64})", run(*flags, "--seeds", "0").stdout)
    assert digest == result.facts["state_0"]


def test_nonsense_flags_are_one_line_and_status_2(capfd, monkeypatch, tmp_path):
    monkeypatch.setattr(program, "together", lambda work: pytest.fail("nothing is to be trained"))
    (tmp_path / "file").touch()
    for flags, message in (
        (["--lrr", "2"], "--lr"),
        (["--devices", "0"], "--devices is 0; give at least 1"),
        (["--seeds", "-1"], "--seeds is -1; give at least 0"),
        (["--lr", "nan"], "--lr is nan; give a finite number of more than 0"),
        (["--epochs", "2.5"], "--epochs"),
        (["--model", "resnet"], "resnet18"),
        (["--resume"], "--resume is given without a folder; add --checkpoints DIR"),
        (["--recipe", "fast", "--model", "lenet"], "fast does not train lenet; use --model resnet18"),
        (["--data-folder", str(tmp_path / "none")], "none"),
        (["--json", str(tmp_path / "file" / "r.json")], "a file stands where its folder should be"),
    ):
        monkeypatch.setattr(sys, "argv", ["train.py", "--smoke", *flags])
        assert ended(program.main) == 2
        out, err = capfd.readouterr()
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and message in err, err


@pytest.mark.parametrize(("flags", "variables"), [
    (("--batch-size", "15"), {}), pytest.param(("--batch-size", "999999998"), {}, marks=pytest.mark.thorough),
    pytest.param((), {"JAX_PLATFORMS": "cuda"}, marks=pytest.mark.thorough),
    pytest.param(("--checkpoints", "/proc/none"), {}, marks=pytest.mark.thorough),
    pytest.param(("--lr", "1e30", "--updates", "9"), {}, marks=pytest.mark.thorough),
    pytest.param((), {"JAX_ENABLE_X64": "maybe"}, marks=pytest.mark.thorough),
    pytest.param((), {"JAX_NUM_PROCESSES": "2"}, marks=pytest.mark.thorough),
])  # fmt: skip
def test_what_is_wrong_only_once_jax_runs_is_one_line_too(flags, variables):
    done = run("--devices", "2", *flags, **variables)
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert done.returncode == 2 and len(errors) == 1 and "Traceback" not in done.stderr, done.stderr
