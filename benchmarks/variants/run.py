"""Write variants, run them with and without `jaxperf watch`, and score what it says.

    python benchmarks/variants/run.py                        # seeds 0 to 99: about two hours
    python benchmarks/variants/run.py --seeds 7,8 --seconds 3
    python benchmarks/variants/run.py --write DIR --seeds 7    # only write the programs

Each variant runs slow and repaired, in turns, then both under watch. The gain is the difference of the
medians: of seconds, or of processor seconds if other programs used the machine. A seed is never changed by
others, so a score can be repeated. README.md says how the score is made.

A seed that is in the output already is left out, so a run that was ended goes on where it was, and one file
can be filled in batches; --again runs it once more.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from score_variants import score, score_lines
from watch_reports import findings
from write_variants import Variant, draw, repaired, without

from jaxperf.errors import JaxperfError
from jaxperf.flags import Parser, number, whole
from jaxperf.measure.other_load import other_load
from jaxperf.process import ended, say
from jaxperf.result.machine import commit, cores, cpu_model, versions
from jaxperf.result.ratio import turns
from jaxperf.result.store import write_whole

LIMIT_S = 300.0  # of one run
# Run a cell as IPython does; watch sees it from a block
_CELL = """
import sys
from pathlib import Path
from IPython.core.interactiveshell import InteractiveShell
shell, text = InteractiveShell.instance(), Path(sys.argv[1]).read_text()
def run():
    outcome = shell.run_cell(text)
    outcome.raise_error()
if len(sys.argv) == 2:
    run()
else:
    import jaxperf
    from jaxperf.result import save_result
    with jaxperf.watch(show=False) as watched:
        run()
    save_result(watched.result, Path(sys.argv[2]))
"""


class Cost(dict[str, float]):
    """Seconds "wall" and "cpu" of one run."""


def run_once(script: Path, variant: Variant, report: Path | None = None) -> Cost:
    """Run a variant as a process, under watch if it writes a report.

    Raises:
      JaxperfError: it does not end with status 0.
    """
    if variant.layout == "cell":
        command = [sys.executable, "-c", _CELL, str(script), *([str(report)] if report else [])]
    else:
        watch = ["-m", "jaxperf", "watch", "--json", str(report)] if report else []
        command = [sys.executable, *watch, str(script)]
    began = time.perf_counter()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(command, env=_variables(variant, script), stdout=out, stderr=out)
        deadline = began + LIMIT_S
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() > deadline:
                process.kill()
            time.sleep(0.01)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall_s = time.perf_counter() - began
        if process.returncode:
            out.seek(0)
            last = (out.read().decode(errors="replace").strip().splitlines() or [""])[-1]
            raise JaxperfError(f"seed {variant.seed} ended with status {process.returncode}: {last}")
    return Cost(wall=wall_s, cpu=usage.ru_utime + usage.ru_stime)


def _variables(variant: Variant, script: Path) -> dict[str, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "JAXPERF_"))}
    paths = os.pathsep.join((str(script.parent / "site-packages"), str(ROOT)))
    ours = {"PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(variant.devices)}
    return inherited | ours


@contextlib.contextmanager
def busy_core(wanted: bool) -> Iterator[Callable[[], float]]:
    """Keep a core busy during the block, if that is wanted; yield what tells its processor seconds."""
    if not wanted:
        yield lambda: 0.0
        return
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    times = psutil.Process(process.pid).cpu_times
    try:
        yield lambda: float(times().user + times().system)
    finally:
        process.kill()
        process.wait()


def run_variant(variant: Variant, rounds: int) -> dict[str, Any]:
    """Run a variant and its repaired twin; return what is kept for the score."""
    with tempfile.TemporaryDirectory() as name, busy_core(variant.busy) as busy_s:
        folder, draws = Path(name), random.Random(variant.seed)
        programs = {"slow": variant, "repaired": repaired(variant)} if variant.slow else {"repaired": variant}
        if len(variant.causes) > 1:
            programs |= {f"without {cause}": without(variant, cause) for cause in variant.causes}
        scripts = {key: each.save(folder / key) for key, each in programs.items()}
        rows: dict[str, list[Cost]] = {key: [] for key in scripts}
        began, before_s = time.perf_counter(), busy_s()
        with other_load() as load:
            for _ in range(rounds if variant.slow else 0):
                for key in turns(list(scripts), draws):
                    rows[key].append(run_once(scripts[key], variant))
        kept_busy = (busy_s() - before_s) / (time.perf_counter() - began)
        kept: dict[str, Any] = {
            "seed": variant.seed, "skeleton": variant.skeleton, "layout": variant.layout,
            "seconds": variant.seconds, "devices": variant.devices, "busy": variant.busy,
            "causes": list(variant.causes), "places": variant.places,
            "others": round(max(0.0, load.others + load.stolen - kept_busy), 2),
        }  # fmt: skip
        for key in [key for key in scripts if key in ("slow", "repaired")]:
            report = folder / f"{key}.json"
            run_once(scripts[key], variant, report)
            kept[f"found_{key}"] = [
                [f.cause, Path(f.file).name, f.line, round(f.seconds, 3)] for f in findings(report)
            ]
        for key, costs in rows.items():
            for kind in ("wall", "cpu") if costs else ():
                kept[f"{kind}_{key}"] = round(statistics.median(cost[kind] for cost in costs), 3)
        return kept


def seeds_of(text: str) -> list[int]:
    """Return the seeds in "0-99" or "7,8,20-22".

    Raises:
      ValueError: the text is no such list.
    """
    seeds: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    return seeds


def main() -> int:
    """Run what the flags ask for; return the exit status."""
    parser = Parser("run.py", __doc__ or "")
    parser.add_argument("--seeds", default="0-99", metavar="A-B,...", help="the variants")
    parser.add_argument("--seconds", type=number(0, above=True), metavar="S",
        help="length of each, about, in place of 2 to 30")  # fmt: skip
    parser.add_argument("--rounds", type=whole(1), default=3, metavar="N", help="turns of slow and repaired")
    parser.add_argument("--idle", action="store_true", help="keep no core busy")
    parser.add_argument("--again", action="store_true", help="run seeds that are in the output, too")
    parser.add_argument("--strict", action="store_true", help="end with status 1 below the goals")
    parser.add_argument("--write", type=Path, metavar="DIR", help="write the programs there, and run nothing")
    parser.add_argument("--out", type=Path, default=Path("results/variants.json"), metavar="FILE")
    options = parser.parse_args(sys.argv[1:])
    try:
        seeds = seeds_of(options.seeds)
    except ValueError:
        raise JaxperfError(f"--seeds {options.seeds!r} is no list of numbers, such as 0-99 or 7,8") from None
    variants = [draw(seed, seconds=options.seconds) for seed in seeds]
    if options.idle:
        for variant in variants:
            variant.busy = False
    if options.write:
        for variant in variants:
            print(variant.save(options.write / str(variant.seed)), *variant.planted, f"slow={variant.slow}")
        return 0
    options.out.parent.mkdir(parents=True, exist_ok=True)
    kept: dict[str, Any] = {
        "schema": 1, "made": datetime.date.today().isoformat(),
        "machine": {"cpu": cpu_model(), "cores": cores()},
        "versions": versions(), "commit": commit(ROOT), "rounds": options.rounds, "variants": [],
    }  # fmt: skip
    rows = {row["seed"]: row for row in _kept_before(options.out, kept)}
    for variant in variants:
        if variant.seed in rows and not options.again:
            continue
        try:
            row = run_variant(variant, options.rounds)
        except JaxperfError as e:
            row = {"seed": variant.seed, "causes": list(variant.causes), "failed": str(e)}
        rows[variant.seed] = row
        kept["variants"] = [rows[seed] for seed in sorted(rows)]
        write_whole(options.out, json.dumps(kept, indent=1) + "\n")
        say(f"seed {variant.seed}, {', '.join(row['causes']) or 'no cause'}: {_summary(row)}")
    kept["variants"] = [rows[seed] for seed in sorted(rows)]
    print("\n".join(score_lines(kept)))
    failed = any("failed" in row for row in kept["variants"])
    return int(failed or (options.strict and not score(kept).good))


def _kept_before(path: Path, now: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the variants in the output of an earlier run.

    Raises:
      JaxperfError: the file is no such output, or another machine, version or commit made it.
    """
    if not path.exists():
        return []
    try:
        before = json.loads(path.read_text(encoding="utf-8"))
        differs = [key for key in ("machine", "versions", "commit", "rounds") if before[key] != now[key]]
        variants = list(before["variants"])
    except (ValueError, KeyError, TypeError):
        raise JaxperfError(f"{path} is no output of this program; give another --out") from None
    if differs:
        raise JaxperfError(f"{path} was made with another {differs[0]}; give another --out")
    return variants


def _summary(row: dict[str, Any]) -> str:
    if "failed" in row:
        return str(row["failed"])
    found = row.get("found_slow", row["found_repaired"])
    said = "; ".join(f"{cause} at {file}:{line} ({seconds:.2f} s)" for cause, file, line, seconds in found)
    parts = [said or "nothing"]
    if "wall_slow" in row:
        parts += [f"{kind} {row[f'{kind}_slow']} to {row[f'{kind}_repaired']} s" for kind in ("wall", "cpu")]
        parts.append(f"wanted {row['places']}")
    if row["causes"] and row["found_repaired"]:
        parts.append(f"repaired: {row['found_repaired']}")
    return ", ".join(parts)


if __name__ == "__main__":
    raise SystemExit(ended(main))
