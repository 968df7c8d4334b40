"""A dot and a sum compiled together: what the setting does to the program, and which figures decide what."""

from __future__ import annotations

from typing import Any

import pytest
from stories import begin

from jaxperf.chapter import fused_dot as part


def answer(ratio: float, program: str) -> dict[str, Any]:
    """What a process would tell in which compiling takes `ratio` times the CPU time."""
    rows = [
        {"name": name, "unit": "s", "values": [value * (1 + 0.01 * i) for i in range(9)], "rounds": "r"}
        for name, value in (("two eager calls", 1.0), ("compiled together", ratio))
    ]
    return {"rows": rows, "program": [program]}


@pytest.mark.parametrize(
    ("version", "ratio", "holds", "prediction"),
    [
        ("0.10.2", 2.0, "does not hold", "right"),
        ("0.10.2", 1.0, "holds", "wrong"),
        ("0.12.0", 1.0, "holds", "right"),
        ("0.12.0", 2.0, "does not hold", "wrong"),
    ],
)
def test_what_is_predicted_depends_on_the_version_and_what_holds_on_the_figures(
    version: str, ratio: float, holds: str, prediction: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def child(_: Any, size: int, rounds: int, *, environment: dict[str, str]) -> dict[str, Any]:
        asked.append(environment["XLA_FLAGS"])
        return answer(1.0 if part.SETTING in environment["XLA_FLAGS"] else ratio, "ENTRY")

    monkeypatch.setattr(part, "in_fresh_process", child)
    monkeypatch.setattr(part.jax, "__version__", version)
    story = begin("8.2")  # starts JAX, which would end the process over a flag that XLA does not know
    monkeypatch.setenv("XLA_FLAGS", "--xla_something=1")
    part.compiled_is_slower(story, size=100, rounds=9)
    together, avoided = story.result().claims
    assert (together.holds, together.prediction) == (holds, prediction)
    assert (avoided.holds, avoided.prediction) == ("holds", "right")
    assert asked == ["--xla_something=1", f"--xla_something=1 {part.SETTING}"]  # the reader's flags stay


@pytest.mark.thorough
def test_the_setting_keeps_the_reduction_out_of_the_dots_fusion() -> None:
    rows, program = part.measured_with(part.SETTING, part.compiled_child, 300, 1)
    assert [m.name for m in rows] == ["two eager calls", "compiled together"]
    text = "\n".join(program)
    assert "f32[300,300]{1,0} fusion" in text or "f32[300,300]{1,0} dot" in text  # the product is kept
