import sys

import children
import pytest

from jaxperf import cli
from jaxperf.compare.results import measurements_by_key
from jaxperf.result import load_result

PROGRAM = """
import os
import jax, jax.numpy as jnp

@jax.jit
def step(x):
    for _ in range(2 + int(os.environ.get("MORE", "0"))):
        x = jnp.tanh(x @ x)
    return x

x = jnp.ones((64, 64))
for n in range(1 + int(os.environ.get("SHAPES", "0"))):
    step(jnp.ones((64 + n, 64 + n))).block_until_ready()
print(float(step(x).sum()))
"""


@pytest.fixture
def program(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    return str(tmp_path / "train.py")


def python_with(folder, name, *flags, **variables):
    path = folder / name
    lines = [f"export {key}={value}" for key, value in variables.items()]
    path.write_text("\n".join(["#!/bin/sh", *lines, f'exec "{sys.executable}" {" ".join(flags)} "$@"', ""]))
    path.chmod(0o755)
    return str(path)


def upgrade(*words):
    return cli.main(["upgrade", *words])


def test_the_tables_have_the_whole_run_each_function_and_what_differs(program, tmp_path, capfd):
    other = python_with(tmp_path, "other", SHAPES="3", JAX_ENABLE_X64="1")
    assert upgrade("--runs", "1", "--python", sys.executable, "--python", other, "--", program) == 0
    out, err = capfd.readouterr()
    rows = [line.split() for line in out.splitlines()]
    whole = rows.index(["watch:", "Whole", "run"])
    step = rows.index(["watch:", "step"])
    assert {row[0] for row in rows[whole:step] if row} >= {"time", "compile", "programs", "peak"}
    programs = next(row for row in rows[step:] if row[:1] == ["programs"])
    assert programs[1:3] == ["1", "4"]
    assert "differs: flags jax_enable_x64: False and True" in out
    assert "too few runs" in out and "What would decide" in out
    assert sorted(err.split("\n")[:2]) == ["run 1 of 1 in A", "run 1 of 1 in B"]


def test_the_figures_for_comparisons_are_not_in_the_report_on_a_terminal(program, tmp_path):
    path = tmp_path / "watch.json"
    done = children.run("-m", "jaxperf", "watch", "--json", path, program)
    assert "Traced and compiled" in done.stderr and "Whole run" not in done.stderr
    rows = {(key.title, key.name) for key in measurements_by_key(load_result(path))}
    assert rows >= {("Whole run", "time"), ("step", "compile"), ("step", "programs")}


@pytest.mark.thorough
@pytest.mark.parametrize(("planted", "status"), [({}, 0), ({"MORE": "150"}, 1)])
def test_only_a_planted_difference_is_slower(planted, status, program, tmp_path, capfd):
    other = python_with(tmp_path, "other", **planted)
    words = ("--runs", "7", "--python", sys.executable, "--python", other, "--least", "0.2")
    assert upgrade(*words, "--", program) == status, capfd.readouterr().out


@pytest.mark.parametrize(
    ("pythons", "message"),
    [
        ((sys.executable,), "give --python twice"),
        ((sys.executable, "/nonexistent/python"), "cannot start '/nonexistent/python'"),
        (
            (sys.executable, "/bin/echo"),
            "wrote no result but ended with status 0: /bin/echo -m jaxperf watch",
        ),
    ],
)
def test_a_mistake_is_one_line(pythons, message, program, capfd):
    flags = [word for python in pythons for word in ("--python", python)]
    assert upgrade(*flags, "--", program) == 2
    assert message in capfd.readouterr().err.splitlines()[-1]


def test_a_program_that_fails_in_one_environment_names_it_and_the_reason(tmp_path, capfd):
    (tmp_path / "broken.py").write_text("import jax\nraise ValueError('no such operation')\n")
    both = ("--python", sys.executable, "--python", sys.executable)
    assert upgrade(*both, "--", str(tmp_path / "broken.py")) == 2
    *said, error = capfd.readouterr().err.splitlines()
    assert "the command failed with status 1" in error and error.endswith("broken.py")
    assert "ValueError: no such operation" in said


def test_an_environment_without_a_needed_package_is_named(program, tmp_path, capfd):
    bare = python_with(tmp_path, "bare", "-S")
    assert upgrade("--python", sys.executable, "--python", bare, "--", program) == 2
    *said, error = capfd.readouterr().err.splitlines()
    assert f"the command failed with status {error.split(' status ')[1][0]}: {bare}" in error
    assert any("No module named" in line for line in said)
