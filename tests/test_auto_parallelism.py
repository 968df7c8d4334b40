"""Section 8.3: two matrices with the same numbers, what one device or one core leaves, and one whole pass."""

from dataclasses import replace
from pathlib import Path
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from stories import begin, log_of, medians, whole

from experiments import auto_parallelism as section
from jaxperf.errors import JaxperfError
from jaxperf.flags import check_bounds
from jaxperf.result import Failed, Heading, Lines, Table

SCRIPT = Path(section.__file__)
TINY = replace(section.Config.smoke(), size=64, gpu_size=64)
CANNOT = "cannot be measured here"


def test_run_computes_every_product_on_the_device_of_its_operand():
    xs = [jax.device_put(jnp.arange(9.0).reshape(3, 3), d) for d in jax.devices("cpu")[:2]]
    x = np.arange(9.0).reshape(3, 3)
    for count, device, ys in zip((4, 2), jax.devices("cpu"), section.run_on_all(xs, [4, 2])):
        assert len(ys) == count
        for y in ys:
            assert y.devices() == {device}
            np.testing.assert_array_equal(y, x @ x)


def test_there_are_matrices_on_two_devices_with_the_same_numbers_or_on_the_only_one():
    first, second = section.matrices(TINY, 8)
    assert first.devices() != second.devices()
    np.testing.assert_array_equal(first, second)
    if jax.default_backend() == "cpu":
        assert len(section.matrices(TINY, 1)) == 1


def test_devices_of_one_kind_compute_as_many_products_each():
    xs = [jax.device_put(jnp.ones((8, 8)), d) for d in jax.devices("cpu")[:2]]
    assert section.balanced(xs, 10) == [10, 10]


@pytest.mark.parametrize("lacking", ["device", "core"])
def test_with_one_device_or_one_core_nothing_is_judged_by_time(lacking, monkeypatch):
    story = begin("auto_parallelism")
    xs = [jax.device_put(jnp.ones((16, 16)), d) for d in jax.devices("cpu")[:2]]
    monkeypatch.setattr(section, "available", lambda: (0,))
    section.two_devices(story, TINY, xs[:1] if lacking == "device" else xs)
    told = story.result()
    assert len(told.claims) == 4 and {claim.holds for claim in told.claims} == {CANNOT}
    assert (told.measurements == ()) is (lacking == "device")


@pytest.mark.thorough
def test_a_pass_tells_all_parts_and_none_fails():
    result = whole("auto_parallelism")
    assert not list(result.of(Failed))
    titles = [heading.title for heading in result.of(Heading)]
    assert [t.split()[0] for t in titles[:3]] == ["8.3", "8.3.1", "8.3.2"]
    assert [t.split(":")[0] for t in titles[3:6]] == [f"Exercise {i}" for i in (1, 2, 3)]


@pytest.mark.thorough
def test_the_log_of_a_pass_is_short():
    result = whole("auto_parallelism")
    assert len(log_of(result)) <= 75


@pytest.mark.thorough
def test_a_pass_has_the_promised_facts():
    result = whole("auto_parallelism")
    facts = result.facts
    assert facts["dots_in_program"] == section.Config.smoke().products
    assert facts["dots_in_program_merged"] == 1
    assert facts["graphs_equal"] == section.Config.smoke().graphs
    for word in ("all_cores", "a_core_each") if result.environment.cores > 1 else ("all_cores",):
        assert 0 <= facts[f"spans_overlap_{word}"] <= 1
        assert {f"share_saved_{word}", f"spans_over_clock_{word}"} <= set(facts)
    assert {"copies_saved_numpy", "copies_saved_device", "graph_gains_from_size"} <= set(facts)


@pytest.mark.thorough
def test_a_pass_keeps_its_timelines_and_their_traces():
    result = whole("auto_parallelism")
    names = [t.name for t in result.timelines]
    assert len(set(names)) == len(names)
    kept = [t for t in result.timelines if t.trace]
    assert {"random graph", "compute and copy to NumPy"} <= {t.name for t in kept}
    assert all(Path(t.trace).is_file() for t in kept)
    assert all(t.spans for t in result.timelines)


@pytest.mark.thorough
def test_names_in_a_table_are_told_apart_and_every_figure_says_its_units():
    result = whole("auto_parallelism")
    for table in result.of(Table):
        assert len({m.name for m in table.rows}) == len(table.rows)
    assert all(lines.y.unit == "s" for lines in result.of(Lines))


@pytest.mark.thorough
def test_what_takes_a_gpu_is_said_not_to_be_measured():
    result = whole("auto_parallelism")
    judged = {claim.statement: claim.holds for claim in result.claims}
    assert {holds for sentence, holds in judged.items() if "GPU" in sentence} == {CANNOT}


def test_numbers_out_of_bounds_are_refused_in_one_line():
    for wrong, word in (({"products": 0}, "--products is 0"), ({"small_sizes": (20, -1)}, "is -1")):
        with pytest.raises(JaxperfError, match=word) as e:
            check_bounds(section.Config(**wrong))
        assert "\n" not in str(e.value)


def test_a_slower_device_of_another_kind_computes_fewer_products_and_at_least_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu, cpu = (mock.Mock(platform=platform, id=0) for platform in ("gpu", "cpu"))
    on_cpu, on_gpu = (mock.Mock(devices=lambda of=device: {of}) for device in (cpu, gpu))
    monkeypatch.setattr(section, "interleaved", medians(20.0, 1.0))
    for products, each in ((40, [2, 40]), (10, [1, 10]), (1, [1, 1])):
        assert section.balanced([on_cpu, on_gpu], products) == each
