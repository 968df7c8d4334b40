"""What `jaxperf watch --compiles` costs a program that mostly compiles: with it and without, in turns.

    python benchmarks/compiles_overhead.py

Each run is a process of its own, since a process compiles a program only once. The two sides take turns in a
random order. A run's value is the time from the program's import of JAX to its last line, so it leaves out
jaxperf's start and the report at the end, which are printed apart.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from jaxperf import flags
from jaxperf.process import child_environment, ended
from jaxperf.result import Ratio
from jaxperf.result.ratio import ratio_of, turns
from jaxperf.result.store import check_writable, write_whole

# Hundreds of small programs; a long trace; a long compilation by XLA
PROGRAMS = {
    "500 operations outside jit": """
for n in range(2, 102):
    x = jnp.arange(n)
    y = jnp.sin(x)
    z = (y + 1.0) * y
    z.sum()
""",
    "a long trace": """
@jax.jit
def step(x):
    for i in range(3000):
        x = jnp.sin(x) * 0.5
    return x.sum()

jax.make_jaxpr(step)(jnp.ones(3))
step.lower(jnp.ones(3))
""",
    "a long compilation": """
@jax.jit
def step(x):
    for i in range(60):
        x = jnp.tanh(x @ x) + jnp.sort(x, axis=0)
    return x

jax.block_until_ready(step(jnp.ones((20, 20))))
""",
}
CLOCK = """
import json, os, time
import jax, jax.numpy as jnp
began, used = time.perf_counter(), time.process_time()
"""
END = """
seconds = {"wall": time.perf_counter() - began, "cpu": time.process_time() - used}
open(os.environ["SECONDS_FILE"], "w").write(json.dumps(seconds))
"""


@dataclass(frozen=True)
class Config:
    """How often, and where the ratios are kept."""

    rounds: int = 11  # of each program, with and without
    only: tuple[str, ...] = ()  # programs, by their titles; all of them if none are given
    json: Path | None = None  # the file that keeps the ratios


def main(config: Config) -> int:
    """Print the ratio of each program's seconds with the compile report over those without it."""
    json_file = check_writable(config.json) if config.json else None
    kept, draw = {}, random.Random(0)
    with tempfile.TemporaryDirectory() as folder:
        for title, text in PROGRAMS.items():
            if config.only and title not in config.only:
                continue
            script = Path(folder) / "train.py"
            script.write_text(CLOCK + text + END)
            values: dict[str, list[dict[str, float]]] = {"with": [], "without": []}
            for _ in range(config.rounds):
                for side in turns(["with", "without"], draw):
                    values[side].append(_seconds(script, watched=side == "with"))
            over = {name: _over(values, name) for name in ("wall", "cpu")}
            kept[title] = {name: asdict(each) for name, each in over.items()}
            around_s = statistics.median(v["process"] - v["wall"] for v in values["with"])
            before_s = statistics.median(v["process"] - v["wall"] for v in values["without"])
            print(f"{title}: {statistics.median(v['wall'] for v in values['without']):.2f} s without")
            for name, each in over.items():
                print(f"  {name} seconds with the report over those without it: {each}")
            print(f"  start and report: {around_s - before_s:.2f} s more around it")
    if json_file:
        write_whole(json_file, json.dumps(kept, indent=1) + "\n")
    return 0


def _seconds(script: Path, *, watched: bool) -> dict[str, float]:
    """Run the program in a process of its own, and return its seconds, and those of the whole process."""
    command = [sys.executable, str(script)]
    if watched:
        command[1:1] = ["-m", "jaxperf", "watch", "--compiles", str(script.with_name("out"))]
    file = script.with_name("seconds.json")
    began = time.perf_counter()
    environment = child_environment() | {"SECONDS_FILE": str(file)}
    subprocess.run(command, check=True, capture_output=True, env=environment)
    whole_s = time.perf_counter() - began
    return {**json.loads(file.read_text()), "process": whole_s}


def _over(values: dict[str, list[dict[str, float]]], name: str) -> Ratio:
    pairs = zip(values["with"], values["without"], strict=True)
    return ratio_of([watched[name] / alone[name] for watched, alone in pairs])


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.exit(ended(lambda: main(flags.parse_config(Config, __doc__))))
