import children
import pytest
from report_results import notes_of

from jaxperf.result import Grid, load_result


@pytest.mark.thorough
def test_the_section_shows_what_was_measured(script, tmp_path):
    offline = {"UV_OFFLINE": "1", "UV_CACHE_DIR": str(tmp_path / "uv")}  # so that nothing is installed
    flags = ("--json", tmp_path / "peers.json", "--frameworks=mxnet", "--only", "8.2 loop", "--rounds", "6")
    done = children.run(script, "--smoke", *flags, **offline)
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
