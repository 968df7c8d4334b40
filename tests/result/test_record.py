"""A result gives what its blocks hold, and needs the standard library only."""

from __future__ import annotations

import subprocess
import sys

from jaxperf.result import (
    Claim,
    Environment,
    Fact,
    Measurement,
    Note,
    Result,
    Table,
)


def test_a_result_gives_what_its_blocks_hold_in_their_order() -> None:
    first, second = Measurement("m", "s", (1.0,)), Measurement("n", "s", (2.0,))
    claim = Claim("a", "holds", "b", "c")
    blocks = (
        Table("t", (first,)),
        Note("one"),
        Fact("n", 3),
        claim,
        Table("d", (second,)),
        Fact("k", "x"),
    )
    result = Result("e", "8.1", "t", "q", {}, Environment(), blocks)
    assert result.measurements == (first, second)
    assert (result.facts, result.claims) == ({"n": 3, "k": "x"}, (claim,))


def test_the_package_needs_only_the_standard_library() -> None:
    program = (
        "import sys; before = set(sys.modules)\n"
        "import jaxperf.result\n"
        "new = {name.split('.')[0] for name in set(sys.modules) - before}\n"
        "print(sorted(new - set(sys.stdlib_module_names) - {'jaxperf'}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
