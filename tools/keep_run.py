"""Run all sections in full, with their answers, and keep the run that the book shows.

    python tools/keep_run.py                 # on an otherwise idle machine, from a clean commit
    python tools/keep_run.py hybridize 8.2   # only these sections
    python tools/keep_run.py peers           # the comparison, by itself: with more rounds than by default

The sections run into build/kept/run, which git ignores: results that change would make the code "dirty" for
the next section. They are kept in benchmarks/results/book only if every section succeeded, the machine was
idle and the code that of a commit. `--have` takes what an earlier call left in build/kept/run, `--anyway`
keeps it with what was not as it should be.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from jaxperf.chapter import catalogue
from jaxperf.result.store import load_result

ROOT = Path(__file__).resolve().parents[1]
KEPT = ROOT / "benchmarks" / "results" / "book"
BUSY = 0.1  # share of a core that others may use before the run
NOISY = 0.1  # share of rows
PEERS_ROUNDS = 28  # of the comparison, whose default of 12 leaves every third interval wider than 10 %


def trouble_before() -> list[str]:
    """Say what would spoil a run: other programs, or files that differ from the commit."""
    problems = []
    psutil.cpu_percent(None)
    time.sleep(3)
    used = psutil.cpu_percent(None) / 100 * (psutil.cpu_count() or 1)
    if used > BUSY:
        problems.append(f"other programs use {used:.2f} cores")
    changed = subprocess.run(
        ["git", "status", "--porcelain", "-uno"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    if changed:
        problems.append(f"{len(changed.splitlines())} files differ from the commit")
    return problems


def trouble_of(folder: Path, names: list[str]) -> tuple[list[str], list[str]]:
    """Return what is wrong with a run, and a line for each section: its time, and how many rows are noisy."""
    problems, lines, rows, noisy = [], [], 0, 0
    for name in names:
        path = folder / f"{name}.ipynb"
        if not path.is_file():
            problems.append(f"{name} wrote no notebook")
            continue
        text = path.read_text(encoding="utf-8")
        about: dict[str, Any] = json.loads(text)["metadata"]["jaxperf"]
        result = load_result(folder / f"{name}.json")
        loud = sum(m.noise == "noisy" for m in result.measurements)
        rows, noisy = rows + len(result.measurements), noisy + loud
        lines.append(f"{name:24} {about['wall_s']:7.1f} s, {loud} of {len(result.measurements)} rows noisy")
        if about["busy"]:
            problems.append(f"{name}: {about['busy']} meanwhile")
        if str(ROOT) in text:
            problems.append(f"{name}: the notebook names a folder of this machine, {ROOT}")
        if about["environment"]["commit"].endswith("+dirty"):
            problems.append(f"{name}: files had been changed")
    if noisy > NOISY * max(rows, 1):
        problems.append(f"{noisy} of {rows} rows are noisy")
    lines.append(f"{'all':24} {noisy} of {rows} rows noisy")
    return problems, lines


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="sections; all but the comparison by default")
    parser.add_argument("--have", action="store_true", help="run nothing; keep what build/kept/run has")
    parser.add_argument(
        "--anyway", action="store_true", help="keep it also if something was not as it should be"
    )
    options = parser.parse_args()
    names = [catalogue.find(word).name for word in options.names]
    names = names or [section.name for section in catalogue.SECTIONS if section.name != "peers"]
    # As deep as the folder of kept runs, so that a notebook's links lead somewhere from there, too
    folder, failed = ROOT / "build" / "kept" / "run", False
    if not options.have:
        problems = trouble_before()
        if problems and not options.anyway:
            print(f"not started: {'; '.join(problems)}", file=sys.stderr)
            return 2
        command = [sys.executable, "-m", "jaxperf", "run", *names, "--full", "--answers"]
        command += ["--out", str(folder)]
        if names == ["peers"]:
            command += ["--", f"--rounds={PEERS_ROUNDS}"]
        failed = subprocess.run(command, cwd=ROOT, check=False).returncode != 0
    problems, lines = trouble_of(folder, names)
    print("\n".join(lines))
    if failed:
        problems.append("a section failed")
    for problem in problems:
        print(f"not as it should be: {problem}", file=sys.stderr)
    if problems and not options.anyway:
        print("nothing was kept; `--have --anyway` keeps it nevertheless", file=sys.stderr)
        return 1
    for name in names:
        for ending in (".json", ".ipynb"):
            if (source := folder / f"{name}{ending}").is_file():
                shutil.copyfile(source, KEPT / source.name)
    print(f"kept in {KEPT.relative_to(ROOT)}; `make book` shows it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
