import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import children
import jax
import pytest
from flax import nnx
from report_results import notes_of

from jaxperf import cli
from jaxperf.measure import ceilings, measure_command, roofline
from jaxperf.measure.environment import current_environment
from jaxperf.measure.measure_command import is_jitted
from jaxperf.result import Grid, Measurement, Result, Table, load_result, save_result

MODULE = """
import functools
import jax, jax.numpy as jnp

@jax.jit
def step(x, y):
    return jnp.tanh(x @ y)

@jax.jit
def twice(x, y):
    return jnp.tanh(x @ y @ y), {"sum": x.sum()}

def plain(x, y):
    return jnp.tanh(x @ y)

class Net:
    @functools.partial(jax.jit, static_argnums=0)
    def step(self, x):
        return jnp.tanh(x)

net = Net()

@functools.partial(jax.jit, donate_argnums=0)
def update(x, y):
    return x + y

@functools.partial(jax.jit, static_argnames="n")
def power(x, n):
    return x ** n

@jax.jit
def loop(x, y):
    return jax.lax.fori_loop(0, 3, lambda i, a: a @ y, x)

def retraces(x, y):
    return jax.jit(lambda a: a + 1)(x)

def fails(x, y):
    raise ValueError("no such thing")

def word(x, y):
    return object()

def stays_in_c():
    import hashlib
    print("waiting", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)  # many minutes

def moves():
    import os
    os.mkdir("elsewhere")
    os.chdir("elsewhere")
    return data()

def data():
    return jnp.ones((4, 4)), jnp.ones((4, 4))
"""
ARGS = ("--args", "f32[4,4]", "f32[4,4]")


NUMBERS = (
    "flops", "bytes_accessed", "argument_bytes", "output_bytes", "peak_bytes", "jaxpr_equations", "fusions",
    "dots", "convolutions",
)  # fmt: skip


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A folder with the module `own_step`, and a cache without a roofline."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "own_step.py").write_text(MODULE)
    yield
    sys.modules.pop("own_step", None)


def measured(*arguments, rounds=2):
    assert cli.main(["measure", *arguments, f"--rounds={rounds}", "--budget-s=0", "--json=r.json"]) == 0
    return load_result(Path("r.json"))


def names(result, table):
    return [m.name for m in list(result.of(Table))[table].rows]


def test_functions_take_turns_and_are_told_as_a_result_that_compares_and_reports(capsys):
    result = measured("own_step:step", "own_step:twice", *ARGS, rounds=6)
    stages = ["trace", "lower", "compile", "first run"]
    assert names(result, 0) == [f"{fn}: {stage}" for fn in ("step", "twice") for stage in stages]
    step, twice = list(result.of(Table))[1].rows
    assert (step.name, twice.name, len(step.values)) == ("step", "twice", 6)
    assert step.rounds == twice.rounds != ""
    assert result.facts["twice: matrix products"] == 2 and result.facts["step: matrix products"] == 1
    assert result.facts["twice: arithmetic"] > 1.5 * result.facts["step: arithmetic"] > 0
    assert result.facts["step: arguments"] == 2 * 4 * 4 * 4
    [grid] = result.of(Grid)
    assert grid.heads == ("", "step", "twice")
    output = capsys.readouterr().out
    assert output.startswith("\nstep and twice ─") and f"jax {jax.__version__}" in output
    assert "step: " in output and " per call (" in output and "twice is " in output
    assert result.config["args"] == ARGS[1:] and result.command.split()[0] == "jaxperf"
    assert output.count("temporaries") == 1  # each figure of a program is shown once
    assert cli.main(["report", "r.json"]) == 0
    assert "twice: " in capsys.readouterr().out
    assert cli.main(["compare", "r.json", "r.json"]) == 0


@pytest.mark.parametrize(("used", "rows"), [(10, 0), (1000, 1)])
def test_memory_that_the_c_library_had_kept_is_not_shown_as_none(used, rows):
    program = SimpleNamespace(temp_bytes=100, collectives={}, **dict.fromkeys(NUMBERS, 0))
    names = measure_command._numbers(program, None, used)
    assert len([name for name in names if "warm call" in name]) == rows


def test_what_is_not_jitted_is_called_as_it_is_unless_told_otherwise(capsys):
    result = measured("own_step:plain", "--setup=own_step:data")
    assert names(result, 0) == ["plain: first call"]
    assert any(note.startswith("plain: called as it is") for note in notes_of(result))
    assert "plain: arithmetic" not in result.facts
    jitted = measured("own_step:plain", "--setup=own_step:data", "--jit")
    assert names(jitted, 0)[0] == "plain: trace" and jitted.facts["plain: matrix products"] == 1


def test_a_result_is_written_where_the_command_began(tmp_path, capsys):
    arguments = ["own_step:step", "--setup=own_step:moves", "--rounds=2", "--budget-s=0", "--json=r.json"]
    assert cli.main(["measure", *arguments]) == 0
    assert (tmp_path / "r.json").is_file() and not list(tmp_path.glob("elsewhere/*"))
    assert capsys.readouterr().out.endswith("result: r.json\n")


def test_donated_arguments_are_copied_for_every_call_and_static_ones_given_by_name():
    result = measured("own_step:update", "own_step:step", *ARGS)
    update, step = list(result.of(Table))[1].rows
    assert (update.loops, step.loops, len(update.values), len(step.values)) == (1, 1, 2, 2)
    assert any("update: arguments are donated" in note for note in notes_of(result))
    assert names(measured("own_step:power", "--args", "f32[3]", "n=4"), 1) == ["power"]


def test_only_what_jit_returned_has_stages_and_a_method_jitted_in_its_class_is_called_as_it_is():
    assert is_jitted(jax.jit(lambda x: x))
    assert not any(is_jitted(fn) for fn in (len, lambda x: x, nnx.jit(lambda x: x)))
    assert names(measured("own_step:net.step", "--args", "f32[4,4]"), 0) == ["net.step: first call"]


def stored_roofline():
    rows = [
        Measurement("a", "s", (1e-6,), quantity=ceilings.DISPATCH, configuration="each"),
        Measurement("b", "s", (1e-6,), quantity=ceilings.DISPATCH, configuration="end"),
        Measurement("c", "FLOP/s", (1e12,), quantity=ceilings.MATRIX, configuration="float32"),
        *(Measurement(f"d{size}", "bytes/s", (1e11,), quantity=ceilings.MEMORY, configuration=str(size))
          for size in (ceilings.SMALLEST, 2**28)),
        *(Measurement(way, "bytes/s", (1e9,), quantity=ceilings.COPY, configuration=way)
          for way in (ceilings.TO_DEVICE, ceilings.TO_HOST)),
    ]  # fmt: skip
    environment = current_environment()
    result = Result("roofline", "", "T", "Q?", {}, environment, blocks=(Table("", tuple(rows)),))
    save_result(result, roofline.path_for(environment))


def test_a_stored_roofline_places_the_program_and_a_missing_one_is_asked_for():
    without = measured("own_step:step", *ARGS)
    assert any("`jaxperf roofline` measures it" in note for note in notes_of(without))
    assert "step: nearest limit" not in without.facts
    stored_roofline()
    placed = measured("own_step:step", "own_step:loop", *ARGS)
    assert placed.facts["step: nearest limit"] == "dispatch"
    assert placed.facts["step: least time under the roofline"] == 1e-6
    assert "loop: nearest limit" not in placed.facts  # a loop's body is counted once
    assert any(note.startswith("loop: the compiler counts") for note in notes_of(placed))


def test_a_limit_that_accounts_for_less_than_half_of_the_time_explains_nothing():
    for share, text in (
        (0.6, "limited by memory, 60% of what this machine can do"),
        (0.25, "25% of its nearest limit, memory, so that other costs take most of the time"),
    ):
        assert measure_command._limit(roofline.Position("memory", 1.0, share, 1e9, 1e9)) == text


def test_mistakes_are_one_line_and_leave_no_result(capfd):
    mistakes = [
        (["own_step:stop", *ARGS], "did you mean step?"),
        (["own_step:step", "own_step:step", *ARGS], "own_step:step is named twice"),
        (["own_step:step", "--args", "f32[4"], "'f32[4' is not understood"),
        (["own_step:step", *ARGS, "--setup=own_step:data"], "give one of the two"),
        (["own_step:step", *ARGS, "--rounds=0"], "--rounds is 0; give at least 1"),
        (["own_step:step", "--args", "f32[4,4]"], "step raised TypeError"),
        (["own_step:word", *ARGS], "word raised TypeError: cannot wait for the output, a object"),
        (["own_step:retraces", *ARGS], "inside the timed part"),
        (["own_step:step", *ARGS, "--json=own_step.py/r.json"], "cannot write own_step.py/r.json"),
        ([], "MODULE:FUNCTION"),
    ]
    for arguments, says in mistakes:
        capfd.readouterr()
        assert cli.main(["measure", "--json=never.json", *arguments]) == 2, arguments
        lines = capfd.readouterr().err.splitlines()
        assert [line for line in lines if line.startswith("error: ")] == lines[-1:], lines
        assert says in lines[-1], lines
    assert not Path("never.json").exists()


def test_what_the_users_function_raises_is_shown_from_its_own_lines(capfd):
    assert cli.main(["measure", "own_step:fails", *ARGS]) == 2
    output = capfd.readouterr().err
    assert output.startswith("Traceback") and 'raise ValueError("no such thing")' in output
    assert "jaxperf" not in output.split("error: ")[0]
    assert output.endswith("error: fails raised ValueError: no such thing\n")


@pytest.mark.parametrize(
    "number, status", [(signal.SIGINT, 130), pytest.param(signal.SIGTERM, 143, marks=pytest.mark.thorough)]
)
def test_a_signal_ends_it_while_the_function_stays_in_c(number, status):
    with children.start("-m", "jaxperf", "measure", "own_step:stays_in_c", "--json=r.json") as process:
        assert "waiting\n" in iter(process.stdout.readline, "")
        process.send_signal(number)
        errors = process.communicate()[1]
    assert (process.returncode, errors) == (status, "stopped\n") and not Path("r.json").exists()
