"""Section 8.3: two devices with the same numbers, and that a whole pass keeps its promises."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import auto_parallelism as section
from jaxperf import catalogue, script
from jaxperf.errors import JaxperfError
from jaxperf.measure import load_result, save_result
from jaxperf.measure.cores import available

SCRIPT = Path(section.__file__)
TINY = section.Config(
    size=64,
    gpu_size=64,
    rounds=2,
    recordings=2,
    copy_size=96,
    small_sizes=(8, 16),
    nodes=60,
    node_size=8,
    graphs=2,
)


def test_two_sides_are_two_devices_with_the_same_numbers():
    first, second = section.two_sides(TINY)
    assert first.device != second.device
    assert first.x.devices() == {first.device} and second.x.devices() == {second.device}
    np.testing.assert_array_equal(first.x, second.x)


def test_one_device_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(jax, "devices", lambda *_: [jax.local_devices()[0]])
    with pytest.raises(JaxperfError, match="--devices 2") as e:
        section.two_sides(TINY)
    assert "\n" not in str(e.value)


@pytest.mark.skipif(not available(), reason="this system cannot choose cores")
def test_limited_runs_on_the_cores_given_and_hands_over_finished_outputs():
    seen = []

    def work():
        seen.append(available())
        return [jnp.ones((200, 200)) @ jnp.ones((200, 200))]

    core = available()[0]
    (y,) = section.limited(work, [core])()
    assert seen == [(core,)]
    assert y.is_ready()


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    """One whole pass at tiny sizes, stored and read again."""
    folder = tmp_path_factory.mktemp("pass")
    flags = script.Flags(config=TINY, json=folder / "r.json", devices=len(jax.devices()))
    entry = catalogue.Section("auto_parallelism", "8.3", "Automatic parallelism", "q", 60)
    story = script.Story(entry, flags)
    section.main(TINY, story)
    save_result(story.result(), flags.json)
    return load_result(flags.json)


def test_a_pass_has_the_promised_facts(result):
    assert {"overlap_fraction", "overlap_fraction_clock", "sum_over_together", "dots_in_program"} <= set(
        result.facts
    )
    assert result.facts["dots_in_program"] == TINY.products
    assert result.facts["dots_in_program_merged"] == 1
    assert result.facts["graphs_equal"] == TINY.graphs
    assert 0 <= result.facts["overlap_fraction"] <= 1


def test_a_pass_has_the_timelines_and_keeps_their_traces(result):
    names = [t.name for t in result.timelines]
    assert len(set(names)) == len(names)
    kept = [t for t in result.timelines if t.trace]
    assert {"random graph", "thin to NumPy"} <= {t.name for t in kept}
    assert all(Path(t.trace).is_file() for t in kept)
    assert all(t.spans for t in result.timelines)


def test_measurements_of_a_pass_have_names_of_their_own(result):
    names = [m.name for m in result.measurements]
    assert len(set(names)) == len(names)


def test_what_was_not_measured_is_said(result):
    if jax.default_backend() == "cpu":
        assert any("not measured" in note for note in result.notes)


@pytest.mark.parametrize(
    ("flags", "word"),
    [(["--products", "0"], "--products is 0"), (["--small-sizes", "20", "-1"], "--small-sizes is -1")],
)
def test_a_wrong_flag_ends_in_one_line(flags, word):
    command = [sys.executable, str(SCRIPT), *flags]
    env = {**os.environ, "PYTHONPATH": str(SCRIPT.parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert word in done.stderr and done.stderr.count("\n") == 1
