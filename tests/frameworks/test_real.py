import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import environments
import numpy as np
import pytest
import run
from processes import System
from results import QUEUED, agreement, compare_answers
from workloads import SMOKE, workloads

from jaxperf.data import fashion_mnist

pytestmark = [pytest.mark.real, pytest.mark.thorough]


@pytest.fixture(scope="module", params=["mxnet", "torch"])
def peer(request):
    name = request.param
    made = (environments.BUILD / name / "made-from.txt").is_file()
    if not made and not os.environ.get("JAXPERF_REQUIRE_REAL"):
        pytest.skip(f"no environment of {name} yet: `python benchmarks/frameworks/run.py --smoke` makes it")
    try:
        return System(name, environments.python(name, {}, print), environments.script(name))
    except environments.UnavailableError as e:
        pytest.skip(f"{name}: {e}")


def compared(peer, arguments, folder):
    command = [sys.executable, run.__file__, "--smoke", "--rounds", "1", "--json", str(folder / "run.json")]
    command += ["--frameworks", "--python", f"{peer.name}={peer.python}", *arguments]
    environment = {**os.environ, "UV_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "run.json").read_text())


def check(result, peer):
    """All rows agree with JAX, and are judged unless the machine let them use more than their cores."""
    rows = [(study["name"], row) for study in result["workloads"] for row in study["rows"]]
    assert [(name, row["lost"]) for name, row in rows if row["lost"]] == []
    count = sum(row["system"] == peer for _, row in rows)
    assert agreement(result["workloads"], peer).startswith(f"{count} of {count} configurations agree")
    assert {m["system"] for study in result["workloads"] for m in study["measurements"]} == {"jax", peer}
    for study in result["workloads"]:
        judged = {(row["system"], q) for row in study["rows"] for q, fair in row["fair"].items() if fair}
        compared_quantities = {c["quantity"] for c in study["comparisons"]}
        fair_quantities = {q for system, q in judged if system == peer and ("jax", q) in judged}
        assert fair_quantities - {QUEUED} <= compared_quantities


@pytest.mark.parametrize("names", [("8.1", "8.2", "8.3", "8.4"), ("8.5",)], ids=["8.1 to 8.4", "8.5"])
def test_they_compute_what_jax_does(peer, names, tmp_path):
    result = compared(peer, ["--only", *names], tmp_path)
    check(result, peer.name)
    assert peer.name in result["versions"][peer.name]


def test_with_images_on_the_device_pytorch_computes_what_jax_does(peer, tmp_path):
    if peer.name == "mxnet":
        result = compared(peer, ["--on-device", "--only", "8.2 loop, waiting once"], tmp_path)
        assert "mxnet is left out: the package of its last release computes on CPUs only" in result["notes"]
        return
    only = ("LeNet bfloat16, batch 16", "ResNet-18 float32, batch 8", "8.1", "8.2")
    check(compared(peer, ["--on-device", "--only", *only], tmp_path), "torch")


@pytest.mark.parametrize("change", ["rate", "weights", "batch"])
@pytest.mark.parametrize("name", ["8.4 LeNet, 1 device", "8.5 ResNet-18, 2 devices"])
def test_a_framework_that_trains_otherwise_is_found_out(name, change, peer, tmp_path):
    """Tolerances would be worth nothing if a rate off by a tenth or one array by a twentieth passed them."""
    data = fashion_mnist(source="mini")
    images = data.train_images[:64], data.train_labels[:64]
    work = {w.name: w for w in workloads(SMOKE, tmp_path, *images)}[name]
    jax = System("jax", Path(sys.executable), environments.script("jax"))
    answers = lambda *args: answered(*args, folder=tmp_path)  # noqa: E731
    wrong = answers(jax, dataclasses.replace(work, settings=changed(work, change, tmp_path)))
    assert compare_answers(wrong, answers(peer, work)) > 2 * work.rtol


def answered(system, work, *, folder):
    shared = {"environment": run.shared_environment(print), "cores": run.available_cores()}
    comparison = run.Comparison([system], scratch=folder, **shared)
    [row, *_] = comparison.rows(work)
    try:
        comparison.prepare(row)
    finally:
        comparison.end()
    assert row.answers
    return dict(row.answers)


def changed(work, change, folder):
    settings = dict(work.settings)
    if change == "rate":
        return settings | {"lr": 1.1 * settings["lr"]}
    if change == "batch":
        return settings | {"batch": settings["batch"] // 2}
    arrays = dict(np.load(settings["weights"]))
    last = [name for name, a in arrays.items() if a.ndim == 2][-1]  # BatchNorm would undo a convolution's
    np.savez(folder / "changed.npz", **arrays | {last: 1.05 * arrays[last]})
    return settings | {"weights": str(folder / "changed.npz")}
