"""Collectives: what is written by hand is the library's, messages are the formulas', predictions are by hand.

No test asks how long anything takes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from jaxperf.chapter import cells
from jaxperf.measure import count_ops

SCRIPT = Path(__file__).parents[2] / "experiments" / "collectives.py"


@pytest.fixture(scope="module")
def section() -> ModuleType:
    """The names of the section, with toy sizes and without its timings."""
    return cells.load(SCRIPT, "--smoke")


@pytest.fixture(scope="module")
def rows(section: ModuleType) -> jax.Array:
    """Small whole numbers, whose sums are exact in any order."""
    return jax.random.randint(jax.random.key(3), (section.k, 6 * section.k), -9, 9).astype("float32")


def test_every_claim_that_needs_no_clock_holds(section: ModuleType) -> None:
    verdicts = {claim.statement: claim.verdict for claim in section.s.result().claims}
    assert len(verdicts) == 5
    assert set(verdicts.values()) == {"holds"}


def test_each_way_gives_every_device_the_sum(section: ModuleType, rows: jax.Array) -> None:
    expected = np.tile(rows.sum(0), (section.k, 1))
    for way, function in section.ways.items():
        np.testing.assert_array_equal(function(rows), expected, err_msg=way)
    np.testing.assert_array_equal(jax.device_get(section.by_star(rows)), expected)


@pytest.mark.parametrize("by", [1, -1])
def test_the_halves_of_the_ring_are_the_librarys_either_way_around(
    section: ModuleType, rows: jax.Array, by: int
) -> None:
    def scattered(x: jax.Array) -> jax.Array:
        return section.ring_reduce_scatter(x, by=by)

    def gathered(x: jax.Array) -> jax.Array:
        return section.ring_all_gather(x[:3], by=by)

    run = section.on_devices
    np.testing.assert_array_equal(run(scattered)(rows), run(section.reduce_scatter)(rows))
    np.testing.assert_array_equal(run(gathered)(rows), run(lambda x: section.all_gather(x[:3]))(rows))


def test_the_compiled_ring_sends_the_messages_that_were_counted(section: ModuleType, rows: jax.Array) -> None:
    program = section.on_devices(section.ring).lower(rows).compile().as_text()
    assert count_ops(program)["collective-permute"] == len(section.flat) == 2 * (section.k - 1)
    program = section.on_devices(section.two_levels, section.levels).lower(rows).compile().as_text()
    c, m = section.c, section.m
    assert count_ops(program)["collective-permute"] == len(section.split) == 2 * (c - 1) + 2 * (m - 1)


def test_a_message_counts_its_bytes_and_its_axis(section: ModuleType) -> None:
    def two(x: jax.Array) -> jax.Array:
        y = section.to_neighbor(x[:4], "device")
        return section.to_neighbor(y[:1], "node")

    assert section.messages(two, section.levels) == [("device", 16), ("node", 4)]
    assert section.messages(lambda x: lax.psum(x, "d"), section.mesh) == []


def test_the_star_loads_the_first_device(section: ModuleType) -> None:
    section.copies.clear()
    arrays = [jax.device_put(jnp.ones(5) * i, d) for i, d in enumerate(section.devices)]
    sums = section.star(arrays)
    first, k = section.devices[0], section.k
    assert [to for _, to, _ in section.copies[: k - 1]] == [first] * (k - 1)
    assert [origin for origin, _, _ in section.copies[k - 1 :]] == [first] * (k - 1)
    assert sum(size for *_, size in section.copies) == 2 * (k - 1) * 20
    assert [a.device for a in sums] == section.devices and float(sums[-1][0]) == k * (k - 1) / 2


def test_a_prediction_is_latency_bytes_and_pipeline(section: ModuleType) -> None:
    size = 64 * 2**20  # 2 x 7/8 x 64 MiB over 482.3 GB/s are 243.5 us; 40 us and 5e-3 x their root are added
    inside = 1.75 * size / 482.3e9
    assert inside == pytest.approx(243.5e-6, rel=1e-3)
    assert section.gpu_seconds(size, 8) == pytest.approx(40e-6 + inside + 5e-3 * inside**0.5, rel=1e-6)
    assert section.gpu_seconds(size, 1024) > section.gpu_seconds(size, 64) > section.gpu_seconds(size, 8)


@pytest.mark.thorough
@pytest.mark.parametrize("arguments", [["--devices", "4"], ["--devices", "6", "--nodes", "3"]])
def test_it_runs_as_a_script_on_other_numbers_of_devices(arguments: list[str], tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    command = [sys.executable, SCRIPT, "--smoke", "--answers", "--json", path, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(path.read_text())
    assert not result["failed"]
    verdicts = {claim["statement"]: claim["verdict"] for claim in result["claims"]}
    del verdicts["A delay and a bandwidth predict the sizes between"]  # by the clock
    assert list(verdicts.values()) == ["holds"] * 5
