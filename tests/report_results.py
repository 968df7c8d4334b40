"""Results for the tests of the renderers: every kind of block, hostile names, peers, odd numbers."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any

from jaxperf.result import (
    Axis,
    Block,
    Claim,
    Code,
    Curve,
    Dots,
    Environment,
    Fact,
    Failed,
    Grid,
    Habit,
    Heading,
    Lines,
    Measurement,
    Note,
    Output,
    Peers,
    Reference,
    Result,
    Span,
    Table,
    Text,
    Timeline,
    Timelines,
)

HOSTILE = (
    "<script>document.title='pwned'</script>",
    "\"'><img src=x onerror=\"document.title='pwned'\">",
    "</title></style></svg></text><script>document.title='pwned'</script>",
    "<svg onload=\"document.title='pwned'\">",
    "{{ 7 * 7 }} {% raw %} {# no #}",
    "javascript:document.title='pwned'",
    "<a href=\"javascript:document.title='pwned'\">click</a>",
    "]]> <!-- --> &lt;b&gt; &#60;",
    "$x^2$ \\frac{1}{ $",
    "\x00\x1b[31m\x07 \u202egnol \ud800 \uffff",
    "训练 обучение 🚀",
    "https://example.com/pixel.png",
    "url(https://example.com/x) @import 'x'; }",
    "long" * 600,
    "",
)
CPU = Environment(
    python="3.11.7",
    platform="Linux",
    cpu="A processor",
    versions={"jax": "0.10.2", "flax": "0.12.8"},
    backend="cpu",
    devices=("cpu:0 cpu",),
    cores=2,
    memory_bytes=25 * 10**9,
    flags={"OMP_NUM_THREADS": "2"},
    commit="abc",
)
FAKE = dataclasses.replace(CPU, devices=("cpu:0 cpu", "cpu:1 cpu"), devices_are_fake=True, data_source="mini")
BOOK = "MXNet, the book"
NET = 'def get_net(units):\n    """A net."""\n    return nnx.Linear(units, 2)  # two classes'


def around(name: str, median: float, unit: str = "s", **more: Any) -> Measurement:
    """Seven values around a median."""
    return Measurement(name, unit, tuple(median * (1 + 0.01 * i) for i in range(-3, 4)), **more)


def hybridize() -> Result:
    """Headings, text, a habit, code, output, a table with base, bars and references, lines, claims, facts."""
    rows = [
        around(*row, rounds="mlp") for row in (("eager", 886e-6), ("nnx.jit", 316e-6), ("hybridize", 10e-6))
    ]
    widths = (32.0, 128.0, 512.0, 2048.0)
    return Result(
        "hybridize",
        "8.1",
        "Imperative and symbolic programming",
        "What does compiling buy?",
        {"calls": 1000, "widths": (32, 128)},
        CPU,
        blocks=(
            Heading("The MLP", "the_mlp"),
            Text("A program that runs op by op pays for Python each time; `hybridize` pays once."),
            Text("That <b>price</b> is small & paid per call."),
            Habit("net.hybridize()", "net = hybridize(net)", "The net stays the same."),
            Code(NET, "x.py", 12),
            Output("hello from the net\n  indented"),
            Output("more than the log wants", detail=True),
            Table(
                "Seconds per call",
                tuple(rows),
                base="hybridize",
                bars="bars",
                key=("hybridize",),
                references=(
                    Reference("before", 0.0004943, "s", BOOK, "section 8.1.2", beside="eager"),
                    Reference("elsewhere", 3.0, "s", "A reader", "notes"),
                ),
            ),
            Claim("Symbolic execution is faster", "holds", "20 times", "right", "88 times", "section 8.1"),
            Peers("the MLP"),
            Heading("What it costs", "costs"),
            Lines(
                "Calls until compiling pays",
                (
                    Curve("eager", (0.0, 200.0), (0.0, 0.177)),
                    Curve("hybridize", (0.0, 200.0), (0.105, 0.107), draw="line"),
                ),
                Axis("calls"),
                Axis("time", "s"),
                mark=(120.0, 0.106),
                marked="120 calls",
                zero=True,
            ),
            Lines(
                "Width by width",
                tuple(
                    Curve(f"{way}, batch {n}", widths, tuple(f * n * (1 + v / 99) * 1e-5 for v in widths),
                          color=way, dash=str(n))
                    for n in (1, 32) for way, f in (("eager", 9), ("hybridize", 1))
                ),
                Axis("width"),
                Axis("time per call", "s"),
                "Solid: batch 1.",
            ),
            Table("Sizes", (Measurement("export", "bytes", (123456.0,)),), detail=True),
            Claim("The output stays the same", "does not hold", "not equal", "right", "not equal", "jaxperf"),
            Claim("It is faster on a GPU", "cannot be measured here", "yes", "undecided", "no GPU here"),
            Fact("trace_s", 0.002, "s", "time to trace"),
            Fact("break_even_calls", 120),
            Fact("ok", True),
            Note("a remark"),
        ),
        script="def main():\n    pass\n",
        command="python experiments/hybridize.py --json r.json",
        started_at="2026-11-21T04:09:42+00:00",
        wall_s=41.0,
    )  # fmt: skip


def asynchronous() -> Result:
    """A grid, curves over many points, panels, timelines and a part that failed, on fake devices."""
    sizes, t = (1e3, 1e4, 1e5, 1e6), tuple(i / 10 for i in range(200))
    sync = Timeline(
        "synchronous loop",
        (Span("wait", "w", 0, 1), Span("cpu 0", "add", 0.2, 0.9)),
        1.0,
        1.0,
        "traces/loop.json.gz",
    )
    quick = Timeline(
        "asynchronous loop", (Span("python", "p", 0, 0.1), Span("cpu 0", "add", 0.1, 0.8)), 0.8, 0.8
    )
    return Result(
        "async_computation",
        "8.2",
        "Asynchronous computation",
        "Does the front end wait?",
        {},
        FAKE,
        blocks=(
            Heading("Queued and finished", "queued"),
            Table(
                "", (around("queued", 1e-3, quantity="queued"), around("finished", 0.3, quantity="finished"))
            ),
            Grid("Pieces", ("piece", "microseconds"), (("call", "0.23"), ("add", "1.10")), right=(1,)),
            Lines(
                "Predicted and measured",
                tuple(
                    Curve(f"{way}, {kind}", sizes, tuple(v * 1e-8 for v in sizes), draw=draw, color=way)
                    for way in ("sync", "async")
                    for kind, draw in (("measured", "points"), ("predicted", "line"))
                ),
                Axis("elements"),
                Axis("time", "s"),
            ),
            Lines(
                "Memory over time",
                tuple(Curve(f"run {i}", t, tuple(1e6 * i + v for v in t), draw="line") for i in range(4)),
                Axis("time", "s"),
                Axis("memory", "bytes"),
                panels=True,
            ),
            Lines(
                "In flight",
                (Curve("in flight", (1.0, 2.0, 3.0), (1.0, None, 3.0)),),
                Axis("calls"),
                Axis("computations"),
            ),
            Timelines("Two loops", (sync, quick)),
            Timelines("Nothing", (Timeline("nothing", (), 0.1),)),
            Claim("The call returns at once", "undecided", "yes", "wrong", "no", "section 8.2"),
            Failed("memory", "RuntimeError: out of memory"),
        ),
    )


def devices() -> Result:
    """Parts of a whole as stacked bars, seeds as thin lines, published points, dots; a smoke run."""
    x = (1.0, 2.0, 3.0, 4.0)
    seeds = tuple(
        Curve(f"{k} devices, seed {i}", x, tuple(0.2 * v + 0.01 * i for v in x), "thin line", color=str(k))
        for k in (1, 2)
        for i in range(3)
    )
    return Result(
        "multiple_gpus",
        "8.4",
        "Many devices by hand",
        "Does LeNet learn?",
        {},
        FAKE,
        blocks=(
            Heading("Where a step goes", "step"),
            Table(
                "A step",
                (around("compute", 0.007), around("allreduce", 0.002), around("whole step", 0.010)),
                base="whole step",
                bars="stacked",
            ),
            Heading("Training", "training"),
            Lines(
                "Test accuracy",
                (*seeds, Curve(BOOK, x, tuple(0.2 * v for v in x), "hollow points")),
                Axis("epoch"),
                Axis("accuracy"),
                "Hollow: published.",
            ),
            Dots(
                "Batch size",
                tuple(around(f"batch {n}", 0.7, "accuracy") for n in (256, 512)),
                "A dot per seed.",
            ),
            Lines(
                "Scaling",
                (
                    Curve("measured", (1.0, 2.0), (1900.0, 3500.0)),
                    Curve("ideal", (1.0, 2.0), (1900.0, 3800.0), "line"),
                ),
                Axis("devices"),
                Axis("throughput", "images/s"),
                zero=True,
            ),
            Peers("LeNet"),
        ),
        smoke=True,
    )


def peers() -> Result:
    """Systems side by side on two workloads, in rounds, and their losses."""

    def row(system: str, way: str, median: float, unit: str = "s", work: str = "the MLP") -> Measurement:
        name = f"{system}, {way}"
        return around(name, median, unit, rounds=work, system=system, workload=work, configuration=way)

    def loss(system: str) -> Curve:
        return Curve(f"{system} loss", (0.0, 1.0, 2.0), (2.3, 2.0, 1.8), system=system, workload="LeNet")

    return Result(
        "peers",
        "",
        "Beside MXNet and PyTorch",
        "Who is faster?",
        {},
        CPU,
        blocks=(
            Heading("The MLP"),
            Table(
                "The MLP on each system",
                (row("jax", "hybridize", 10e-6), row("jax", "eager", 9e-5), row("mxnet", "static", 26e-6)),
                base="jax, hybridize",
                bars="bars",
            ),
            Heading("LeNet"),
            Table(
                "LeNet on each system",
                (
                    row("jax", "scan", 5200, "images/s", "LeNet"),
                    row("torch", "compile", 7600, "images/s", "LeNet"),
                ),
                base="jax, scan",
                bars="bars",
            ),
            Lines("LeNet: loss", (loss("jax"), loss("torch")), Axis("step"), Axis("loss")),
        ),
    )


def bare() -> Result:
    """What an experiment of facts alone leaves."""
    return Result(
        "use_gpu", "", "Using a GPU", "Which devices are there?", {}, CPU, blocks=(Fact("gpu_count", 0),)
    )


def all_results() -> list[Result]:
    """One of every kind, in the book's order."""
    return [hybridize(), asynchronous(), bare(), devices(), peers()]


def hostile(words: str) -> Result:
    """These words in every field that holds text, and so in every picture, table, list and identifier."""
    w = words
    roles = {"system": w, "workload": w, "configuration": w, "quantity": w}
    odd = tuple(Measurement(f"{w} {i}", w, (1.0 + i, 2.0), note=w, rounds=w, **roles) for i in range(3))
    timed = tuple(Measurement(f"{w} t{i}", "s", (1.0 + i, 2.0), note=w, rounds=w, **roles) for i in range(3))
    curves = tuple(Curve(f"{w} {i}", (1.0, 2.0), (1.0, 2.0 + i), color=w, dash=w, **roles) for i in range(2))
    lines = Lines(w, curves, Axis(w, w), Axis(w, w), w, mark=(1.0, 1.0), marked=w)
    published = Reference(w, 1.0, w, w, w, w)
    blocks: tuple[Block, ...] = (
        Heading(w, w),
        Text(w),
        Text(f"`{w}` and `{w}"),
        Habit(w, w, w),
        Code(w, w, 3),
        Output(w),
        Table(w, odd, f"{w} 0", (published, dataclasses.replace(published, beside=f"{w} 1")), "bars"),
        Table(w, timed, f"{w} t0", (dataclasses.replace(published, unit="s", beside=f"{w} t1"),), "stacked"),
        Grid(w, (w, w), ((w, w), (w, w)), right=(1,)),
        lines,
        dataclasses.replace(lines, panels=True),
        Dots(w, odd, w),
        Timelines(w, (Timeline(w, (Span(w, w, 0.0, 1.0), Span(f"{w} 2", w, 0.0, 1.0)), 1.0, trace=w),), w),
        *(Claim(w, holds, w, right, w, w)
          for holds, right in (("holds", "right"), ("does not hold", "wrong"), ("undecided", "not stated"))),
        Fact(w, w, w, w),
        Fact(f"{w} 2", 1.5),
        Note(w),
        Failed(w, w),
        Peers(w),
    )  # fmt: skip
    return Result(
        experiment=w,
        section=w,
        title=w,
        question=w,
        config={w: w, "list": (w, {w: w})},
        environment=Environment(
            python=w, platform=w, cpu=w, versions={w: w, "jax": w}, backend=w, devices=(w, w),
            devices_are_fake=True, flags={w: w}, data_source=w, commit=w,
        ),
        blocks=blocks,
        script=w,
        command=w,
        started_at=w,
    )  # fmt: skip


def hostile_peers(words: str) -> Result:
    """A peers' result whose tables and lines another hostile result shows too."""
    return dataclasses.replace(hostile(words), experiment="peers")


# What is no name: words of the schema, units, source code, versions.
KEPT = {"experiment", "unit", "draw", "bars", "holds", "prediction", "source", "gluon", "jax", "started_at"}


def renamer(seed: int = 0) -> tuple[Callable[[str], str], dict[str, str]]:
    """A function that gives every word a random Greek one of its length, and the old words by the new."""
    chance, new, old = random.Random(seed), {}, {}

    def rename(words: str) -> str:
        while words not in new:
            greek = "".join(chance.choices("αβγδεζηθικλνξοπρστυφχψω", k=len(words)))
            if greek not in old:
                new[words], old[greek] = greek, words
        return new[words]

    return rename, old


def renamed(value: Any, rename: Callable[[str], str]) -> Any:
    """A result with every text that no renderer may interpret replaced, the same text always by the same."""
    if isinstance(value, str):
        return value if not value or "`" in value else rename(value)
    if isinstance(value, tuple):
        return tuple(renamed(v, rename) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Environment):
        fields = [f.name for f in dataclasses.fields(value) if f.init and f.name not in KEPT]
        return dataclasses.replace(value, **{name: renamed(getattr(value, name), rename) for name in fields})
    return value
