"""Notebooks on a fresh kernel, from top to bottom; needs the extra `notebook`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stories import whole

from jaxperf.report.figures import Picture
from jaxperf.report.notebook import render_notebook
from jaxperf.report.story import walk

NAMES = ("use_gpu", "hybridize", "async_computation", "multiple_gpus")


@pytest.mark.thorough
@pytest.mark.real
@pytest.mark.timeout(900)  # on two busy cores section 8.4 took 170 s
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_on_a_fresh_kernel_and_tells_what_the_script_told(name: str, tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    if name != "use_gpu" and not Path(os.environ.get("JAXPERF_RESULTS", ""), f"{name}.json").exists():
        pytest.skip("no result of this section; JAXPERF_RESULTS names no folder that has one")
    result = whole(name)
    found = nbformat.reads(render_notebook(result), as_version=4)
    nbclient.NotebookClient(found, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [o for cell in found.cells for o in cell.get("outputs", [])]
    printed = "".join(o.text for o in outputs if o.output_type == "stream" and o.name == "stdout")
    assert "failed: " not in printed and "\x1b" not in printed
    for claim in result.claims:
        assert f"] {claim.statement}" in printed
    drawn = sum(isinstance(item, Picture) for item in walk(result))
    assert sum("image/png" in o.get("data", {}) for o in outputs) == drawn


WATCHED = """
import jax, jax.numpy as jnp, jaxperf
with jaxperf.watch("a cell") as watched:
    step = jax.jit(lambda x: x * 2)
    for n in (3, 4, 5):
        total = float(step(jnp.ones(n)).sum())
"""
FOUND = """
(wait,) = {(w.kind, w.at.source) for w in watched.record.waits}
print(wait, [c.at.source for c in watched.record.compiled if c.name == "<lambda>"])
"""


@pytest.mark.thorough
@pytest.mark.real
@pytest.mark.timeout(300)
def test_a_cell_is_watched_and_its_lines_are_named(tmp_path: Path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in (WATCHED, FOUND)])
    nbclient.NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()
    first, second = ("".join(o.text for o in cell.outputs) for cell in notebook.cells)
    line = "total = float(step(jnp.ones(n)).sum())"
    assert "watch: a cell" in first and line in first and "Findings: " in first
    assert second.strip() == str(("float", line)) + " " + str([line] * 3)
