"""Run the probes on several versions of JAX, in turns, and write one JSON file.

    python benchmarks/versions/run.py        # all probes on all versions: about 20 minutes
    python benchmarks/versions/run.py --versions 0.11.0,0.11.1,newest --probes path_written_in_a_loop

Each version has an environment of its own, made by uv from the package index and kept. A probe is prepared on
all versions; then, in each round, all versions have their turn in a random order, so that a machine that
drifts does not look like a release. What is in the output already is left out, so a run that was ended goes
on where it was. The output's schema stands in README.md.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import math
import os
import random
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(ROOT)]

import psutil

from jaxperf.errors import JaxperfError
from jaxperf.flags import Parser, number, whole
from jaxperf.known_faults import release
from jaxperf.measure.other_load import BUSY, other_load
from jaxperf.process import cache_folder, ended, how_it_ended, program_name, say
from jaxperf.result.machine import cores, cpu_model
from jaxperf.result.ratio import ratio_of, turns
from jaxperf.result.store import write_whole

VERSIONS = "0.5.3,0.6.2,0.7.0,0.7.1,0.7.2,0.8.2,0.9.1,0.10.1,0.10.2,0.11.0,0.11.1,0.11.2,newest"
PYTHON = "3.12"  # of all environments; the newest JAX needs it, and the oldest has wheels for it
BESIDE = ("flax", "numpy", "scipy", "psutil", "rich")
LIMIT_S = 90.0  # for one answer
LIMIT_BYTES = 6 << 30  # of a worker's memory
OTHERS_S = 0.3  # of looking at what other programs use
START = "start"
CHANGE = 1.3  # times, from which on a proven difference counts


class EndedError(Exception):
    """A worker ended, or was ended, before it answered."""


class Version:
    """One version of JAX: its environment, and the worker that runs there."""

    def __init__(self, name: str, python: Path, installed: dict[str, str], log: Path) -> None:
        self.name, self.python, self.installed, self.log = name, python, installed, log
        self.worker: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request to the worker, which is started if there is none, and return the answer.

        Raises:
          EndedError: it crashed, or took too long or too much memory.
        """
        if self.worker is None:
            with self.log.open("w") as log:
                self.worker = subprocess.Popen(
                    [self.python, "-P", str(HERE / "worker.py")], stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE, stderr=log, text=True, env=_environment(),
                )  # fmt: skip
        worker = self.worker
        assert worker.stdin is not None and worker.stdout is not None
        try:
            print(json.dumps(request), file=worker.stdin, flush=True)
        except BrokenPipeError:
            raise EndedError(self._how()) from None
        deadline = time.monotonic() + LIMIT_S
        while not select.select([worker.stdout], [], [], 0.2)[0]:
            if time.monotonic() > deadline:
                self.close()
                raise EndedError(f"no answer in {LIMIT_S:.0f} s")
            if _memory_of(worker.pid) > LIMIT_BYTES:
                self.close()
                raise EndedError(f"takes more than {LIMIT_BYTES >> 30} GiB of memory")
        line = worker.stdout.readline()
        if not line:
            raise EndedError(self._how())
        return dict(json.loads(line))

    def _how(self) -> str:
        assert self.worker is not None
        status = self.worker.wait()
        for stream in (self.worker.stdin, self.worker.stdout):
            with contextlib.suppress(OSError):  # what was not sent to it is lost
                stream.close()  # type: ignore[union-attr]
        self.worker = None
        last = self.log.read_text(errors="replace").strip().splitlines()[-1:]
        return how_it_ended(128 - status) if status < 0 or not last else last[0][:200]

    def close(self) -> None:
        if self.worker is not None:
            self.worker.kill()
            self.worker.communicate()
            self.worker = None


def _memory_of(pid: int) -> int:
    try:
        return int(psutil.Process(pid).memory_info().rss)
    except psutil.Error:
        return 0


def _environment() -> dict[str, str]:
    """Return the environment of workers: the caller's without settings of JAX and XLA, and the CPU."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_"))}
    return inherited | {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONDONTWRITEBYTECODE": ""}


# --- environments


def environments() -> Path:
    return Path(os.environ.get("JAXPERF_VERSIONS") or cache_folder() / "versions").resolve()


def prepare_environment(name: str, folder: Path) -> Version:
    """Return a version with its environment, which is made unless it is there.

    Raises:
      JaxperfError: uv is missing, or it cannot install this version.
    """
    folder.mkdir(parents=True, exist_ok=True)
    python = folder / name / "bin" / "python"
    if not python.exists() or not _installed(python):
        say(f"making the environment of JAX {name} in {folder / name}")
        wanted = ["jax", "jaxlib"] if name == "newest" else [f"jax=={name}", f"jaxlib=={name}"]
        _uv("venv", "--quiet", "--clear", "--python", PYTHON, str(folder / name))
        _uv("pip", "install", "--quiet", "--python", str(python), *wanted, *BESIDE)
    elif name == "newest":
        _uv("pip", "install", "--quiet", "--upgrade", "--python", str(python), "jax", "jaxlib", "flax")
    installed = _installed(python)
    if not installed:
        raise JaxperfError(f"{folder / name} has no JAX; remove this folder")
    return Version(installed["jax"], python, installed, folder / f"{name}.log")


def _installed(python: Path) -> dict[str, str]:
    """Return the versions of the packages in an environment; {} if JAX is not there."""
    names = ("jax", "jaxlib", *BESIDE)
    code = (
        "import importlib.metadata as m, json, platform; "
        "all = {d.metadata['Name'].lower(): d.version for d in m.distributions()}; "
        f"wanted = {{n: all[n] for n in {names!r} if n in all}}; "
        "print(json.dumps({'python': platform.python_version()} | wanted))"
    )
    done = subprocess.run([python, "-c", code], capture_output=True, text=True)
    versions = json.loads(done.stdout) if done.returncode == 0 else {}
    return versions if {"jax", "jaxlib"} <= versions.keys() else {}


def _uv(*words: str) -> None:
    uv = [sys.executable, "-m", "uv"]
    if subprocess.run([*uv, "--version"], capture_output=True).returncode:
        if not shutil.which("uv"):
            raise JaxperfError("uv makes the environments and is not installed: python -m pip install uv")
        uv = ["uv"]
    done = subprocess.run([*uv, *words], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["uv said nothing"])[-1]
        raise JaxperfError(f"uv {' '.join(words[:2])} failed: {last}")


# --- probes


def run_probe(
    name: str, kind: str, versions: list[Version], rounds: int, seconds: float
) -> tuple[dict[str, Any], float]:
    """Return what each version answers: rows of values, one a round, or why there are none.

    And the cores that other programs used, before the first turn, while all workers wait.
    """
    answers: dict[str, dict[str, Any]] = {}
    for version in versions:
        try:
            answers[version.name] = {} if kind == START else version.ask({"prepare": name})
        except EndedError as e:
            answers[version.name] = {"ended": str(e)}
    able = [version for version in versions if not answers[version.name]]
    rows: dict[str, list[dict[str, float]]] = {version.name: [] for version in able}
    with other_load() as load:
        time.sleep(OTHERS_S)
    draw = random.Random(name)
    for _ in range(rounds if able else 0):
        for version in turns(able, draw):
            if answers[version.name]:
                continue  # it ended in an earlier round
            try:
                answer = _start(version, name) if kind == START else version.ask({"turn": seconds})
            except EndedError as e:
                answer = {"ended": str(e)}
            if "values" in answer:
                rows[version.name].append(answer["values"])
            else:
                answers[version.name] = answer
    for version in able:
        if not answers[version.name]:
            taken = rows[version.name]
            answers[version.name] = {"values": {key: [row[key] for row in taken] for key in taken[0]}}
    return answers, load.others + load.stolen


def _start(version: Version, name: str) -> dict[str, Any]:
    """Return the seconds of a new process that runs a probe's code."""
    code = START_CODE[name]
    began = time.perf_counter()
    done = subprocess.run([version.python, "-c", code], env=_environment(), capture_output=True, text=True)
    seconds = time.perf_counter() - began
    if done.returncode:
        return {"cannot": (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1][:200]}
    return {"values": {"": seconds}}


START_CODE: dict[str, str] = {}


def main() -> int:
    """Run what the flags ask for; return the exit status."""
    parser = Parser("run.py", __doc__ or "")
    parser.add_argument(
        "--versions",
        default=VERSIONS,
        metavar="V,V,...",
        help="versions of JAX, newest, or kept: the newest of the kept log",
    )
    parser.add_argument("--probes", default="", metavar="NAME,...", help="only these; all by default")
    parser.add_argument("--rounds", type=whole(1), default=7, metavar="N",
        help="turns of each version; an interval needs 6")  # fmt: skip
    parser.add_argument("--seconds", type=number(0, above=True), default=0.12, metavar="S",
        help="of one turn")  # fmt: skip
    parser.add_argument("--out", type=Path, default=Path("results/versions.json"), metavar="FILE")
    parser.add_argument("--environments", type=Path, default=environments(), metavar="DIR",
        help="where the environments are kept")  # fmt: skip
    parser.add_argument("--fail-if-slower", action="store_true",
        help="print what is 1.3 times slower, or no longer right, in the last version than in the first, and "
        "end with status 1 if there is any")  # fmt: skip
    parser.add_argument("--list", action="store_true", help="print the probes, and run nothing")
    options = parser.parse_args(sys.argv[1:])

    import operations  # noqa: F401
    import reported  # noqa: F401
    from registry import PROBES

    if options.list:
        for probe in PROBES.values():
            print(f"{probe.name}: {probe.about}{f' ({probe.issue})' if probe.issue else ''}")
        return 0
    names = options.probes.split(",") if options.probes else list(PROBES)
    unknown = [name for name in names if name not in PROBES]
    if unknown:
        raise JaxperfError(f"no probe {unknown[0]!r}; `{program_name()} --list` prints all")
    START_CODE.update({p.name: p.make() for p in PROBES.values() if p.kind == START})
    folder = options.environments.resolve()
    wanted = [_of_kept_log() if name == "kept" else name for name in options.versions.split(",")]
    versions = [prepare_environment(name, folder) for name in dict.fromkeys(wanted)]
    versions = list({version.name: version for version in versions}.values())
    settings = {"seconds": options.seconds}
    log = _load(options.out, settings)
    log["versions"].update({version.name: version.installed for version in versions})
    options.out.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        for version in versions:
            stack.callback(version.close)
        for i, name in enumerate(names):
            probe = PROBES[name]
            kept = log["probes"].get(name, {}).get("versions", {})
            if all(version.name in kept for version in versions):
                continue
            answers, others = run_probe(name, probe.kind, versions, options.rounds, options.seconds)
            log["probes"][name] = {
                "kind": probe.kind, "family": probe.family, "about": probe.about, "issue": probe.issue,
                "told": probe.told, "others": round(others, 2), "versions": answers,
            }  # fmt: skip
            write_whole(options.out, json.dumps(log, indent=1) + "\n")
            minutes = (time.monotonic() - began) / 60
            say(f"{i + 1} of {len(names)}, {minutes:.0f} min: {name}{_remarks(answers)}")
    if not options.fail_if_slower:
        return 0
    lines = list(worse(log, versions[0].name, versions[-1].name))
    print("\n".join(lines or [f"nothing is slower or wrong with {versions[-1].name}"]))
    return int(bool(lines))


def _of_kept_log() -> str:
    kept = json.loads((ROOT / "benchmarks" / "results" / "versions.json").read_text())
    return str(max(kept["versions"], key=release))


def worse(log: dict[str, Any], old: str, new: str) -> Iterator[str]:
    """Yield a line for each row that is proven slower, and each result that is no longer right."""
    for name, probe in log["probes"].items():
        before, after = probe["versions"].get(old, {}), probe["versions"].get(new, {})
        for row, values in after.get("values", {}).items():
            if row not in before.get("values", {}):
                continue
            ratio = ratio_of([b / a for a, b in zip(before["values"][row], values, strict=True)])
            if ratio.above(CHANGE):
                yield f"{name}{f', {row}' if row else ''}: {ratio} times the time with {old}"
        if after.get("bytes", 0) > CHANGE * before.get("bytes", math.inf):
            yield f"{name}: {after['bytes']:,} bytes, {before['bytes']:,} with {old}"
        said = [after.get(key, "") for key in ("wrong", "ended", "cannot")]
        if any(said) and not any(before.get(key) for key in ("wrong", "ended", "cannot")):
            yield f"{name}: {''.join(said)}, as it was not with {old}"


def _remarks(answers: dict[str, dict[str, Any]]) -> str:
    """Return what a log's line says about versions that did not do what was asked."""
    said = {
        version: answer.get("cannot") or answer.get("ended") or answer.get("wrong")
        for version, answer in answers.items()
    }
    return "".join(f"; {version}: {text}" for version, text in said.items() if text)


def _load(path: Path, settings: dict[str, float]) -> dict[str, Any]:
    """Return the kept log that a run goes on with, or a new one.

    Raises:
      JaxperfError: the file is no such log, or was made with other settings or on another machine.
    """
    here = {"cpu": cpu_model(), "cores": cores()}
    if not path.exists():
        made = datetime.date.today().isoformat()
        return {
            "schema": 1, "made": made, "machine": here, "settings": settings, "busy_cores": BUSY,
            "versions": {}, "probes": {},
        }  # fmt: skip
    try:
        log = dict(json.loads(path.read_text()))
        same = log["settings"] == settings and log["machine"] == here and isinstance(log["probes"], dict)
    except (ValueError, KeyError, TypeError):
        raise JaxperfError(f"{path} is no log of this program; give another --out") from None
    if not same:
        raise JaxperfError(f"{path} was made with other settings or on another machine; give another --out")
    return log


if __name__ == "__main__":
    raise SystemExit(ended(main))
