"""The steps of the check in order of importance: what each runs, for how long, and what it decides."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxperf.chapter.run_sections import choose_sections


@dataclass(frozen=True)
class Run:
    """How a step's command ended.

    Attributes:
      status: its exit status; None if it was stopped at its limit.
      seconds: from its start to its end.
      output: what it printed.
      folder: where it wrote its files.
    """

    status: int | None
    seconds: float
    output: str
    folder: Path

    def result(self, name: str) -> dict[str, Any]:
        """Return a JSON file that the command wrote, also one of a run that did not end; {} for none."""
        for path in (self.folder / f"{name}.json", self.folder / f"{name}.incomplete.json"):
            if path.is_file():
                result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
                return result
        return {}

    @property
    def succeeded(self) -> bool:
        """Return whether it ended by itself, and well."""
        return self.status == 0

    @property
    def ending(self) -> str:
        """Return how it ended, in words."""
        if self.status is None:
            return f"stopped after {self.seconds:.0f} s"
        return f"status {self.status} after {self.seconds:.1f} s"


# The main workloads of the comparison with PyTorch: training, and small operations.
MAIN_TRAINING = ("ResNet-18 bfloat16, batch 1024", "ResNet-18 TF32, batch 256", "LeNet TF32, batch 256")
TOY_TRAINING = ("LeNet float32, batch 8",)
CHAPTER_S, SECTION_S = 300.0, 90.0  # that the chapter and each section may take
SMALL = (
    "8.1 MLP, waiting once",
    *(f"8.2 {name}, waiting {how}" for name in ("loop", "product") for how in ("once", "each time")),
)

Verdict = tuple[bool | None, str]  # whether it holds, None for undecided; the figures


@dataclass(frozen=True)
class Step:
    """One command, and the statement that it decides.

    Attributes:
      name: of its log and files.
      statement: what should hold.
      command: arguments after the interpreter.
      limit_s: after which it is stopped.
      judge: from how it ended to the verdict.
      interrupt: whether to send Ctrl-C during its first compilation.
      least_s: the step begins only if so much time is left.
    """

    name: str
    statement: str
    command: tuple[str, ...]
    limit_s: float
    judge: Callable[[Run], Verdict]
    interrupt: bool = False
    least_s: float = 5.0


def steps(folder: Path, *, rehearse: bool) -> list[Step]:
    """Return all steps; `folder` takes the files of their commands. A rehearsal has toy sizes, on the CPU."""
    toy = ("--smoke",) if rehearse else ()
    platform = ("--platform", "cpu" if rehearse else "gpu")
    run = ("-m", "jaxperf", "run")
    out = ("--out", str(folder))
    peers = (*run, "peers", *platform, *out, *toy, "--peers", "torch", "--", "--budget-s", "215")
    return [  # first what no call has decided yet: all rows of PyTorch, watch, the chapter by one command
        Step("peers", "The comparison with PyTorch has all its main rows within four minutes",
             (*peers, *(("--on-device", "--only", "LeNet float32, batch 8", "8.2") if rehearse else ())), 240,
             _main_rows(rehearse)),
        Step("watch", "watch adds at most 10 % to a program that it watches for ten seconds",
             ("benchmarks/watch_overhead.py", "--only", "steps without waiting", "--profiler", "with",
              "--runs", "3", "--seconds", "3" if rehearse else "10", "--json", str(folder / "watch.json")),
             110, _overhead),
        Step("chapter", "The chapter takes at most five minutes, no section over 90 s, and no part fails",
             (*run, "all", *platform, *out, *toy), CHAPTER_S + 30, _chapter,
             least_s=30 if rehearse else CHAPTER_S),
        Step("roofline", "roofline takes at most 20 s", ("-m", "jaxperf", "roofline"), 45, _within(20)),
        *_training(folder, (*platform, *toy)),
        Step("interrupt", "Ctrl-C during a compilation ends a section within 2 s",
             (*run, "8.5", *platform, "--out", str(folder / "interrupt"), *toy), 60, _within(2, status=130),
             interrupt=True),
        Step("plan", "The measured step lies in the range that `plan` predicts for this card",
             ("-m", "tools.gpu_check.plan_step", str(folder / "plan.json"),
              *(("--rehearse",) if rehearse else ())), 60, _in_range),
        Step("profile", "A profile says where the steps of ResNet-18 spend their time",
             ("-m", "tools.gpu_check.profile_step", str(folder / "profile.json"),
              *(("--rehearse",) if rehearse else ())), 90,
             lambda run: (run.succeeded, run.ending)),
    ]  # fmt: skip


def _training(folder: Path, flags: tuple[str, ...]) -> list[Step]:
    resnet = ("--model", "resnet18")
    rows: tuple[tuple[str, str, tuple[str, ...], float, Callable[[Run], Verdict]], ...] = (
        ("resnet-bf16", "An epoch of ResNet-18 in bfloat16, batch 1024, takes at most 0.50 s",
         (*resnet, "--dtype", "bfloat16", "--batch-size", "1024"), 60, _epoch("resnet-bf16", 0.50)),
        ("fast", "The fast recipe in bfloat16 reaches .93 in 4 s with five seeds, evaluation included",
         ("--recipe", "fast", "--dtype", "bfloat16"), 110, _fast),
        ("resnet-tf32", "An epoch of ResNet-18 in TF32, batch 256, takes at most 1.3 s",
         resnet, 50, _epoch("resnet-tf32", 1.3)),
        ("lenet", "An epoch of LeNet, batch 256, takes at most 0.10 s", (), 30, _epoch("lenet", 0.10)),
    )  # fmt: skip
    return [
        Step(
            name,
            statement,
            ("experiments/train.py", "--json", str(folder / f"{name}.json"), *flags, *arguments),
            limit_s,
            judge,
        )
        for name, statement, arguments, limit_s, judge in rows
    ]


def _within(seconds: float, status: int = 0) -> Callable[[Run], Verdict]:
    return lambda run: (run.status == status and run.seconds <= seconds, run.ending)


def _epoch(name: str, goal_s: float) -> Callable[[Run], Verdict]:
    def judge(run: Run) -> Verdict:
        result = run.result(name)
        values = [v for m in result.get("measurements", ()) for v in m["values"]]
        if not run.succeeded or not values:
            return None, run.ending
        epoch_s = statistics.median(values[1:] or values)
        facts = result["facts"]
        return epoch_s <= goal_s, (
            f"{epoch_s:.3f} s an epoch, the first left out; compiling {facts['compile_s']:.1f} s; "
            f"test accuracy {facts['test_accuracy']:.3f}"
        )

    return judge


def _fast(run: Run) -> Verdict:
    result = run.result("fast")
    claims = [c for c in result.get("claims", ()) if "fast recipe" in c["statement"]]
    mean = result.get("facts", {}).get("seconds_mean")
    if not run.succeeded or not claims or claims[0]["verdict"] == "not measurable here":
        return None, f"{run.ending}; {claims[0]['observed']}" if claims else run.ending
    if mean is None:
        return False, claims[0]["observed"]
    return claims[0]["verdict"] == "holds" and mean <= 4, f"{mean:.2f} s, mean; {claims[0]['observed']}"


def _in_range(run: Run) -> Verdict:
    plan = run.result("plan")
    if not run.succeeded or "measured_s" not in plan:
        return None, run.ending
    low, high, measured = (1e3 * plan[name] for name in ("low_s", "high_s", "measured_s"))
    return low <= measured <= high, f"{measured:.3f} ms measured; predicted {low:.3f} to {high:.3f} ms"


def _overhead(run: Run) -> Verdict:
    if not run.succeeded:
        return None, run.ending
    (row,) = run.result("watch")["rows"]
    verdict = True if row["high"] <= 1.1 else False if row["low"] > 1.1 else None
    ratio = f"{row['mean']:.3f} ({row['low']:.3f} to {row['high']:.3f})"
    windows = "; ".join(", ".join(f"{s:.2f}" for s in run_s) for run_s in row["windows_s"])
    return verdict, f"{ratio} of the time without it; windows of {windows} s"


def _main_rows(rehearse: bool) -> Callable[[Run], Verdict]:
    small = {"jax/jit", "torch/eager"}
    with_gpu = ("torch/CUDA graphs", "torch/compiled", "torch/compiled, CUDA graphs")
    training = {*small, "torch/channels-last", *(() if rehearse else with_gpu)}
    main = dict.fromkeys(TOY_TRAINING if rehearse else MAIN_TRAINING, training)
    main |= dict.fromkeys(SMALL[1:] if rehearse else SMALL, small)

    def judge(run: Run) -> Verdict:
        rounds = {
            (m["workload"], f"{m['system']}/{m['configuration']}"): len(m["values"])
            for m in run.result("peers").get("measurements", ())
        }
        if not rounds:
            return None, f"{run.ending}; no row"
        wanted = [(workload, row) for workload, rows in main.items() for row in sorted(rows)]
        missing = [f"{workload}, {row}" for workload, row in wanted if (workload, row) not in rounds]
        there = [rounds[row] for row in wanted if row in rounds]
        figures = f"{len(there)} of {len(wanted)} main rows with {min(there, default=0)} rounds or more"
        lost = f"; missing: {'; '.join(missing)}" if missing else ""
        return run.succeeded and not missing, f"{run.ending}; {figures}{lost}"

    return judge


def _chapter(run: Run) -> Verdict:
    names = [section.name for section in choose_sections(["all"])]
    results = {name: result for name in names if (result := run.result(name))}
    around_s = (run.seconds - sum(r["wall_s"] for r in results.values())) / len(names)  # each one's process
    took = {name: result["wall_s"] + around_s for name, result in results.items()}
    failed = [message for result in results.values() for message in result["failed"]]
    seconds = ", ".join(f"{name} {section_s:.0f}" for name, section_s in took.items())
    figures = "; ".join(
        [run.ending, *failed[:1], f"{len(results)} of {len(names)} sections, in s: {seconds}"]
    )
    if run.status is None and run.seconds < CHAPTER_S:
        return None, figures
    in_time = run.seconds <= CHAPTER_S and max(took.values(), default=0) <= SECTION_S
    return run.succeeded and not failed and in_time, figures
