"""Results as files: what is written comes back, whole or not at all, and nothing read is trusted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf.errors import JaxperfError
from jaxperf.measure.record import (
    SCHEMA_VERSION,
    Claim,
    Environment,
    Measurement,
    Reference,
    Result,
    Series,
    Span,
    Timeline,
)
from jaxperf.measure.store import load_result, save_result, to_json

FULL = Result(
    experiment="hybridize",
    section="8.1",
    title="Imperative × symbolic",
    question="Was kostet es? — 編譯",
    config={"sizes": (512, 256), "nested": {"pairs": ((1, "a"), (2, None))}, "on": True, "rate": 0.1},
    environment=Environment(
        python="3.11.7",
        versions={"jax": "0.10.2"},
        devices=("cpu:0 cpu", "cpu:1 cpu"),
        devices_are_fake=True,
        memory_bytes=2**40,
        flags={"XLA_FLAGS": '--xla_dump_to="x"\n'},
    ),
    measurements=(Measurement("eager", "s", (1e-9, 2.5), warmup=(3.0,), loops=7, items=2.0, note="ü"),),
    series=(Series("loss", (1.0, 2.0), (None, 0.5), "epoch", ""),),
    timelines=(Timeline("step", (Span("cpu 0", "dot", 0.0, 1.5),), 2.0, traced_s=1.75, trace="t.json"),),
    facts={"n": 3, "x": 0.25, "word": "é", "yes": True, "nothing": None},
    claims=(Claim("a", "b", "c", True), Claim("a", "b", "c", False), Claim("a", "b", "c", None, "8.1")),
    references=(Reference("r", 0.4943, "s", "MXNet (book)", "section 8.1.2", beside="eager"),),
    notes=("one", "two\nlines"),
    command="python experiments/hybridize.py --json 'a b'",
    smoke=True,
    started_at="2026-01-01T00:00:00+00:00",
    wall_s=1.5,
)


def test_a_full_result_comes_back_equal(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "résultat.json"
    save_result(FULL, path)
    assert load_result(path) == FULL
    assert json.loads(path.read_text(encoding="utf-8"))["title"] == "Imperative × symbolic"


def test_array_scalars_are_stored_as_plain_numbers() -> None:
    scalars = {"a": np.float32(0.5), "b": np.int64(3), "c": jnp.float32(0.25), "d": np.bool_(True)}
    body = json.loads(to_json(replace(FULL, facts=scalars, config={"lr": jnp.bfloat16(2), "in": Path("x")})))
    assert body["facts"] == {"a": 0.5, "b": 3, "c": 0.25, "d": True}
    assert body["config"] == {"lr": 2.0, "in": "x"}


def test_what_is_no_scalar_is_refused_when_stored() -> None:
    with pytest.raises(TypeError, match="cannot store object"):
        to_json(replace(FULL, config={"x": object()}))


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), np.float32("nan")])
def test_numbers_that_json_lacks_are_refused_when_stored(bad: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        save_result(replace(FULL, facts={"loss": bad}), tmp_path / "r.json")
    assert not list(tmp_path.iterdir())


def test_arguments_that_are_no_utf8_can_be_stored(tmp_path: Path) -> None:
    odd = replace(FULL, command=b"python x.py \xff".decode("utf-8", "surrogateescape"))
    save_result(odd, tmp_path / "r.json")
    assert load_result(tmp_path / "r.json") == odd


def test_unknown_keys_are_ignored(tmp_path: Path) -> None:
    body = json.loads(to_json(FULL))
    body["invented"] = {"later": 1}
    body["environment"]["gpu_temperature"] = 40
    body["measurements"][0]["color"] = "red"
    (tmp_path / "r.json").write_text(json.dumps(body))
    assert load_result(tmp_path / "r.json") == FULL


def test_a_result_of_the_first_schema_still_loads(tmp_path: Path) -> None:
    body = json.loads(to_json(replace(FULL, timelines=())))
    del body["timelines"]
    body["schema_version"] = 1
    (tmp_path / "r.json").write_text(json.dumps(body))
    assert load_result(tmp_path / "r.json") == replace(FULL, timelines=())


def edited(*path: Any, value: Any = ...) -> str:
    """FULL as JSON with the value at `path` replaced, or removed."""
    body = json.loads(to_json(FULL))
    inner = body
    for key in path[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return json.dumps(body)


DAMAGED = {
    "empty": "",
    "truncated": to_json(FULL)[:-100],
    "not JSON": "hello",
    "a list": "[1, 2]",
    "a number": "3",
    "null": "null",
    "another program's": '{"benchmarks": []}',
    "another format": edited("format", value="pyperf"),
    "deeply nested": "[" * 100_000 + "]" * 100_000,
    "a deeply nested config": to_json(FULL).replace('"on"', '"deep": ' + "[" * 900 + "]" * 900 + ', "on"'),
    "NaN": edited("wall_s", value=float("nan")),
    "NaN in the config": edited("config", "rate", value=float("nan")),
    "Infinity": edited("references", 0, "value", value=float("inf")),
    "a number beyond floats": edited("facts", "x", value=10**400),
    "1e999": to_json(FULL).replace("0.4943", "1e999"),
    "a newer schema": edited("schema_version", value=SCHEMA_VERSION + 1),
    "no schema": edited("schema_version"),
    "schema 0": edited("schema_version", value=0),
    "schema true": edited("schema_version", value=True),
    "schema of words": edited("schema_version", value="1\n2"),
    "no environment": edited("environment"),
    "environment is a list": edited("environment", value=[1]),
    "no title": edited("title"),
    "title is a number": edited("title", value=3),
    "measurements is an object": edited("measurements", value={"a": 1}),
    "measurements is a number": edited("measurements", value=3),
    "a measurement is a word": edited("measurements", 0, value="eager"),
    "a measurement without unit": edited("measurements", 0, "unit"),
    "no values": edited("measurements", 0, "values", value=[]),
    "values of words": edited("measurements", 0, "values", value=["1.0"]),
    "values of bools": edited("measurements", 0, "values", value=[True]),
    "values beyond floats": edited("measurements", 0, "values", value=[10**400]),
    "loops is a fraction": edited("measurements", 0, "loops", value=1.5),
    "loops is true": edited("measurements", 0, "loops", value=True),
    "a point of words": edited("series", 0, "y", value=["a", 1]),
    "unequal series": edited("series", 0, "y", value=[1]),
    "a span backwards": edited("timelines", 0, "spans", 0, "end_s", value=-1),
    "held is a word": edited("claims", 0, "held", value="yes"),
    "devices of numbers": edited("environment", "devices", value=[1]),
    "versions of numbers": edited("environment", "versions", value={"jax\n": 1}),
    "facts are lists": edited("facts", value={"a": [1]}),
    "notes is a word": edited("notes", value="a"),
    "smoke is a word": edited("smoke", value="no"),
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED.keys())
def test_a_damaged_file_is_one_line_that_names_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "odd.json"
    path.write_text(text)
    with pytest.raises(JaxperfError) as caught:
        load_result(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400 + len(str(path))


def test_a_newer_schema_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(DAMAGED["a newer schema"])
    with pytest.raises(JaxperfError, match=f"schema version {SCHEMA_VERSION + 1}.*upgrade jaxperf"):
        load_result(tmp_path / "r.json")


@pytest.mark.parametrize("content", [b"\xff\xfe{}", b"\x89PNG\r\n\x1a\n\x00"])
def test_a_file_that_is_no_text_is_one_line(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_bytes(content)
    with pytest.raises(JaxperfError, match=r"r\.json is not JSON"):
        load_result(tmp_path / "r.json")


def test_a_missing_file_and_a_folder_are_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "none.json", tmp_path):
        with pytest.raises(JaxperfError, match=f"cannot read {path}"):
            load_result(path)
