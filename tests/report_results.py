"""Results for tests: every kind of block, hostile text, odd numbers."""

from jaxperf.result import Claim, Code, Environment, Fact, Failed, Grid, Heading, Note, Result, Table, Text
from jaxperf.result.values import Measurement, Reference

HOSTILE = (
    "<script>document.title='pwned'</script>",
    "\"'><img src=x onerror=\"document.title='pwned'\">",
    "</title></style></svg></text><script>document.title='pwned'</script>",
    "{{ 7 * 7 }} {% raw %} {# no #}",
    "javascript:document.title='pwned'",
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
    threads=2,
    memory_bytes=8_000_000_000,
    flags={"MALLOC_TOP_PAD_": "1"},
    commit="abc1234",
)


def blocks(text="text"):
    """One block of every kind, with `text` wherever text may stand."""
    rows = (
        Measurement(f"eager {text}", "s", (2.0, 2.2, 2.4, 2.1, 2.3, 2.2), rounds="r", items=10, note=text),
        Measurement("jit", "s", (1.0, 1.1, 1.2, 1.05, 1.15, 1.1), rounds="r", items=10),
    )
    reference = Reference("jit", 0.5, "s", text, text)
    return (
        Heading(text),
        Text(text),
        Code(text, text, 3),
        Table(text, rows, "jit", (reference,)),
        Table(text, rows, detail=True),
        Grid(text, ("", text), ((text, text), ("a", "1")), (1,), first=1),
        Claim(text, "holds", text, text, text, text),
        Claim(text, "not measurable here", text, text),
        Fact(text or "name", 1.5, "s", text),
        Note(text),
        Failed(text, text),
    )


def result(text="text", *, name="hybridize"):
    return Result(
        experiment=name,
        section="8.1",
        title=f"Title {text}",
        question=text,
        config={"epochs": 4, "text": text, "sizes": (1, 2)},
        environment=CPU,
        blocks=blocks(text),
        command=text,
        started_at="2026-11-26T06:00:00+00:00",
        wall_s=12.5,
    )


def all_results():
    return [result(), *map(result, HOSTILE)]


def notes_of(result):
    return tuple(note.text for note in result.of(Note))
