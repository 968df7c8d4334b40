"""`watch --fail-on`: kinds, the exit status, and a line for each finding."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxperf.cli import command_line
from jaxperf.errors import JaxperfError
from jaxperf.watch.advice import advice
from jaxperf.watch.fail_on import KINDS, kind_of, parse_kinds
from jaxperf.watch.finding import Finding
from jaxperf.watch.observe.source_location import NOWHERE
from jaxperf.watch.rules import between_devices, eager, idle, precision, programs, settings, steps, traces

RETRACES = """
import jax, jax.numpy as jnp, time
def step(x, n):
    return x * n + jnp.sum(x)
step = jax.jit(step, static_argnums=1)
x = jnp.ones(1000)
for n in range(40):
    x = step(x, n + 0.5).block_until_ready()
"""


def test_every_cause_that_a_rule_names_has_exactly_one_kind() -> None:
    causes = [cause for kind in KINDS.values() for cause in kind]
    assert len(causes) == len({*causes})
    texts = {*advice._TEXTS}
    assert {*causes} <= texts | {"static part", "wait"}
    source = "".join(
        Path(module.__file__ or "").read_text()
        for module in (between_devices, eager, idle, precision, programs, settings, steps, traces)
    )
    assert [cause for cause in causes if f'"{cause}"' not in source] == []
    assert kind_of(Finding("static value", NOWHERE, 1.0, "")) == "retrace"


def test_kinds_are_named_with_commas_and_an_unknown_one_is_one_line() -> None:
    assert parse_kinds("retrace,sync") == {"retrace", "sync"} and parse_kinds("") == set()
    with pytest.raises(JaxperfError, match=r"^--fail-on has no kind 'syncs'; it takes retrace, sync, "):
        parse_kinds("retrace,syncs")


@pytest.mark.parametrize(("kinds", "status"), [("retrace", 1), ("any", 1), ("memory", 0)])
def test_the_status_is_1_for_findings_of_these_kinds_only(
    kinds: str, status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str], compiles_anew: None
) -> None:
    path = tmp_path / "retraces.py"
    path.write_text(RETRACES)
    assert command_line.main(["watch", "--no-profile", "--fail-on", kinds, str(path)]) == status
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: --fail-on")]
    assert bool(lines) is bool(status)
    assert status == 0 or any(f"{path.name}:8: saves up to " in line for line in lines)


def test_a_failing_program_keeps_its_own_status(tmp_path: Path) -> None:
    path = tmp_path / "exits.py"
    path.write_text(RETRACES + "raise SystemExit(7)\n")
    assert command_line.main(["watch", "--no-profile", "--fail-on", "any", str(path)]) == 7
