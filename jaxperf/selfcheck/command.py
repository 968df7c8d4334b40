"""The story that `jaxperf selfcheck` tells: known durations, equal programs, true differences."""

from __future__ import annotations

import dataclasses
import shlex
from pathlib import Path

from jaxperf import script
from jaxperf.catalogue import Section
from jaxperf.errors import one_line
from jaxperf.result.store import check_writable, save_result
from jaxperf.selfcheck.config import FULL, QUICK

SECTION = Section(
    "selfcheck",
    "",
    "The instruments checked",
    "Are known durations measured right, equal programs called equal, and true differences found?",
    60,
)


def main(*, full: bool = False, trials: int | None = None, out: Path, verbose: bool = False) -> int:
    """Check the instruments, print what was found, write `out/selfcheck.json`; return the exit status.

    Args:
      full: 400 trials and durations up to 1 s, which take hours on a noisy machine, instead of minutes.
      trials: another number of trials.
      out: folder of the result.
      verbose: print text and figures too.

    Raises:
      JaxperfError: JAX cannot start, or the result cannot be written.
    """
    config = FULL if full else QUICK
    config = dataclasses.replace(config, trials=trials) if trials else config
    path = out / f"{SECTION.name}.json"
    check_writable(path)
    script.prepare(devices=1, platform="auto")
    script.import_jax()
    story = script.begin(SECTION, script.Flags(config, json=path, verbose=verbose))
    from jaxperf.selfcheck import telling  # JAX, which must not start before

    telling.tell(story, config)
    words = ["jaxperf", "selfcheck", *["--full"] * full, *([f"--trials={trials}"] if trials else [])]
    save_result(dataclasses.replace(story.result(), command=shlex.join(words)), path)
    print(one_line(f"result: {path}"))
    return int(story.failed)
