"""The parts of `jaxperf selfcheck`, and their claims."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence

from rich.progress import track

from jaxperf.chapter.recorder import Recorder
from jaxperf.measure.keep_awake import cores_busy
from jaxperf.report.formatting import format_quantity
from jaxperf.result import Axis, Curve, Measurement, both
from jaxperf.selfcheck import known, verdicts
from jaxperf.selfcheck.config import Config
from jaxperf.selfcheck.known import Checked, duration_text
from jaxperf.selfcheck.load import OtherLoad, cores, other_load
from jaxperf.selfcheck.verdicts import FOUND, WRONG, Counts, Share

Trials = Sequence[verdicts.Trial]
Rule = Callable[[Measurement, Measurement], str]
WAYS: tuple[Callable[[float], Checked], ...] = (known.counted, known.clocked, known.called_back)
# Below this, a call's own time is no longer much less than the work, or varies by 1 % of it: a tick has no
# room for a call of 1 us, and waking the thread that waits for a callback takes 0.1 to 0.3 ms.
QUICKEST: dict[Callable[[float], Checked], float] = {known.clocked: 1e-5, known.called_back: 0.1}


ENOUGH = 100  # trials; at a chance of 5 %, 95 % of the time 1 to 10 of 100 are told apart
JUDGED = (verdicts.BASE, "equal", "5 %")


def tell(recorder: Recorder, config: Config) -> None:
    """Tell all parts, first with the machine as it is and then loaded."""
    known_durations(recorder, config)
    rules(recorder, config)
    if config.loaded:
        known_durations_loaded(recorder, config)
        rules_loaded(recorder, config)


def known_durations(recorder: Recorder, config: Config) -> None:
    """Check `measure` on work whose duration is known, with the machine as it is."""
    recorder.heading("Known durations")
    recorder.text(
        """Each duration below is known without `measure`. Counted work is a loop in C of so many steps; the
        scheduler's CPU clock says what the very same calls took their thread. Clocked work returns when the
        clock reaches the next tick, so that many calls last so many ticks. What is called back is a compiled
        program that ends when its callback has waited for so long.""",
        """A value of `measure` holds the call and the wait for it. What they take without the work is
        measured too and taken off. The ticks of clocked work have room for them, except after the last tick
        of a value.""",
    )
    with other_load() as load:
        checked = _checked(config.known_s, WAYS)
    _show(recorder, checked, load, "")
    worst = max(checked, key=lambda c: abs(c.ratio.median - 1))
    recorder.claim(
        f"`measure` finds known durations from {_span(config.known_s)} within 1 % on an idle machine.",
        holds=both(*(c.right for c in checked)),
        expected="All of them.",
        observed=f"{_right(checked)}; the worst, {worst.measured.name}, came out as {worst.ratio}; {load}",
        cannot="" if load.idle else f"the machine was not idle: {load}",
    )


def known_durations_loaded(recorder: Recorder, config: Config) -> None:
    """Check the same while a busy program runs on each core."""
    recorder.heading("Known durations on a loaded machine")
    recorder.text(
        f"""Now {cores()} other programs want a core each, all the time. Counted work takes longer then, as
        any program does, so it is no longer known. Clocked work still is: the clock says when it returns.""",
        """`measure` sets values aside in which another program had the core. Where too few others remain, as
        of calls that last longer than a program keeps the core, it keeps all and says not to trust them.""",
    )
    with cores_busy(cores()), other_load() as load:
        checked = _checked(config.known_s, (known.clocked,))
    _show(recorder, checked, load, " under load")
    trusted = [c for c in checked if c.measured.trusted]
    outside = [c.measured.name for c in trusted if not c.inside]
    warned = [c.measured.name for c in checked if c not in trusted]
    holds = not outside if trusted else None  # a warning about everything proves nothing
    recorder.claim(
        "On a loaded machine the interval around the median holds the known duration, within 1 %, "
        "or `measure` says not to trust it.",
        holds=holds,
        expected="All of them.",
        observed=f"outside: {_names(outside)}; not to be trusted: {_names(warned)}; {load}",
    )


def _names(names: Sequence[str]) -> str:
    return " and ".join(names) or "none"


def _checked(durations: Sequence[float], ways: Sequence[Callable[[float], Checked]]) -> list[Checked]:
    return [way(seconds) for way in ways for seconds in durations if seconds >= QUICKEST.get(way, 0.0)]


def _show(recorder: Recorder, checked: Sequence[Checked], load: OtherLoad, where: str) -> None:
    recorder.grid(
        ("work", "known", "measured", "measured / known", "within 1 %", "taken off", "set aside"),
        [
            (
                c.measured.name,
                format_quantity(c.known_s, "s"),
                format_quantity(c.measured.median, "s"),
                str(c.ratio),
                {True: "yes", False: "no", None: "undecided"}[c.right],
                format_quantity(c.empty_s, "s") if c.empty_s else "",
                _set_aside(c.measured),
            )
            for c in checked
        ],
        title=f"Measured and known; {load}",
    )
    recorder.table([c.measured for c in checked], title="Values", fold=True)
    recorder.lines(
        f"Measured over known{where}",
        [curve for way in dict.fromkeys(c.way for c in checked) for curve in _curves(way, checked)],
        x=Axis("known duration in us"),
        y=Axis("measured over known"),
    )


def _set_aside(m: Measurement) -> str:
    if not m.trusted:
        return "not to be trusted"
    return f"{len(m.set_aside)} of {len(m.values) + len(m.set_aside)}" if m.set_aside else ""


def _curves(way: str, checked: Sequence[Checked]) -> Iterator[Curve]:
    """The medians for one way of knowing, over the known durations, and the ends of their intervals."""
    points = [c for c in checked if c.way == way]
    x = tuple(c.known_s * 1e6 for c in points)
    yield Curve(way, x, tuple(c.ratio.median for c in points), color=way)
    for end in ("low", "high"):
        y = tuple(getattr(c.ratio, end) for c in points)
        yield Curve(f"{way}, {end} end", x, y, draw="thin line", color=way)


def _right(checked: Sequence[Checked]) -> str:
    return f"{sum(c.right is True for c in checked)} of {len(checked)} within 1 %"


def _span(durations: Sequence[float]) -> str:
    return f"{duration_text(min(durations))} to {duration_text(max(durations))}"


def rules(recorder: Recorder, config: Config) -> None:
    """Check both rules on equal programs and on true differences, with the machine as it is."""
    recorder.heading("Equal programs and true differences")
    recorder.text(
        f"""One compiled loop runs {verdicts.STEPS} steps, the same number again, and 2, 5, 10 and 20 % more.
        The number is an argument, so it is the same machine code. In each trial `interleaved` takes them in
        rounds for `Ratio`, the rule for paired values, and `measure` takes each by itself for the rank tests
        of `jaxperf compare`. A verdict that equal programs differ is wrong. Both rules say that they are
        wrong at most {WRONG:.0%} of the time."""
    )
    parts = verdicts.programs()
    judged = {name: parts[name] for name in JUDGED}
    paired, runs, settled, defaults = [], [], [], []
    with other_load() as load:
        for _ in track(
            range(config.trials), description="trials", transient=True, disable=not sys.stdout.isatty()
        ):
            paired.append(verdicts.in_rounds(parts, rounds=config.rounds))
            runs.append(verdicts.in_runs(parts, min_values=config.values, max_values=config.values))
            settled.append(verdicts.in_rounds(judged, rounds=config.least, budget_s=config.budget_s))
            defaults.append(verdicts.in_runs(judged))
    _tell(recorder, settled, defaults, load, "")
    for rule, trials, most in (
        (verdicts.by_ratio, paired, config.rounds),
        (verdicts.by_ranks, runs, config.values),
    ):
        _draw(recorder, rule, trials, [n for n in config.numbers if n <= most])


def rules_loaded(recorder: Recorder, config: Config) -> None:
    """Check both rules on equal programs and a difference of 5 % while a busy program runs on each core."""
    recorder.heading("Equal programs and true differences on a loaded machine")
    parts = {name: part for name, part in verdicts.programs().items() if name in JUDGED}
    settled, defaults = [], []
    with cores_busy(cores()), other_load() as load:
        for _ in track(
            range(config.trials), description="trials", transient=True, disable=not sys.stdout.isatty()
        ):
            settled.append(verdicts.in_rounds(parts, rounds=config.least, budget_s=config.budget_s))
            defaults.append(verdicts.in_runs(parts))
    _tell(recorder, settled, defaults, load, " under load")


def _tell(recorder: Recorder, settled: Trials, defaults: Trials, load: OtherLoad, where: str) -> None:
    """Tell what both rules said with the default settings of `jaxperf measure` and of `measure`."""
    recorder.text(f"{len(settled)} trials{where}; {load}")
    _noise(recorder, settled, defaults, where)
    rounds = verdicts.count(settled, verdicts.by_ratio, [None])
    _judge(recorder, "`Ratio` with the default settings of `jaxperf measure`", where, rounds, load)
    runs = verdicts.count(defaults, verdicts.by_ranks, [None])
    _judge(recorder, "`compare` of two runs with the default settings of `measure`", where, runs, load)


def _noise(recorder: Recorder, settled: Trials, defaults: Trials, where: str) -> None:
    base = [t[verdicts.BASE] for t in defaults]
    rounds = tuple(float(len(t[verdicts.BASE].values)) for t in settled)
    recorder.table(
        [
            Measurement(f"a call{where}", "s", tuple(m.median for m in base), note="a median per run"),
            Measurement(f"values per run{where}", "", tuple(float(len(m.values)) for m in base)),
            Measurement(f"interquartile range over median{where}", "", tuple(m.rel_iqr for m in base)),
            Measurement(f"rounds of `jaxperf measure`{where}", "", rounds),
        ],
        title="How noisy the runs were",
        fold=True,
    )


def _judge(recorder: Recorder, rule: str, where: str, counts: Sequence[Counts], load: OtherLoad) -> None:
    """Claims about one rule: wrong about equal programs, and finding 5 %."""
    (equal,) = (c for c in counts if c.difference == 0)
    (five,) = (c for c in counts if c.difference == 0.05)
    few = "" if equal.trials >= ENOUGH else f"; {ENOUGH} trials decide"
    wrong, detected = Share(equal.slower + equal.faster, equal.trials), Share(five.slower, five.trials)
    rare, often = (None, None) if few else (wrong.below(WRONG), detected.at_least(FOUND))
    recorder.grid(
        ("true difference", "slower", "faster", "neither", "told apart"),
        [
            (f"{c.difference:.0%}", *map(str, (c.slower, c.faster, c.neither)), f"{c.told_apart:.1%}")
            for c in counts
        ],
        title=f"{rule}{where}, {equal.trials} trials",
    )
    recorder.claim(
        f"{rule} tells equal programs apart in fewer than {WRONG:.0%} of the trials{where}.",
        holds=rare,
        expected="In fewer.",
        observed=f"in {wrong}{few}",
    )
    recorder.claim(
        f"{rule} finds a true difference of 5 % in at least {FOUND:.0%} of the trials{where}.",
        holds=often,
        expected="In fewer." if where else "In most.",
        observed=f"in {detected}{few}",
        cannot="" if where or load.idle else f"the machine was not idle: in {detected}; {load}",
    )


def _draw(recorder: Recorder, rule: Rule, trials: Trials, numbers: Sequence[int]) -> None:
    counts = verdicts.count(trials, rule, numbers)
    recorder.lines(
        f"Told apart by {'Ratio' if rule is verdicts.by_ratio else 'compare'}",
        [
            Curve(
                f"{difference:.0%}",
                tuple(map(float, numbers)),
                tuple(c.told_apart for c in counts if c.difference == difference),
            )
            for difference in sorted({c.difference for c in counts})
        ],
        x=Axis("values of each program"),
        y=Axis("share of the trials"),
    )
