import re
import sys

import pytest

from jaxperf import cli
from jaxperf.errors import JaxperfError
from jaxperf.watch.observe.source_location import NOWHERE, Place
from jaxperf.watch.rules.table import CAUSES, KINDS, Finding, cause_of, parse_kinds


def test_every_cause_of_the_table_has_a_kind_that_the_flag_takes():
    assert {cause.kind for cause in CAUSES.values()} <= {*KINDS}
    assert all(parse_kinds(kind) == {kind} for kind in KINDS)
    assert cause_of(Finding("static value", NOWHERE, 1.0, "")).kind == "retrace"


def test_kinds_are_named_with_commas_and_an_unknown_one_is_one_line():
    assert parse_kinds("retrace,sync") == {"retrace", "sync"} and parse_kinds("") == set()
    for text, line in (
        ("retrace,syncs", "--fail-on has no kind 'syncs' (did you mean sync?); it takes retrace, sync, "),
        ("zz", "--fail-on has no kind 'zz'; it takes retrace, sync, "),
        (",", "--fail-on ',' names no kind; it takes retrace, sync, "),
    ):
        with pytest.raises(JaxperfError, match=f"^{re.escape(line)}"):
            parse_kinds(text)


@pytest.mark.parametrize(
    ("kinds", "end", "status"),
    [("retrace", "", 1), ("any", "", 1), ("memory", "", 0), ("any", "raise SystemExit(7)\n", 7)],
)
def test_the_status_is_1_for_such_findings_unless_the_program_fails(
    kinds, end, status, tmp_path, capfd, monkeypatch
):
    path = tmp_path / "retraces.py"
    path.write_text("for n in range(3):\n    pass  # traced\n" + end)
    finding = Finding("new function", Place(str(path), 2), 1.5, "step was traced 3 times", "step")
    module = sys.modules["jaxperf.watch.run_script"]  # the package's name is that of its function
    monkeypatch.setattr(module, "find_causes", lambda analysis: [finding])
    assert cli.main(["watch", "--no-profile", "--fail-on", kinds, str(path)]) == status
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: --fail-on")]
    at = f"{path.parent.name}/{path.name}:2"
    line = f"error: --fail-on retrace: a new function is jitted on each call, {at}: saves 1.50 s"
    assert lines == ([] if kinds == "memory" else [line])
