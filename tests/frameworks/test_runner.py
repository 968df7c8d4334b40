import math
import os
import random
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import results
import run
from processes import LostError, Process, System
from results import Row, Study
from workloads import Workload

FAKE = Path(__file__).with_name("fake_framework.py")
ANSWER = [1.0, 2.0, 3.0]


def workload(name="work", *, configurations, **options):
    settings = {"task": "fake", "answer": ANSWER, **options.pop("settings", {})}
    return Workload(name, "", settings, configurations, lead=1, **{"rounds": 6, **options})


def system(name, **variables):
    return System(name, Path(sys.executable), FAKE, {"FAKE": name, **variables})


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Run workloads on fake frameworks; gives the studies and the lines that were said."""
    monkeypatch.setattr(run, "SETTLE_S", 0)

    def compare(*work, seconds=math.inf, **options):
        lines = []
        comparison = run.Comparison(
            options.pop("systems", [system("jax"), system("mxnet"), system("torch")]),
            scratch=tmp_path,
            environment={**os.environ},
            cores=[0],
            deadline=run.time.monotonic() + seconds,
            say=lines.append,
            **options,
        )
        return list(comparison.run(work)), lines

    return compare


def said(tmp_path):
    return [line.split() for line in (tmp_path / "said.log").read_text().splitlines()]


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_rows_that_fail_or_disagree_are_one_line_each_and_the_others_are_timed(compared):
    ways = ("good", "wrong", "nan", "shape", "refuses", "odd")
    [study], lines = compared(workload(configurations={"jax": ("good",), "torch": ways}))
    timed = [(row.system, row.configuration) for row in study.rows if row.values]
    assert timed == [("jax", "good"), ("torch", "good")]
    assert lines == [
        "work: torch refuses is lost: RuntimeError: no compiler here",
        "work: torch wrong is lost: not timed: it differs from JAX by 0.1, allowed is 1e-05",
        "work: torch nan is lost: not timed: its output or JAX's is not finite",
        "work: torch shape is lost: not timed: its output has shape (1,) where JAX's has (3,)",
        "work: torch odd is lost: its time is 'nan'",
    ]
    rows = {row["configuration"]: row for row in study.to_json()["rows"] if row["system"] == "torch"}
    agrees, text = results.agreement([study.to_json()], "torch")
    assert agrees is False and text.startswith("2 of 6 configurations agree") and rows["wrong"]["lost"]


def test_a_process_that_dies_costs_its_own_rows_only(compared):
    configurations = {"jax": ("good",), "mxnet": ("good", "dies later"), "torch": ("good", "dies")}
    [study], lines = compared(workload(configurations=configurations))
    assert [(row.system, row.configuration) for row in study.rows if row.values] == [("jax", "good")]
    assert "work: torch dies is lost: its process ended with status 3: Segmentation fault, nearly" in lines
    assert "work: mxnet dies later is lost: its process ended with status 3" in lines
    assert len(study.rows[0].values[""]) == 6


def test_rounds_are_in_random_order_with_warm_up_apart(compared, tmp_path, monkeypatch):
    seeded = random.Random(0)
    monkeypatch.setattr(run, "random", SimpleNamespace(Random=lambda: seeded))
    configurations = {"jax": ("good", "slow"), "torch": ("good",)}
    [study], _ = compared(workload(configurations=configurations, rounds=8, turn_s=8.0))
    assert {len(row.values[""]) for row in study.rows} == {8}
    assert [row.calls for row in study.rows] == [8, 4, 16]  # each lasts eight seconds, by its own account
    turns = [(words[0], words[3]) for words in said(tmp_path) if words[2] == "turn"][::2]
    rounds = [tuple(turns[i : i + 3]) for i in range(0, len(turns), 3)]
    assert len(rounds) == 9 and all(len(set(those)) == 3 for those in rounds) and len(set(rounds)) > 1
    [comparison] = study.comparisons()
    assert (comparison["text"], comparison["verdict"]) == ("0.5 (0.5 to 0.5)", "JAX is slower")


def test_each_workload_has_new_processes_and_none_is_left(compared, tmp_path):
    work = [workload(name, configurations={"jax": ("good",)}) for name in ("a", "b")]
    assert len(compared(*work)[0]) == 2
    pids = {int(words[1]) for words in said(tmp_path)}
    assert len(pids) == 2 and not any(map(is_running, pids))


def test_without_jax_nothing_is_judged(compared):
    [study], lines = compared(workload(configurations={"jax": ("refuses",), "torch": ("good",)}))
    assert lines[1] == "work: torch good is lost: there is no answer of JAX's to agree with"
    assert not study.comparisons()


def test_a_row_that_used_more_cores_than_it_was_given_is_shown_and_not_judged(compared):
    [study], _ = compared(workload(configurations={"jax": ("good",), "torch": ("greedy",)}))
    assert not study.comparisons() and len(study.measurements("")) == 2
    assert study.to_json()["rows"][1]["fair"] == {"": False}


def judged(quantities=("",), **rows):
    """Return the verdicts about rows of which each took so many seconds, and used so many of two cores."""
    study = Study(workload(configurations={}, quantities=quantities), [], threads=2)
    for name, (seconds, cores) in rows.items():
        values = {quantity: [seconds] * 6 for quantity in quantities}
        used = {quantity: [cores] * 6 for quantity in quantities}
        study.rows.append(Row(name, "good", study.workload, values=values, cores=used))
    return [(c["quantity"], c["verdict"]) for c in study.comparisons()]


def test_a_row_is_called_slower_only_if_all_its_cores_would_not_help():
    assert judged(jax=(1, 2), mxnet=(2, 2)) == [("", "JAX is faster")]
    assert judged(jax=(1, 2), mxnet=(2, 1.2)) == [("", "JAX is faster")]  # 1.2 s with both cores
    assert judged(jax=(1, 2), mxnet=(2, 0.8)) == [("", "not judged: mxnet used 0.80 of 2 cores")]
    assert judged(jax=(1, 0.8), mxnet=(2, 2)) == [("", "JAX is faster")]
    assert judged(jax=(2, 2), torch=(1, 0.8)) == [("", "JAX is slower")]
    assert judged(jax=(2, 0.8), torch=(1, 2)) == [("", "not judged: jax used 0.80 of 2 cores")]
    assert judged(jax=(1, 2), mxnet=(2, 0)) == [("", "JAX is faster")]  # it did not say what it used


def test_who_returns_first_is_no_comparison_of_speed():
    assert judged(("queued", "finished"), jax=(1, 2), mxnet=(2, 2)) == [("finished", "JAX is faster")]


# --- a GPU's order


def test_torch_compile_starts_side_by_side_and_one_that_hangs_costs_only_itself(
    compared, tmp_path, monkeypatch
):
    now, ask, take_turns = 0.0, Process.ask, run.Comparison.take_turns

    def asked(self, op, *, limit_s, **question):
        hangs = question.get("configuration") in question.get("settings", {}).get("hang", ())
        return ask(self, op, limit_s=0.1 if hangs else 600.0, **question)

    def taken(*arguments, **options):
        nonlocal now
        take_turns(*arguments, **options)
        now += 2.0

    monkeypatch.setattr(Process, "ask", asked)
    monkeypatch.setattr(run.Comparison, "take_turns", taken)
    monkeypatch.setattr(run, "time", SimpleNamespace(monotonic=lambda: now, sleep=time.sleep))
    monkeypatch.setattr(run, "LEAST_S", 8.0)
    configurations = {"jax": ("good",), "torch": ("good", "compiled")}
    work = [
        workload("a", configurations=configurations, settings={"hang": ["compiled"]}),
        workload("b", configurations=configurations),
        workload("c", configurations=configurations, main=False),
    ]
    studies, lines = compared(*work, seconds=10.0, gpu=True)
    timed = {
        (s.workload.name, row.system, row.configuration) for s in studies for row in s.rows if row.values
    }
    assert {row for row in timed if row[0] == "a"} == {("a", "jax", "good"), ("a", "torch", "good")}
    assert ("b", "torch", "compiled") in timed
    assert lines[0].startswith("a: torch compiled is lost: its process gave no answer within ")
    assert lines[1] == "no time for c"
    pids = {words[3] for words in said(tmp_path) if words[2] == "child"}
    assert pids and not any(is_running(int(pid)) for pid in pids)


def test_a_cuda_error_ends_the_process(compared):
    configurations = {"jax": ("good",), "torch": ("breaks its device", "good")}
    [study], lines = compared(workload(configurations=configurations), gpu=True, seconds=1e6)
    assert lines[0].startswith("work: torch breaks its device is lost: its process broke its device: ")
    assert [row.system for row in study.rows if row.values] == ["jax"]


def test_a_process_that_hangs_or_babbles_is_ended(tmp_path):
    with pytest.raises(LostError, match="printed 'hello' instead of an answer"):
        start(tmp_path, "print('hello', flush=True)\nwhile True: pass")
    with pytest.raises(LostError, match="ended with status 4: why"):
        start(tmp_path, "import sys; print('why', file=sys.stderr); sys.exit(4)")
    with pytest.raises(LostError, match="printed 'xxx"):  # and never ends a line
        start(tmp_path, "while True: print('x' * 100_000, end='', flush=True)")
    process = start(tmp_path, "print('{}', flush=True)\nimport time; time.sleep(600)")
    with pytest.raises(LostError, match="gave no answer within 0 s"):
        process.ask("turn", limit_s=0.1)
    with pytest.raises(LostError):
        process.ask("turn", limit_s=0.1)


def start(folder, program):
    script = folder / "program.py"
    script.write_text(program)
    return Process(System("x", Path(sys.executable), script), start={}, environment={}, log=folder / "log")
