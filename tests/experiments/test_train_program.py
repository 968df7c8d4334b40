"""experiments/train.py: one process and several, stopped and resumed, and what it keeps."""

from __future__ import annotations

import dataclasses
import functools
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import psutil
import pytest
from disks import fill

from experiments import train as program
from jaxperf.data import FashionMNIST
from jaxperf.errors import JaxperfError
from jaxperf.process import child_environment
from jaxperf.result import Environment, Result, load_result
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import so_far
from jaxperf.train import Epoch

PROGRAM = Path(__file__).parents[2] / "experiments" / "train.py"
SMOKE = (sys.executable, str(PROGRAM), "--smoke", "--platform", "cpu")
LAUNCH = (sys.executable, "-m", "jaxperf", "launch", "-n", "2")
PIPES: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def run(*flags: str | Path) -> subprocess.CompletedProcess[str]:
    command = [*SMOKE, *map(str, flags)]
    return subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=200)


def start(*flags: str | Path) -> subprocess.Popen[str]:
    return subprocess.Popen([*SMOKE, *map(str, flags)], env=child_environment(), **PIPES)


def wait_for(process: subprocess.Popen[str], folder: Path, pattern: str, *, more_than: int = 0) -> None:
    """Wait until more files than so many fit a pattern, or the process ends."""
    while process.poll() is None and len(list(folder.glob(pattern))) <= more_than:
        time.sleep(0.01)


KNOWN = ("state_3", "test_accuracy")  # the facts that are no times
LONG = ("--seed", "3", "--epochs", "2", "--updates", "20")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Result, Path, str]:
    """A training of two epochs of 20 updates on two devices: the result, its path, and what was printed."""
    path = tmp_path_factory.mktemp("train") / "new" / "r.json"
    done = run("--devices", "2", *LONG, "--json", path)
    assert (done.returncode, done.stderr) == (0, "")
    return load_result(path), path, done.stdout


def test_a_smoke_run_prints_its_epochs_and_keeps_them(undisturbed: tuple[Result, Path, str]) -> None:
    result, path, printed = undisturbed
    lines = printed.splitlines()
    assert lines[1:3] == ["devices: cpu:0, cpu:1", "seed 3"]
    assert re.fullmatch(r"compiling took \d+\.\d sec, apart from the epochs' times", lines[3])
    for number, line in enumerate(lines[4:6], 1):
        assert line.startswith(f"epoch {number}, time ") and " test acc 0." in line
    assert lines[-1] == f"result: {path}"
    assert (result.experiment, result.smoke, result.incomplete) == ("train", True, False)
    assert (result.config["devices"], result.config["way"], result.config["seeds"]) == (2, "jit", (3,))
    [seconds] = result.measurements
    assert (seconds.name, seconds.unit, len(seconds.values)) == ("seed 3", "s", 2)
    assert len(result.facts["state_3"]) == 64 and 0 <= result.facts["test_accuracy"] <= 1
    [claim] = result.claims
    assert claim.verdict in ("holds", "undecided")
    assert result.environment.data_source == "mini" and result.environment.devices_are_fake


COUNTED = """
import sys, jax
jax.config.update("jax_platforms", "cpu")
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


def programs_of(*flags: str) -> list[str]:
    """The programs that a run compiles, by name."""
    command = [sys.executable, "-c", COUNTED, "--smoke", *flags]
    done = subprocess.run(
        command, env=child_environment(), cwd=PROGRAM.parents[1], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    status, *names = done.stdout.splitlines()[-1].split()
    assert status == "0", done.stdout + done.stderr
    return [name.removeprefix("jit(").removesuffix(")") for name in names]


@pytest.mark.parametrize(
    "flags",
    [
        ("--seed", "0", "1", "--epochs", "2"),
        pytest.param(("--recipe", "fast", "--dtype", "bfloat16"), marks=pytest.mark.thorough),
    ],
)
def test_a_run_compiles_few_programs_whatever_the_number_of_seeds_and_epochs(flags: tuple[str, ...]) -> None:
    names = programs_of(*flags)
    assert [names.count(name) for name in ("draw_weights", "train_step", "evaluate_batch")] == [1, 1, 1]
    assert len(names) <= 8, names


def test_bfloat16_is_computed_in_and_parameters_stay_float32() -> None:
    for name in ("lenet", "resnet18"):
        config = program.Config(smoke=True, model=name, dtype="bfloat16")  # type: ignore[arg-type]
        model = program.models_of(program.recipe_of(config), config)[0]
        X = np.zeros((2, 28, 28, 1), np.uint8)
        lowered = jax.jit(functools.partial(model.apply, train=True)).lower(model.params, model.stats, X)
        convolutions = re.findall(r"stablehlo.convolution.*-> tensor<(.*)>", lowered.as_text())
        assert convolutions and all(shape.endswith("xbf16") for shape in convolutions)
        assert {a.dtype for a in jax.tree.leaves(model.params)} == {jnp.dtype("float32")}


@pytest.mark.thorough
@pytest.mark.parametrize("way", ["manual", "pmap", "shard_map"])
def test_every_way_trains_resnet_by_the_fast_recipe(way: str, tmp_path: Path) -> None:
    done = run("--devices", "2", "--recipe", "fast", "--way", way, "--json", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    result = load_result(tmp_path / "r.json")
    assert result.config["model"] == "resnet18" and result.config["seeds"] == (0, 1)
    assert result.facts["state_0"] != result.facts["state_1"]
    assert [claim.verdict for claim in result.claims] == ["not measurable here"]


def test_what_c_writes_is_in_a_file_unless_the_process_is_one_of_several(tmp_path: Path) -> None:
    """`jaxperf launch` keeps what each of several processes writes."""
    training = (
        "import os, sys\n"
        "from experiments import train\n"
        "train.together = lambda processes, work: work()\n"
        "for flags in (['--coordinator=a:1', '--num-processes=2', '--process-id=0'], []):\n"
        "    train.run = lambda config, recipe: os.write(2, b'timed out\\n') * 0\n"
        "    sys.argv = ['train.py', '--smoke', '--platform', 'cpu', *flags]\n"
        "    assert train.ended(train.main) == 0\n"
    )
    environment = child_environment() | {"XDG_CACHE_HOME": str(tmp_path)}
    command = [sys.executable, "-c", training]
    done = subprocess.run(command, cwd=PROGRAM.parents[1], env=environment, capture_output=True, text=True)
    log = tmp_path / "jaxperf" / "log" / "train.log"
    assert done.stderr == f"timed out\nnote: what C++ code (XLA) logged is in {log}\n"
    assert log.read_text() == "timed out\n" and done.returncode == 0


def test_nonsense_flags_are_one_line_and_status_2(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(program, "together", lambda options, work: pytest.fail("nothing is to be trained"))
    (tmp_path / "file").touch()
    for flags, message in (
        (["--lrr", "2"], "did you mean --lr?"),
        (["--devices", "0"], "--devices is 0; give at least 1"),
        (["--seed", "-1"], "--seed is -1; give at least 0"),
        (["--lr", "nan"], "--lr is nan; give more than 0"),
        (["--epochs", "2.5"], "--epochs"),
        (["--way", "mpi"], "invalid choice 'mpi'"),
        (["--model", "resnet"], "(did you mean resnet18?)"),
        (["--resume"], "--resume is given without a folder; add --checkpoints DIR"),
        (
            ["--recipe", "fast", "--model", "lenet"],
            "--recipe fast does not train lenet; use --model resnet18",
        ),
        (["--data-folder", str(tmp_path / "none")], "none"),
        (["--json", str(tmp_path / "file" / "r.json")], "a file stands where its folder should be"),
        (["--coordinator", "host:1"], "several processes need all three options"),
    ):
        monkeypatch.setattr(sys, "argv", ["train.py", "--smoke", *flags])
        assert program.ended(program.main) == 2
        out, err = capfd.readouterr()
        assert out == "" and err.startswith("error: ") and err.count("\n") == 1 and message in err, err


@pytest.mark.parametrize(
    "flags",
    [
        ("--batch-size", "15"),
        pytest.param(("--batch-size", "999999998"), marks=pytest.mark.thorough),
        pytest.param(("--platform", "gpu"), marks=pytest.mark.thorough),
        pytest.param(("--checkpoints", "/proc/none"), marks=pytest.mark.thorough),
        pytest.param(("--lr", "1e30", "--updates", "9"), marks=pytest.mark.thorough),
    ],
)
def test_what_is_wrong_only_once_jax_runs_is_one_line_too(flags: tuple[str, ...]) -> None:
    done = run("--devices", "2", *flags)
    assert done.returncode == 2 and done.stderr.startswith("error: ") and done.stderr.count("\n") == 1


@pytest.mark.thorough
def test_a_setting_that_jax_rejects_is_one_line() -> None:
    done = subprocess.run(
        SMOKE, env=child_environment() | {"JAX_ENABLE_X64": "maybe"}, capture_output=True, text=True
    )
    assert done.returncode == 2 and done.stdout == "" and done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: JAX cannot be imported: ")


def test_a_killed_training_resumes_to_the_same_bits(
    tmp_path: Path, undisturbed: tuple[Result, Path, str]
) -> None:
    """SIGKILL in the second epoch, of which the first one's figures stay."""
    flags = ("--devices", "2", *LONG, "--checkpoints", tmp_path / "saved", "--every-steps", "1")
    flags += ("--json", tmp_path / "r.json")
    with start(*flags) as killed:
        wait_for(killed, tmp_path / "saved", "seed-3/step-0000002[3-9]")
        killed.kill()
    assert killed.returncode == -signal.SIGKILL
    partial = load_result(so_far(tmp_path / "r.json"))
    assert partial.incomplete and [len(block.rows) for block in partial.blocks] == [1]
    done = run(*flags)
    assert done.returncode == 2 and done.stderr.endswith("add --resume to go on, or give another folder\n")
    done = run(*flags, "--resume")
    assert done.returncode == 0 and done.stderr.startswith("going on after step 2"), done.stderr
    facts, expected = load_result(tmp_path / "r.json").facts, undisturbed[0].facts
    assert [facts[name] for name in KNOWN] == [expected[name] for name in KNOWN]
    assert not so_far(tmp_path / "r.json").exists()


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_sigterm_saves_the_step_and_ctrl_c_ends_at_once(number: signal.Signals, tmp_path: Path) -> None:
    flags = ("--devices", "2", "--updates", "1000", "--checkpoints", tmp_path, "--every-steps", "2")
    with start(*flags) as process:
        wait_for(process, tmp_path, "seed-0/step-*[0-9]")
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    last = err.splitlines()[-1]
    if number == signal.SIGTERM:
        assert last.startswith("SIGTERM: stopped after step ") and last.endswith("go on with --resume")
    else:
        assert last == "stopped"
    assert not list(tmp_path.rglob("*.part")) and list(tmp_path.glob("seed-0/step-*[0-9]"))


@pytest.mark.real
@pytest.mark.thorough
def test_a_disk_that_becomes_full_costs_the_result_but_not_the_training(small_disk: Path) -> None:
    """The first epoch's result is there, the second's finds no room."""
    path = small_disk / "r.json"
    with start("--devices", "2", "--epochs", "3", "--updates", "60", "--json", path) as process:
        wait_for(process, small_disk, so_far(path).name)
        fill(small_disk)
        out, err = process.communicate(timeout=200)
    assert process.returncode == 2 and "epoch 3, time " in out
    *warnings, error = err.splitlines()
    assert warnings and all(line.startswith("warning: cannot write ") for line in warnings)
    assert error.startswith("error: cannot write ") and "No space left on device" in error
    assert len(load_result(so_far(path)).blocks) == 1 and not path.exists()


def test_two_launched_processes_end_with_the_bits_of_one_with_two_devices(
    tmp_path: Path, undisturbed: tuple[Result, Path, str]
) -> None:
    """With as many threads for each process, since XLA divides long sums by their number."""
    arguments = ["--no-split-cores", "--logs", str(tmp_path), "--", "train", *SMOKE[2:], *LONG]
    command = [*LAUNCH, *arguments, "--json", str(tmp_path / "r.json")]
    done = subprocess.run(command, env=child_environment(), capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    result = load_result(tmp_path / "r.json")
    assert (result.config["processes"], result.config["devices"]) == (2, 2)
    assert result.facts["state_3"] == undisturbed[0].facts["state_3"]
    logs = [(tmp_path / f"process-{i}.log").read_text() for i in range(2)]
    assert ["epoch 2, time" in log for log in logs] == [True, False]


def launched(folder: Path, number: int, whom: int | None, *flags: str) -> tuple[int, list[list[str]]]:
    """Train in two processes, and once they have saved two more steps send a signal.

    Args:
      folder: of the checkpoints; the logs lie next to it.
      number: the signal.
      whom: the process that gets it; None for the launcher.
      flags: more flags.

    Returns:
      The exit status, and what each process wrote.
    """
    logs, had = folder.with_name(f"logs-{number}-{whom}"), len(list(folder.glob("*/step-*[0-9]")))
    saved = ("--checkpoints", str(folder), "--every-steps", "1", "--keep", "1000")
    command = [*LAUNCH, "--logs", str(logs), "--", "train", *SMOKE[2:], *saved, *flags]
    with subprocess.Popen(command, env=child_environment()) as process:
        try:
            wait_for(process, folder, "*/step-*[0-9]", more_than=had + 1)
            started = psutil.Process(process.pid).children()
            (psutil.Process(process.pid) if whom is None else started[whom]).send_signal(number)
        finally:
            status = process.wait(60)
    return status, [(logs / f"process-{i}.log").read_text().splitlines() for i in range(2)]


@pytest.mark.thorough
def test_two_processes_are_ended_by_a_signal_to_any_of_them_and_go_on(tmp_path: Path) -> None:
    """Three runs, of which each goes on where the one before it was stopped."""
    folder, flags, before = tmp_path / "saved", ("--updates", "1000"), 0
    for number, whom in ((signal.SIGTERM, 1), (signal.SIGHUP, 0), (signal.SIGTERM, None)):
        status, logs = launched(folder, number, whom, *flags)
        assert status == 128 + number
        newest = max(int(path.name.removeprefix("step-")) for path in folder.glob("*/step-*[0-9]"))
        for log in logs:
            line = f"{number.name}: stopped after step {newest}; step {newest} is saved, go on with --resume"
            assert line in log, log
            if "--resume" in flags:
                assert any(line.startswith(f"going on after step {before} ") for line in log), log
        before, flags = newest, ("--updates", "1000", "--resume")


# --- the fast recipe


def made_up(train: int = 8, test: int = 4) -> FashionMNIST:
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (train + test, 28, 28, 1), np.uint8)
    labels = rng.integers(0, 10, train + test, np.int32)
    return FashionMNIST(images[:train], labels[:train], images[train:], labels[train:], "made up")


def test_kernels_decay_and_neither_biases_nor_scales_do() -> None:
    shapes = {"kernel": (3, 3, 1, 2), "dense": (4, 2), "bias": (2,), "scale": (2,)}
    params = {name: jnp.ones(shape) for name, shape in shapes.items()}
    optimizer = program.one_cycle(0.4, 10)
    updates, _ = optimizer.update(jax.tree.map(jnp.zeros_like, params), optimizer.init(params), params)
    moved = {name: bool((update != 0).all()) for name, update in updates.items()}
    assert moved == {"kernel": True, "dense": True, "bias": False, "scale": False}


@pytest.mark.parametrize("updates", [10, 702, 5])
def test_the_rate_rises_once_to_the_largest_and_falls_until_the_last_update(updates: int) -> None:
    optimizer, params = program.one_cycle(0.4, updates), {"bias": jnp.zeros(1)}

    def step(state: Any, _: Any) -> Any:
        # without momentum's memory an update is minus (1 + .9) times the rate
        fresh = jax.tree.map(lambda a: jnp.zeros_like(a) if a.shape == (1,) else a, state)
        update, new = optimizer.update({"bias": jnp.ones(1)}, fresh, params)
        return new, -update["bias"][0] / 1.9

    rates = np.asarray(jax.lax.scan(step, optimizer.init(params), length=updates)[1])
    top = int(rates.argmax())
    assert rates[top] == pytest.approx(0.4, rel=0.05 if updates > 5 else 0.5) and 0 < top <= 0.2 * updates
    assert (np.diff(rates[: top + 1]) > 0).all() and (np.diff(rates[top:]) < 0).all()
    assert 0 < rates[-1] < 0.25 * 0.4


def test_each_image_is_there_as_it_is_and_mirrored_with_its_label() -> None:
    data = made_up()
    both = program.with_mirrored(data)
    assert len(both.train_images) == len(both.train_labels) == 16 and both.train_images.dtype == np.uint8
    np.testing.assert_array_equal(both.train_images[:8], data.train_images)
    np.testing.assert_array_equal(both.train_images[8:, :, 0], data.train_images[:, :, 27])
    np.testing.assert_array_equal(both.train_images[8:, 3], data.train_images[:, 3, ::-1])
    np.testing.assert_array_equal(both.train_labels[8:], data.train_labels)
    assert both.test_images is data.test_images


def concluded(runs: dict[int, list[float]], data: FashionMNIST, *, fast: bool) -> Any:
    """The result of trainings with these test accuracies, whose epochs take 2, 3, 4, ... seconds."""
    record = Recorder(program.ABOUT, Environment(), {}, command="")
    epochs = {
        seed: [Epoch(i + 1, 0.3, 0.9, a, 2.0 + i, 9.0, 0.0, 8) for i, a in enumerate(accuracies)]
        for seed, accuracies in runs.items()
    }
    program.conclude(record, epochs, data, fast=fast)
    return record.result()


def test_seconds_count_until_the_epoch_that_reached_the_accuracy() -> None:
    runs = {0: [0.9, 0.93, 0.92], 3: [0.8, 0.92, 0.9299], 5: [0.94, 0.9, 0.95]}
    for data, verdict in ((made_up(), "not measurable here"), (made_up(60_000, 10_000), "does not hold")):
        result = concluded(runs, data, fast=True)
        assert result.facts["seconds_mean"] == 3.5  # of 5 and 2 seconds
        assert result.facts["seconds_spread"] == pytest.approx(1.5 * 2**0.5)
        assert result.facts["test_accuracy"] == pytest.approx(np.mean([0.92, 0.9299, 0.95]))
        assert [claim.verdict for claim in result.claims] == [verdict]
    result = concluded({0: [0.9]}, made_up(), fast=True)
    assert result.facts["seconds_mean"] is None and result.facts["seconds_spread"] is None


def test_a_network_that_only_guesses_on_the_full_data_has_not_learned() -> None:
    few, full = made_up(8, 100), made_up(60_000, 10_000)
    for accuracies, data, verdict in (
        ([0.1, 0.75], few, "holds"),
        ([0.1, 0.2], few, "undecided"),  # of 100 images, 0.22 is luck
        ([0.1, 0.2], full, "holds"),
        ([0.1, 0.11], full, "does not hold"),
    ):
        assert [c.verdict for c in concluded({0: accuracies}, data, fast=False).claims] == [verdict]


def test_flags_replace_a_recipes_values_and_smoke_its_sizes() -> None:
    config = program.Config(recipe="fast", lr=0.1, seed=(7,))
    recipe = program.recipe_of(config)
    assert (recipe.model, recipe.lr, recipe.seeds, recipe.epochs) == ("resnet18", 0.1, (7,), 6)
    assert recipe.updates == 60_000 // 512
    recipe = program.recipe_of(dataclasses.replace(config, smoke=True, batch_size=4, seed=None))
    assert (recipe.batch_size, recipe.epochs, recipe.updates, recipe.seeds) == (4, 1, 3, (0, 1))
    assert program.recipe_of(program.Config(model="resnet18")).lr == 0.1
    with pytest.raises(JaxperfError, match="larger than the data"):
        program.recipe_of(program.Config(batch_size=70_000))
