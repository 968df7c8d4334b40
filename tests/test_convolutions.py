"""Who computes a convolution: both libraries compute the same layer, and the verdict follows the times."""

from __future__ import annotations

import pytest
from stories import begin

from jaxperf.chapter import convolutions
from jaxperf.chapter.convolutions import DEFAULT, GRADIENT, ONEDNN, PRODUCT, PRODUCTS, flop, library
from jaxperf.chapter.fused_dot import measured_with
from jaxperf.result import Measurement, Output, Result, Table


def rows(default_s: float, onednn_s: float) -> list[Measurement]:
    values = {DEFAULT: default_s, ONEDNN: onednn_s, PRODUCT: 0.5, GRADIENT: 4.0, PRODUCTS: 2.0}
    return [Measurement(n, "s", (s,) * 6, rounds="same") for n, s in values.items()]


def told(
    monkeypatch: pytest.MonkeyPatch, default_s: float, onednn_s: float, processor: str = "x86_64"
) -> Result:
    found = rows(default_s, onednn_s), [f"{DEFAULT}: one library", f"{ONEDNN}: another"]
    monkeypatch.setattr(convolutions, "measured_with", lambda *_: found)
    monkeypatch.setattr(convolutions.platform, "machine", lambda: processor)
    story = begin("hybridize")
    convolutions.who_computes_a_convolution(story, 2, 8, 6)
    return story.result()


@pytest.mark.thorough
def test_a_fresh_process_times_five_programs_and_names_their_libraries() -> None:
    if convolutions.platform.machine().lower() not in ("x86_64", "amd64"):
        pytest.skip("jaxlib carries oneDNN for x86 alone")
    found, libraries = measured_with("", convolutions.side_by_side, 1, 16, 2)
    names = [DEFAULT, ONEDNN, PRODUCT, GRADIENT, PRODUCTS]
    assert [m.name for m in found] == names
    assert len({m.rounds for m in found}) == 1
    convolution, gradient, product = (line.split(": ")[1] for line in libraries)
    default, ours = convolution.split(", or ")
    assert "onednn" not in default + product and "__onednn$convolution" in ours
    default, ours = gradient.split(", or ")
    assert "onednn" not in default and "__onednn$matmul" in ours


def test_a_library_is_named_by_what_the_program_calls() -> None:
    assert library('x = __before\nENTRY %a { custom-call(), custom_call_target="__b$c" }') == "__b$c"
    assert library('ENTRY { backend_config={"fusion_config":{"kind":"__ynn_fusion"}} }') == "__ynn_fusion"
    assert library("ENTRY { ROOT %add = f32[] add(a, b) }") == "XLA's own code"


def test_operations_are_those_of_every_tap() -> None:
    assert flop(1, 1) == 2 * 14 * 14 * 9
    assert flop(3, 4) == 48 * flop(1, 1)


def test_verdicts_follow_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for default_s, verdict in ((3.0, ("does not hold", "right")), (1.0, ("holds", "wrong"))):
        found = told(monkeypatch, default_s, 1.0)
        assert [(c.holds, c.prediction) for c in found.claims] == [verdict]
        gflops = flop(2, 8) / 1e9
        assert found.facts["convolution_gflops"] == pytest.approx(gflops / default_s)
        assert found.facts["convolution_gflops_onednn"] == pytest.approx(gflops)
        gradients = [found.facts[f"kernel_gradient_gflops{name}"] for name in ("", "_onednn")]
        assert gradients == pytest.approx([gflops / 4, gflops / 2])
        assert "another" in next(iter(found.of(Output))).text
        assert len(list(found.of(Table))) == 1


def test_another_processor_is_not_measured_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, 1.0, 1.0, processor="aarch64")
    assert [c.holds for c in found.claims] == ["cannot be measured here"]
    assert not list(found.of(Table))
