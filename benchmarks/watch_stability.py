"""Whether watch says the same of one program in each run.

    python benchmarks/watch_stability.py                         # three programs, ten runs of each
    python benchmarks/watch_stability.py --programs train.py --runs 5

Each run is a process of its own. For each finding, one row tells in how many runs it came, and the smallest
and the largest saving. A finding that comes in some runs only is close to a threshold, or depends on what
the windows of the profiler happened to see.
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.process import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import json
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jaxperf import flags
from jaxperf.errors import JaxperfError
from jaxperf.process import ended

FOLDER = Path(__file__).resolve().parents[1]
USUAL = tuple(
    str(FOLDER / name)
    for name in (
        "docs/watch/train.py",
        "tests/slow_programs/varying_shapes.py",
        "tests/slow_programs/eager_gradient.py",
    )
)


@dataclass(frozen=True)
class Config:
    """Which programs, and how often."""

    programs: tuple[str, ...] = USUAL
    runs: int = 10


def findings_of(program: Path, file: Path) -> list[dict[str, Any]]:
    """Run a program under watch, and return the findings of its JSON."""
    command = [sys.executable, "-m", "jaxperf", "watch", "--json", str(file), str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not file.exists():
        raise JaxperfError(f"{program} has no report (status {done.returncode}); run it by itself")
    return list(json.loads(file.read_text())["findings"])


def main(config: Config) -> int:
    """Print a row for each finding; return 1 if one is missing in some runs."""
    unstable = 0
    for program in map(Path, config.programs):
        savings: dict[tuple[str, str], list[float]] = defaultdict(list)
        for i in range(config.runs):
            with tempfile.TemporaryDirectory() as folder:
                for finding in findings_of(program, Path(folder) / f"{i}.json"):
                    site = finding["site"]
                    seconds = float(finding["saving"]["seconds"] or 0.0)
                    savings[finding["cause"], f"{Path(site['file']).name}:{site['line']}"].append(seconds)
        print(f"{program.name}, {config.runs} runs" + ("" if savings else ": no finding in any"))
        for (cause, site), seconds_each in sorted(savings.items()):
            count = len(seconds_each)
            unstable += count < config.runs
            print(
                f"  {count:2d} of {config.runs}  {cause} at {site}, saves {min(seconds_each):.2f} to "
                f"{max(seconds_each):.2f} s",
                flush=True,
            )
    return 1 if unstable else 0


if __name__ == "__main__":
    raise SystemExit(ended(lambda: main(flags.parse_config(Config, __doc__))))
