"""`jaxperf selfcheck`: known durations, equal programs, true differences."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from jaxperf.chapter.catalogue import SectionEntry
from jaxperf.chapter.recorder import Recorder
from jaxperf.errors import to_one_line
from jaxperf.result.store import check_writable, save_result
from jaxperf.selfcheck.config import FULL, QUICK
from jaxperf.startup import environment, import_jax

SECTION = SectionEntry(
    "selfcheck",
    "",
    "The instruments checked",
    "Are known durations measured right, equal programs called equal, and true differences found?",
    60,
)


def main(*, full: bool = False, trials: int | None = None, out: Path) -> int:
    """Check the instruments, print what was found, write `out/selfcheck.json`; return the exit status.

    Args:
      full: 400 trials and durations up to 1 s, which take hours on a noisy machine, instead of minutes.
      trials: another number of trials.
      out: folder of the result.

    Raises:
      JaxperfError: JAX cannot start, or the result cannot be written.
    """
    config = FULL if full else QUICK
    config = dataclasses.replace(config, trials=trials) if trials else config
    path = out / f"{SECTION.name}.json"
    check_writable(path)
    import_jax()
    arguments = ["jaxperf", "selfcheck", *["--full"] * full, *([f"--trials={trials}"] if trials else [])]
    recorder = Recorder(SECTION, environment(), dataclasses.asdict(config), command=shlex.join(arguments))
    from jaxperf.selfcheck import telling  # JAX, which must not start before

    telling.tell(recorder, config)
    save_result(recorder.result(), path)
    print(to_one_line(f"result: {path}"))
    return 0
