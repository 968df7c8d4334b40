"""A study with stand-ins for frameworks: who disagrees is not timed, who fails is lost alone."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jaxperf import frameworks
from jaxperf.frameworks import Budget, Limits, Pool, Study, System, Workload
from jaxperf.frameworks.study import Entry

FAKE = Path(__file__).parents[1].joinpath("fake_peer.py")
LIMITS = Limits(prepare_s=20, turn_s=20, budget_s=60, settle_s=0)
Run = Callable[..., Study]


@pytest.fixture
def messages() -> list[str]:
    return []


def stand_ins(scratch: Path, *names: str, **options: Any) -> Pool:
    systems = [System(name, Path(sys.executable), program=FAKE) for name in names]
    return Pool(systems, scratch=scratch, environment=dict(os.environ), **options)


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with stand_ins(tmp_path, "jax", "mxnet", "torch") as pool:
        yield pool


def workload(rounds: int = 6, **configurations: tuple[str, ...]) -> Workload:
    return Workload(
        "8.1 net",
        "A net, a call",
        {"task": "forward", "answer": [1.0, -2.0, 0.5]},
        configurations or {"jax": ("good",), "mxnet": ("good",), "torch": ("good",)},
        calls=3,
        items=4,
        rounds=rounds,
    )


@pytest.fixture
def run(pool: Pool, messages: list[str]) -> Run:
    def study(rounds: int = 6, *, limits: Limits = LIMITS, **configurations: tuple[str, ...]) -> Study:
        return frameworks.study(workload(rounds, **configurations), pool, limits=limits, say=messages.append)

    return study


def lines(pool: Pool) -> list[list[str]]:
    """What the stand-ins noted, in order."""
    return [line.split() for line in (pool.scratch / "said.log").read_text().splitlines()]


def log(pool: Pool) -> list[tuple[str, str, str, float, float]]:
    """(system, op, key, began, ended) of all that the stand-ins did, in order."""
    return [(r[0], r[1], r[2], float(r[3]), float(r[4])) for r in lines(pool) if len(r) >= 5]


def timed(study: Study) -> dict[str, int]:
    return {entry.name: len(entry.values[""]) for entry in study.timed}


# --- taking turns


def test_everyone_takes_one_turn_a_round_and_only_one_works_at_a_time(run: Run, pool: Pool) -> None:
    study = run(6, jax=("slow", "good"), mxnet=("good", "sleeps"), torch=("good",))
    assert set(timed(study).values()) == {6}
    names = [row[2] for row in log(pool) if row[1] == "turn"]
    rounds = [names[i : i + 5] for i in range(0, len(names), 5)]
    assert len(rounds) == 7  # one more, for warm-up
    assert all(len(set(r)) == 5 for r in rounds)
    assert all(before[4] <= after[3] for before, after in zip(log(pool), log(pool)[1:]))
    [row] = [m for m in frameworks.measurements(study, "") if m.name == "mxnet good"]
    assert (row.values, row.warmup, row.loops, row.items, row.unit) == ((2.0,) * 6, (2.0,), 3, 4, "s")
    assert (row.system, row.workload, row.configuration, row.quantity) == ("mxnet", "8.1 net", "good", "")
    assert (study.entries[-1].first_s, study.entries[-1].cores) == (0.25, {"": [1.0] * 6})
    first, second = frameworks.comparisons(study)  # of the fastest configurations
    assert first.cells == ("8.1 net", "good", "mxnet good", "2 (2 to 2)", "JAX is faster")
    assert second.cells == ("8.1 net", "good", "torch good", "0.5 (0.5 to 0.5)", "JAX is slower")


def test_a_turn_lasts_as_long_as_asked_by_the_warm_up_round_and_never_has_fewer_calls(
    pool: Pool, messages: list[str]
) -> None:
    asked = dataclasses.replace(workload(2, jax=("good",), mxnet=("good", "slow")), lead=1, turn_s=9.0)
    study = frameworks.study(asked, pool, limits=LIMITS, say=messages.append)
    assert [m.loops for m in frameworks.measurements(study, "")] == [9, 5, 3]  # of 1, 2 and 4 s
    turns = [(row[2], row[5:]) for row in lines(pool) if row[1] == "turn"]
    of_first, of_second = [counts for key, counts in turns if key == "jax/good"][:2]
    assert (of_first, of_second) == (["3", "1"], ["9", "3"])  # calls, and those that lead in


@pytest.mark.thorough
def test_each_workload_has_processes_that_have_done_nothing_before(run: Run, pool: Pool) -> None:
    for _ in range(3):
        run(1)
    pids = [row[2] for row in lines(pool) if row[1] == "start"]
    assert len(set(pids)) == 3 * len(pool.systems)


def test_rounds_end_with_the_budget_but_not_before_the_sixth(run: Run) -> None:
    hurried = dataclasses.replace(LIMITS, budget_s=0.001)
    assert timed(run(9, limits=hurried, jax=("good",))) == {"jax/good": 6}
    study = run(2, limits=hurried, jax=("good",), torch=("good",))
    assert timed(study) == {"jax/good": 2, "torch/good": 2}
    assert frameworks.comparisons(study)[0].cells[-1] == "undecided"  # too few rounds


# --- agreeing


DISAGREEMENTS = {
    "wrong": "not timed: it differs from JAX by 0.1, allowed is 1e-05",
    "shape": "not timed: its output has shape (1,) where JAX's has (3,)",
    "nan": "not timed: its output or JAX's is not finite",
}


def test_who_disagrees_is_not_timed_and_the_result_says_so(run: Run, pool: Pool, messages: list[str]) -> None:
    study = run(3, jax=("good", "wrong"), mxnet=(*DISAGREEMENTS, "good"), torch=("good",))
    assert timed(study) == {"jax/good": 3, "mxnet/good": 3, "torch/good": 3}
    assert {row[2] for row in log(pool) if row[1] == "turn"} == timed(study).keys()
    lost = [("jax", "wrong"), *(("mxnet", how) for how in DISAGREEMENTS)]
    assert messages == [f"8.1 net: {system}/{how} is lost: {DISAGREEMENTS[how]}" for system, how in lost]
    claims = {system: frameworks.agreement([study], system) for system in ("jax", "mxnet", "torch")}
    assert {system: claim.agrees for system, claim in claims.items()} == {
        "jax": False, "mxnet": False, "torch": True
    }  # fmt: skip
    assert all(why in claims["mxnet"].seen for why in DISAGREEMENTS.values())


def test_without_an_answer_of_jax_nothing_is_timed(run: Run, messages: list[str]) -> None:
    study = run(2, jax=("refuses",), mxnet=("good",))
    assert timed(study) == {}
    assert messages[1] == "8.1 net: mxnet/good is lost: there is no answer of JAX's to agree with"
    assert frameworks.comparisons(study) == []
    assert frameworks.agreement([study], "mxnet").agrees is None


# --- failing


FAILURES = {
    "dies": "the mxnet worker ended with status 3: Segmentation fault, nearly",
    "refuses": "RuntimeError: no compiler here",
    "no answers": "its answers cannot be read: FileNotFoundError",
    "odd": "its time is 'fast'",
    "nothing": "its time is 'None'",
}


def test_who_fails_is_lost_alone_with_one_line(run: Run, messages: list[str]) -> None:
    study = run(2, jax=("good",), mxnet=("good", *FAILURES, "slow"))
    assert timed(study) == dict.fromkeys(("jax/good", "mxnet/good", "mxnet/slow"), 2)
    lost = {f"8.1 net: mxnet/{how} is lost: {why}" for how, why in FAILURES.items()}
    assert (set(messages), len(messages)) == (lost, len(lost))
    assert frameworks.agreement([study], "mxnet").agrees is None  # three have no answer


def test_a_death_in_the_middle_costs_the_others_no_round(run: Run, pool: Pool) -> None:
    study = run(6, jax=("good",), mxnet=("good", "dies later", "slow"), torch=("good",))
    assert timed(study) == dict.fromkeys(("jax/good", "mxnet/good", "mxnet/slow", "torch/good"), 6)
    prepared = Counter(row[2] for row in log(pool) if row[1] == "prepare")
    assert prepared["mxnet/good"] == prepared["mxnet/slow"] == 2  # again in the new worker
    assert prepared["torch/good"] == 1


def test_who_breaks_its_device_is_lost_alone_and_never_tried_again(
    run: Run, pool: Pool, messages: list[str]
) -> None:
    for rounds in (3, 2):  # what is asked of a broken device fails, so there is a new worker
        study = run(rounds, jax=("good",), torch=("good", "breaks its device", "slow"))
        assert timed(study) == dict.fromkeys(("jax/good", "torch/good", "torch/slow"), rounds)
    lost = "8.1 net: torch/breaks its device is lost: "
    assert messages == [
        f"{lost}the torch worker's device is broken: RuntimeError: CUDA error: device-side assert triggered",
        f"{lost}it broke its device in 8.1 net",
    ]
    assert [row[0] for row in lines(pool) if row[1] == "start"].count("torch") == 3
    prepared = Counter(row[2] for row in log(pool) if row[1] == "prepare")
    assert (prepared["torch/breaks_its_device"], prepared["torch/good"]) == (1, 3)


def test_a_system_that_does_not_start_is_given_up_and_the_rest_goes_on(
    tmp_path: Path, messages: list[str]
) -> None:
    with stand_ins(tmp_path, "jax", "mxnet") as pool:
        pool.systems["mxnet"] = System("mxnet", tmp_path / "no" / "python")
        for _ in range(2):  # PyTorch is not there at all
            study = frameworks.study(workload(1), pool, limits=LIMITS, say=messages.append)
            assert timed(study) == {"jax/good": 1}
            assert [e.name for e in study.entries] == ["jax/good", "mxnet/good"]
    assert len(messages) == 2
    assert messages[0] == messages[1]
    assert "does not start" in messages[0]


@pytest.mark.thorough
def test_a_system_whose_workers_go_again_and_again_is_given_up(run: Run, messages: list[str]) -> None:
    run(1, jax=("good",), mxnet=("dies",) * 12)
    assert messages[-1] == "8.1 net: mxnet/dies is lost: mxnet is given up after losing 5 workers"
    assert timed(run(1)) == {"jax/good": 1, "torch/good": 1}


# --- what all are given, and what comes of it


def test_all_systems_get_the_same_cores_and_threads(tmp_path: Path) -> None:
    with stand_ins(tmp_path, "jax", "mxnet", cores=[0]) as pool:
        for devices in (1, 2):
            greetings = [pool.worker(name, devices).greeting for name in ("jax", "mxnet")]
            assert [[g[k] for k in ("cores", "threads", "devices")] for g in greetings] == [
                [[0], 1, devices]
            ] * 2


def entry(system: str, configuration: str, seconds: float, *, cores: float = 1.0) -> Entry:
    return Entry(system, configuration, values={"": [seconds] * 6}, cores={"": [cores] * 6})


def test_who_used_more_cores_than_it_was_given_is_shown_but_not_judged() -> None:
    entries = [
        entry("jax", "greedy", 1.0, cores=1.9), entry("jax", "slow", 2.0),
        entry("mxnet", "greedy", 2.0, cores=1.9), entry("torch", "good", 0.5),
    ]  # fmt: skip
    study = Study(workload(), entries, threads=1)
    assert study.allotted("") == 1
    assert [study.used(e, "") for e in entries] == [1.9, 1.0, 1.9, 1.0]
    assert len(frameworks.measurements(study, "")) == 4
    [only] = frameworks.comparisons(study)  # not with JAX's fastest, which used two cores, and not MXNet
    assert (only.framework.name, only.jax.name, only.ratio.median) == ("torch/good", "jax/slow", 0.25)


def test_a_quantity_may_be_given_fewer_cores_than_the_workload(tmp_path: Path) -> None:
    asked = dataclasses.replace(workload(), settings={"devices": 2}, at_once={"apart": 1})
    pool = Pool([], scratch=tmp_path, environment={}, cores=(0, 1, 2, 3))
    study = Study(asked, [], pool.threads(2))
    assert (study.allotted("apart"), study.allotted("together")) == (2, 4)
    assert pool.shares(2) == [[0, 1], [2, 3]]
    assert pool.shares(8) == [[0], [1], [2], [3], [0], [1], [2], [3]]


def test_jax_with_onednn_is_a_row_and_never_judged() -> None:
    entries = [entry("jax", "jit", 2.0), entry(frameworks.ONEDNN, "jit", 1.0), entry("torch", "eager", 4.0)]
    study = Study(workload(), entries)
    assert "jax+oneDNN jit" in [m.name for m in frameworks.measurements(study, "")]
    assert [(c.framework.name, c.jax.name) for c in frameworks.comparisons(study)] == [
        ("torch/eager", "jax/jit")
    ]


# --- a budget


def test_with_a_budget_workers_live_on_and_torch_compile_starts_for_all_in_workers_of_its_own(
    pool: Pool,
) -> None:
    first = workload(2, jax=("good", "slow"), torch=("good", "compiled"))
    both = [first, dataclasses.replace(first, name="8.2 net")]
    budget = Budget(600, both, starts={})
    for asked in both:
        study = frameworks.study(asked, pool, limits=LIMITS, budget=budget)
        assert set(timed(study).values()) == {2}
    assert [row[0] for row in lines(pool) if row[1] == "start"].count("torch") == 3
    prepared = [row[2] for row in log(pool) if row[1] == "prepare"]
    assert prepared[4] == "torch/good"  # after JAX and both compilations, which start side by side
    assert sorted(prepared[5:]) == ["jax/good", "jax/slow", "torch/good"]


def test_what_has_no_time_to_start_is_named_in_one_line_and_spoils_no_agreement(
    pool: Pool, messages: list[str]
) -> None:
    asked = workload(2, jax=("good", "slow"), torch=("good", "compiled"))
    asked = dataclasses.replace(asked, optional=("slow", "compiled"))
    budget = Budget(600, [asked], starts={"": {"compiled": 1e6, "slow": 1e6, "good": 1e6}})
    study = frameworks.study(asked, pool, limits=LIMITS, budget=budget, say=messages.append)
    assert timed(study) == {"jax/good": 2, "torch/good": 2}  # which are not optional
    assert messages == ["8.1 net: no time to start jax/slow, torch/compiled"]
    claim = frameworks.agreement([study], "torch")
    assert claim.agrees is True
    assert claim.seen == "1 of 1 configurations agree, largest difference 0; 1 were not started"


def test_a_compilation_that_takes_too_long_is_lost_alone(pool: Pool, messages: list[str]) -> None:
    asked = dataclasses.replace(
        workload(1, jax=("good",), torch=("good", "compiled")),
        settings={"task": "forward", "answer": [1.0], "hangs": "compiled"},
        optional=("compiled",),
        rounds_s=599.0,  # which a compilation must leave
    )
    budget = Budget(600, [asked], starts={"": {"good": 0.0, "compiled": 0.0}})
    study = frameworks.study(asked, pool, limits=LIMITS, budget=budget, say=messages.append)
    assert timed(study) == {"jax/good": 1, "torch/good": 1}
    [message] = messages
    assert message.startswith("8.1 net: torch/compiled is lost: the torch worker gave no answer within ")
