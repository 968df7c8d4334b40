"""Time the same functions with jaxperf, timeit, pyperf and torch.utils.benchmark, and show where they differ.

    python benchmarks/beside_other_timers.py --out results --also FOLDER ...

Some functions have a known duration, so that it can be said who is right. The JAX functions do not wait for
their results, as one writes them; then they do. pyperf and torch are used where they can be imported;
`--also` names folders to import them from, e.g. what `pip install --target others pyperf torch` made.
All timers but pyperf, which has processes of its own, take turns in one process.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import importlib.util
import itertools
import json
import math
import os
import shlex
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxperf import flags
from jaxperf.measure import current_environment
from jaxperf.result import About, Measurement, ratio_of, save_result
from jaxperf.result.formatting import format_quantity
from jaxperf.result.recorder import Recorder

SECTION = About(
    "beside_other_timers", "", "Beside other timers",
    "Do jaxperf, timeit, pyperf and torch.utils.benchmark agree, and who is right where they do not?",
)  # fmt: skip
WORKER = "--pyperf"  # how pyperf starts this script again


@dataclass(frozen=True)
class Config:
    """What is timed, and how often."""

    passes: int = 5  # turns that each timer gets at each function
    processes: int = 5  # of pyperf, for each function
    also: tuple[Path, ...] = ()  # folders to import pyperf and torch from
    out: Path = Path("results")  # folder of the result


Timer = Callable[[Callable[[], Any]], list[float]]


def functions() -> dict[str, Callable[[], Any]]:
    """Return what is timed: with a known duration, NumPy's, and JAX's without waiting and with it."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    a = np.linspace(0, 1, 100_000)
    x = jnp.linspace(0, 1, 500 * 500).reshape(500, 500)
    row, small, product = x[0], jax.jit(lambda x: x + 1), jax.jit(lambda x: jnp.tanh(x @ x))
    return {
        "counted loop, 200 steps": lambda: any(itertools.repeat(False, 200)),
        "counted loop, 20000 steps": lambda: any(itertools.repeat(False, 20_000)),
        "NumPy sine of 100000": lambda: np.sin(a),
        "jit x + 1, not waiting": lambda: small(row),
        "jit product, not waiting": lambda: product(x),
        "jit product, waiting": lambda: product(x).block_until_ready(),
    }


STEPS = {"counted loop, 200 steps": 200, "counted loop, 20000 steps": 20_000}


def with_jaxperf(fn: Callable[[], Any]) -> list[float]:
    """Return seconds per call: `measure`, with its defaults."""
    from jaxperf.measure import measure

    return list(measure(fn).values)


def with_timeit(fn: Callable[[], Any]) -> list[float]:
    """Return seconds per call: as `python -m timeit` chooses them."""
    timer = timeit.Timer(fn)
    number, _ = timer.autorange()
    return [took / number for took in timer.repeat(5, number)]


def with_torch(fn: Callable[[], Any]) -> list[float]:
    """Return seconds per call: `blocked_autorange`, with its defaults."""
    from torch.utils.benchmark import Timer

    return list(Timer("fn()", globals={"fn": fn}).blocked_autorange().times)


def timers() -> dict[str, Timer]:
    """Return the timers that share this process, by name."""
    by_name: dict[str, Timer] = {"jaxperf": with_jaxperf, "timeit": with_timeit}
    return by_name | ({"torch.utils.benchmark": with_torch} if importlib.util.find_spec("torch") else {})


def with_pyperf(config: Config) -> dict[str, list[float]]:
    """Return seconds per call of every function, from processes that pyperf starts; empty without pyperf."""
    if importlib.util.find_spec("pyperf") is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "pyperf.json")
        command = [sys.executable, __file__, WORKER, "--quiet", f"--output={path}"]
        command += [f"--processes={config.processes}", "--inherit-environ=PYTHONPATH,JAX_PLATFORMS"]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        subprocess.run(command, env=environment, check=True)
        suite = json.loads(path.read_text())
    return {
        b["metadata"]["name"]: [v for r in b["runs"] for v in r.get("values", ())]
        for b in suite["benchmarks"]
    }


def pyperf_worker() -> None:
    """Time every function where pyperf has started this script."""
    import pyperf

    sys.argv.remove(WORKER)
    runner = pyperf.Runner(program_args=(__file__, WORKER))
    for name, fn in functions().items():
        runner.bench_func(name, fn)


def main(config: Config) -> int:
    """Time everything, print it, write `out/beside_other_timers.json`; return the exit status."""
    sys.path += map(str, config.also)
    path = config.out / f"{SECTION.name}.json"
    config.out.mkdir(parents=True, exist_ok=True)
    recorder = Recorder(
        SECTION, current_environment(), {"passes": config.passes}, command=shlex.join(sys.argv)
    )
    from known_durations import step_s

    from jaxperf.measure.other_load import other_load

    with other_load() as watch:
        elsewhere = with_pyperf(config)
        for name, fn in functions().items():
            recorder.heading(name)
            values: dict[str, list[float]] = {timer: [] for timer in timers()}
            known = []
            for _ in range(config.passes):
                for timer, take in timers().items():
                    values[timer] += take(fn)
                known += [step_s() * STEPS[name]] if name in STEPS else []
            values |= {"pyperf": elsewhere[name]} if name in elsewhere else {}
            values |= {"known, by the CPU clock": known} if known else {}
            show(recorder, name, [Measurement(timer, "s", tuple(v)) for timer, v in values.items()])
    recorder.note(str(watch))
    save_result(recorder.result(), path)
    print(f"result: {path}")
    return 0


def show(recorder: Recorder, name: str, rows: Sequence[Measurement]) -> None:
    """Show medians side by side, each with the interval that holds it at 95 % (the sign test)."""
    medians = [ratio_of(m.values) for m in rows]
    recorder.grid(
        ("", "median", "from", "to", "over jaxperf", "values"),
        [
            (
                m.name,
                *(format_quantity(s if math.isfinite(s) else None, "s") for s in (r.median, r.low, r.high)),
                f"{r.median / medians[0].median:.3f}",
                str(len(m.values)),
            )
            for m, r in zip(rows, medians)
        ],
        title=name,
    )
    recorder.table(rows, title=f"{name}: values", base=rows[0].name, fold=True)


if __name__ == "__main__":
    if WORKER in sys.argv:
        pyperf_worker()
    else:
        from jaxperf.process import ended

        raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
