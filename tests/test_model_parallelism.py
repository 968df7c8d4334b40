"""The section on split models: every way equals one device, the schedule is GPipe's, errors are one line."""

from __future__ import annotations

from pathlib import Path

import jax
import pytest
from stories import begin, whole

from experiments import model_parallelism as section
from jaxperf.chapter.pipelines import _tell, schedule
from jaxperf.errors import JaxperfError
from jaxperf.flags import check_bounds
from jaxperf.result import Measurement, Note

SCRIPT = Path(section.__file__)


@pytest.mark.thorough
def test_every_way_to_split_equals_one_device() -> None:
    result = whole("model_parallelism")
    facts = result.facts
    for way in ("lenet_in_halves", "resnet18_in_halves", "lenet_by_sharding", "lenet_by_shard_map"):
        assert facts[f"max_param_diff_{way}"] <= section.ROUNDING, way
    assert facts["allreduce_count_sharding"] == facts["allreduce_count_shard_map"] == 3
    assert facts["allgather_count_sharding"] == facts["allgather_count_shard_map"] == 0
    held = [facts[f"params_bytes_per_device_{way}"] for way in ("tensor", "pipeline", "data")]
    assert held == sorted(held)
    assert held[0] < held[1] < held[2]
    equal = [c for c in result.claims if "one device computes" in c.statement]
    assert [c.holds for c in equal] == ["holds", "holds"]
    assert all(0 < facts[f"idle_share_{m}"] < 1 for m in (1, 2))  # type: ignore[operator]
    assert len(result.timelines) == 2


def test_equal_stages_idle_as_gpipes_formula_says() -> None:
    for m in (1, 2, 3, 8):
        times = {"forward": 1.0, "backward": 1.0, "loss": 2.0}
        total, worked = schedule(m, times, times)
        assert worked == pytest.approx(4 * m)
        assert total == pytest.approx(2 * m + 2)  # one stage's work for every micro-batch, and one more
        assert 1 - worked / (2 * total) == pytest.approx(1 / (m + 1))


def test_a_long_stage_sets_the_pace_and_shared_cores_slow_both() -> None:
    times = {"forward": 1.0, "backward": 1.0, "loss": 10.0}
    total, worked = schedule(4, times, times)
    assert (total, worked) == (pytest.approx(42.0), pytest.approx(48.0))
    shared = {name: 2 * seconds for name, seconds in times.items()}
    slower, _ = schedule(4, times, shared)
    assert total < slower < 2 * total
    assert schedule(1, times, shared)[0] == pytest.approx(
        12.0
    )  # with one micro-batch they never work together


def test_intervals_decide_whether_the_schedule_was_right() -> None:
    predicted = {1: 0.5, 2: 0.3}
    for second, prediction in (
        ((0.3,) * 8, "right"),
        ((0.46,) * 8, "wrong"),
        ((0.14,) * 8, "wrong"),
        ((0.4,) * 6 + (0.5,) * 2, "undecided"),  # the median is near enough, the interval is not
        ((0.3,) * 3, "undecided"),  # too few recordings
    ):
        shares = {1: (0.5,) * len(second), 2: second}
        rows = {m: Measurement(str(m), "", v, rounds="same") for m, v in shares.items()}
        story = begin("model_parallelism")
        _tell(story, rows, predicted)
        [claim] = story.result().claims
        assert claim.prediction == prediction
    assert claim.observed == "50%, 30%"


def test_mistakes_end_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        JaxperfError, match=r"^--batch-size 100 has an eighth that 8 micro-batches do not divide"
    ):
        section.check(section.Config(batch_size=100))
    for flags, line in (
        ({"steps": 0}, "--steps is 0"),
        ({"micro_batches": (0,)}, "--micro-batches is 0"),
        ({"micro_batches": ()}, "--micro-batches is empty"),
        ({"lr": 0.0}, "--lr is 0"),
    ):
        with pytest.raises(JaxperfError, match=f"^{line}"):
            check_bounds(section.Config(**flags))  # type: ignore[arg-type]
    monkeypatch.setattr(section, "first_devices", lambda: ["cpu"])
    monkeypatch.setattr(section.jax, "devices", lambda platform: ["cpu"])
    with pytest.raises(JaxperfError, match=r"^--devices 1 leaves nothing to split; use 2 or more"):
        section.devices_to_split_over(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("cpus", [2, 0])
def test_one_gpu_leaves_the_section_to_the_cpus_devices(cpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    host = jax.devices("cpu")[:cpus]

    def devices(platform: str) -> list[jax.Device]:
        if not host:
            raise RuntimeError("Unknown backend cpu")
        return host

    story = begin("model_parallelism")
    monkeypatch.setattr(section, "first_devices", lambda: ["gpu"])
    monkeypatch.setattr(section.jax, "devices", devices)
    if host:
        assert section.devices_to_split_over(story) == host
        [note] = story.result().of(Note)
        assert note.text == "one GPU cannot be split: this section runs on 2 CPU devices"
    else:
        with pytest.raises(JaxperfError, match=r"JAX_PLATFORMS leaves the CPU out; use --platform gpu"):
            section.devices_to_split_over(story)
