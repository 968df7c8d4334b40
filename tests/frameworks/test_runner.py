import math
import os
import random
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import results
import run
from processes import Process, System, TaskError
from results import Row, Study
from workloads import Workload

FAKE = Path(__file__).with_name("fake_framework.py")
FOLDER = Path(run.__file__).parent
ANSWER = [1.0, 2.0, 3.0]


def workload(name="work", *, configurations, **options):
    settings = {"task": "fake", "answer": ANSWER, **options.pop("settings", {})}
    return Workload(name, "", settings, configurations, lead=1, **options)


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
            **{"rounds": 6, **options},
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
        "work: torch odd is lost: its seconds are {'': nan}",
    ]
    rows = {row["configuration"]: row for row in study.to_json()["rows"] if row["system"] == "torch"}
    text = results.agreement([study.to_json()], "torch")
    assert text.startswith("2 of 6 configurations agree") and rows["wrong"]["lost"]


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
    [study], _ = compared(workload(configurations=configurations), rounds=8, turn_s=8.0)
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
    assert not study.comparisons() and len(study.measurements()) == 2
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


def test_after_the_seconds_no_workload_begins(compared):
    studies, lines = compared(workload("a", configurations={"jax": ("good",)}), seconds=-1)
    assert not studies and lines == ["no time for a"]


def test_a_row_that_hangs_is_ended_with_what_it_started(compared, tmp_path, monkeypatch):
    ask = Process.ask

    def asked(self, op, *, limit_s, **question):
        return ask(self, op, limit_s=0.1 if question.get("configuration") == "hangs" else 600.0, **question)

    monkeypatch.setattr(Process, "ask", asked)
    [study], lines = compared(workload(configurations={"jax": ("good",), "torch": ("hangs",)}))
    assert [row.system for row in study.rows if row.values] == ["jax"]
    assert lines == ["work: torch hangs is lost: its process gave no answer within 0 s"]
    pids = {words[3] for words in said(tmp_path) if words[2] == "child"}
    assert not any(is_running(int(pid)) for pid in pids)


def test_a_cuda_error_ends_the_process(compared):
    configurations = {"jax": ("good",), "torch": ("breaks its device", "good")}
    [study], lines = compared(workload(configurations=configurations), gpu=True)
    assert lines[0].startswith("work: torch breaks its device is lost: its process broke its device: ")
    assert [row.system for row in study.rows if row.values] == ["jax"]


def test_a_process_that_does_not_answer_is_ended(tmp_path):
    with pytest.raises(TaskError, match="ended with status 4: why"):
        start(tmp_path, "import sys; print('why', file=sys.stderr); sys.exit(4)")
    with pytest.raises(TaskError, match="ended with status 0: hello"):
        start(tmp_path, "print('hello')")
    process = start(
        tmp_path, "print('x' * 100_000, flush=True)\nworker.serve({}, {'sleep': lambda *_: time.sleep(600)})"
    )
    with pytest.raises(TaskError, match="gave no answer within 0 s"):
        process.ask("prepare", limit_s=0.1, settings={"task": "sleep"}, configuration="")
    with pytest.raises(TaskError, match="ended by signal 9"):
        process.ask("turn", limit_s=0.1)
    with pytest.raises(TaskError, match="nowhere does not start: No such file or directory"):
        Process(System("x", tmp_path / "nowhere", FAKE), environment={}, log=tmp_path / "log")


def start(folder, program):
    script = folder / "program.py"
    script.write_text(f"import sys, time; sys.path.insert(0, {str(FOLDER)!r}); import worker\n{program}")
    return Process(System("x", Path(sys.executable), script), environment={**os.environ}, log=folder / "log")
