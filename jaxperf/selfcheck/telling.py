"""The parts of the story that `jaxperf selfcheck` tells, and their claims."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from jaxperf.measure.awake import cores_busy
from jaxperf.report.words import quantity
from jaxperf.result import Axis, Curve, Measurement, both
from jaxperf.script import Story
from jaxperf.selfcheck import known, verdicts
from jaxperf.selfcheck.config import Config
from jaxperf.selfcheck.known import Checked, said
from jaxperf.selfcheck.load import Watch, watching
from jaxperf.selfcheck.verdicts import FOUND, WRONG, Counts

WAYS: tuple[Callable[[float], Checked], ...] = (known.counted, known.clocked, known.called_back)
QUICKEST_CALLBACK_S = 1e-3  # a callback's own cost moves by tens of microseconds


def tell(story: Story, config: Config) -> None:
    """Tell all parts, as the machine is and then loaded."""
    story.part(known_durations, config)
    story.part(rules, config)
    if config.loaded:
        story.part(known_durations_loaded, config)
        story.part(rules_loaded, config)


def known_durations(story: Story, config: Config) -> None:
    """`measure` on work whose duration is known, as the machine is."""
    story.heading("Known durations")
    story.text(
        """Each duration below is known without `measure`. Counted work is a loop in C of so many steps; the
        scheduler's CPU clock says what a step costs, just before and just after. Clocked work returns when
        the clock reaches the next tick, so that many calls last so many ticks. What is called back is a
        compiled program that ends when its callback has waited for so long.""",
        """A value of `measure` holds the call and the wait for it. What they take without the work is
        measured too and taken off, except from clocked work, whose ticks have room for them.""",
    )
    story.code(known.spin, known.ticking)
    with watching() as watch:
        checked = _checked(config.known_s, WAYS)
    _show(story, checked, watch)
    worst = max(checked, key=lambda c: abs(c.ratio.median - 1))
    story.claim(
        ours=f"`measure` finds known durations from {_span(config.known_s)} within 1 % on an idle machine.",
        holds=both(*(c.right for c in checked)),
        predicted="All of them.",
        right=both(*(c.right for c in checked)),
        observed=f"{_right(checked)}; the worst, {worst.measured.name}, came out as {worst.ratio}; {watch}",
        cannot="" if watch.idle else f"the machine was not idle: {watch}",
    )


def known_durations_loaded(story: Story, config: Config) -> None:
    """The same while a busy program wants each core."""
    story.heading("Known durations on a loaded machine")
    story.text(
        f"""Now {_cores()} other programs want a core each, all the time. Counted work takes longer then, as
        any program does, so it is no longer known. Clocked work still is: the clock says when it returns."""
    )
    with cores_busy(_cores()), watching() as watch:
        checked = _checked(config.known_s, (known.clocked,))
    _show(story, checked, watch)
    outside = [c.measured.name for c in checked if not c.inside]
    story.claim(
        ours="On a loaded machine the interval around the median holds the known duration, within 1 %.",
        holds=not outside,
        predicted="All of them.",
        right=not outside,
        observed=f"outside: {', '.join(outside) or 'none'}; {watch}",
    )


def _checked(durations: Sequence[float], ways: Sequence[Callable[[float], Checked]]) -> list[Checked]:
    return [
        way(seconds)
        for way in ways
        for seconds in durations
        if way is not known.called_back or seconds >= QUICKEST_CALLBACK_S
    ]


def _show(story: Story, checked: Sequence[Checked], watch: Watch) -> None:
    story.grid(
        ("work", "known", "measured", "measured / known", "within 1 %", "empty call"),
        [
            (
                c.measured.name,
                quantity(c.known_s, "s"),
                quantity(c.measured.median, "s"),
                str(c.ratio),
                {True: "yes", False: "no", None: "undecided"}[c.right],
                quantity(c.empty_s, "s") if c.empty_s else "",
            )
            for c in checked
        ],
        title=f"Measured and known; {watch}",
        right=(1, 2, 3, 5),
    )
    story.table([c.measured for c in checked], title="Values", detail=True)


def _right(checked: Sequence[Checked]) -> str:
    return f"{sum(c.right is True for c in checked)} of {len(checked)} within 1 %"


def _span(durations: Sequence[float]) -> str:
    return f"{said(min(durations))} to {said(max(durations))}"


def rules(story: Story, config: Config) -> None:
    """Both rules on equal programs and on true differences, as the machine is."""
    story.heading("Equal programs and true differences")
    story.text(
        f"""One compiled loop runs {verdicts.STEPS} steps, the same number again, and 2, 5, 10 and 20 % more.
        The number is an argument, so it is the same machine code. In each trial `interleaved` takes them in
        rounds for `Ratio`, the rule for paired values, and `measure` takes each by itself for the rank tests
        of `jaxperf compare`. A verdict that equal programs differ is wrong. Both rules say that they are
        wrong at most {WRONG:.0%} of the time."""
    )
    story.code(verdicts.programs)
    _both_rules(story, config, "")


def rules_loaded(story: Story, config: Config) -> None:
    """The same while a busy program wants each core."""
    story.heading("Equal programs and true differences on a loaded machine")
    with cores_busy(_cores()):
        _both_rules(story, config, " under load")


def _both_rules(story: Story, config: Config, where: str) -> None:
    parts = verdicts.programs()
    turns = story.progress(range(config.trials), config.trials)
    paired, runs, defaults = [], [], []
    with watching() as watch:
        for _ in turns:
            paired.append(verdicts.in_rounds(parts, rounds=config.rounds))
            runs.append(verdicts.in_runs(parts, min_values=config.values, max_values=config.values))
            defaults.append(verdicts.in_runs(parts))
    numbers = [n for n in config.numbers if n <= config.rounds]
    by_ratio = verdicts.count(paired, verdicts.by_ratio, numbers)
    numbers = [n for n in config.numbers if n <= config.values]
    by_ranks = verdicts.count(runs, verdicts.by_ranks, numbers)
    as_is = verdicts.count(defaults, verdicts.by_ranks, [None])
    story.say(f"{config.trials} trials{where}; {watch}")
    _noise(story, defaults, where)
    _judge(
        story,
        f"`Ratio` over {by_ratio[-1].values} rounds",
        where,
        [c for c in by_ratio if c.values == by_ratio[-1].values],
    )
    _judge(story, "`compare` of two runs with `measure`'s default settings", where, as_is)
    _draw(story, f"Ratio{where}: share told apart, by the number of rounds", by_ratio)
    _draw(story, f"compare{where}: share told apart, by the number of values", by_ranks)


def _noise(story: Story, trials: Sequence[verdicts.Trial], where: str) -> None:
    base = [t[verdicts.BASE] for t in trials]
    story.table(
        [
            Measurement(f"a call{where}", "s", tuple(m.median for m in base), note="a median per run"),
            Measurement(f"values per run{where}", "", tuple(float(len(m.values)) for m in base)),
            Measurement(f"interquartile range over median{where}", "", tuple(m.rel_iqr for m in base)),
        ],
        title="How noisy the runs were",
        detail=True,
    )


def _judge(story: Story, rule: str, where: str, counts: Sequence[Counts]) -> None:
    """Claims about one rule: wrong about equal programs, and finding 5 %."""
    (equal,) = (c for c in counts if c.difference == 0)
    (five,) = (c for c in counts if c.difference == 0.05)
    story.grid(
        ("true difference", "slower", "faster", "neither", "told apart"),
        [
            (f"{c.difference:.0%}", *map(str, (c.slower, c.faster, c.neither)), f"{c.told_apart:.1%}")
            for c in counts
        ],
        title=f"{rule}{where}, {equal.trials} trials",
        right=(1, 2, 3, 4),
    )
    story.claim(
        ours=f"{rule} tells equal programs apart in fewer than {WRONG:.0%} of the trials{where}.",
        holds=equal.told_apart < WRONG,
        predicted="In fewer.",
        right=equal.told_apart < WRONG,
        observed=f"in {equal.slower + equal.faster} of {equal.trials}",
    )
    story.claim(
        ours=f"{rule} finds a true difference of 5 % in at least {FOUND:.0%} of the trials{where}.",
        holds=five.found >= FOUND,
        predicted="In most." if not where else "In fewer than on an idle machine.",
        right=five.found >= FOUND if not where else None,
        observed=f"in {five.slower} of {five.trials}",
    )


def _draw(story: Story, title: str, counts: Sequence[Counts]) -> None:
    numbers = sorted({c.values for c in counts if c.values})
    story.lines(
        title,
        [
            Curve(
                f"{difference:.0%}",
                tuple(map(float, numbers)),
                tuple(
                    c.told_apart
                    for n in numbers
                    for c in counts
                    if (c.difference, c.values) == (difference, n)
                ),
            )
            for difference in sorted({c.difference for c in counts})
        ],
        x=Axis("values of each program"),
        y=Axis("share of trials told apart"),
        caption="0 % is wrong, and is to stay below 5 %; the rest is right.",
        zero=True,
    )


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
