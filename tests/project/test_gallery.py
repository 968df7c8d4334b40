import dataclasses
import importlib
import re
import runpy
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import cases
from twins import NAMES, PROGRAMS, write_repaired

from jaxperf.watch.rules import CAUSES

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def gallery(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("gallery")


def test_every_slow_program_has_an_entry_and_every_entry_a_program(gallery):
    assert sorted(gallery.names()) == NAMES


@pytest.mark.parametrize("file", ["README.md", "README.zh-CN.md", "CHANGELOG.md"])
def test_the_number_of_programs_is_told_as_it_is(gallery, file):
    text = (ROOT / file).read_text(encoding="utf-8")
    (told,) = re.findall(r"(\d+) (?:slow programs with their|个慢程序|programs with the symptom)", text)
    assert int(told) == len(gallery.names())


def test_entries_are_complete_and_every_text_and_thread_is_used(gallery):
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


def test_what_watch_said_names_the_line_and_the_cause_that_its_test_expects(gallery):
    stored = gallery.stored()
    expected = {name: gallery.cause(PROGRAMS / f"{name}.py") for name in NAMES}
    records = {name: values["record"] for name, values in stored.items() if "record" in values}
    actual = {name: (record["cause"], record["line"]) for name, record in records.items()}
    other = [name for name in NAMES if actual.get(name) != expected[name]]
    assert not other, f"run: python docs/gallery.py record {' '.join(other)}"
    for name in NAMES:
        assert f"{name}.py:{expected[name][1]}" in stored[name]["record"]["text"]


def test_the_page_has_a_row_for_every_program_and_a_section_for_every_cause(gallery):
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


def test_every_cause_that_watch_reports_is_on_the_page(gallery):
    shown = {gallery.cause(PROGRAMS / f"{name}.py")[0] for name in NAMES}
    others = [title for name, title in ((n, c.title) for n, c in CAUSES.items()) if name not in shown]
    assert 0 < len(others) <= 5
    lines = gallery.causes_without_a_program()
    assert all(any(title[1:] in line for line in lines) for title in others)


# What the page says about results, and about looking without jaxperf


ENTRIES = tomllib.loads((PROGRAMS / "gallery.toml").read_text())
COMPILED = [name for name, entry in ENTRIES.items() if "compiled" in entry]


@pytest.fixture
def as_users_do():
    yield
    jax.config.update("jax_enable_x64", False)


SOME = cases([(n,) for n in NAMES], quick=lambda n: n in ("weak_types", "partial_batch"))


@pytest.mark.parametrize("name", SOME)
def test_a_repaired_program_has_the_result_of_the_slow_one(name, tmp_path, as_users_do, capsys):
    if ENTRIES[name].get("devices", 1) > len(jax.devices()):
        pytest.skip("there is one device")
    paths = PROGRAMS / f"{name}.py", write_repaired(name, tmp_path)
    slow, repaired = (np.asarray(program(path)["main"](), np.float64) for path in paths)
    assert np.all(np.isfinite(slow)) and np.any(slow)
    np.testing.assert_allclose(repaired, slow, rtol=1e-3 if "differs" in ENTRIES[name] else 1e-4)


def test_a_donated_array_is_gone_under_all_its_names(tmp_path):
    write = program(write_repaired("no_donation", tmp_path))["write"]
    cache = other = jnp.zeros((4096, 1024))
    write(cache, 0, jnp.ones(1024))
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        other.sum()


def test_a_clone_of_a_donated_module_is_gone_too_unless_it_has_arrays_of_its_own(tmp_path):
    from flax import nnx

    names = program(write_repaired("nnx_state", tmp_path))
    cache = names["Cache"]()
    shared, graph_and_state = nnx.clone(cache), nnx.split(cache)
    own = nnx.merge(graph_and_state[0], jax.tree.map(jnp.copy, graph_and_state[1]))
    names["write"](cache, 0, jnp.ones(1024))
    with pytest.raises(RuntimeError, match="Array has been deleted"):
        shared.rows[...].sum()
    assert own.rows[...].sum() == 0


def test_a_static_object_that_changes_later_is_not_seen_again_unless_that_is_forbidden(tmp_path):
    paths = PROGRAMS / "static_config.py", write_repaired("static_config", tmp_path)
    slow, repaired = (program(path) for path in paths)
    w, config = jnp.ones((64, 64)), slow["Config"]()
    before = slow["update"](w, config=config)
    config.rate = 0.5
    assert (slow["update"](w, config=config) == before).all()
    with pytest.raises(dataclasses.FrozenInstanceError):
        repaired["Config"]().rate = 0.5


@pytest.mark.parametrize("name", cases([(n,) for n in COMPILED], quick=lambda n: n == "weak_types"))
def test_jax_logs_as_many_compilations_and_retraces_as_the_page_says(name, compiles_anew, caplog, tmp_path):
    entry, counts = ENTRIES[name], []
    with jax.log_compiles():
        for path in (PROGRAMS / f"{name}.py", write_repaired(name, tmp_path)):
            caplog.clear()
            runpy.run_path(str(path), run_name="__main__")
            counts.append(caplog.text.count(f"Finished XLA compilation of jit({entry['name']})"))
    assert counts == entry["compiled"]


def program(path):
    return runpy.run_path(str(path), run_name="program")
