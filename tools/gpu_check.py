"""Decide the open statements about a GPU, on a bare machine without a network.

    python tools/gpu_check.py pack DIR       # here: sources, Fashion-MNIST, wheels that the machine lacks
    OUT=/tmp/gpu bash DIR/check.sh           # there: at most 8 minutes; a second call goes on
    python tools/gpu_check.py check --out DIR --rehearse     # here: toy sizes on the CPU

Each step has a limit. A step that fails or does not end is a line of the summary, and the next one runs. The
summary and the archive are written after each step.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.append(str(ROOT / "tests"))

import twins

# Seconds between Ctrl-C and the end of a step that does not end by itself
GRACE_S = 10.0
SEEDS = 5
# Programs of the gallery that are slow on a GPU, too
WATCHED = 10
# Workloads beside PyTorch that no run has measured
ROWS = ("ResNet-18 bfloat16, batch 1024", "ResNet-18 TF32, batch 1024")

# What the check.sh of a packed folder does before it calls this script on the machine
CHECK_SH = """\
HERE=$(cd "$(dirname "$0")" && pwd)
OUT=${OUT:-/tmp/gpu_check}
UNPACKED=${UNPACKED:-/tmp/jaxperf_gpu_check}
if [ ! -e "$UNPACKED/done" ]; then
  mkdir -p "$UNPACKED/site" "$UNPACKED/jaxperf"
  tar xzf "$HERE/sources.tar.gz" -C "$UNPACKED/jaxperf"
  python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir \\
    --target "$UNPACKED/site" "$HERE"/wheels/*.whl
  git -C "$UNPACKED/jaxperf" config core.bare false
  touch "$UNPACKED/done"
fi
export PYTHONPATH=$UNPACKED/site:$UNPACKED/jaxperf JAXPERF_DATA=$HERE/data PYTHONUNBUFFERED=1
cd "$UNPACKED/jaxperf"
exec python3 tools/gpu_check.py check --out "$OUT" "$@"
"""
# What the machine's image has (Python 3.12, CUDA 13), and what it lacks
IMAGE = {"jax": "0.11.2", "jaxlib": "0.11.2", "numpy": "2.5.2", "optax": "0.2.8", "scipy": "1.18.0"}
LACKING = (
    "fastjsonschema", "flax", "jsonschema", "jsonschema-specifications", "jupyter-core", "nbformat",
    "orbax-checkpoint", "referencing", "rpds-py", "traitlets",
)  # fmt: skip


@dataclass(frozen=True)
class Ended:
    """How a command ended: its exit status (None: stopped at its limit), seconds, and what it printed."""

    status: int | None
    seconds: float
    output: str

    def __str__(self) -> str:
        if self.status is None:
            return f"stopped after {self.seconds:.0f} s"
        return f"status {self.status} after {self.seconds:.1f} s"


# Whether the statement holds (None: undecided), and the figures
Verdict = tuple[bool | None, str]


@dataclass(frozen=True)
class Step:
    """A statement, and the commands that decide it; `judge` is given how each of them ended.

    With `together`, the commands run side by side; else one after the other.
    """

    name: str
    statement: str
    commands: Sequence[Sequence[str]]
    limit_s: float
    judge: Callable[[Sequence[Ended]], Verdict]
    together: bool = False
    variables: Sequence[tuple[str, str]] = ()


def steps(out: Path, *, rehearse: bool) -> list[Step]:
    """Return the steps in order of importance; `out` takes what their commands write."""
    toy = ["--smoke"] if rehearse else []
    python, platform = sys.executable, ["--platform", "cpu" if rehearse else "gpu"]
    chapter = [python, "-m", "jaxperf", "run", "all", *platform, "--out", str(out / "chapter"), *toy]
    fast = [python, "experiments/train.py", "--recipe", "fast", "--dtype", "bfloat16", *toy]
    cache = ["--compile-cache", str(out / "cache")]
    watched = watched_programs()
    reports = [out / f"watch-{path.stem}.json" for path in watched]
    overhead = [
        python, "benchmarks/watch_overhead.py", "--profiler", "with", "--runs", "2" if rehearse else "5",
        "--seconds", "1" if rehearse else "3", "--json", str(out / "overhead.json"),
    ]  # fmt: skip
    rows = [
        python, "benchmarks/frameworks/run.py", *platform, *toy,
        "--seconds", "120", "--json", str(out / "rows.json"),
    ]  # fmt: skip
    # toy sizes have other names, and need no PyTorch
    toy_rows = ["--frameworks", "--on-device", "--only", "ResNet-18"]
    open_rows = ["--frameworks", "torch", "--python", f"torch={python}", "--only", *ROWS]
    rows += toy_rows if rehearse else open_rows
    return [
        Step(
            "chapter",
            "The chapter takes at most 300 s by one command, no section above 60 s, and no part fails",
            [chapter],
            330,
            lambda ended: judge_chapter(ended[0], out / "chapter"),
        ),
        Step(
            "cold",
            "From the command to .93 in at most 15 s with nothing compiled before, five seeds",
            [[*fast, "--seeds", str(seed)] for seed in range(SEEDS)],
            100,
            judge_accuracy(15),
        ),
        Step(
            "warm",
            "From the command to .93 in at most 8 s with a compile cache, five seeds",
            [[*fast, *cache, "--seeds", str(seed)] for seed in range(SEEDS + 1)],
            80,
            judge_accuracy(8, first=1),
        ),
        Step(
            "watch",
            "watch names a cause in each of ten slow programs on this card",
            [
                [python, "-m", "jaxperf", "watch", "--json", str(report), str(path)]
                for path, report in zip(watched, reports, strict=True)
            ],
            60,
            lambda ended: judge_findings(watched, reports),
            together=True,
            variables=[("XLA_PYTHON_CLIENT_PREALLOCATE", "false")],
        ),
        Step(
            "overhead",
            "With the profiler, watch takes at most 1.05 of a loop's time, by the end of an interval",
            [[*overhead, "--only", "steps without waiting", "a wait per step"]],
            120,
            lambda ended: judge_overhead(out / "overhead.json"),
        ),
        Step(
            "rows",
            "ResNet-18 with batch 1024 has a ratio to PyTorch in both precisions, each with an interval",
            [rows],
            150,
            lambda ended: judge_rows(out / "rows.json"),
        ),
    ]


def watched_programs() -> list[Path]:
    """Return slow programs of the test suite, the same ones each time."""
    return sorted((ROOT / "tests" / "slow_programs").glob("*.py"))[:WATCHED]


def judge_chapter(ended: Ended, folder: Path) -> Verdict:
    """Judge `run all` by its results: each section's seconds, and what failed in it."""
    results = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    seconds = {result["experiment"]: result["wall_s"] for result in results}
    failed = [message for result in results for message in result["failed"]]
    figures = (
        f"{ended}; s: {', '.join(f'{name} {s:.0f}' for name, s in seconds.items())}; failed: {failed[:2]}"
    )
    if ended.status is None or not seconds:
        return None, figures
    in_time = ended.seconds <= 300 and max(seconds.values()) <= 60
    return ended.status == 0 and not failed and in_time, figures


def judge_accuracy(limit_s: float, first: int = 0) -> Callable[[Sequence[Ended]], Verdict]:
    """Judge by the seconds from a command to its line about .93; `first` commands only fill the cache."""

    def judge(ended: Sequence[Ended]) -> Verdict:
        counted = ended[first:]
        if len(counted) < SEEDS or any(training.status is None for training in counted):
            return None, ", ".join(str(training) for training in counted)
        matches = [re.search(r"test accuracy 0\.93: ([\d.]+) s", training.output) for training in counted]
        seconds = [float(match[1]) for match in matches if match]
        figures = f"in s: {', '.join(f'{s:.1f}' for s in seconds)}; {len(seconds)} of {len(counted)} reach it"
        return len(seconds) == len(counted) and max(seconds) <= limit_s, figures

    return judge


def judge_findings(programs: Sequence[Path], reports: Sequence[Path]) -> Verdict:
    """Judge by the reports: each names the cause that its program marks, at the marked line."""
    unnamed = []
    for path, report in zip(programs, reports, strict=True):
        named = {(finding["cause"], finding["site"]["line"]) for finding in kept(report, "findings")}
        if twins.cause(path) not in named:
            unnamed.append(f"{path.stem} {twins.cause(path)}: {sorted(named)}")
    figures = f"{len(programs) - len(unnamed)} of {len(programs)} named; not {'; '.join(unnamed) or 'any'}"
    return not unnamed, figures


def kept(file: Path, key: str) -> list[dict[str, Any]]:
    """Return what a step has kept under a name in a file; nothing if it was not written."""
    try:
        return list(json.loads(file.read_text(encoding="utf-8"))[key])
    except (OSError, ValueError, KeyError):
        return []


def judge_overhead(file: Path) -> Verdict:
    """Judge by the upper ends of the intervals that the benchmark keeps."""
    rows = kept(file, "rows")
    if not rows:
        return None, "no row was kept"
    figures = [f"{r['program']} {r['mean']:.3f} ({r['low']:.3f} to {r['high']:.3f})" for r in rows]
    return all(row["high"] <= 1.05 for row in rows), "; ".join(figures)


def judge_rows(file: Path) -> Verdict:
    """Judge by the comparisons that were kept: each workload of `ROWS` has some."""
    studies = kept(file, "workloads")
    if not studies:
        return None, "no row was kept"
    compared = [(study["name"], c) for study in studies for c in study["comparisons"]]
    figures = [f"{name}, {c['quantity']}: {c['text']}, {c['verdict']}" for name, c in compared]
    names = {name for name, _ in compared}
    return names >= {*ROWS}, "; ".join(figures) or "no comparison"


def check(out: Path, *, seconds: float, only: Sequence[str], rehearse: bool) -> int:
    """Run what is not decided yet, in order of importance, for `seconds` at most."""
    # A shell that runs this in the background has Ctrl-C ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    out = out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    planned = steps(out, rehearse=rehearse)
    unknown = set(only) - {step.name for step in planned}
    if unknown:
        names = ", ".join(step.name for step in planned)
        raise SystemExit(f"error: no step {min(unknown)!r}; there are {names}")
    ends = time.monotonic() + seconds
    summary_file = out / "summary.json"
    rows: dict[str, dict[str, Any]] = {}
    with contextlib.suppress(OSError, ValueError):
        rows = json.loads(summary_file.read_text(encoding="utf-8"))
    for step in planned:
        left = ends - time.monotonic() - GRACE_S
        decided = rows.get(step.name, {}).get("verdict") in ("holds", "does not hold")
        if decided or (only and step.name not in only) or left < 5:
            continue
        print(f"[{seconds - (ends - time.monotonic()):.0f} s] {step.name}", flush=True)
        ended = run_step(step, out, min(step.limit_s, left))
        try:
            holds, figures = step.judge(ended)
        except (KeyError, TypeError, ValueError) as e:
            holds, figures = None, f"{type(e).__name__}: {e}"
        verdict = {True: "holds", False: "does not hold", None: "undecided"}[holds]
        rows[step.name] = {
            "statement": step.statement,
            "verdict": verdict,
            "figures": figures,
            "card": card(),
        }
        print(f"  {verdict}: {step.statement}: {figures}", flush=True)
        summary_file.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        pack_results(out)
    return 0


def run_step(step: Step, out: Path, limit_s: float) -> list[Ended]:
    """Run a step's commands to their end or the step's limit; what they print goes to the folder `out`."""
    ends = time.monotonic() + limit_s
    variables = {**os.environ, **dict(step.variables)}
    started: list[tuple[subprocess.Popen[bytes], Path, float]] = []
    ended: list[Ended] = []
    for number, command in enumerate(step.commands):
        if time.monotonic() > ends:
            break
        log = out / f"{step.name}-{number}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT, env=variables,
                cwd=ROOT, start_new_session=True,
            )  # fmt: skip
        started.append((process, log, time.monotonic()))
        if not step.together:
            ended.append(wait(*started[-1], ends))
    if step.together:
        ended = [wait(*process, ends) for process in started]
    return ended


def wait(process: subprocess.Popen[bytes], log: Path, began: float, ends: float) -> Ended:
    """Wait for a command until `ends`; then interrupt it, and end it with all that it started."""
    status = None
    try:
        status = process.wait(max(0.0, ends - time.monotonic()))
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
    finally:
        seconds = time.monotonic() - began
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return Ended(status, seconds, log.read_text(encoding="utf-8", errors="replace"))


def pack_results(out: Path) -> None:
    """Write everything into one archive beside it."""
    with tarfile.open(out / "gpu_check.tar.gz", "w:gz") as archive:
        for item in sorted(out.iterdir()):
            if item.name not in ("gpu_check.tar.gz", "cache"):
                archive.add(item, item.name)


def card() -> str:
    """Return the first GPU and its driver, or that there is none."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return "no GPU"
    return (done.stdout.splitlines() or ["no GPU"])[0]


def pack(out: Path) -> int:
    """Fill a folder that a machine is given: sources with their commit, data, wheels, check.sh."""
    import bundle  # beside this file

    (out / "wheels").mkdir(parents=True, exist_ok=True)
    bundle.collect_history(out)
    bundle.collect_data(out)
    listed = bundle.run(["git", "-C", str(ROOT), "ls-files", "-co", "--exclude-standard"]).splitlines()
    left_out = ("benchmarks/results/", "docs/experiments/", "tests/fixtures/")
    with tarfile.open(out / "sources.tar.gz", "w:gz") as archive:
        for name in listed:
            if not name.startswith(left_out) and (ROOT / name).is_file():
                archive.add(ROOT / name, name)
        archive.add(out / "jaxperf.git", ".git")
    target = "--python-version=3.12", "x86_64-manylinux_2_28"
    bundle.collect_wheels(
        bundle.requirements("cpu", ("chapter",)), target, IMAGE, out / "wheels", only=LACKING
    )
    (out / "check.sh").write_text(CHECK_SH, encoding="utf-8")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{size / 2**20:.0f} MiB in {out}; there: OUT=/tmp/gpu bash {out.name}/check.sh")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="collect what a bare machine needs")
    packing.add_argument("out", type=Path)
    checking = commands.add_parser("check", help="decide the open statements on this machine")
    checking.add_argument("--out", type=Path, required=True)
    checking.add_argument("--seconds", type=float, default=470, help="for all steps together")
    checking.add_argument("--only", nargs="*", default=[], metavar="STEP")
    checking.add_argument("--rehearse", action="store_true", help="toy sizes on the CPU")
    flags = parser.parse_args()
    if flags.command == "pack":
        return pack(flags.out.absolute())
    return check(flags.out, seconds=flags.seconds, only=flags.only, rehearse=flags.rehearse)


if __name__ == "__main__":
    sys.exit(main())
