import dataclasses
import json
import re

import matplotlib.pyplot as plt
import pytest
from report_results import HOSTILE, blocks

from jaxperf.chapter import display, section
from jaxperf.chapter.catalogue import SectionEntry as About
from jaxperf.result import Claim, Environment, Fact, Grid, Measurement, Span, Table, Text, Timeline
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import load_result, save_result

ROW = Measurement("eager", "s", (1.0, 2.0, 3.0))


@pytest.fixture
def recorder():
    return Recorder(About("page", "9.1", "A page", "?", 1), Environment(), {}, command="")


def test_one_expression_decides(recorder):
    for holds in (True, False, None):
        recorder.claim("s", holds=holds, expected="e", observed="o")
    recorder.claim("s", holds=True, expected="e", observed="o", cannot="one device only")
    claims = recorder.result().claims
    assert [c.verdict for c in claims] == ["holds", "does not hold", "undecided", "not measurable here"]
    assert claims[-1].observed == "one device only"


SENTENCES = {"if_holds": "Take `jit`.", "if_not": "Take\n  neither.", "if_open": "Measure again."}


def test_the_sentence_of_a_claim_is_that_of_its_outcome(recorder):
    wanted = {True: "Take `jit`.", False: "Take neither.", None: "Measure again."}
    for holds, sentence in wanted.items():
        recorder.claim("s", holds=holds, expected="e", observed="o", **SENTENCES)
        assert recorder.result().claims[-1].conclusion == sentence
        assert recorder.sentence(holds, **SENTENCES) == sentence
        recorder.say(holds, **SENTENCES)
        assert recorder.result().blocks[-1] == Text(sentence)
    recorder.claim("s", holds=True, expected="e", observed="o", cannot="one device only", **SENTENCES)
    assert recorder.result().claims[-1].conclusion == "Measure again."
    before = len(recorder.blocks)
    recorder.say(True, if_holds="", if_not="x")
    assert len(recorder.blocks) == before


def test_a_test_can_turn_all_verdicts_around(recorder, monkeypatch):
    opposite = {"holds": "does not hold", "does not hold": "holds", "not measurable here": "holds"}
    monkeypatch.setattr("jaxperf.result.recorder.turned", opposite)
    recorder.claim("s", holds=True, expected="e", observed="o", **SENTENCES)
    recorder.claim("s", holds=True, expected="e", observed="o", cannot="no GPU", **SENTENCES)
    assert [c.verdict for c in recorder.result().claims] == ["does not hold", "holds"]
    assert [c.conclusion for c in recorder.result().claims] == ["Take neither.", "Take `jit`."]
    assert recorder.sentence(False, **SENTENCES) == "Take `jit`."


def test_a_claim_says_what_it_lacks_to_be_measured(recorder):
    def lacks(*needs, smoke=False, **environment):
        about = About("page", "9.1", "A page", "?", 1)
        recorder = Recorder(about, Environment(**environment), {}, command="", smoke=smoke)
        recorder.claim("s", holds=True, expected="e", observed="o", needs=needs)
        (claim,) = recorder.result().claims
        return "" if claim.verdict == "holds" else claim.observed

    two = ("cpu:0 cpu", "cpu:1 cpu")
    assert lacks("size") == "" and lacks("size", smoke=True) == "the sizes are those of a toy"
    assert lacks("gpu", backend="cpu") == "this needs a GPU" and lacks("gpu", backend="gpu") == ""
    assert lacks("cores", cores=1) == "there is only one core" and lacks("cores", cores=2) == ""
    assert lacks("devices", devices=two, devices_are_fake=True) == "all devices are parts of one CPU"
    assert lacks("devices", devices=two) == "" and "one device" in lacks("devices", devices=two[:1])
    with pytest.raises(TypeError, match="give a list"):
        recorder.claim("s", holds=True, expected="e", observed="o", needs="size")


def test_a_result_tells_fitted_figures_from_predicted_ones(recorder, tmp_path):
    recorder.table([ROW, dataclasses.replace(ROW, name="model", basis="predicted")], title="Calls")
    recorder.fact("t1", 1.0, basis="fitted")
    recorder.claim("s", holds=True, expected="e", observed="o", basis="predicted")
    save_result(recorder.result(), tmp_path / "r.json")
    body = json.loads((tmp_path / "r.json").read_text())
    assert [m["basis"] for m in body["measurements"]] == ["measured", "predicted"]
    assert [b["basis"] for b in body["blocks"][1:]] == ["fitted", "predicted"]
    assert load_result(tmp_path / "r.json").blocks == recorder.result().blocks
    assert "model (predicted)" in display.bundle(recorder.blocks[0])["text/markdown"]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_is_escaped_in_every_form(text):
    for block in blocks(text):
        if isinstance(block, Table | Grid | Claim | Fact):
            shown = display.bundle(block)
            markup = shown.get("text/html", "") + shown.get("text/markdown", "")
            assert not re.search(r"(?<!\\)<(script|img|/style|/svg)", markup)


def test_figures_are_drawn_alike_every_time_and_closed(monkeypatch):
    plt.style.use(section.STYLE)
    drawn = []
    open_before = plt.get_fignums()  # of other tests of this process
    monkeypatch.setattr(display, "printer", drawn.append)
    run = Timeline("step", (Span("cpu 0", "dot", 0.0, 1e-3), Span("cpu 1", "dot", 0.0, 2e-3)), 2e-3)
    for _ in range(2):
        section.Section.timeline(section.Section.__new__(section.Section), run, "Both are busy.")
    assert ">dot<" in drawn[0].svg  # a word on a bar
    assert drawn[0] == drawn[1] and drawn[0].caption == "Both are busy." and "cpu 1" in drawn[0].svg
    assert plt.get_fignums() == open_before
