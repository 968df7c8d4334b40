"""docs/gallery.md: each cause has a section made from its tested pair, and what is stored is still true."""

import dataclasses
import importlib
import json
import re
import runpy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import cases
from twins import NAMES, PROGRAMS, write_repaired

from jaxperf.errors import JaxperfError
from jaxperf.watch.rules import CAUSES

ROOT = Path(__file__).resolve().parents[2]
AT = "2026-11-26, AMD EPYC, 2 cores, cpu, Python 3.11.7, JAX 0.10.2"


@pytest.fixture
def gallery(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("gallery")


def test_every_slow_program_has_an_entry_and_every_entry_a_program(gallery: ModuleType) -> None:
    assert sorted(gallery.names()) == NAMES


def test_entries_are_complete_and_every_text_and_thread_is_used(gallery: ModuleType) -> None:
    about = gallery.entries()
    entries = [about[name] for name in gallery.names()]
    assert {e["group"] for e in entries} == set(about["groups"])
    assert {thread for e in entries for thread in e.get("threads", ())} == set(about["threads"])
    assert set(about["looks"]) <= {e["look"] for e in entries}
    assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", thread) for thread in about["threads"])
    assert all(e["title"] and e["symptom"].endswith(".") for e in entries)
    assert len({e["title"] for e in entries}) == len(entries)
    for entry in entries:
        like = about[entry.get("like", gallery.names()[0])]
        assert "like" not in like and ("like" not in entry or like["group"] == entry["group"])


def test_what_watch_said_names_the_line_and_the_cause_that_its_test_expects(gallery: ModuleType) -> None:
    stored = gallery.stored()
    expected = {name: gallery.cause(PROGRAMS / f"{name}.py") for name in NAMES}
    records = {name: values["record"] for name, values in stored.items() if "record" in values}
    actual = {name: (record["cause"], record["line"]) for name, record in records.items()}
    other = [name for name in NAMES if actual.get(name) != expected[name]]
    assert not other, f"run: python docs/gallery.py record {' '.join(other)}"
    for name in NAMES:
        assert f"{name}.py:{expected[name][1]}" in stored[name]["record"]["text"]


def test_the_page_has_a_row_for_every_program_and_a_section_for_every_cause(gallery: ModuleType) -> None:
    page, entries = gallery.page(), gallery.entries()
    for name in NAMES:
        place, title = gallery.anchor(entries[name].get("like", name)), entries[name]["title"]
        assert page.count(f"[{title}](#{place})") == 1
        if "like" in entries[name]:
            assert page.count(f"**The same**: [{title}](../tests/slow_programs/{name}.py).") == 1
        else:
            assert page.count(f"({place})=\n### {title}\n") == 1
        assert entries[name].get("care", "") in page and entries[name].get("leaves_out", "") in page
    assert {*re.findall(r"\]\(#([\w-]+)\)", page)} <= {*re.findall(r"^\(([\w-]+)\)=$", page, re.M)}
    assert not re.search(r"\{(file|name|slow|fixed)\}|# cause", page)


def test_every_cause_that_watch_reports_is_on_the_page(gallery: ModuleType) -> None:
    shown = {gallery.cause(PROGRAMS / f"{name}.py")[0] for name in NAMES}
    others = [title for name, title in ((n, c.title) for n, c in CAUSES.items()) if name not in shown]
    assert 0 < len(others) <= 5
    lines = gallery.causes_without_a_program()
    assert all(any(title[1:] in line for line in lines) for title in others)


def test_a_saving_is_right_within_a_factor_and_false_if_its_change_gains_nothing() -> None:
    def row(promised_s: float, repaired_s: float) -> Any:
        found = [["dtype", 3, promised_s]]
        record = {"cause": "dtype", "line": 3, "found": [found, [], found], "named": 2, "runs": 3}
        processors = [[9.0] * 6, [1.0] * 6]
        measure = {"slow": [2.0] * 6, "repaired": [repaired_s] * 6, "processors": processors}
        return savings["row"]("program", {"record": record, "measure": measure}, False)

    savings = runpy.run_path(str(ROOT / "benchmarks" / "watch_savings.py"))
    rows = [row(1.4, 1.0), row(1.6, 1.0), row(0.6, 1.0), row(0.1, 1.95)]
    assert [each.verdict for each in rows] == ["right", "too much", "too little", "false finding"]
    assert "\n1 of 4 promises are within a factor of 1.5 of the gain, 1 findings are false" in savings[
        "table"
    ](rows)


@pytest.mark.parametrize("name", NAMES)
def test_the_marked_line_is_the_cause_and_a_change_is_shown(gallery: ModuleType, name: str) -> None:
    path = PROGRAMS / f"{name}.py"
    code, line = gallery.excerpt(path)
    source = path.read_text().splitlines()[gallery.cause(path)[1] - 1]
    assert source.startswith(code.splitlines()[line - 1]) and "cause: " in source
    assert len([x for x in code.splitlines() if x]) <= 22
    assert re.search(r"^[-+]", gallery.changes(path), re.M) and "cause: " not in gallery.changes(path)


@pytest.mark.parametrize(
    ("slow", "repaired", "text"),
    [
        (
            [3.0] * 7,
            [1.0] * 7,
            f"3.00 s before and 1.00 s after. Slow over repaired is 3 (3 to 3) in 7 rounds, at 95 %. {AT}.",
        ),
        ([3.0, 1.0] * 4, [2.0] * 8, "undecided: 2.00 s before and 2.00 s after. "),
        ([1.0] * 8, [2.0] * 8, "slower than before: 1.00 s before and 2.00 s after. "),
    ],
)
def test_a_gain_has_its_interval(
    gallery: ModuleType, slow: list[float], repaired: list[float], text: str
) -> None:
    assert gallery.describe_gain("x", {"slow": slow, "repaired": repaired, "at": AT}).startswith(text)
    assert "not measured yet" in gallery.describe_gain("x", None)


def test_results_are_stored_program_by_program_in_the_pages_order(
    gallery: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = gallery.names()[:2]
    text = {"cause": "unrolled", "line": 9, "text": "a loop. And more", "named": 4, "runs": 5, "at": AT}

    def run(action: str, name: str, budget_s: float) -> dict[str, Any]:
        if name == first and action == "measure":
            raise JaxperfError("it does not end")
        return text if action == "record" else {"slow": [2.0] * 6, "repaired": [1.0] * 6, "at": AT}

    monkeypatch.setattr(gallery, "STORE", tmp_path / "gallery.json")
    monkeypatch.setattr(gallery, "run", run)
    assert gallery.main(["record", second, first]) == 0
    assert gallery.main(["measure", first, second]) == 1
    stored = json.loads((tmp_path / "gallery.json").read_text())
    assert list(stored) == [first, second]
    assert list(stored[first]) == ["record"] and list(stored[second]) == ["record", "measure"]
    assert capsys.readouterr().err == "error: it does not end\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give record or measure"),
        (["show"], "give record or measure"),
        (["record", "x"], "there is no program 'x'"),
        (["measure", "slow.py", "none.py"], "measure takes two programs that are there"),
    ],
)
def test_a_mistake_is_one_line(gallery: ModuleType, arguments: list[str], message: str) -> None:
    with pytest.raises(JaxperfError, match=message):
        gallery.main(arguments)


@pytest.mark.thorough
def test_a_program_is_really_watched_and_measured(gallery: ModuleType, tmp_path: Path) -> None:
    text = gallery.run("record", "new_jit", 0.0)["text"]
    line = gallery.cause(PROGRAMS / "new_jit.py")[1]
    assert text.startswith(f"a new function is jitted on each call, new_jit.py:{line}: ")
    runs = importlib.import_module("gallery_runs")
    paths = [PROGRAMS / "new_jit.py", write_repaired("new_jit", tmp_path)]
    measured = runs.measure(paths, None, 1, 0.0)
    assert len(measured["slow"]) == len(measured["repaired"]) == runs.LEAST


# What the page says about results, and about looking without jaxperf


ENTRIES = tomllib.loads((PROGRAMS / "gallery.toml").read_text())
COMPILED = [name for name, entry in ENTRIES.items() if "compiled" in entry]


@pytest.fixture
def as_users_do() -> Iterator[None]:
    """Forget what a program has set."""
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.mark.parametrize(
    "name", cases([(n,) for n in NAMES], quick=lambda n: n in ("weak_types", "partial_batch"))
)
def test_a_repaired_program_has_the_result_of_the_slow_one(
    name: str, tmp_path: Path, as_users_do: None, capsys: pytest.CaptureFixture[str]
) -> None:
    if ENTRIES[name].get("devices", 1) > len(jax.devices()):
        pytest.skip("there is one device")
    slow, repaired = (
        np.asarray(program(path)["main"](), np.float64)
        for path in (PROGRAMS / f"{name}.py", write_repaired(name, tmp_path))
    )
    assert np.all(np.isfinite(slow)) and np.any(slow)
    np.testing.assert_allclose(repaired, slow, rtol=1e-3 if "differs" in ENTRIES[name] else 1e-4)


def test_a_donated_array_is_gone_under_all_its_names(tmp_path: Path) -> None:
    write = program(write_repaired("no_donation", tmp_path))["write"]
    cache = other = jnp.zeros((4096, 1024))
    write(cache, 0, jnp.ones(1024))
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        other.sum()


def test_a_clone_of_a_donated_module_is_gone_too_unless_it_has_arrays_of_its_own(tmp_path: Path) -> None:
    from flax import nnx

    names = program(write_repaired("nnx_state", tmp_path))
    cache = names["Cache"]()
    shared, graph_and_state = nnx.clone(cache), nnx.split(cache)
    own = nnx.merge(graph_and_state[0], jax.tree.map(jnp.copy, graph_and_state[1]))
    names["write"](cache, 0, jnp.ones(1024))
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        shared.rows[...].sum()
    assert own.rows[...].sum() == 0


def test_a_static_object_that_changes_later_is_not_seen_again_unless_that_is_forbidden(
    tmp_path: Path,
) -> None:
    paths = PROGRAMS / "static_config.py", write_repaired("static_config", tmp_path)
    slow, repaired = (program(path) for path in paths)
    w, config = jnp.ones((64, 64)), slow["Config"]()
    before = slow["update"](w, config=config)
    config.rate = 0.5
    assert (slow["update"](w, config=config) == before).all()
    with pytest.raises(dataclasses.FrozenInstanceError):
        repaired["Config"]().rate = 0.5


@pytest.mark.parametrize("name", cases([(n,) for n in COMPILED], quick=lambda n: n == "weak_types"))
def test_jax_logs_as_many_compilations_and_retraces_as_the_page_says(
    name: str, compiles_anew: None, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    entry, counts = ENTRIES[name], []
    with jax.log_compiles():
        for path in (PROGRAMS / f"{name}.py", write_repaired(name, tmp_path)):
            caplog.clear()
            runpy.run_path(str(path), run_name="__main__")
            counts.append(caplog.text.count(f"Finished XLA compilation of jit({entry['name']})"))
    assert counts == entry["compiled"]


def program(path: Path) -> dict[str, Any]:
    return runpy.run_path(str(path), run_name="program")


def test_the_compiled_program_says_whether_memory_is_shared(tmp_path: Path) -> None:
    shared = []
    for path in (PROGRAMS / "no_donation.py", write_repaired("no_donation", tmp_path)):
        lowered = program(path)["write"].lower(jnp.zeros((4096, 1024)), 0, jnp.ones(1024))
        analysis = lowered.compile().memory_analysis()
        shared.append(analysis.alias_size_in_bytes)
    assert shared == [0, 16_777_216]


def test_the_programs_text_shows_unrolled_loops_and_captured_arrays(tmp_path: Path) -> None:
    x, w = jnp.ones((8, 8)), jnp.eye(8)
    paths = PROGRAMS / "unrolled_loop.py", write_repaired("unrolled_loop", tmp_path)
    slow, fixed = (len(program(path)["iterate"].lower(x, w).as_text()) for path in paths)
    assert slow > 10 * fixed
    step = program(PROGRAMS / "captured_constant.py")["step"]
    assert len(step.lower(jnp.ones(2048)).as_text()) > 67e6
    assert [c.shape for c in jax.make_jaxpr(step.__wrapped__)(jnp.ones(2048)).consts] == [(4096, 2048)]


def test_a_jaxpr_shows_callbacks_and_wide_floats(as_users_do: None) -> None:
    step = program(PROGRAMS / "callback_to_host.py")["step"]
    assert "pure_callback" in str(jax.make_jaxpr(step)(jnp.ones((256, 1024))))
    spread, x = program(PROGRAMS / "accidental_float64.py")["spread"], jnp.ones((512, 512), jnp.float32)
    assert "f64[512,512]" in str(jax.make_jaxpr(spread)(x))
    strict = pytest.raises(Exception, match="no available implicit dtype promotion")
    with jax.numpy_dtype_promotion("strict"), strict:
        spread(x)


def test_the_transfer_guards_raise_at_a_copy(several_devices: None) -> None:
    step, host = jax.jit(lambda w, x: w + x), np.ones((4, 4), np.float32)
    w = jnp.ones((4, 4))
    for copies in (lambda: step(w, host), lambda: jnp.array(host), lambda: jnp.array([[1.0] * 4])):
        refused = pytest.raises(Exception, match="Disallowed host-to-device transfer")
        with jax.transfer_guard("disallow"), refused:
            copies()
    mesh = jax.sharding.Mesh(jax.devices()[:2], ("data",))
    x = jax.device_put(jnp.ones((2, 4)), jax.sharding.NamedSharding(mesh, jax.P("data")))
    refused = pytest.raises(Exception, match="Disallowed device-to-device transfer")
    with jax.transfer_guard_device_to_device("disallow"), refused:
        jax.jit(jnp.matmul)(x, w)


# Ways to time JAX wrongly


def test_each_way_leads_to_its_test(gallery: ModuleType) -> None:
    page = gallery.with_tests((ROOT / "docs" / "trust.md").read_text())
    ways = re.findall(r"^\| <a href=\"#(way-[\w-]+)\">", page, re.M)
    assert len(ways) == 50
    assert set(ways) == set(re.findall(r'<details id="([\w-]+)">', page))
    assert "<!-- tests of the ways -->" not in page
    assert page.count("```python\ndef test_") >= 50
