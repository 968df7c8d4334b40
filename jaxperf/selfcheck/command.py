"""The story that `jaxperf selfcheck` tells: known durations, equal programs, true differences."""

from __future__ import annotations

import dataclasses
import shlex
from dataclasses import dataclass
from pathlib import Path

from jaxperf import script
from jaxperf.catalogue import Section
from jaxperf.result.store import check_writable, save_result

SECTION = Section(
    "selfcheck",
    "",
    "The instruments checked",
    "Are known durations measured right, equal programs called equal, and true differences found?",
    60,
)


@dataclass(frozen=True)
class Config:
    """What is checked.

    Attributes:
      known_s: durations of the known work.
      trials: how many trials the rules get.
      rounds, values: how many values of each program a trial takes, for each of the rules.
      numbers: how many of them the rules are asked with.
      loaded: whether everything is done again while a busy program wants each core.
    """

    known_s: tuple[float, ...] = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    trials: int = 20
    rounds: int = 20
    values: int = 12
    numbers: tuple[int, ...] = (6, 8, 12, 20)
    loaded: bool = True


FULL = Config(
    known_s=(*Config.known_s, 1.0), trials=400, rounds=40, values=40, numbers=(6, 8, 12, 20, 30, 40)
)


def main(*, full: bool = False, trials: int | None = None, out: Path, verbose: bool = False) -> int:
    """Check the instruments, print what was found, write `out/selfcheck.json`; return the exit status.

    Args:
      full: 400 trials and durations up to 1 s, which takes an hour, instead of a minute's worth.
      trials: another number of trials.
      out: folder of the result.
      verbose: print text and figures too.

    Raises:
      JaxperfError: JAX cannot start, or the result cannot be written.
    """
    config = FULL if full else Config()
    config = dataclasses.replace(config, trials=trials) if trials else config
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{SECTION.name}.json"
    check_writable(path)
    script.prepare(devices=1, platform="auto")
    story = script.begin(SECTION, script.Flags(config, json=path, verbose=verbose))
    from jaxperf.selfcheck import telling  # JAX, which must not start before

    telling.tell(story, config)
    words = ["jaxperf", "selfcheck", *["--full"] * full, *([f"--trials={trials}"] if trials else [])]
    save_result(dataclasses.replace(story.result(), command=shlex.join(words)), path)
    print(f"result: {path}")
    return int(story.failed)
