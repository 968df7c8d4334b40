"""Draw the figures of docs/trust.md from results of `jaxperf selfcheck` and `beside_other_timers.py`.

python benchmarks/plot_trust.py results docs/trust
"""

from __future__ import annotations

if __name__ == "__main__":
    from jaxperf.processes.exit_status import end_at_once

    end_at_once()  # while all else is imported, Ctrl-C is no traceback

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from jaxperf.errors import JaxperfError
from jaxperf.result import Lines, load_result
from jaxperf.section import STYLE

NAMES = ("selfcheck", "beside_other_timers")


@dataclass(frozen=True)
class Config:
    """From where to where."""

    results: Annotated[Path, tyro.conf.Positional]
    """Folder of the results."""
    figures: Annotated[Path, tyro.conf.Positional]
    """Folder that takes a PNG per figure."""


def main(config: Config) -> int:
    """Draw every figure of the results that are there; return the exit status.

    Raises:
      JaxperfError: none is there, or one is damaged.
    """
    paths = [path for name in NAMES if (path := config.results / f"{name}.json").exists()]
    if not paths:
        raise JaxperfError(f"no {' or '.join(NAMES)}.json in {config.results}; run `jaxperf selfcheck`")
    config.figures.mkdir(parents=True, exist_ok=True)
    for lines in (lines for path in paths for lines in load_result(path).of(Lines)):
        path = config.figures / f"{re.sub(r'[^a-z0-9]+', '-', lines.title.lower()).strip('-')}.png"
        draw(lines, path)
        print(path)
    return 0


def draw(lines: Lines, path: Path) -> None:
    """Draw curves over a common x."""
    import matplotlib.pyplot as plt

    plt.style.use(STYLE)
    figure, ax = plt.subplots()
    for curve in lines.curves:
        thin = curve.draw == "thin line"
        ax.plot(*zip(*curve.known), "-" if thin else "o-", lw=0.8 if thin else 1.8, label=curve.name)
    ax.set(xlabel=lines.x.label, ylabel=lines.y.label, xscale="log")
    ax.legend()
    figure.savefig(path, dpi=150, transparent=False)
    plt.close(figure)


if __name__ == "__main__":
    from jaxperf.cli import flags
    from jaxperf.processes.exit_status import ended

    raise SystemExit(ended(lambda: main(flags.parse_argv(Config, __doc__ or ""))))
