"""Older results: files of schema 1 and 2 load, keep every figure, and become blocks with roles and units."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jaxperf.errors import JaxperfError
from jaxperf.result import Claim, Fact, Lines, Note, Table, Timelines, load_result

KEPT = sorted((Path(__file__).parents[1] / "benchmarks" / "results").glob("*.json"))
OLD = {
    "format": "jaxperf-result",
    "schema_version": 2,
    "experiment": "hybridize",
    "section": "8.1",
    "title": "t",
    "question": "q",
    "config": {},
    "environment": {},
    "measurements": [
        {"name": "eager", "unit": "s", "values": [2.0], "group": "calls", "base": "jit"},
        {"name": "jit", "unit": "s", "values": [1.0], "group": "calls", "base": "jit"},
        {"name": "jit", "unit": "s", "values": [3.0], "group": "calls", "base": "jit"},
        {"name": "alone", "unit": "bytes", "values": [8]},
    ],
    "series": [
        {"name": "loss/seed 0", "x": [1, 2], "y": [0.5, None], "x_unit": "epoch", "y_unit": "nats"},
        {"name": "loss/seed 1", "x": [1], "y": [0.4], "x_unit": "epoch", "y_unit": "nats"},
        {"name": "eager, batch 8", "x": [1], "y": [0.4], "x_unit": "width", "y_unit": "s"},
    ],
    "timelines": [
        {"name": "step", "spans": [{"lane": "cpu 0", "name": "dot", "start_s": 0, "end_s": 1}], "wall_s": 2}
    ],
    "facts": {"compile_s": 0.5, "max/x": 3, "peak_bytes": 7, "word": "x", "images_per_s/1": 2.0},
    "claims": [
        {"statement": s, "predicted": "b", "observed": "c", "held": h}
        for s, h in (("a", True), ("b", False), ("c", None))
    ],
    "references": [
        {"name": "book", "value": 0.5, "unit": "s", "system": "MXNet", "source": "8.1", "beside": "eager"},
        {"name": "far", "value": 1, "unit": "s", "system": "MXNet", "source": "8.1"},
    ],
    "notes": ["one"],
}


def load(body: dict[str, object], tmp_path: Path) -> object:
    (tmp_path / "old.json").write_text(json.dumps(body))
    return load_result(tmp_path / "old.json")


def test_every_figure_of_the_second_schema_has_its_block(tmp_path: Path) -> None:
    found = load_result_of(OLD, tmp_path)
    calls, alone, published = found.of(Table)
    assert (calls.title, calls.base, [m.name for m in calls.rows]) == (
        "calls",
        "jit",
        ["eager", "jit", "jit (2)"],
    )
    assert [r.name for r in calls.references] == ["book"]
    assert [m.values for m in alone.rows] == [(8,)]
    assert [r.name for r in published.references] == ["far"]
    loss, widths = found.of(Lines)
    assert (loss.title, loss.x.unit, [c.name for c in loss.curves]) == (
        "loss",
        "epoch",
        ["loss/seed 0", "loss/seed 1"],
    )
    assert widths.y.unit == "s"
    assert next(found.of(Timelines)).runs[0].spans[0].lane == "cpu 0"
    assert {f.name: f.unit for f in found.of(Fact)} == {
        "compile_s": "s",
        "max/x": "",
        "peak_bytes": "bytes",
        "word": "",
        "images_per_s/1": "images/s",
    }
    assert found.facts == OLD["facts"]
    assert [(c.holds, c.prediction) for c in found.of(Claim)] == [
        ("holds", "right"),
        ("does not hold", "not stated"),
        ("undecided", "undecided"),
    ]
    assert [n.text for n in found.of(Note)] == ["one"]
    assert found.schema_version == 3


def load_result_of(body: dict[str, object], tmp_path: Path):  # type: ignore[no-untyped-def]
    return load(body, tmp_path)


def test_the_first_schema_lacks_timelines_and_loads(tmp_path: Path) -> None:
    body = {k: v for k, v in OLD.items() if k not in ("timelines", "series")} | {"schema_version": 1}
    assert load_result_of(body, tmp_path).timelines == ()


def test_peers_names_become_roles(tmp_path: Path) -> None:
    rows = [{"name": f"{s}/8.1 MLP/aot", "unit": "s", "values": [1.0]} for s in ("jax", "mxnet")]
    found = load_result_of({**OLD, "experiment": "peers", "measurements": rows}, tmp_path)
    table = next(found.of(Table))
    assert table.title == "8.1 MLP"
    assert [(m.system, m.workload, m.configuration) for m in table.rows] == [
        ("jax", "8.1 MLP", "aot"),
        ("mxnet", "8.1 MLP", "aot"),
    ]


def test_lists_that_are_none_are_refused_in_one_line(tmp_path: Path) -> None:
    for name, bad in {
        "measurements": {"a": 1},
        "series": 3,
        "claims": "x",
        "timelines": [1],
        "references": [[]],
        "facts": [1],
        "notes": {"a": 1},
    }.items():
        with pytest.raises(JaxperfError, match=r"old\.json is damaged") as caught:
            load({**OLD, name: bad}, tmp_path)
        assert "\n" not in str(caught.value)
    with pytest.raises(JaxperfError, match=r"claim\.held is str"):
        load(
            {**OLD, "claims": [{"statement": "a", "predicted": "b", "observed": "c", "held": "yes"}]},
            tmp_path,
        )


def test_the_results_kept_in_the_repository_load() -> None:
    assert KEPT
    for path in KEPT:
        assert load_result(path).blocks, path
