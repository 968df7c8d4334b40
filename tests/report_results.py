"""Results for the tests of the renderers: one of every kind of picture, hostile names, peers, odd numbers."""

from __future__ import annotations

from dataclasses import replace

from jaxperf.measure.record import (
    Claim,
    Environment,
    Measurement,
    Reference,
    Result,
    Series,
    Span,
    Timeline,
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
FAKE = replace(CPU, devices=("cpu:0 cpu", "cpu:1 cpu"), devices_are_fake=True, data_source="mini")


def around(name: str, median: float, unit: str = "s", **more: object) -> Measurement:
    return Measurement(name, unit, tuple(median * (1 + 0.01 * i) for i in range(-3, 4)), **more)  # type: ignore[arg-type]


def curve(name: str, x: tuple[float, ...], y: tuple[float | None, ...], x_unit: str, y_unit: str) -> Series:
    return Series(name, x, y, x_unit, y_unit)


def hybridize() -> Result:
    group, x = "8.1.2 The MLP", (32.0, 128.0, 512.0, 2048.0)
    return Result(
        "hybridize",
        "8.1",
        "Imperative and symbolic programming",
        "What does compiling buy?",
        {"calls": 1000, "widths": [32, 128]},
        CPU,
        measurements=(
            around("eager", 886e-6, group=group, base="hybridize"),
            around("nnx.jit", 316e-6, group=group, base="hybridize"),
            around("hybridize", 10e-6, group=group, base="hybridize"),
            Measurement("export", "bytes", (123456.0,), group="Export"),
        ),
        series=tuple(
            curve(f"{way}, batch {n}", x, tuple(f * n * (1 + v / 99) * 1e-5 for v in x), "width", "s")
            for n in (1, 32)
            for way, f in (("eager", 9), ("hybridize", 1))
        ),
        facts={"trace_s": 0.002, "lower_s": 0.003, "compile_s": 0.1, "break_even_calls": 120, "ok": True},
        claims=(
            Claim("Symbolic execution is faster", "20 times", "88 times", True, "section 8.1"),
            Claim("The output stays the same", "equal", "not equal", False),
            Claim("It is faster on a GPU", "yes", "no GPU here", None),
        ),
        references=(
            Reference("before", 0.0004943, "s", "MXNet, the book", "section 8.1.2", beside="eager"),
            Reference("elsewhere", 3.0, "s", "A reader", "notes", beside="nothing of ours"),
        ),
        notes=("a remark",),
        command="python experiments/hybridize.py --json r.json",
        started_at="2026-11-21T04:09:42+00:00",
        wall_s=41.0,
    )


def asynchronous() -> Result:
    sizes, t = (1e3, 1e4, 1e5, 1e6), tuple(i / 10 for i in range(200))
    runs = (
        Timeline("synchronous loop", (Span("wait", "w", 0, 1), Span("cpu 0", "add", 0.2, 0.9)), 1.0, 1.0),
        Timeline(
            "asynchronous loop", (Span("python", "p", 0, 0.1), Span("cpu 0", "add", 0.1, 0.8)), 0.8, 0.8
        ),
        Timeline("nothing", (), 0.1),
    )
    return Result(
        "async_computation",
        "8.2",
        "Asynchronous computation",
        "Does the front end wait?",
        {},
        FAKE,
        measurements=(around("queued", 1e-3), around("finished", 0.3)),
        series=(
            *(
                curve(f"{way}/{kind}", sizes, tuple(v * 1e-8 for v in sizes), "elements", "s")
                for way in ("sync", "async")
                for kind in ("measured", "predicted")
            ),
            *(curve(f"memory/run {i}", t, tuple(1e6 * i + v for v in t), "s", "bytes") for i in range(4)),
            curve("inflight", (1.0, 2.0, 3.0), (1.0, None, 3.0), "calls", "computations"),
        ),
        timelines=(replace(runs[0], trace="traces/loop.json.gz"), *runs[1:]),
        claims=(Claim("The call returns at once", "yes", "yes", True),),
    )


def devices() -> Result:
    x = (1.0, 2.0, 3.0, 4.0)
    return Result(
        "multiple_gpus",
        "8.4",
        "Many devices by hand",
        "Does LeNet learn?",
        {},
        FAKE,
        measurements=(around("step", 0.010), around("step/compute", 0.007), around("step/allreduce", 0.002)),
        series=(
            *(
                curve(f"{kind}/{k} devices, seed {i}", x, tuple(0.1 * v + 0.01 * i for v in x), "epoch", unit)
                for kind, unit in (("accuracy", "accuracy"), ("loss", "nats"))
                for k in (1, 2)
                for i in range(3)
            ),
            curve("scaling/measured", (1.0, 2.0), (1900.0, 3500.0), "devices", "images/s"),
            *(
                curve(f"grid/batch {n}", (0.0, 1.0), (0.7, 0.7 + n / 9999), "seed", "accuracy")
                for n in (256, 512)
            ),
        ),
        references=tuple(
            Reference(
                f"after epoch {i}", 0.2 * i, "accuracy", "MXNet, the book", "8.4.6", beside=f"accuracy/{i}"
            )
            for i in range(1, 5)
        ),
        smoke=True,
        notes=("--smoke: toy sizes, the times mean nothing",),
    )


def peers() -> Result:
    rows = {"jax/8.1 MLP/hybridize": 10e-6, "jax/8.1 MLP/eager": 90e-6, "mxnet/8.1 MLP/static": 26e-6}
    rates = {"jax/LeNet/scan": 5200.0, "torch/LeNet/compile": 7600.0}
    return Result(
        "peers",
        "",
        "Beside MXNet and PyTorch",
        "Who is faster?",
        {},
        CPU,
        measurements=(
            *(around(name, value) for name, value in rows.items()),
            *(around(name, value, "images/s") for name, value in rates.items()),
        ),
        series=tuple(
            curve(f"{system}/LeNet/{way} loss", (0.0, 1.0, 2.0), (2.3, 2.0, 1.8), "step", "loss")
            for system, way in (("jax", "scan"), ("jax", "jit"), ("torch", "compile"))
        ),
    )


def bare() -> Result:
    """What an experiment of facts alone leaves."""
    return Result("use_gpu", "", "Using a GPU", "Which devices are there?", {}, CPU, facts={"gpu_count": 0})


def all_results() -> list[Result]:
    return [peers(), bare(), devices(), asynchronous(), hybridize()]


def hostile(words: str) -> Result:
    """These words in every field that holds text, and so in every picture, table, list and identifier."""
    w = words
    measured = [Measurement(f"{w} {i}", w, (1.0 + i, 2.0), note=w, group=w, base=f"{w} 0") for i in range(3)]
    timed = [
        Measurement(f"{w} t{i}", "s", (1.0 + i, 2.0), note=w, group=f"{w} t", base=f"{w} t0")
        for i in range(3)
    ]
    step = [Measurement(name, "s", (1.0,)) for name in ("step", f"step/{w}", f"step/{w} 2")]
    facts = {w: w, f"{w} 2": 1.5, "trace_s": 1.0, "lower_s": 1.0, "compile_s": 1.0}
    return Result(
        experiment=w,
        section=w,
        title=w,
        question=w,
        config={w: w, "list": [w, {w: w}]},
        environment=Environment(
            python=w, platform=w, cpu=w, versions={w: w, "jax": w}, backend=w, devices=(w, w),
            devices_are_fake=True, flags={w: w}, data_source=w, commit=w,
        ),
        measurements=(*measured, *timed, *step, around("eager", 2.0), around("hybridize", 1.0)),
        series=(
            *(Series(f"{w}/{k}", (1.0, 2.0), (1.0, 2.0), w, w) for k in ("measured", "predicted", "x", "y")),
            *(Series(f"{k}/{w}", (1.0, 2.0), (1.0, 2.0), w, w) for k in ("accuracy", "scaling", "memory")),
            *(Series(f"{w}, {w} {i}", (1.0, 2.0), (1.0, 2.0), w, w) for i in range(2)),
            Series(f"grid/{w}", (1.0, 2.0), (1.0, 2.0), "seed", w),
        ),
        timelines=(Timeline(w, (Span(w, w, 0.0, 1.0), Span(f"{w} 2", w, 0.0, 1.0)), 1.0, trace=w),),
        facts=facts,
        claims=tuple(Claim(w, w, w, held, w) for held in (True, False, None)),
        references=(
            Reference(w, 1.0, w, w, w, w, beside=f"{w} 1"),
            Reference(w, 1.0, "s", w, w, w, beside=f"{w} t1"),
            Reference(w, 1.0, w, w, w, w, beside="accuracy/1"),
            Reference(w, 1.0, w, w, w, w, beside=w),
        ),
        notes=(w,),
        command=w,
        started_at=w,
    )  # fmt: skip


def hostile_peers(words: str) -> Result:
    names = (f"jax/{words}/{words}", f"{words}/{words}/{words} 2", f"jax/{words}/3")
    return replace(hostile(words), experiment="peers", measurements=tuple(around(n, 1.0) for n in names))
