"""`jaxperf selfcheck`: known durations, equal programs, a true difference."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jaxperf.errors import to_one_line
from jaxperf.measure import current_environment
from jaxperf.measure.other_load import OtherLoad, other_load
from jaxperf.result import About, Measurement, both, save_result
from jaxperf.result.formatting import format_quantity
from jaxperf.result.recorder import Recorder
from jaxperf.result.store import check_writable
from jaxperf.selfcheck import known, verdicts
from jaxperf.selfcheck.known import Checked, duration_text
from jaxperf.selfcheck.verdicts import POWER, WRONG, Counts, Share

SECTION = About(
    "selfcheck",
    "",
    "The instruments checked",
    "Are known durations measured right, equal programs called equal, and true differences found?",
)
UP_TO_100_MS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1)
WAYS: tuple[Callable[[float], Checked], ...] = (known.counted, known.clocked, known.called_back)
# Below this, a call's own time is no longer much less than the work, or varies by 1 % of it: a tick has no
# room for a call of 1 us, and waking the thread that waits for a callback takes 0.1 to 0.3 ms.
QUICKEST: dict[Callable[[float], Checked], float] = {known.clocked: 1e-5, known.called_back: 0.1}


@dataclass(frozen=True)
class Checks:
    """What is checked: work of `known_s` seconds each, and both rules in so many `trials`."""

    known_s: tuple[float, ...] = UP_TO_100_MS
    trials: int = 10


FULL = Checks((*UP_TO_100_MS, 1.0), trials=400)


def check(checks: Checks, path: Path, arguments: Sequence[str]) -> int:
    """Run the checks, print them, and write the result to `path`; return the exit status.

    Args:
      checks: what to check.
      path: file of the result.
      arguments: of the command line, which the result records.

    Raises:
      JaxperfError: the result cannot be written.
    """
    check_writable(path)
    recorder = Recorder(SECTION, current_environment(), vars(checks), command=shlex.join(arguments))
    known_durations(recorder, checks)
    rules(recorder, checks)
    save_result(recorder.result(), path)
    print(to_one_line(f"result: {path}"))
    return 0


def known_durations(recorder: Recorder, checks: Checks) -> None:
    """Check `measure` on work whose duration is known, with the machine as it is."""
    recorder.heading("Known durations")
    recorder.text(
        """Each duration below is known without `measure`. Counted work is a loop in C; the scheduler's CPU
        clock says how long the very same calls took their thread. Clocked work returns when the clock reaches
        its next tick. What is called back is a compiled program that ends when its callback has waited. The
        time of an empty call is measured too, and taken off."""
    )
    with other_load() as load:
        checked = [way(s) for way in WAYS for s in checks.known_s if s >= QUICKEST.get(way, 0.0)]
    recorder.grid(
        ("work", "known", "measured", "measured / known", "within 1 %", "taken off", "set aside"),
        [_row(c) for c in checked],
        title=f"Measured and known; {load}",
    )
    recorder.table([c.measured for c in checked], title="Values", fold=True)
    worst = max(checked, key=lambda c: abs(c.ratio.median - 1))
    right = sum(c.right is True for c in checked)
    recorder.claim(
        f"`measure` finds known durations from {duration_text(min(checks.known_s))} to "
        f"{duration_text(max(checks.known_s))} within 1 % on an idle machine.",
        holds=both(*(c.right for c in checked)),
        expected="All of them.",
        observed=f"{right} of {len(checked)} within 1 %; the worst, {worst.measured.name}, came out as "
        f"{worst.ratio}; {load}",
        cannot="" if load.idle else f"the machine was not idle: {load}",
    )


def _row(c: Checked) -> tuple[str, ...]:
    return (
        c.measured.name,
        format_quantity(c.known_s, "s"),
        format_quantity(c.measured.median, "s"),
        str(c.ratio),
        {True: "yes", False: "no", None: "undecided"}[c.right],
        format_quantity(c.empty_s, "s") if c.empty_s else "",
        _set_aside(c.measured),
    )


def _set_aside(m: Measurement) -> str:
    if not m.trusted:
        return "not to be trusted"
    return f"{len(m.set_aside)} of {len(m.values) + len(m.set_aside)}" if m.set_aside else ""


def rules(recorder: Recorder, checks: Checks) -> None:
    """Check both rules on equal programs and on a true difference, with the machine as it is."""
    from rich.progress import track

    recorder.heading("Equal programs and a true difference")
    recorder.text(
        f"""One compiled loop runs {verdicts.STEPS} steps, the same number again, and 5 % more. The number is
        an argument, so it is the same machine code. In each trial `interleaved` takes them in rounds for
        `Ratio`, the rule for paired values, and `measure` takes each by itself for the rank tests of
        `jaxperf compare`. A verdict that equal programs differ is wrong. Both rules say that they are wrong
        at most {WRONG:.0%} of the time."""
    )
    programs = verdicts.programs()
    rounds, runs = [], []
    with other_load() as load:
        for _ in track(
            range(checks.trials), description="trials", transient=True, disable=not sys.stdout.isatty()
        ):
            rounds.append(verdicts.in_rounds(programs, rounds=15, budget_s=5.0))
            runs.append(verdicts.in_runs(programs))
    recorder.text(f"{checks.trials} trials; {load}")
    _judge(recorder, "`Ratio`, as in `jaxperf measure`,", verdicts.count(rounds, verdicts.by_ratio), load)
    _judge(recorder, "`compare` of two runs of `measure`", verdicts.count(runs, verdicts.by_ranks), load)


def _judge(recorder: Recorder, rule: str, counts: Sequence[Counts], load: OtherLoad) -> None:
    """Claims about one rule: it is not wrong more often than it says, and it finds 5 %."""
    equal, five = counts
    wrong, detected = Share(equal.slower + equal.faster, equal.trials), Share(five.slower, five.trials)
    recorder.grid(
        ("program", "slower", "faster", "neither"),
        [(c.difference, *map(str, (c.slower, c.faster, c.neither))) for c in counts],
        title=f"{rule.rstrip(',')}: {equal.trials} trials",
    )
    recorder.claim(
        f"{rule} tells equal programs apart no more often than a chance of {WRONG:.0%} explains.",
        holds=wrong.below(WRONG) is not False,
        expected="No more often.",
        observed=f"in {wrong}",
    )
    recorder.claim(
        f"{rule} finds a true difference of 5 %: not less often than a chance of {POWER:.0%} explains.",
        holds=detected.at_least(POWER) is not False,
        expected="Not less often.",
        observed=f"in {detected}",
        cannot="" if load.idle else f"the machine was not idle: in {detected}; {load}",
    )
