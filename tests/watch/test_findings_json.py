import json
from pathlib import Path

import children
import jsonschema
import pytest

from jaxperf.result import Found, load_result
from jaxperf.result.record import FINDINGS_VERSION
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.report import text
from jaxperf.watch.rules import CAUSES
from jaxperf.watch.rules.table import Finding

DOCS = Path(__file__).resolve().parents[2] / "docs"
SCHEMA = json.loads((DOCS / "watch-json.schema.json").read_text())
# ids of the first release; one may go only with a new `FINDINGS_VERSION`
IDS = {
    "all float64", "callback", "cleared", "constant", "constant work", "data", "debug setting",
    "dispatch", "donation", "dtype", "eager", "eager copy", "eager recompiles", "eager shapes",
    "element reads", "float64", "forward twice", "iterated array",
    "known fault", "library function", "list", "logging", "loop agreement", "many arrays",
    "module dispatch", "module state", "moved", "new body", "new function", "numpy", "partial batch",
    "placement", "put again", "puts one by one", "python", "replicated", "shape", "shards", "static object",
    "static part", "static value", "structure", "transfer", "unrolled", "wait", "weak type",
    "write",
}  # fmt: skip


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched")
    (folder / "train.py").write_text(
        "import functools, jax, jax.numpy as jnp\n"
        "@functools.partial(jax.jit, static_argnames='rate')\n"
        "def step(w, rate):\n"
        "    return w - rate * jnp.cos(w @ w)\n"
        "w = jnp.ones((50, 50))\n"
        "for turn in range(20):\n"
        "    w = step(w, rate=0.1 / (1 + turn))\n"
    )
    command = ("-m", "jaxperf", "watch", "--no-profile", "--json", "watch.json", "train.py")
    # programs from the cache of the tests would cost too little for a finding
    variables = {"JAX_NUM_CPU_DEVICES": "1", "JAX_COMPILATION_CACHE_DIR": ""}
    done = children.run(*command, folder=folder, **variables)
    assert done.returncode == 0, done.stderr
    return folder / "watch.json"


def test_real_output_fits_the_schema_and_names_the_line(stored):
    report = json.loads(stored.read_text())
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.validate(report, SCHEMA)
    assert report["findings_version"] == FINDINGS_VERSION == SCHEMA["properties"]["findings_version"]["const"]
    finding = next(each for each in report["findings"] if each["cause"] == "static value")
    assert finding["kind"] == "retrace" and finding["confidence"] == "measured"
    statement = "w = step(w, rate=0.1 / (1 + turn))"
    site = {"file": "train.py", "line": 7, "function": "<module>", "statement": statement}
    assert finding["site"] == site
    assert 0 < finding["saving"]["seconds"] <= report["wall_s"] and 0 < finding["saving"]["share"] <= 1
    assert "rate" in finding["change"] and "20 times" in finding["evidence"]
    # what is read again is what was written
    assert [dict(found.fields) for found in load_result(stored).of(Found)] == report["findings"]


def test_a_field_that_goes_or_changes_its_type_does_not_fit(stored):
    good = json.loads(stored.read_text())
    for change in (
        lambda finding: finding.pop("cause"),
        lambda finding: finding["site"].update(line="7"),
        lambda finding: finding["saving"].pop("seconds"),
        lambda finding: finding.update(confidence="sure"),
    ):
        report = json.loads(json.dumps(good))
        change(report["findings"][0])
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(report, SCHEMA)


def test_ids_of_causes_stay():
    assert not IDS - {*CAUSES}, "an id goes only with a new FINDINGS_VERSION; a new name is a new id"


@pytest.mark.parametrize("cause", sorted(CAUSES))
def test_the_fields_of_each_cause_fit_the_schema(cause, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("step(x)\n")
    at = Place(str(tmp_path / "train.py"), 1, "main")
    fields = text.finding_fields(Finding(cause, at, 1.5, "it was seen", "step", argument="x"), 3.0)
    schema = {**SCHEMA["$defs"]["finding"], "$defs": SCHEMA["$defs"]}
    jsonschema.validate(json.loads(json.dumps(fields)), schema)
    assert fields["site"]["file"] == "train.py" and fields["saving"]["share"] == 0.5


def test_a_bot_makes_annotations_of_them(stored):
    done = children.run(DOCS / "watch" / "annotate.py", stored)
    assert done.returncode == 0, done.stderr
    assert "::warning file=train.py,line=7,title=a static argument varies: up to " in done.stdout
    assert len(done.stdout.splitlines()) == len(json.loads(stored.read_text())["findings"])
