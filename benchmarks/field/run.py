"""Run public programs with and without `jaxperf watch`, apply what it advises, and write one JSON file.

    python benchmarks/field/run.py --clones DIR                  # all programs, with and without watch
    python benchmarks/field/run.py --clones DIR --only hmm,vae
    python benchmarks/field/run.py --clones DIR --repairs        # and each change of the table, in turns
    python benchmarks/field/run.py --clones DIR --changes jit    # only this change, again with --again
    python benchmarks/field/run.py --list

DIR has a clone of each repository, OWNER+NAME. The environments are made by uv, and kept. A program that is
in the output already is left out, so a run that was ended goes on where it was; --again runs it once more.
README.md says what stands in the table and in the output.
"""

from __future__ import annotations

import datetime
import fcntl
import json
import math
import os
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent), str(ROOT)]

from field_table import (
    Environment,
    Program,
    clone_of,
    make_ready,
    place_in,
    read_table,
)
from watch_reports import Found, findings, notes

from jaxperf.errors import JaxperfError
from jaxperf.flags import Parser, whole
from jaxperf.measure.other_load import other_load
from jaxperf.process import cache_folder, ended, say
from jaxperf.result.machine import commit, cores, cpu_model
from jaxperf.result.ratio import turns
from jaxperf.result.store import write_whole

LIMIT_S = 900.0  # of one run
CLOSE = 1e-3  # relative, of numbers that another order of operations changes
NUMBER = re.compile(r"[-+]?\d[\d,]*\.?\d*(?:[eE][-+]?\d+)?|0x[0-9a-f]+|\bnan\b|\binf\b")
BAR = re.compile(r"\x08|[█━]{2}|\d%")
TIME = re.compile(r"\d[\d.,]*\s?(?:s|ms|us|sec|seconds)\b")
STATED = ("jax", "jaxlib", "flax", "numpy")


@dataclass(frozen=True)
class Run:
    """One run of a program as a process: exit status, seconds, and what it printed."""

    status: int
    cpu_s: float
    wall_s: float
    output: str
    errors: str


def run_program(
    python: Path, script: Path, program: Program, report: Path | None = None, limit_s: float = LIMIT_S
) -> Run:
    """Run a program in its folder; with `report`, under watch, which writes its JSON there."""
    watch = ["-m", "jaxperf", "watch", "--json", str(report)] if report else []
    command = [str(python), *watch, script.name, *program.arguments]
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, cwd=script.parent, env=_variables(program, script), stdin=subprocess.DEVNULL, stdout=out,
            stderr=err, start_new_session=True,
        )  # fmt: skip
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if time.perf_counter() - began > limit_s:
                os.killpg(process.pid, 9)
            time.sleep(0.02)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        output = re.sub(program.times, "", out.read(), flags=re.MULTILINE) if program.times else out.read()
        return Run(process.returncode, usage.ru_utime + usage.ru_stime, wall_s, output, err.read())


def _variables(program: Program, script: Path) -> dict[str, str]:
    """Return the variables of a program: the caller's without settings of JAX, the CPU, and no window."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "JAXPERF_"))}
    top = script.parents[len(Path(program.path).parts) - 1]
    paths = os.pathsep.join((str(top), str(ROOT)))
    ours = {
        "PYTHONPATH": paths, "JAX_PLATFORMS": "cpu", "MPLBACKEND": "agg", "TF_CPP_MIN_LOG_LEVEL": "3",
        "PYTHONHASHSEED": "0",
    }  # fmt: skip
    return inherited | ours | dict(program.variables)


def same_output(plain: str, watched: str, again: str | None = None) -> bool:
    """Return whether two runs printed the same, but for times, and what differs between equal runs, too.

    Args:
      plain: what the program printed.
      watched: what it printed under watch.
      again: what it printed a second time without watch; where the two differ, it is not compared.
    """
    plain, watched = _settled(plain), _settled(watched)
    again = again if again is None else _settled(again)
    if plain == watched:
        return True
    if again is None:
        return False
    words, second, under = plain.split(), again.split(), watched.split()
    if len(words) == len(second):
        return len(words) == len(under) and all(a == w or a != b for a, b, w in zip(words, second, under))
    return _skeleton(plain) == _skeleton(watched)


def likeness(before: str, after: str, again: str) -> str:
    """Return "same" or "other" for what a changed program printed, or "close": numbers within 0.1 %."""
    if same_output(before, after, again):
        return "same"
    words, others = _settled(before).split(), _settled(after).split()
    return "close" if len(words) == len(others) and all(map(_close, words, others)) else "other"


def _close(word: str, other: str) -> bool:
    if NUMBER.sub("0", word) != NUMBER.sub("0", other):
        return False
    pairs = zip(NUMBER.findall(word), NUMBER.findall(other), strict=True)
    return all(a == b or math.isclose(_number(a), _number(b), rel_tol=CLOSE) for a, b in pairs)


def _number(text: str) -> float:
    return float(int(text, 16)) if text.startswith("0x") else float(text.replace(",", "").rstrip("."))


def _settled(text: str) -> str:
    """Return a text without times, and without the lines of a progress bar."""
    lines = (line.rpartition("\r")[2] for line in text.split("\n") if not BAR.search(line))
    return TIME.sub("0 s", "\n".join(lines))


def _skeleton(text: str) -> list[str]:
    """Return the different words of a text whose number of lines varies, without its numbers."""
    return sorted({NUMBER.sub("0", word) for word in text.split()})


def described(found: Found, script: str, source: Path) -> dict[str, Any]:
    """Return what is kept of a finding, with its place in the program as it is published."""
    name = Path(found.file).name
    place = place_in(found.line, source) if name == Path(script).name else f"{name}, line {found.line}"
    return asdict(found) | {"file": name, "place": place}


# --- environments


def python_of(environment: Environment, folder: Path) -> Path:
    """Return the interpreter of an environment, which uv makes unless it is there.

    Raises:
      JaxperfError: uv cannot install it.
    """
    python = folder / environment.name / "bin" / "python"
    if not python.exists():
        say(f"making the environment {environment.name} in {python.parents[1]}")
        needs = [*environment.packages, "psutil", "rich", "scipy", "numpy"]
        pip = ["--quiet", "--python", str(python)]
        steps = [
            ["venv", "--quiet", "--python", environment.python, str(python.parents[1])],
            ["pip", "install", *pip, *needs],
        ]
        for old, new in environment.replaced.items():
            steps.append(["pip", "uninstall", *pip, old])
            steps.append(["pip", "install", "--reinstall", "--no-deps", *pip, new])
        for words in steps:
            done = subprocess.run([sys.executable, "-m", "uv", *words], capture_output=True, text=True)
            if done.returncode:
                last = (done.stderr.strip().splitlines() or ["uv said nothing"])[-1]
                raise JaxperfError(f"uv {' '.join(words[:2])} failed: {last}")
    return python


def installed(python: Path, packages: Sequence[str]) -> dict[str, str]:
    """Return the versions of Python and of packages in an environment."""
    wanted = sorted({*STATED, *(re.split(r"[<>=!\[ ]", name)[0].lower() for name in packages)})
    code = (
        "import importlib.metadata as m, json, platform; "
        "all = {d.metadata['Name'].lower(): d.version for d in m.distributions()}; "
        f"found = {{n: all[n] for n in {wanted!r} if n in all}}; "
        "print(json.dumps({'python': platform.python_version()} | found))"
    )
    return dict(json.loads(subprocess.run([python, "-c", code], capture_output=True, text=True).stdout))


# --- what is measured


def watch_it(program: Program, python: Path, clones: Path) -> dict[str, Any]:
    """Run a program with and without watch; return what is kept of it."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        script = make_ready(program, clones, folder / "plain")
        source = script.with_suffix(Path(program.path).suffix)
        report = folder / "watch.json"
        with other_load() as load:
            plain = run_program(python, script, program)
        script = make_ready(program, clones, folder / "watched")
        watched = run_program(python, script, program, report)
        same, again = same_output(plain.output, watched.output), None
        if not same and plain.status == watched.status:
            again = run_program(python, make_ready(program, clones, folder / "again"), program)
            same = same_output(plain.output, watched.output, again.output)
        kept: dict[str, Any] = {
            "status": [plain.status, watched.status],
            "same_output": same,
            "cpu_s": [round(plain.cpu_s, 2), round(watched.cpu_s, 2)],
            "wall_s": [round(plain.wall_s, 2), round(watched.wall_s, 2)],
            "others": round(load.others + load.stolen, 2),
            "findings": [],
            "notes": [],
        }
        if again:
            kept["again_cpu_s"] = round(again.cpu_s, 2)
        if plain.status:
            kept["error"] = _last_error(plain.errors)
        if not same:
            kept["outputs"] = [plain.output[-600:], watched.output[-600:]]
        if report.exists():
            kept["findings"] = [described(found, script.name, source) for found in findings(report)]
            kept["notes"] = notes(report)
        kept["report"] = _report_part(watched.errors)
        return kept


def _last_error(errors: str) -> str:
    """Return the line that names the exception with which a program ended."""
    lines = errors.strip().splitlines()
    named = [line for line in lines if re.match(r"[\w.]+(Error|Exception)\b", line)]
    return (named or lines or [""])[-1][:300]


def _report_part(errors: str) -> str:
    return errors[errors.rfind("\nwatch: ") + 1 :] if "\nwatch: " in errors else ""


def repair_it(program: Program, python: Path, clones: Path, rounds: int) -> dict[str, Any]:
    """Run a program before and after each change, in turns; return the seconds of each round, by change."""
    with tempfile.TemporaryDirectory() as name:
        folder, draw = Path(name), random.Random(program.name)
        scripts = {"": make_ready(program, clones, folder / "before")}
        for i, repair in enumerate(program.repairs):
            scripts[repair.name] = make_ready(program, clones, folder / f"after-{i}", repair.edits)
        rows: dict[str, list[Run]] = {key: [] for key in scripts}
        with other_load() as load:
            for _ in range(rounds):
                for key in turns(list(scripts), draw):
                    rows[key].append(run_program(python, scripts[key], program))
        before = rows.pop("")
        return {
            key: {
                "status": runs[0].status,
                "output": likeness(before[0].output, runs[0].output, before[-1].output),
                "before_cpu_s": [round(run.cpu_s, 2) for run in before],
                "cpu_s": [round(run.cpu_s, 2) for run in runs],
                "others": round(load.others, 2),
            }
            | ({"error": _last_error(runs[0].errors)} if runs[0].status else {})
            for key, runs in rows.items()
        }


def main() -> int:
    """Run what the flags ask for; return the exit status."""
    parser = Parser("run.py", __doc__ or "")
    parser.add_argument("--clones", type=Path, metavar="DIR", help="where the repositories' clones are")
    parser.add_argument("--only", default="", metavar="NAME,...", help="only these programs")
    parser.add_argument("--repairs", action="store_true", help="measure the changes of the table, too")
    parser.add_argument("--changes", default="", metavar="NAME,...",
        help="of the changes, only these, without watch; in place of --repairs")  # fmt: skip
    parser.add_argument("--rounds", type=whole(1), default=6, metavar="N",
        help="turns of each change; an interval needs 6")  # fmt: skip
    parser.add_argument("--again", action="store_true", help="run programs that are in the output, too")
    parser.add_argument("--environments", type=Path, default=cache_folder() / "field", metavar="DIR",
        help="where the environments are kept")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("results/field.json"), metavar="FILE")
    parser.add_argument("--list", action="store_true", help="print the programs, and run nothing")
    options = parser.parse_args(sys.argv[1:])
    programs, environments = read_table()
    if options.list:
        for program in programs.values():
            print(f"{program.name}: {program.repository} {program.path} {program.commit}")
        return 0
    names = options.only.split(",") if options.only else list(programs)
    if unknown := [name for name in names if name not in programs]:
        raise JaxperfError(f"no program {unknown[0]!r}; --list prints all")
    if options.clones is None:
        raise JaxperfError("give the folder with the clones: --clones DIR")
    log = _load(options.out)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    wanted = set(filter(None, options.changes.split(",")))
    for name in names:
        program, kept = programs[name], log["programs"].get(name, {})
        clone_of(program.repository, options.clones)
        environment = environments[program.environment]
        python = python_of(environment, options.environments.resolve())
        if not wanted and (options.again or "watch" not in kept):
            watched = watch_it(program, python, options.clones) | {"jaxperf": commit(ROOT)}
            say(f"{name}: {_summary(watched)}")
            versions = installed(python, environment.packages)
            _keep(options.out, name, {"versions": versions, "watch": watched})
        changes = tuple(r for r in program.repairs if r.name in wanted or (options.repairs and not wanted))
        known = kept.get("repairs", {}).keys()
        if changes and (options.again or not {r.name for r in changes} <= known):
            chosen = replace(program, repairs=changes)
            rows = repair_it(chosen, python, options.clones, options.rounds)
            said = (f"{key} {row['before_cpu_s']} to {row['cpu_s']}" for key, row in rows.items())
            say(f"{name}: {', '.join(said)}")
            _keep(options.out, name, {"repairs": rows})
    return 0


def _keep(path: Path, name: str, part: dict[str, Any]) -> None:
    """Write a part of what is known of a program into the log, which another run may have changed."""
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        log = _load(path)
        kept = log["programs"].setdefault(name, {})
        repairs = kept.get("repairs", {}) | part.get("repairs", {})
        kept |= part | ({"repairs": repairs} if repairs else {})
        write_whole(path, json.dumps(log, indent=1) + "\n")


def _summary(kept: dict[str, Any]) -> str:
    found = "; ".join(f"{f['cause']} at {f['file']}:{f['line']} ({f['saves']})" for f in kept["findings"])
    ran = f"status {kept['status']}, same output: {kept['same_output']}, CPU s {kept['cpu_s']}"
    error = f"; {kept['error']}" if "error" in kept else ""
    return f"{ran}: {found or 'no finding'}{error}"


def _load(path: Path) -> dict[str, Any]:
    """Return the kept log that a run goes on with, or a new one.

    Raises:
      JaxperfError: the file is no such log, or was made on another machine.
    """
    here = {"cpu": cpu_model(), "cores": cores()}
    if not path.exists():
        return {"schema": 1, "made": datetime.date.today().isoformat(), "machine": here, "programs": {}}
    try:
        log = dict(json.loads(path.read_text()))
        same = log["machine"] == here and isinstance(log["programs"], dict)
    except (ValueError, KeyError, TypeError):
        raise JaxperfError(f"{path} is no log of this program; give another --out") from None
    if not same:
        raise JaxperfError(f"{path} was made on another machine; give another --out")
    return log


if __name__ == "__main__":
    raise SystemExit(ended(main))
