import contextlib
import time
from pathlib import Path

import children
import jax
import numpy as np
import psutil
import pytest
import with_jax
import worker
from cases import cases
from workloads import SMOKE, workloads

from jaxperf.models import lenet_params

IMAGES = np.arange(64 * 28 * 28, dtype=np.uint8).reshape(64, 28, 28, 1)
LABELS = np.arange(64) % 10
FOLDER = Path(worker.__file__).parent


def defined(folder, **options):
    return {w.name: w for w in workloads(SMOKE, folder, IMAGES, LABELS, **options)}


def test_the_weights_are_of_the_books_networks_and_of_a_size_that_shows_errors(tmp_path):
    defined(tmp_path)
    for net in ("mlp", "lenet", "resnet"):
        weights = worker.arrays(str(tmp_path / f"{net}.npz"))
        for name, array in weights.items():
            assert array.dtype == np.float32
            if array.ndim > 1:
                fan_in = len(array) if name in ("W3", "W4") else array[0].size
                assert 0.5 < array.std() / (2 / fan_in) ** 0.5 < 1.5, (net, name)
        if net == "lenet":
            assert [a.shape for a in weights.values()] == [p.shape for p in lenet_params(jax.random.key(0))]


def test_all_systems_train_on_the_same_images_in_the_same_order(tmp_path):
    train = defined(tmp_path)["8.4 LeNet, 1 device"]
    batches = worker.batches(dict(train.settings))
    assert [X.shape for X, _ in batches] == [(16, 1, 28, 28)] * 4
    assert all(X.dtype == np.float32 and y.dtype == np.int32 for X, y in batches)
    joined = np.concatenate([X for X, _ in batches])
    np.testing.assert_array_equal(joined, IMAGES.reshape(-1, 1, 28, 28).astype(np.float32) / 255)
    rows = worker.rows(dict(defined(tmp_path, on_device=True)["LeNet float32, batch 8"].settings))
    assert rows.shape == (8, 8) and sorted(rows.ravel()) == list(range(64))
    assert rows.ravel().tolist() != list(range(64))


STEPS = [("LeNet", "float32", 1e-5), ("ResNet-18", "float32", 1e-5), ("ResNet-18", "bfloat16", 1e-2)]


@pytest.mark.parametrize(("net", "precision", "rtol"), cases(STEPS, lambda net, *_: net == "LeNet"))
def test_a_step_on_bytes_is_the_step_on_pictures(net, precision, rtol, tmp_path):
    work = defined(tmp_path, on_device=True)
    batch = 16 if precision == "bfloat16" else 8
    settings = dict(work[f"{net} {precision}, batch {batch}"].settings)
    settings |= {"chunk": 2, "batch": 2, "steps": 4}  # in a scan, a CPU's convolutions are slow
    one, many = (with_jax.train_on_device(settings, way) for way in ("jit", "scan"))
    np.testing.assert_allclose(one.answers["loss"], many.answers["loss"], rtol=rtol)
    apply, state = with_jax.network(settings)
    rows, losses = worker.rows(settings), []
    for r in (*rows[:4], *rows[:3]):
        X = IMAGES[r].astype(np.float32) / 255
        state, loss = with_jax.update(apply, settings["lr"], state, X, LABELS[r].astype(np.int32))
        losses.append(float(loss))
    computed = np.concatenate([one.answers["loss"], one.answers["loss, host-fed"]])
    np.testing.assert_allclose(computed, losses, rtol=2e-2 if precision == "bfloat16" else 1e-4)
    assert set(one.turn(2)) == {"on the device", "host-fed"} and set(many.turn(2)) == {"on the device"}


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["8.1 MLP", "8.2 dot", "8.2 loop", "8.4 LeNet, 2 devices"])
def test_all_of_jaxs_configurations_compute_the_same(name, tmp_path):
    work = defined(tmp_path)[name]
    prepare = with_jax.TASKS[work.settings["task"]]
    tasks = [prepare(dict(work.settings), way) for way in work.configurations["jax"]]
    for task in tasks:
        for key, answer in tasks[0].answers.items():
            np.testing.assert_allclose(task.answers[key], answer, rtol=1e-4, atol=1e-5)
        assert set(work.quantities) == set(task.turn(1))


def test_turns_make_the_calls_and_wait_as_their_names_say(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(worker.time, "perf_counter", lambda: now[0])

    def call():
        now[0] += 1

    def wait(_):
        now[0] += 10

    assert worker.waiting_once(call, wait)(5) == {"": 3.0}
    assert worker.waiting_once(call, wait, each=2)(10) == {"": 1.5}  # a call does the work twice
    assert worker.queued_and_finished(call, wait)(3) == {"queued": 1.0, "finished": 11.0}
    assert worker.waiting_each_time(call, wait, quantity="finished")(3) == {"finished": 11.0}
    both = worker.synchronous_and_asynchronous(call, wait, wait)(5)
    assert both == {"synchronous": 11.0, "asynchronous": 3.0}
    task = worker.training(call, lambda _: 0.5, lambda: wait(None), 4)
    assert task.answers["loss"] == [0.5] * 4 and task.turn(5) == {"": 3.0}


def test_both_loops_of_the_book_keep_an_output_until_the_next_one_is_there():
    """Else one loop gets the memory that was just freed, and the other one new memory."""
    alive = []
    living = 0

    class Output:
        def __init__(self):
            nonlocal living
            living += 1

        def __del__(self):
            nonlocal living
            living -= 1

    def call():
        alive.append(living)
        return Output()

    worker.synchronous_and_asynchronous(call, worker.nothing, worker.nothing)(4)
    assert alive == [0, 1, 1, 1] * 2


def test_a_process_leaves_with_its_parent_even_in_the_middle_of_a_call(tmp_path):
    (tmp_path / "sleeps.py").write_text(
        f"import sys, time; sys.path.insert(0, {str(FOLDER)!r}); import worker\n"
        "def sleep(settings, configuration):\n"
        "    print('in a call', flush=True)\n"
        "    time.sleep(600)\n"
        "worker.serve({}, {'sleep': sleep})\n"
    )
    parent = (
        "import json, subprocess, sys\n"
        "from multiprocessing import Pipe\n"
        "ours, theirs = Pipe()\n"
        "command = [sys.executable, 'sleeps.py', str(theirs.fileno())]\n"
        "child = subprocess.Popen(command, stdout=subprocess.PIPE, pass_fds=[theirs.fileno()])\n"
        "question = {'op': 'prepare', 'settings': {'task': 'sleep'}, 'configuration': ''}\n"
        "ours.send_bytes(json.dumps(question).encode())\n"
        "child.stdout.readline()\n"
        "print(child.pid)\n"
    )
    child = int(children.run("-c", parent, folder=tmp_path).stdout)
    with contextlib.suppress(psutil.NoSuchProcess):
        while psutil.Process(child).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.1)
