"""JAX, MXNet and PyTorch at the same work, in turns: `python benchmarks/frameworks/run.py --json FILE`.

Each framework is a live process. A row is timed only if it computes what JAX computes. uv makes the
environments of MXNet and PyTorch at the first run; `--python torch=/path/python3` takes a Python that has
PyTorch already, without any network. A framework that cannot be had is one line. docs/peers.md says more.
"""

import dataclasses
import json
import math
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2]))  # where this Python does not have jaxperf installed

import environments
import jax
import numpy as np
import psutil
from environments import UnavailableError
from processes import Process, System, TaskError
from results import BASE, Row, Study, agreement, compare_answers
from workloads import ONEDNN, SMOKE, Sizes, Workload, workloads

from jaxperf import flags
from jaxperf.data import fashion_mnist
from jaxperf.errors import JaxperfError
from jaxperf.process import mistakes_end
from jaxperf.result import turns
from jaxperf.result.machine import available_cores, cpu_model
from jaxperf.result.store import write_whole

IMAGES = 2048  # to train on, on a CPU
PREPARE_S, TURN_S = 180.0, 60.0  # that one may take
ROUNDS_S = 30.0  # of a workload, after which no round begins if there are enough
ENOUGH = 6  # rounds for an interval
SETTLE_S = 0.02  # between turns, in which the last system's threads stop spinning
BUSY_PERCENT = 10
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
# From jaxlib 0.12 on. The last keeps XLA's default library from taking single convolutions first.
ONEDNN_FLAGS = (
    "--xla_cpu_use_onednn=true",
    "--xla_cpu_experimental_onednn_custom_call=true",
    "--xla_cpu_experimental_ynn_fusion_type=-individual_convolution",
)
Say = Callable[[str], None]


@dataclass
class Comparison:
    """Live processes of the systems, and the rows that they do."""

    systems: Sequence[System]
    scratch: Path  # where the processes work
    environment: dict[str, str]  # of all of them
    cores: Sequence[int]  # that every system may use
    rounds: int = 12  # of a workload, after its warm-up
    turn_s: float = 0.0  # that a turn lasts at least, by the warm-up
    gpu: bool = False  # whether JAX and PyTorch compute on one
    rounds_s: float = ROUNDS_S  # of a workload, after which no round begins if there are enough
    deadline: float = math.inf  # by `time.monotonic`, after which no workload and no such round begins
    say: Say = print  # gets a line for each row that is lost
    versions: dict[str, dict[str, str]] = field(default_factory=dict)
    _live: dict[str, Process] = field(default_factory=dict)
    _missing: dict[str, str] = field(default_factory=dict)  # why a system does not start

    def threads(self, devices: int) -> int:
        """Return the threads that each of `devices` devices gets: an equal share of the cores."""
        return max(1, len(self.cores) // devices)

    def run(self, work: Sequence[Workload]) -> Iterator[Study]:
        """Yield the results of each workload: start its rows, check their answers, and take turns.

        Each workload has new processes, since what a process did before can change its speed: where MXNet has
        once copied a large array, libgomp has more threads than cores.
        """
        for workload in work:
            if time.monotonic() > self.deadline:
                self.say(f"no time for {workload.name}")
                continue
            rows = self.rows(workload)
            try:
                for row in rows:
                    self.attempt(row, self.prepare)
                self.check(rows)
                self.take_turns(rows)
            finally:
                self.end()
            yield Study(workload, rows, 0 if self.gpu else self.threads(workload.devices))

    def rows(self, workload: Workload) -> list[Row]:
        """Return a workload's rows, of the systems that are there."""
        return [
            Row(system.name, configuration, workload, calls=workload.calls)
            for system in self.systems
            for configuration in workload.configurations.get(system.name, ())
        ]

    def prepare(self, row: Row) -> None:
        """Build and compile a row, and read what it computes."""
        devices, threads = row.workload.devices, self.threads(row.workload.devices)
        firsts = [i * threads % len(self.cores) for i in range(devices)]
        shares = [self.cores[first : first + threads] for first in firsts]
        answer = self.process(row).ask(
            "prepare",
            limit_s=PREPARE_S,
            key=row.key,
            settings={**row.workload.settings, "shares": shares},
            configuration=row.configuration,
        )
        row.first_s = answer["first_s"]
        row.answers = {name: np.asarray(value, float) for name, value in answer["answers"].items()}

    def check(self, rows: Sequence[Row]) -> None:
        """Compare answers: the first is JAX's, and all others, including JAX's own, are compared with it."""
        base = next((row.answers for row in rows if row.system == BASE and row.answers), None)
        for row in rows:
            if row.answers is None:
                continue
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

    def take_turns(self, rows: Sequence[Row]) -> None:
        """Let rows take turns, round by round in random order; round 0 is warm-up."""
        end, draw = min(self.deadline, time.monotonic() + self.rounds_s), random.Random()
        for number in range(self.rounds + 1):
            if number > ENOUGH and time.monotonic() > end:
                break
            for row in turns([row for row in rows if not row.lost], draw):
                self.attempt(row, self.take_value)

    def take_value(self, row: Row) -> None:
        """Take a value of a row; the first one is its warm-up."""
        seconds, cores = self.take_turns_of(row)
        if not row.warmup:
            row.warmup = seconds
            row.calls = max(row.calls, math.ceil(self.turn_s / max(seconds.values())))
            return
        for quantity, value in seconds.items():
            row.values.setdefault(quantity, []).append(value)
            if cores[quantity]:
                row.cores.setdefault(quantity, []).append(cores[quantity])

    def take_turns_of(self, row: Row) -> tuple[dict[str, float], dict[str, float]]:
        """Return means of a value's turns, by quantity: seconds of a call, and cores used (0: unknown)."""
        workload, answers = row.workload, []
        for _ in range(workload.bursts):
            time.sleep(SETTLE_S)
            lead = workload.lead * row.calls // workload.calls
            answer = self.process(row).ask("turn", limit_s=TURN_S, key=row.key, calls=row.calls, lead=lead)
            answers.append(answer)
        measured = [quantity for quantity in workload.quantities if quantity in answers[0]]
        seconds = {q: statistics.fmean(answer[q] for answer in answers) for q in measured}
        if not seconds or not all(0 < value < math.inf for value in seconds.values()):
            raise TaskError(f"its seconds are {seconds}")
        cores = {q: statistics.fmean(a.get(f"cores {q}", a["cores"]) for a in answers) for q in measured}
        return seconds, cores

    def attempt(self, row: Row, work: Callable[[Row], None]) -> None:
        """Do the work; if it fails, the row is lost, with one line, and so are those of a lost process."""
        try:
            work(row)
        except (TaskError, OSError) as e:
            self.lose(row, str(e))

    def lose(self, row: Row, why: str) -> None:
        """Note that a row is not timed any more, and why."""
        row.lost = why
        row.values.clear()
        self.say(f"{row.workload.name}: {row.system} {row.configuration} is lost: {why}")

    def process(self, row: Row) -> Process:
        """Return the live process of a row's system; it is started when first asked for."""
        name = row.system
        if name in self._missing:
            raise TaskError(self._missing[name])
        if name not in self._live:
            system = next(system for system in self.systems if system.name == name)
            variables = self.variables(system, row.workload.devices)
            try:
                self._live[name] = Process(system, environment=variables, log=self.scratch / f"log-{name}")
            except TaskError as e:
                self._missing[name] = str(e)  # it would not start the next time either
                raise
            self.versions.setdefault(name, self._live[name].versions)
        return self._live[name]

    def end(self) -> None:
        for process in self._live.values():
            process.end()
        self._live.clear()

    def variables(self, system: System, devices: int) -> dict[str, str]:
        """Return the environment variables of a system's process."""
        variables = {**self.environment, "PYTHONUNBUFFERED": "1"}
        if system.python != Path(sys.executable):
            variables = environments.for_another_python(variables)
        if not self.gpu:
            variables |= dict.fromkeys(THREADS, str(self.threads(devices)))
        if system.script != environments.script(BASE):
            # Compile times are those of a first start.
            caches = {"TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1", "TORCHINDUCTOR_CACHE_DIR": str(self.scratch)}
            return {**variables, **caches, "GLOO_SOCKET_IFNAME": "lo"}
        if self.gpu:  # PyTorch needs memory, too
            return {**variables, "JAX_PLATFORMS": "cuda,cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        # JAX counts the cores itself, and its devices share one pool of as many threads.
        return {**variables, "JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": str(devices)}


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


def with_onednn(base: System, flags: str, say: Say) -> list[System]:
    """Return JAX with XLA's flags for oneDNN as a further system, where this JAX has them."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    if not x86 or tuple(map(int, metadata.version("jaxlib").split(".")[:2])) < (0, 12):
        say(f"{ONEDNN} is left out: XLA has the flags from jaxlib 0.12 on, for x86 processors")
        return []
    variables = {"XLA_FLAGS": " ".join((flags, *ONEDNN_FLAGS)).strip()}
    return [dataclasses.replace(base, name=ONEDNN, variables=variables)]


def print_study(study: Study) -> None:
    """Print the medians of a workload's rows, and the ratios to JAX."""
    print(f"{study.workload.name}: {study.workload.title}")
    for m in study.measurements():
        name = ", ".join(filter(None, (f"{m.system} {m.configuration}", m.quantity)))
        print(f"  {name:<45} {1e3 * m.median:12.6g} ms, {len(m.values)} rounds")
    starts = [f"{row.system} {row.configuration} {row.first_s:.2g} s" for row in study.rows if row.first_s]
    print(f"  first calls: {', '.join(starts)}")
    for c in study.comparisons():
        what = ", ".join(filter(None, (f"jax {c['jax']}", c["quantity"])))
        print(f"  {c['system']} {c['configuration']} over {what}: {c['text']}, {c['verdict']}")
    sys.stdout.flush()


def parse(arguments: Sequence[str] | None) -> Any:
    parser = flags.Parser("run.py", (__doc__ or "").partition("\n")[2])
    add, natural = parser.add_argument, flags.whole(0)
    add("--frameworks", nargs="*", default=["mxnet", "torch"], choices=["mxnet", "torch"], help="beside JAX")
    add("--python", nargs="+", default=[], metavar="NAME=PATH", help="a Python that has this framework")
    add("--only", nargs="+", default=[], metavar="TEXT", help="workloads whose names contain one of these")
    add("--platform", choices=["cpu", "gpu"], default="cpu", help="gpu: JAX and PyTorch on one GPU")
    add("--on-device", action="store_true", help="a GPU's workloads on a CPU; at toy size they take seconds")
    add(
        "--seconds", type=flags.number(0), default=0.0, metavar="S",
        help="after these, no workload begins, and those that have begun end soon; 0: no limit",
    )  # fmt: skip
    add("--cores", type=natural, default=0, metavar="N", help="that every system may use; 0: all")
    add("--devices", type=flags.whole(1), default=2, metavar="N", help="of the parallel workloads on a CPU")
    add(
        "--rounds", type=natural, default=0, metavar="N",
        help="of each workload, however long they take; 0: 12, and fewer of a workload whose rounds are long",
    )  # fmt: skip
    add("--onednn", action="store_true", help="JAX with XLA's flags for oneDNN as a further row")
    add("--smoke", action="store_true", help="toy size: the times mean nothing")
    add("--seed", type=natural, default=0, metavar="N", help="of weights and inputs")
    add("--json", type=Path, metavar="FILE", help="write the results to this file")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the comparison, and return 0, or 1 if there is no row.

    Raises:
      JaxperfError: a mistake in the arguments; nothing is written.
    """
    began = time.monotonic()
    if sys.platform == "win32":
        raise JaxperfError("the comparison of frameworks does not work on Windows; use WSL2, which is Linux")
    options = parse(arguments)
    jax.config.update("jax_platforms", "cpu")  # here it only draws weights
    sizes = SMOKE if options.smoke else Sizes()
    if sizes.lenet_batch % options.devices or sizes.resnet_batch % options.devices:
        raise JaxperfError(f"--devices is {options.devices}; it must divide {sizes.resnet_batch} images")
    cores = available_cores()[: options.cores or None]
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cores)  # and so for all processes that we start
    notes: list[str] = []

    def say(line: str) -> None:
        notes.append(line)
        print(line, flush=True)

    gpu = options.platform == "gpu"
    on_device = options.on_device or gpu
    images = fashion_mnist(source="mini")
    count = len(images.train_images) if on_device else IMAGES
    X, y = images.train_images[:count], images.train_labels[:count]
    with TemporaryDirectory(prefix="jaxperf-frameworks-", ignore_cleanup_errors=True) as folder:
        scratch = Path(folder)
        work = workloads(
            sizes, scratch, X, y, devices=options.devices, on_device=on_device, gpu=gpu, seed=options.seed
        )
        only = [text.lower() for text in options.only]
        chosen = [w for w in work if not only or any(text in w.name.lower() for text in only)]
        if not chosen:
            names = ", ".join(w.name for w in work)
            raise JaxperfError(f"no workload holds {' or '.join(options.only)}; there are {names}")
        pythons = environments.named(options.python)
        peers = dict.fromkeys((*options.frameworks, *(name for name in pythons if name != BASE)))
        shared = shared_environment(say)
        systems = [System(BASE, environments.python(BASE, pythons, say), environments.script(BASE))]
        if options.onednn:
            systems += with_onednn(systems[0], shared["XLA_FLAGS"], say)
        for name in peers:
            if name == "mxnet" and on_device:
                say("mxnet is left out: the package of its last release computes on CPUs only")
                continue
            try:
                python = environments.python(name, pythons, say)
            except UnavailableError as e:
                say(f"{name} is left out: {e}")
            else:
                systems.append(System(name, python, environments.script(name)))
        comparison = Comparison(
            systems,
            scratch=scratch,
            environment=shared,
            cores=cores,
            rounds=options.rounds or sizes.rounds,
            turn_s=sizes.turn_s,
            gpu=gpu,
            rounds_s=math.inf if options.rounds else ROUNDS_S,
            deadline=began + (options.seconds or math.inf),
            say=say,
        )
        studies = []
        for study in comparison.run(chosen):
            print_study(study)
            studies.append(study.to_json())
            about = {
                "format": "jaxperf-frameworks",
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
            if options.json:  # now, so that a run that is interrupted has the first workloads
                write_whole(options.json, json.dumps(about, indent=1, allow_nan=False) + "\n")
    for system in comparison.versions:
        print(f"{system}: {agreement(studies, system)}")
    print(f"{time.monotonic() - began:.0f} s in all")
    return 0 if any(study["measurements"] for study in studies) else 1


if __name__ == "__main__":
    try:
        with mistakes_end():
            status = main()
    except KeyboardInterrupt:
        status = 130
    sys.exit(status)
