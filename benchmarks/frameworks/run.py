"""JAX, MXNet and PyTorch at the same work, in turns: `python benchmarks/frameworks/run.py --json FILE`.

Each framework is a live process. A row is timed only if it computes what JAX computes. uv makes the
environments of MXNet and PyTorch at the first run; `--python torch=/path/python3` takes a Python that has
PyTorch already, without any network. A framework that cannot be had is one line. docs/peers.md says more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where this Python does not have jaxperf installed

import environments
import numpy as np
import psutil
from environments import UnavailableError
from processes import LostError, Process, System, TaskError
from results import BASE, Row, Study, agreement, compare_answers
from workloads import COMPILED, ONEDNN, SMOKE, Sizes, Workload, workloads

from jaxperf import flags
from jaxperf.data import fashion_mnist
from jaxperf.errors import JaxperfError
from jaxperf.process import mistakes_end
from jaxperf.result import turns
from jaxperf.result.machine import available_cores, cpu_model
from jaxperf.result.store import write_whole

IMAGES = 2048  # to train on, on a CPU
PREPARE_S, TURN_S = 180.0, 60.0  # that one may take
ROUNDS_S = 30.0  # for the rounds of a workload
GPU_ROUNDS_S, GPU_SECONDS = 10.0, 200.0
STARTS = 0.7  # part of the seconds that are left in which the first workloads of a GPU start
LEAST_START_S = 10.0  # that a start which has begun may take: one that is late costs its process's rows
LEAST_S = 30.0  # that must be left for further workloads of a GPU to begin
SETTLE_S = 0.02  # between turns, in which the last system's threads stop spinning
BUSY_PERCENT = 10
# From jaxlib 0.12 on. The last keeps XLA's default library from taking single convolutions first.
ONEDNN_FLAGS = (
    "--xla_cpu_use_onednn=true",
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution",
)
Say = Callable[[str], None]


class Comparison:
    """Live processes of the systems, and the rows that they do.

    Args:
      systems: by name; JAX is the first.
      scratch: where the processes work.
      environment: environment variables of all.
      cores: processors that every system may use.
      gpu: whether JAX and PyTorch compute on one.
      rounds_s: after so many seconds of a workload, no round begins after the sixth.
      deadline: when the comparison must end, by `time.monotonic`; math.inf for never.
      say: gets a line for each row that is lost.
    """

    def __init__(
        self,
        systems: Sequence[System],
        *,
        scratch: Path,
        environment: dict[str, str],
        cores: Sequence[int],
        gpu: bool = False,
        rounds_s: float = ROUNDS_S,
        deadline: float = math.inf,
        say: Say = print,
    ) -> None:
        self.systems = {system.name: system for system in systems}
        self.scratch, self.environment, self.cores = scratch, environment, list(cores)
        self.gpu, self.rounds_s, self.deadline, self.say = gpu, rounds_s, deadline, say
        self.versions: dict[str, dict[str, str]] = {}
        self._live: dict[tuple[str, str], Process] = {}
        self._missing: dict[str, str] = {}

    def threads(self, devices: int) -> int:
        """Return the threads that each of `devices` devices gets: an equal share of the cores."""
        return max(1, len(self.cores) // devices)

    def run(self, work: Sequence[Workload]) -> Generator[Study]:
        """Yield the results of each workload: start its rows, check their answers, and take turns.

        On a CPU, each workload has new processes, since what a process did before can change its speed: where
        MXNet has once copied a large array, libgomp has more threads than cores. On a GPU, the main workloads
        start together, since one after the other would take too long.
        """
        main = [w for w in work if w.main] if self.gpu else []
        for together in ([main] if main else []) + [[w] for w in work if w not in main]:
            if time.monotonic() > self.deadline - (LEAST_S if self.gpu else 0):
                self.say(f"no time for {', '.join(w.name for w in together)}")
                continue
            rows = {workload.name: self.rows(workload) for workload in together}
            try:
                self.start([row for of_workload in rows.values() for row in of_workload])
                for i, workload in enumerate(together):
                    self.check(rows[workload.name])
                    share = (self.deadline - time.monotonic()) / (len(together) - i)
                    self.take_turns(workload, rows[workload.name], until=time.monotonic() + share)
                    threads = 0 if self.gpu else self.threads(workload.devices)
                    yield Study(workload, rows[workload.name], threads)
            finally:
                for process in self._live.values():
                    process.end()
                self._live.clear()

    def rows(self, workload: Workload) -> list[Row]:
        """Return a workload's rows, of the systems that are there."""
        return [
            Row(system, name, workload, self.lane(workload, name), calls=workload.calls)
            for system, names in workload.configurations.items()
            for name in names
            if system in self.systems
        ]

    def lane(self, workload: Workload, configuration: str) -> str:
        """Return "" for a system's common process, else the process of its own that torch.compile has."""
        return f"compile {workload.name}" if self.gpu and configuration in COMPILED else ""

    def start(self, rows: Sequence[Row]) -> None:
        """Start rows in order. torch.compile's start side by side with each other and with the others.

        XLA and eager PyTorch time kernels on the GPU while they start, so they do not start at the same time.
        """
        begin_by = time.monotonic() + STARTS * (self.deadline - time.monotonic())
        lanes: dict[str, list[Row]] = {}
        for row in rows:
            lanes.setdefault(row.lane, []).append(row)
        common = sorted(lanes.pop("", []), key=lambda row: list(self.systems).index(row.system))

        def start_all(rows: Sequence[Row], limit: Callable[[], float]) -> None:
            for row in rows:
                if time.monotonic() > begin_by:
                    self.lose(row, "there was no time to start it")
                elif not row.lost:
                    self.attempt(row, partial(self.prepare, row, limit()))

        with ThreadPoolExecutor(len(lanes) + 1) as threads:
            jobs = [
                threads.submit(start_all, lane, lambda: max(LEAST_START_S, begin_by - time.monotonic()))
                for lane in lanes.values()
            ]
            try:
                start_all(
                    common, lambda: min(PREPARE_S, max(LEAST_START_S, self.deadline - time.monotonic()))
                )
                for job in jobs:
                    job.result()
            except BaseException:
                for process in list(self._live.values()):
                    process.kill()  # else an interrupt would wait for what they are doing
                raise

    def prepare(self, row: Row, limit_s: float) -> None:
        """Build and compile a row, and read what it computes."""
        path = self.scratch / f"answers {row.system} {row.lane}.npz".replace(" ", "-")
        path.unlink(missing_ok=True)  # so that another row's answers are never read instead
        value = self.process(row).ask(
            "prepare",
            limit_s=limit_s,
            key=row.key,
            settings=dict(row.workload.settings),
            configuration=row.configuration,
            answers=str(path),
        )
        row.first_s = _number(value, "first_s")
        with np.load(path, allow_pickle=False) as file:
            row.answers = {name: file[name] for name in file.files}

    def check(self, rows: Sequence[Row]) -> None:
        """Compare answers: the first is JAX's, and all others, including JAX's own, are compared with it."""
        answered = [row for row in rows if row.answers is not None and not row.lost]
        base = next((row.answers for row in answered if row.system == BASE), None)
        for row in answered:
            assert row.answers is not None
            if base is None:
                self.lose(row, "there is no answer of JAX's to agree with")
                continue
            try:
                row.difference = compare_answers(base, row.answers)
            except ValueError as e:
                self.lose(row, f"not timed: {e}")
                continue
            if row.difference > row.workload.rtol:
                allowed = f"allowed is {row.workload.rtol:.2g}"
                self.lose(row, f"not timed: it differs from JAX by {row.difference:.2g}, {allowed}")

    def take_turns(self, workload: Workload, rows: Sequence[Row], until: float) -> None:
        """Let rows take turns, round by round in random order; round 0 is warm-up.

        After the sixth round, with which an interval is possible, none begins if the workload has had its
        time, and none at all after the deadline. Rounds that the caller counted have all the time.
        """
        began, draw = time.monotonic(), random.Random()
        for number in range(workload.rounds + 1):
            now = time.monotonic()
            long_enough = number > 6 and (now - began > self.rounds_s or now > until)
            if long_enough or now > self.deadline:
                break
            for row in turns([row for row in rows if not row.lost and row.answers is not None], draw):
                if not row.lost:  # its process may have been lost in this very round
                    self.attempt(row, partial(self.take_value, row, number))

    def take_value(self, row: Row, number: int) -> None:
        """Take the turns of one value of a row, and keep their means; those of round 0 are warm-up."""
        answers = [self.take_turn(row) for _ in range(row.workload.bursts)]
        seconds = {
            q: statistics.fmean(a[q] for a in answers) for q in row.workload.quantities if q in answers[0]
        }
        if number == 0:
            row.warmup = seconds
            row.calls = max(row.calls, math.ceil(row.workload.turn_s / max(seconds.values())))
            return
        for quantity, figure in seconds.items():
            row.values.setdefault(quantity, []).append(figure)
            used = [float(a.get(f"cores {quantity}", a.get("cores", 0))) for a in answers]
            if all(used):
                row.cores.setdefault(quantity, []).append(statistics.fmean(used))

    def take_turn(self, row: Row) -> dict[str, Any]:
        """Let a row take a turn, and return its process's answer, with seconds of each quantity."""
        time.sleep(SETTLE_S)
        workload = row.workload
        answer = self.process(row).ask(
            "turn",
            limit_s=TURN_S,
            key=row.key,
            calls=row.calls,
            lead=workload.lead * row.calls // workload.calls,
        )
        seconds = {q: _number(answer, q) for q in workload.quantities if q in answer}
        if not seconds or min(seconds.values()) <= 0:
            raise TaskError(f"its seconds are {seconds}")
        return {**answer, **seconds}

    def attempt(self, row: Row, work: Callable[[], object]) -> None:
        """Do the work; if it fails, the row is lost, with one line, and so are those of a lost process."""
        try:
            work()
        except (TaskError, LostError, OSError, ValueError) as e:
            self.lose(row, str(e))

    def lose(self, row: Row, why: str) -> None:
        """Note that a row is not timed any more, and why."""
        row.lost = why
        row.values.clear()
        self.say(f"{row.workload.name}: {row.system} {row.configuration} is lost: {why}")

    def process(self, row: Row) -> Process:
        """Return the live process of a row; it is started when first asked for."""
        key = row.system, row.lane
        if row.system in self._missing:
            raise TaskError(self._missing[row.system])
        if key not in self._live:
            devices = row.workload.devices
            threads = self.threads(devices)
            firsts = [i * threads % len(self.cores) for i in range(devices)]
            start = {
                "cores": self.cores,
                "threads": threads,
                "devices": devices,
                "shares": [self.cores[first : first + threads] for first in firsts],
                "gpu": self.gpu,
            }
            if self.gpu:  # the cores are for whatever compiles
                del start["cores"], start["threads"]
            system = self.systems[row.system]
            log = self.scratch / f"log {row.system} {row.lane}".replace(" ", "-")
            variables = self.variables(row, threads)
            try:
                self._live[key] = Process(system, start=start, environment=variables, log=log)
            except (TaskError, LostError) as e:
                self._missing[row.system] = str(e)  # it would not start the next time either
                raise
            self.versions.setdefault(row.system, self._live[key].versions)
        return self._live[key]

    def variables(self, row: Row, threads: int) -> dict[str, str]:
        variables = {**self.environment, "PYTHONUNBUFFERED": "1"}
        if self.systems[row.system].python != Path(sys.executable):
            # What is meant for our own Python leads another one to the wrong packages.
            variables = {k: v for k, v in variables.items() if k not in environments.OF_OUR_PYTHON}
            variables["PYTHONNOUSERSITE"] = "1"
        # Compile times are those of a first start.
        variables["TORCHINDUCTOR_CACHE_DIR"] = str(self.scratch / f"inductor {row.lane}".replace(" ", "-"))
        if not self.gpu:
            names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
            variables |= dict.fromkeys(names, str(threads))
        if self.systems[row.system].script != environments.script(BASE):
            return {**variables, "GLOO_SOCKET_IFNAME": "lo"}
        if self.gpu:  # PyTorch needs memory, too
            return {**variables, "JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        # JAX counts the cores itself, and its devices share one pool of as many threads.
        return {**variables, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(row.workload.devices)}


def _number(value: dict[str, Any], name: str) -> float:
    figure = value.get(name)
    if isinstance(figure, bool) or not isinstance(figure, int | float) or not math.isfinite(figure):
        raise TaskError(f"its {name or 'time'} is {str(figure)[:40]!r}")
    return float(figure)


def shared_environment(say: Say) -> dict[str, str]:
    """Return the environment variables of all systems: the user's own, without flags for oneDNN.

    OpenMP's threads spin while they wait for each other. Where another program has the core, each wait then
    takes a time slice of the scheduler: a PyTorch sum of 40,000 numbers took 16 ms instead of 12 us.
    """
    shared = {name: value for name, value in os.environ.items() if name != "JAX_COMPILATION_CACHE_DIR"}
    words = shared.get("XLA_FLAGS", "").split()
    shared["XLA_FLAGS"] = " ".join(word for word in words if word not in ONEDNN_FLAGS)
    busy = psutil.cpu_percent(interval=1)
    if busy > BUSY_PERCENT and "OMP_WAIT_POLICY" not in shared:
        say(f"others use {busy:.0f}% of the machine: OpenMP's threads sleep while they wait")
        shared["OMP_WAIT_POLICY"] = "passive"
    return shared


def find_systems(
    names: Sequence[str],
    pythons: dict[str, Path],
    shared: dict[str, str],
    *,
    on_device: bool,
    onednn: bool,
    say: Say,
) -> list[System]:
    """Return JAX, and every framework that can be had; the others are one line each."""
    systems = [System(BASE, environments.python(BASE, pythons, say), environments.script(BASE))]
    if onednn:
        x86 = platform.machine().lower() in ("x86_64", "amd64")
        if x86 and tuple(map(int, metadata.version("jaxlib").split(".")[:2])) >= (0, 12):
            flags = " ".join((shared["XLA_FLAGS"], *ONEDNN_FLAGS)).strip()
            systems.append(dataclasses.replace(systems[0], name=ONEDNN, variables={"XLA_FLAGS": flags}))
        else:
            say(f"{ONEDNN} is left out: XLA has the flags from jaxlib 0.12 on, for x86 processors")
    for name in names:
        if name == "mxnet" and on_device:
            say("mxnet is left out: the package of its last release computes on CPUs only")
            continue
        try:
            systems.append(System(name, environments.python(name, pythons, say), environments.script(name)))
        except UnavailableError as e:
            say(f"{name} is left out: {e}")
    return systems


def chosen(work: Sequence[Workload], only: Sequence[str]) -> list[Workload]:
    """Return the workloads whose names contain one of the strings, or all.

    Raises:
      JaxperfError: there is none.
    """
    parts = [word.lower() for word in only]
    matching = [w for w in work if not parts or any(word in w.name.lower() for word in parts)]
    if not matching:
        raise JaxperfError(
            f"no workload holds {' or '.join(only)}; there are {', '.join(w.name for w in work)}"
        )
    return matching


def print_study(study: Study) -> None:
    """Print the medians of a workload's rows, and the ratios to JAX."""
    print(f"{study.workload.name}: {study.workload.title}")
    for quantity in study.workload.quantities:
        for m in study.measurements(quantity):
            name = ", ".join(filter(None, (f"{m.system} {m.configuration}", quantity)))
            print(f"  {name:<45} {1e3 * m.median:12.6g} ms, {len(m.values)} rounds")
    starts = [f"{row.system} {row.configuration} {row.first_s:.2g} s" for row in study.rows if row.first_s]
    print(f"  first calls: {', '.join(starts)}")
    for c in study.comparisons():
        what = ", ".join(filter(None, (f"jax {c['jax']}", c["quantity"])))
        print(f"  {c['system']} {c['configuration']} over {what}: {c['text']}, {c['verdict']}")
    sys.stdout.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, and return 0, or 1 if there is no row.

    Raises:
      JaxperfError: a mistake in the arguments; nothing is written.
    """
    began = time.monotonic()
    if sys.platform == "win32":
        raise JaxperfError("the comparison of frameworks does not work on Windows; use WSL2, which is Linux")
    parser = flags.Parser("run.py", (__doc__ or "").partition("\n")[2])
    add, natural = parser.add_argument, flags.whole(0)
    add("--frameworks", nargs="*", default=["mxnet", "torch"], choices=["mxnet", "torch"], help="beside JAX")
    add("--python", nargs="+", default=[], metavar="NAME=PATH", help="a Python that has this framework")
    add("--only", nargs="+", default=[], metavar="TEXT", help="workloads whose names contain one of these")
    add("--platform", choices=["cpu", "gpu"], default="cpu", help="gpu: JAX and PyTorch on one GPU")
    add("--on-device", action="store_true", help="a GPU's workloads on a CPU; at toy size they take seconds")
    add(
        "--seconds",
        type=flags.number(0),
        default=0.0,
        metavar="S",
        help="of all; 0: no limit, on a GPU 200",
    )
    add("--cores", type=natural, default=0, metavar="N", help="that every system may use; 0: all")
    add("--devices", type=flags.whole(1), default=2, metavar="N", help="of the parallel workloads on a CPU")
    add(
        "--rounds",
        type=natural,
        default=0,
        metavar="N",
        help="of each workload, however long they take; 0: 12, and fewer of a workload whose rounds are long",
    )
    add("--onednn", action="store_true", help="JAX with XLA's flags for oneDNN as a further row")
    add("--smoke", action="store_true", help="toy size: the times mean nothing")
    add("--seed", type=natural, default=0, metavar="N", help="of weights and inputs")
    add("--json", type=Path, metavar="FILE", help="write the results to this file")
    options = parser.parse_args(arguments)
    sizes = SMOKE if options.smoke else Sizes()
    if sizes.lenet_batch % options.devices or sizes.resnet_batch % options.devices:
        raise JaxperfError(f"--devices is {options.devices}; it must divide {sizes.resnet_batch} images")
    if options.rounds:
        sizes = dataclasses.replace(sizes, rounds=options.rounds)
    notes: list[str] = []

    def say(line: str) -> None:
        notes.append(line)
        print(line, flush=True)

    gpu = options.platform == "gpu"
    on_device = options.on_device or gpu
    seconds = options.seconds or (GPU_SECONDS if gpu else math.inf)
    rounds_s = GPU_ROUNDS_S if gpu else ROUNDS_S
    # Rounds that the user counted are all taken
    if options.rounds:
        rounds_s = math.inf
    images = fashion_mnist(source="mini")
    X, y = images.train_images, images.train_labels
    if not on_device:
        X, y = X[:IMAGES], y[:IMAGES]
    with TemporaryDirectory(prefix="jaxperf-frameworks-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        work = workloads(
            sizes, scratch, X, y, devices=options.devices, on_device=on_device, gpu=gpu, seed=options.seed
        )
        work = chosen(work, options.only)
        pythons = environments.named(options.python)
        names = dict.fromkeys((*options.frameworks, *(name for name in pythons if name != BASE)))
        shared = shared_environment(say)
        systems = find_systems(
            list(names), pythons, shared, on_device=on_device, onednn=options.onednn, say=say
        )
        cores = available_cores()[: options.cores or None]
        comparison = Comparison(
            systems,
            scratch=scratch,
            environment=shared,
            cores=cores,
            gpu=gpu,
            rounds_s=rounds_s,
            deadline=began + seconds,
            say=say,
        )
        studies = []
        with contextlib.closing(comparison.run(work)) as results:
            for study in results:
                print_study(study)
                studies.append(study.to_json())
                about = {
                    "format": "jaxperf-frameworks",
                    "command": " ".join(sys.argv),
                    "date": time.strftime("%Y-%m-%d"),
                    "cpu": cpu_model(),
                    "cores": list(cores),
                    "platform": options.platform,
                    "smoke": options.smoke,
                    "notes": notes,
                    "versions": comparison.versions,
                    "seconds": time.monotonic() - began,
                    "workloads": studies,
                }
                if options.json:  # now, so that a run that is interrupted has the main rows
                    write_whole(options.json, json.dumps(about, indent=1, allow_nan=False) + "\n")
    for system in comparison.versions:
        _, text = agreement(studies, system)
        print(f"{system}: {text}")
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if any(study["measurements"] for study in studies) else 1


if __name__ == "__main__":
    try:
        with mistakes_end():
            status = main()
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
