import json
import os
from dataclasses import replace
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from jaxperf import cli
from jaxperf.errors import JaxperfError
from jaxperf.result import Measurement, Note, Reference, Result, Table, Text, load_result, save_result, store
from jaxperf.result.record import SCHEMA_VERSION, Claim, Code, Environment, Fact, Failed, Grid, Heading
from jaxperf.result.store import to_json

EAGER = Measurement("eager", "s", (1e-9, 2.5), (3.0,), 7, 2.0, "ü", "r", "jax", "8.1 MLP", "eager", "queued",
                    (9.0, 8.0), 1)  # fmt: skip
BOOK = Reference("eager", 0.4943, "s", "MXNet (book)", "section 8.1.2")
BLOCKS = (
    Heading("8.1 Zwei Wege"),
    Text("Was kostet es? — `編譯`"),
    Code("def f():\n    pass", "experiments/hybridize.py", 12),
    Table("calls", (EAGER,), "eager", (BOOK,), True),
    Grid("words", ("a", "b"), (("1", "2"),), (1,)),
    *(Fact(f"n{i}", v, "s", "words") for i, v in enumerate((3, 0.25, "é", True, None))),
    Claim("a", "holds", "b", "c", "section 8.1", "less"),
    Claim("a", "not measurable here", "b", "c"),
    Note("two\nlines"),
    Failed("two_ways", "ValueError: x"),
)  # fmt: skip
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
    blocks=BLOCKS,
    command="python experiments/hybridize.py --json 'a b'",
    smoke=True,
    started_at="2026-01-01T00:00:00+00:00",
    wall_s=1.5,
)


def test_a_full_result_comes_back_equal_though_its_arguments_are_no_utf8(tmp_path):
    path = tmp_path / "new folder" / "résultat.json"
    for stored in (replace(FULL, command=b"python x.py \xff".decode("utf-8", "surrogateescape")), FULL):
        save_result(stored, path)
        assert load_result(path) == stored
    assert json.loads(path.read_text(encoding="utf-8"))["title"] == "Imperative × symbolic"


def test_array_scalars_are_stored_as_plain_numbers_and_what_json_lacks_is_refused(tmp_path):
    scalars = {"a": np.float32(0.5), "b": np.int64(3), "c": jnp.float32(0.25), "d": np.bool_(True)}
    body = json.loads(to_json(replace(FULL, config={**scalars, "lr": jnp.bfloat16(2), "in": Path("x")})))
    assert body["config"] == {"a": 0.5, "b": 3, "c": 0.25, "d": True, "lr": 2.0, "in": "x"}
    with pytest.raises(TypeError, match="cannot store object"):
        to_json(replace(FULL, config={"x": object()}))
    for bad in (float("nan"), float("inf"), np.float32("nan")):
        with pytest.raises(ValueError, match="JSON"):
            save_result(replace(FULL, blocks=(Fact("loss", bad),)), tmp_path / "r.json")
    assert not list(tmp_path.iterdir())


def test_integers_are_read_as_the_floats_that_the_fields_hold(tmp_path):
    (tmp_path / "r.json").write_text(edited("blocks", 3, "rows", 0, "values", value=[1, 2**64]))
    result = load_result(tmp_path / "r.json")
    assert [type(v) for v in result.measurements[0].values] == [float, float]
    assert type(result.facts["n0"]) is int  # a count stays one


def test_unknown_keys_are_ignored_and_those_of_later_versions_have_defaults(tmp_path):
    body = json.loads(to_json(FULL))
    body["invented"] = {"later": 1}
    body["environment"]["gpu_temperature"] = 40
    row = body["blocks"][3]["rows"][0]
    row["color"] = "red"
    (tmp_path / "r.json").write_text(json.dumps(body))
    assert load_result(tmp_path / "r.json") == FULL
    for name in ("set_aside", "disturbed"):
        del row[name]
    (tmp_path / "r.json").write_text(json.dumps(body))
    [measured] = load_result(tmp_path / "r.json").measurements
    assert (measured.set_aside, measured.disturbed, measured.trusted) == ((), 0, True)


def edited(*path, value=...):
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
    "Infinity": edited("blocks", 3, "references", 0, "value", value=float("inf")),
    "a number beyond floats": edited("blocks", 6, "value", value=10**400),
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
    "blocks is an object": edited("blocks", value={"a": 1}),
    "blocks is a number": edited("blocks", value=3),
    "a block is a word": edited("blocks", 0, value="eager"),
    "a block of no kind": edited("blocks", 0, "kind"),
    "a block of unknown kind": edited("blocks", 0, "kind", value="hologram\n"),
    "a block's kind is a list": edited("blocks", 0, "kind", value=[]),
    "rows of words": edited("blocks", 3, "rows", 0, value="eager"),
    "a row too short": edited("blocks", 4, "rows", 0, value=["1"]),
    "a measurement without unit": edited("blocks", 3, "rows", 0, "unit"),
    "no values": edited("blocks", 3, "rows", 0, "values", value=[]),
    "values of words": edited("blocks", 3, "rows", 0, "values", value=["1.0"]),
    "values of bools": edited("blocks", 3, "rows", 0, "values", value=[True]),
    "values beyond floats": edited("blocks", 3, "rows", 0, "values", value=[10**400]),
    "loops is a fraction": edited("blocks", 3, "rows", 0, "loops", value=1.5),
    "loops is true": edited("blocks", 3, "rows", 0, "loops", value=True),
    "the verdict is another word": edited("blocks", 10, "verdict", value="yes"),
    "devices of numbers": edited("environment", "devices", value=[1]),
    "versions of numbers": edited("environment", "versions", value={"jax\n": 1}),
    "a fact is a list": edited("blocks", 5, "value", value=[1]),
    "smoke is a word": edited("smoke", value="no"),
}


def test_a_damaged_file_is_one_line_that_names_it(tmp_path):
    path = tmp_path / "odd.json"
    for name, text in DAMAGED.items():
        path.write_text(text)
        with pytest.raises(JaxperfError) as caught:
            load_result(path)
        assert str(path) in str(caught.value), name
        assert "\n" not in str(caught.value), name
        assert len(str(caught.value)) < 400 + len(str(path)), name


def test_a_setting_beyond_floats_is_shown_as_infinity(tmp_path, capsys):
    """Unlike NaN, 1e400 is JSON, and Python reads it as infinity."""
    text = to_json(replace(FULL, smoke=False, blocks=(Table("calls", (EAGER,)),)))
    for name, rate in (("a", "0.1"), ("b", "1e400")):
        (tmp_path / f"{name}.json").write_text(text.replace('"rate": 0.1', f'"rate": {rate}'))
    a, b = str(tmp_path / "a.json"), str(tmp_path / "b.json")
    assert cli.main(["report", b]) == 0
    assert cli.main(["compare", a, b]) == 0
    shown = capsys.readouterr()
    assert "differs: config rate: 0.1 and inf" in shown.out and shown.err == ""


def test_what_readers_of_json_need_stands_at_the_top_level():
    body = json.loads(to_json(FULL))
    assert [row["name"] for row in body["measurements"]] == ["eager"]
    assert [claim["verdict"] for claim in body["claims"]] == ["holds", "not measurable here"]
    assert body["facts"]["n0"] == 3 and body["failed"] == ["two_ways: ValueError: x"]
    assert body["environment"]["accelerated"] == []


def test_what_is_not_a_regular_file_is_refused_in_one_line_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "none.json", tmp_path / "pipe.json", Path("/dev/zero"), tmp_path):
        with pytest.raises(JaxperfError, match=f"cannot read {path}: [^\n]+$"):
            load_result(path)


def test_a_file_larger_than_any_result_is_refused_before_it_is_read(tmp_path, monkeypatch):
    path = tmp_path / "r.json"
    path.write_text("{" + " " * 999)
    with path.open("r+b") as f:
        f.truncate(store.LARGEST + 1)  # a sparse file
    monkeypatch.setattr(Path, "read_text", lambda *_, **__: pytest.fail("it was read"))
    with pytest.raises(JaxperfError, match="has 16,777,217 bytes, which no result has"):
        load_result(path)
