"""What a call passes for an argument is found by place and by name, or not guessed."""

from __future__ import annotations

import ast
from pathlib import Path

from jaxperf.watch.advice.advice import advice
from jaxperf.watch.finding import Finding
from jaxperf.watch.observe.source_location import Place
from jaxperf.watch.source import source_arguments


def test_what_a_call_gives_for_an_argument_is_found_by_place_or_name(tmp_path: Path) -> None:
    path = tmp_path / "calls.py"
    path.write_text(
        "def step(w, x, *, rate=1): pass\nw = step(w, self.x, rate=0.1)\ny = f(g(a, b), h(c, d))\n"
    )

    def given(number: int, argument: str) -> str:
        found = source_arguments.given_for(Place(str(path), number), "step", argument)
        return ast.unparse(found) if found else ""

    assert [given(2, a) for a in ("argument 0", "argument 1", "rate", "argument 7")] == [
        "w",
        "self.x",
        "0.1",
        "",
    ]
    assert given(3, "argument 1") == ""  # of which call?
    finding = Finding("transfer", Place(str(path), 2), 1.0, "", "step", argument="argument 1")
    assert "+ self.x = jax.device_put(self.x)" in advice(finding).change
