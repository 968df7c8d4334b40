from pathlib import Path

import children
import pytest
from report_results import notes_of

from jaxperf.result import Grid, load_result

SCRIPT = Path(__file__).parents[2] / "experiments" / "peers.py"


def run(folder, *arguments):
    offline = {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(folder / "uv")}  # so that nothing is installed
    return children.run(SCRIPT, "--smoke", "--json", folder / "peers.json", *arguments, **offline)


@pytest.mark.thorough
def test_the_section_shows_what_was_measured(tmp_path):
    done = run(tmp_path, "--frameworks", "mxnet", "--only", "8.2 loop", "--rounds", "6")
    assert done.returncode == 0, done.stderr
    result = load_result(tmp_path / "peers.json")
    ways = {(m.quantity, m.configuration) for m in result.measurements if m.system == "jax"}
    assert ways == {(q, way) for q in ("synchronous", "asynchronous") for way in ("eager", "jit")}
    there = "mxnet" in {m.system for m in result.measurements}
    assert there or any("mxnet is left out: " in note for note in notes_of(result))
    claims = {claim.statement: claim.verdict for claim in result.claims}
    assert claims == ({"Every configuration of mxnet computes what JAX computes": "holds"} if there else {})
    [loops] = [grid for grid in result.of(Grid) if grid.title.startswith("The loop of 8.2")]
    assert {("jax", "eager"), ("jax", "jit")} <= {row[:2] for row in loops.rows}
    assert "jax" in str(result.facts["versions_jax"])
