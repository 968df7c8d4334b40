"""docs/plan.md: its screens are what its commands print, and its tables are those of the benchmark.

The screens need JAX's CUDA plugin, and the version of JAX that made them. To make them anew:
`JAXPERF_UPDATE_PAGE=1 pytest tests/plan/test_plan_guide.py`.
"""

import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

import jax
import pytest

from tests.plan.test_validation import validate  # noqa: F401

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"
PROGRAMS = ("lenet", "resnet", "gpt")
# of this machine
SECONDS = re.compile(r"(?<=compilations)\sin\s\d+\ss\b|(?<=` \| )(\d+|-)(?= \|$)", re.M)
SCREEN = re.compile(r"^```\n\$ (jaxperf plan .*)\n((?:.*\n)*?)```$", re.M)


def test_tables(validate):  # noqa: F811
    page = PAGE.read_text()
    made = page
    *tables, sets = validate.tables_for_page()
    for table in tables:
        head = table.partition("\n")[0]
        shown = re.search(rf"^{re.escape(head)}\n(?:\|.*\n)*", page, re.MULTILINE)
        assert shown, f"the page lacks the table {head}"
        made = made.replace(shown[0], f"{table}\n")
    if os.environ.get("JAXPERF_UPDATE_PAGE"):
        PAGE.write_text(made)
    assert made == PAGE.read_text(), "benchmarks/plan/validate.py has other figures"
    words = " ".join(made.split())
    for sentence in (sets, *validate.sentences_for_page()):
        assert " ".join(sentence.split()) in words


@pytest.mark.real
@pytest.mark.thorough
@pytest.mark.usefixtures("cuda_plugin")
def test_screens(tmp_path):
    page = PAGE.read_text()
    programs = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    for name, program in zip(PROGRAMS, programs):
        (tmp_path / f"{name}.py").write_text(program)
    for name in ("styles.py", "published.py"):
        (tmp_path / name).write_text((PAGE.parents[1] / "benchmarks" / "plan" / name).read_text())
    made = page
    environment = {**os.environ, "COLUMNS": "100", "JAX_PLATFORMS": "cpu"}
    for command, shown in SCREEN.findall(page):
        words = [sys.executable, "-m", "jaxperf", *shlex.split(command)[1:]]
        began = time.perf_counter()
        run = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert run.returncode == 0, run.stderr
        took = f"| `{command}` | {time.perf_counter() - began:.0f} |\n"
        lines = "".join(f"{line.rstrip()}\n" for line in run.stdout.splitlines())
        made = made.replace(f"$ {command}\n{shown}", f"$ {command}\n{lines}")
        made, rows = re.subn(rf"^\| `{re.escape(command)}` \| .*\n", took, made, flags=re.M)
        assert rows == 1, f"the page lacks the seconds of {command}"
    if os.environ.get("JAXPERF_UPDATE_PAGE"):
        PAGE.write_text(made)
    version = re.search(r"made by JAX ([\d.]+\d)", page)
    if version and version[1] != jax.__version__:
        pytest.skip(f"the page's screens are of JAX {version[1]}")
    assert SECONDS.sub("", made) == SECONDS.sub("", PAGE.read_text())
