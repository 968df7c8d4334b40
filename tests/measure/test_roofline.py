from contextlib import nullcontext
from dataclasses import replace

import pytest
from report_results import notes_of

from jaxperf import cli
from jaxperf.errors import JaxperfError
from jaxperf.measure import ceilings, roofline
from jaxperf.measure.environment import current_environment
from jaxperf.measure.other_load import OtherLoad
from jaxperf.measure.stages import Program
from jaxperf.result import Environment, Measurement, Result, Table, save_result
from jaxperf.result.machine import cores

KIB, MIB = 2**10, 2**20
PROGRAM = Program(
    jaxpr_equations=1, matrix_dtype="bfloat16", fusions=0, dots=1, convolutions=0, loops=0,
    collectives={}, flops=4e9, bytes_accessed=1e6, argument_bytes=0, output_bytes=0, temp_bytes=0,
    peak_bytes=MIB,
)  # fmt: skip


def result(**memory):
    """A roofline of round numbers; each measurement has a worse value, too."""
    rates = memory or {"16384": 4e11, "65536": 1e11, "4194304": 2e11, "67108864": 1e10}
    rows = [
        Measurement("each", "s", (1e-5, 9.0), quantity=ceilings.DISPATCH, configuration="each"),
        Measurement("end", "s", (1e-6, 9.0), quantity=ceilings.DISPATCH, configuration="end"),
    ]
    rates_of = {ceilings.MATRIX: {"float32": 1e12, "bfloat16": 2e12}, ceilings.MEMORY: rates,
                ceilings.COPY: {ceilings.TO_DEVICE: 3e9, ceilings.TO_HOST: 2e9}}  # fmt: skip
    for quantity, values in rates_of.items():
        rows += [Measurement(f"{quantity} {at}", "1/s", (1.0, r), quantity=quantity, configuration=at)
                 for at, r in values.items()]  # fmt: skip
    environment = Environment(cpu="Z80", cores=2, versions={"jax": "1", "jaxperf": "1"}, flags={"A": "1"})
    return Result("roofline", "", "T", "Q?", {}, environment, blocks=(Table("", tuple(rows)),))


def test_the_best_value_of_each_part_counts():
    limits = roofline.from_result(result())
    assert limits.dispatch_s == 1e-5
    assert limits.flops_per_s == {"float32": 1e12, "bfloat16": 2e12}
    assert limits.bytes_per_s[16 * KIB] == 4e11
    # bandwidth never grows with the size, and ends at the largest array
    rates = [limits.bandwidth(size) for size in (0, 16 * KIB, 17 * KIB, 4 * MIB, 5 * MIB, 2**40)]
    assert rates == [4e11, 4e11, 2e11, 2e11, 1e10, 1e10]


def test_a_program_is_limited_by_what_takes_it_longest():
    limits = roofline.from_result(result())
    for changes, limit, bound_s in (
        ({}, "arithmetic", 4e9 / 2e12),
        ({"matrix_dtype": ""}, "arithmetic", 4e9 / 1e12),
        ({"matrix_dtype": "float64"}, "arithmetic", 4e9 / 1e12),  # not measured
        ({"flops": 1e6}, "dispatch", 1e-5),
        ({"flops": 1e6, "bytes_accessed": 1e9}, "memory", 1e9 / 2e11),
        ({"flops": 0.0, "bytes_accessed": 1e9, "peak_bytes": 2**40}, "memory", 1e9 / 1e10),
    ):
        at = limits.position(replace(PROGRAM, **changes), seconds=0.01)
        assert (at.limit, at.bound_s, at.share) == (limit, bound_s, bound_s / 0.01), changes
    at = limits.position(PROGRAM, seconds=0.01)
    assert (at.flops_per_s, at.bytes_per_s) == (4e11, 1e8)
    # an estimate that says too little places nothing
    assert limits.position(replace(PROGRAM, loops=1), seconds=1.0) is None
    assert limits.position(replace(PROGRAM, flops=0.0, bytes_accessed=0.0), seconds=1.0) is None


def test_it_is_kept_per_machine_and_read_back(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    here, other = result().environment, Environment(cpu="6502")
    assert roofline.stored_roofline(here) is None
    save_result(result(), roofline.path_for(here))
    limits = roofline.stored_roofline(here)
    assert limits == roofline.from_result(limits.result)
    assert roofline.stored_roofline(other) is None
    assert limits.differences(here) == []
    changed = replace(here, versions={"jax": "2", "jaxperf": "2"}, flags={"A": "1", "B": "x"})
    assert limits.differences(changed) == ["jax was 1, is 2", "B was unset, is x"]


def test_a_file_without_a_whole_roofline_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    whole = result()
    [table] = whole.of(Table)
    for i in range(len(table.rows)):
        rows = table.rows[:i] + table.rows[i + 1 :]
        part = replace(whole, blocks=(replace(table, rows=rows),))
        shown_only = table.rows[i].quantity == ceilings.COPY or table.rows[i].configuration == "end"
        if shown_only or table.rows[i].configuration in ("bfloat16", "65536", "4194304", "67108864"):
            assert roofline.from_result(part)
            continue
        with pytest.raises(JaxperfError, match="run `jaxperf roofline` again") as caught:
            roofline.from_result(part)
        assert "\n" not in str(caught.value)
    roofline.path_for(whole.environment).parent.mkdir(parents=True)
    roofline.path_for(whole.environment).write_text("{")
    with pytest.raises(JaxperfError, match="is not JSON"):
        roofline.stored_roofline(whole.environment)


@pytest.mark.thorough
def test_the_command_measures_every_part_keeps_it_and_shows_a_short_table(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(ceilings, "LONG_S", 1e-5)
    monkeypatch.setattr(ceilings, "DTYPES", ("float32", "float64"))
    monkeypatch.setattr(ceilings, "array_sizes", lambda: (16 * KIB, 64 * KIB))
    monkeypatch.setattr(ceilings, "other_load", lambda: nullcontext(OtherLoad(0.5 * cores())))
    assert cli.main(["roofline"]) == 0
    limits = roofline.stored_roofline(current_environment())
    assert limits.flops_per_s.keys() == {"float32", "float64"}
    assert limits.bytes_per_s.keys() == {16 * KIB, 64 * KIB}
    assert limits.result.facts["others_share"] == 0.5
    assert any("50%" in note for note in notes_of(limits.result))
    printed = capsys.readouterr().out
    assert all(f"{m.name}: " in printed for m in limits.result.measurements)
    assert cli.main(["report", str(roofline.path_for(current_environment()))]) == 0


def test_parts_that_do_not_fit_are_named_and_the_needed_ones_are_measured(capsys):
    seconds = 0.0

    def part(name, takes_s):
        def measure():
            nonlocal seconds
            seconds += takes_s
            return [Measurement(name, "FLOP/s", (1e12, 2e12))]

        return measure

    needed, optional = {"a": part("a", 4)}, {name: part(name, 3) for name in "bcde"}
    rows, notes = ceilings.measure_in_time(needed, optional, ends=9.0, clock=lambda: seconds)
    assert ([m.name for m in rows], notes) == (["a", "b", "c"], ["no time was left for: d, e"])
    assert capsys.readouterr().out == "".join(f"{name}: 2 TFLOP/s\n" for name in "abc")
    rows, notes = ceilings.measure_in_time({"late": part("late", 1)}, {}, ends=9.0, clock=lambda: seconds)
    assert ([m.name for m in rows], notes) == (["late"], [])


def test_a_cache_folder_that_cannot_be_written_is_one_line_before_measuring(tmp_path, monkeypatch, capsys):
    (tmp_path / "jaxperf").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cli.main(["roofline"]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("error: cannot write") and shown.err.count("\n") == 1 and shown.out == ""
    assert shown.err.endswith("; set XDG_CACHE_HOME to another folder\n")
