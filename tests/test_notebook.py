import re

import children
import pytest

pytest.importorskip("IPython")
CELLS = """
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
for cell in {cells!r}:
    if not shell.run_cell(cell).success:
        print("the cell failed")
"""
DEFINE = """import jax, jax.numpy as jnp
@jax.jit
def step(x):
    return jnp.tanh(x @ x).sum()
"""
RETRACED = """%%jaxperf --no-profile
for n in range(20, 40):
    y = float(step(jnp.ones((n, n))))
"""


def run(tmp_path, *cells):
    script = tmp_path / "cells.py"
    script.write_text(CELLS.format(cells=["%load_ext jaxperf", *cells]))
    done = children.run(script, IPYTHONDIR=str(tmp_path), NO_COLOR="1")
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_cell_shows_its_compilations_and_waits_and_its_names_stay(tmp_path):
    output = run(tmp_path, DEFINE, RETRACED, "print('last', y)")
    assert "step was traced 20 times" in " ".join(output.split())
    assert re.search(r"^float +20 ", output, re.M)  # waits, by line
    assert "an argument's shape varies" in output
    assert "last 1521.0" in output  # 39 x 39 elements, each the tanh of 39


def test_mistakes_in_a_cell_are_shown_and_the_next_cell_is_watched_again(tmp_path):
    cells = "%%jaxperf --nonsense\n1", "%%jaxperf --no-profile\n1 / 0", "%%jaxperf --no-profile\n2"
    output = run(tmp_path, *cells)
    assert "UsageError: %%jaxperf takes --no-profile or nothing, not '--nonsense'" in output
    assert output.count("division by zero") == 2 and output.count("Traceback") == 1
    assert output.count("the cell failed") == 2
    assert output.count("watch: this cell") == 2
