"""Run every section again and again at toy size, on one or two cores, and see whether one hangs.

A deadlock between devices shows only now and then, and only where they have fewer cores than they need. Each
section runs `times` times in one process, which imports and compiles once. With `--one-core` as many run side
by side as the host has cores; otherwise two do, which share two cores, however many the host has. A run that
takes longer than `patience-s` says in which lines its threads are, and fails.

    python tools/repeat_sections.py --one-core
    python tools/repeat_sections.py --devices 8 --times 3 --sections multiple_gpus
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import faulthandler
import gc
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from jaxperf import flags
from jaxperf.chapter import catalogue
from jaxperf.errors import JaxperfError
from jaxperf.process import ended

SEPARATE_PROCESS = "--in-this-process"
CACHE = "JAX_COMPILATION_CACHE_DIR"
SHARED = 2  # cores, of which eight devices need more
COMPILE_ONCE = {
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",  # how long a program computes decides nothing here
}


@dataclass(frozen=True)
class Config:
    """Which sections, how often, and on what."""

    sections: tuple[str, ...] = tuple(s.name for s in catalogue.SECTIONS if s.name != "peers")
    one_core: bool = False  # give each section a core of its own; otherwise all share two
    devices: int = 0  # CPU devices; each section's own number if 0
    times: int = 10  # runs of each section
    patience_s: float = 300.0  # after which a run counts as hanging
    cache: Path | None = None  # folder for what is compiled; one of this command's own if None


def in_this_process(path: str, times: int, patience_s: float, *flags: str) -> None:
    """Run a section's cells several times, and raise what the first that fails raises."""
    from jaxperf.chapter import cells

    for _ in range(times):
        faulthandler.dump_traceback_later(patience_s, exit=True)
        cells.load(Path(path), "--smoke", "--platform", "cpu", *flags, without=(cells.ANSWER,))
        gc.collect()  # a section waits for all live arrays, so those of the run before must be gone


def repeat(name: str, config: Config, cache: str) -> bool:
    """Return whether all runs of a section ended well, and print what the failing one said."""
    path = str(catalogue.folder() / f"{catalogue.find(name).name}.py")
    flags = ["--devices", str(config.devices)] if config.devices else []
    limits = (str(config.times), str(config.patience_s))
    command = [sys.executable, __file__, SEPARATE_PROCESS, path, *limits, *flags]
    environment = {**os.environ, **COMPILE_ONCE, CACHE: cache}
    began = time.perf_counter()
    done = subprocess.run(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    elapsed_s = time.perf_counter() - began
    print(
        f"{name}: {config.times} runs in {elapsed_s:.0f} s{', FAILED' if done.returncode else ''}", flush=True
    )
    if done.returncode:
        print("\n".join(done.stdout.splitlines()[-80:]))
    return not done.returncode


def main(config: Config) -> int:
    """Repeat all sections, as many side by side as they have cores; the last, which take longest, first."""
    if not config.one_core:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:SHARED])
    cores = os.sched_getaffinity(0)
    free = set(cores)

    def choose_core() -> None:
        if config.one_core:
            os.sched_setaffinity(0, {free.pop()})  # this thread's, which the processes it starts inherit

    with (
        tempfile.TemporaryDirectory() as empty_cache,
        ThreadPoolExecutor(len(cores), initializer=choose_core) as pool,
    ):
        cache = str(config.cache or empty_cache)
        well = list(pool.map(lambda name: repeat(name, config, cache), reversed(config.sections)))
    if not all(well):
        raise JaxperfError(f"{well.count(False)} of {len(well)} sections failed or hung")
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == [SEPARATE_PROCESS]:
        _, _, path, count, patience, *section_flags = sys.argv
        in_this_process(path, int(count), float(patience), *section_flags)
    else:
        raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
