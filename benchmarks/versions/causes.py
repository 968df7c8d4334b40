"""Run the slow programs under `jaxperf watch` on several versions of JAX: which cause does each version show?

    python benchmarks/versions/causes.py                   # all programs on all versions: about half an hour
    python benchmarks/versions/causes.py --page            # docs/causes-by-version.md, from the kept log
    python benchmarks/versions/causes.py --versions 0.8.2,newest --programs new_jit,eager_loop

Each version has an environment of its own, as for `run.py`. What the log has already is left out, so a run
that was ended goes on. A program that ends otherwise than without watch is named in the log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT), str(ROOT / "tests")]

from run import Version, environments, prepare_environment
from twins import NAMES, PROGRAMS, cause

import jaxperf
from jaxperf.flags import Parser
from jaxperf.known_faults import release
from jaxperf.process import ended, say
from jaxperf.result.markdown import table
from jaxperf.result.store import write_whole

VERSIONS = "0.5.3,0.6.2,0.7.2,0.8.2,0.9.1,0.10.2,newest"
KEPT = ROOT / "benchmarks" / "results" / "causes.json"
PAGE = ROOT / "docs" / "causes-by-version.md"
NAMES_CAUSES = "0.8.2"  # the first version with which watch names causes
LIMIT_S = 240.0  # for one program
RUNS = 3  # at most: what a device does within a tenth of a second is hard to see on a busy machine
NAMED, OTHER, NONE, CANNOT, WRONG = "yes", "other", "-", "no such API", "FAILED"


def main() -> int:
    """Run what the flags ask for; return 1 if watch changed how a program ends, or named a wrong cause."""
    parser = Parser("causes.py", __doc__ or "")
    parser.add_argument("--versions", default=VERSIONS, metavar="V,V,...", help="versions of JAX; newest")
    parser.add_argument("--programs", default="", metavar="NAME,...", help="only these; all by default")
    parser.add_argument("--out", type=Path, default=KEPT, metavar="FILE", help="the log, which is added to")
    parser.add_argument("--environments", type=Path, default=environments(), metavar="DIR",
        help="where the environments are kept")  # fmt: skip
    parser.add_argument("--page", action="store_true", help="make the page from the kept log")
    options = parser.parse_args(sys.argv[1:])
    if options.page:
        write_whole(PAGE, page(json.loads(KEPT.read_text(encoding="utf-8"))))
        return 0
    devices = devices_of()
    log: dict[str, Any] = {"versions": {}, "programs": {}}
    with contextlib.suppress(FileNotFoundError):
        log = json.loads(options.out.read_text(encoding="utf-8"))
    names = options.programs.split(",") if options.programs else NAMES
    with tempfile.TemporaryDirectory() as scratch:
        ignored = shutil.ignore_patterns("__pycache__", "experiments", "fashion_mnist_mini")
        shutil.copytree(Path(jaxperf.__file__).parent, Path(scratch, "jaxperf"), ignore=ignored)
        for wanted in options.versions.split(","):
            version = prepare_environment(wanted, options.environments.resolve())
            log["versions"][version.name] = version.installed
            for name in names:
                expected, line = cause(PROGRAMS / f"{name}.py")
                entry = log["programs"].setdefault(name, {"versions": {}})
                entry |= {"cause": expected, "line": line}
                while wants_a_run(entry, version.name):
                    answer = watched(version, PROGRAMS / f"{name}.py", devices.get(name, 1), Path(scratch))
                    answer["runs"] = entry["versions"].get(version.name, {}).get("runs", 0) + 1
                    entry["versions"][version.name] = answer
                    say(f"{version.name} {name}: {verdict(entry, version.name)}")
                    write_whole(options.out, json.dumps(log, indent=1) + "\n")
    failed = [
        f"{name} on {version}"
        for name, entry in log["programs"].items()
        for version in entry["versions"]
        if verdict(entry, version) == WRONG
    ]
    if failed:
        say(f"failed: {', '.join(failed)}")
    return 1 if failed else 0


def wants_a_run(entry: dict[str, Any], version: str) -> bool:
    """Return whether a program has not run yet on a version, or not yet `RUNS` times without its cause."""
    answer = entry["versions"].get(version)
    if answer is None:
        return True
    missed = release(version) >= release(NAMES_CAUSES) and verdict(entry, version) in (OTHER, NONE)
    return missed and answer.get("runs", 1) < RUNS


def devices_of() -> dict[str, int]:
    """Return how many devices the programs take that take several."""
    programs = tomllib.loads((PROGRAMS / "gallery.toml").read_text(encoding="utf-8"))
    return {name: entry["devices"] for name, entry in programs.items() if "devices" in entry}


def watched(version: Version, program: Path, devices: int, scratch: Path) -> dict[str, Any]:
    """Run a program under watch, and return its status, and the findings as [cause, line]."""
    path = scratch / "watch.json"
    path.unlink(missing_ok=True)
    command = [str(version.python), "-m", "jaxperf", "watch", "--json", str(path), str(program)]
    status, errors = _run(command, devices, scratch)
    answer: dict[str, Any] = {"status": status}
    if status:
        alone, why = _run([str(version.python), str(program)], devices, scratch)
        answer["alone"] = alone
        answer["error"] = (why.strip().splitlines() or [""])[-1][:200]
    elif re.search(r"^Traceback|the report of jaxperf watch is lost", errors, re.M) or not path.exists():
        answer["error"] = (errors.strip().splitlines() or ["no report"])[-1][:200]
    else:
        body = json.loads(path.read_text(encoding="utf-8"))
        answer["findings"] = [[finding["cause"], finding["site"]["line"]] for finding in body["findings"]]
    return answer


def _run(command: list[str], devices: int, scratch: Path) -> tuple[int, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "PYTHON"))}
    environment = inherited | {
        "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices), "PYTHONPATH": str(scratch),
    }  # fmt: skip
    try:
        done = subprocess.run(
            command, env=environment, cwd=scratch, capture_output=True, text=True, timeout=LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return -1, f"not done in {LIMIT_S:.0f} s"
    return done.returncode, done.stderr


def verdict(entry: dict[str, Any], version: str) -> str:
    """Return what a version makes of a program, in a word: one of the five above."""
    answer = entry["versions"][version]
    if "findings" not in answer:
        return CANNOT if answer["status"] and answer["status"] == answer.get("alone") else WRONG
    findings = answer["findings"]
    if release(version) < release(NAMES_CAUSES):
        return WRONG if findings else NONE
    if [entry["cause"], entry["line"]] in findings:
        return NAMED
    return OTHER if findings else NONE


def page(log: dict[str, Any]) -> str:
    """Return the page as Markdown: programs as rows, versions as columns."""
    versions = sorted(log["versions"], key=release)
    programs = {name: entry for name, entry in log["programs"].items() if entry["versions"]}
    verdicts = {
        name: [verdict(entry, v) if v in entry["versions"] else "" for v in versions]
        for name, entry in programs.items()
    }
    rows = [[f"{name}: {programs[name]['cause']}", *words] for name, words in verdicts.items()]
    named, able = ["named"], ["of those that run"]
    for column in zip(*verdicts.values()):
        named.append(str(column.count(NAMED)))
        able.append(str(len(column) - column.count(CANNOT) - column.count("")))
    right = range(1, len(versions) + 1)
    text = f"""# Causes by version of JAX

Which causes does `jaxperf watch` name with which version of JAX? It needs what JAX says about compilations
and calls, and old versions say less. From JAX {NAMES_CAUSES} on it names causes. Below that, it reports what
it knows for certain (compilations with their lines and seconds, waits, transfers) and says that causes need
{NAMES_CAUSES}.

Each row is a program of `tests/slow_programs`, which has one cause at one line. "{NAMED}": that cause at that
line is among the findings. "{OTHER}": only others are. "{NONE}": there is no finding. "{CANNOT}": the program
itself does not run with this version, with or without watch. On 0.8.2,
`jnp.stack` of 1,500 arrays compiles within 0.2 s, so that `many_arrays` is not slow there.

"""
    lines = table(["program and its cause", *versions], [*rows, named, able], right=right)
    installed = log["versions"]
    about = [f"{v}: Python {installed[v]['python']}, Flax {installed[v].get('flax', '-')}" for v in versions]
    end = (
        "On a CPU, by `python benchmarks/versions/causes.py`: one run each, and up to "
        f"{RUNS} until the cause is named. {'; '.join(about)}.\n"
    )
    return text + "\n".join(lines) + "\n" + end


if __name__ == "__main__":
    sys.exit(ended(main))
