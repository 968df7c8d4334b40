"""8.1 Imperative and symbolic programming: what does compiling a network buy, cost and forbid?

Run op by op, Python dispatches every operation of a network at each call. Traced once and compiled, the whole
network is one call. The book's MLP on one example is so small that dispatch is nearly all there is.

Prediction: the compiled twin (`hybridize`) gives the same output, at least 20 times as fast a call as op by
op and 10 times as fast as `nnx.jit`; for large batches the gap closes, because arithmetic is all there is.

    python experiments/hybridize.py --json results/hybridize.json
    python experiments/hybridize.py --batches 1 64 --widths 512 --calls 200

On 2 cores of an AMD EPYC, Python 3.11.7, JAX 0.10.2, Flax 0.12.8 it printed, among the rest:

            median    IQR  of hybridize                 published  ours / published
eager       585 us  2.6 %         32.3x  494 us (MXNet, the book)             1.18x
nnx.jit     308 us  0.1 %           17x
hybridize  18.1 us  1.9 %            1x  205 us (MXNet, the book)           0.0884x
aot        15.8 us  1.1 %        0.869x
compile_s = 86.3 ms
break_even_calls = 165
eager_over_hybridize_smallest_net = 36.0
eager_over_hybridize_largest_net = 1.08
"""

from __future__ import annotations

from dataclasses import dataclass

from jaxperf import script
from jaxperf.errors import JaxperfError


@dataclass(frozen=True)
class Config:
    """Flags of this section."""

    calls: int = 1000
    """Calls that one timing is the mean of, as in the book."""
    widths: tuple[int, ...] = (32, 128, 512, 2048)
    """Widths of the MLP's input in the sweep; the hidden layers have a half and a quarter."""
    batches: tuple[int, ...] = (1, 32, 256)
    """Batch sizes in the sweep."""
    image_batch: int = 16
    """Batch size for LeNet and ResNet-18."""
    seed: int = 0
    """Seed of parameters and inputs."""

    def __post_init__(self) -> None:
        numbers = {"calls": self.calls, "image-batch": self.image_batch}
        lists = {"widths": self.widths, "batches": self.batches}
        for flag, value in [*numbers.items(), *((k, v) for k, vs in lists.items() for v in vs)]:
            if value < 1:
                raise JaxperfError(f"--{flag} is {value}; give at least 1")
        if min(self.widths, default=4) < 4:
            raise JaxperfError(f"--widths holds {min(self.widths)}; the smallest MLP is 4 wide")

    @staticmethod
    def smoke() -> Config:
        """Every part, in seconds."""
        return Config(calls=20, widths=(32, 128), batches=(1, 8), image_batch=2)


FLAGS = script.parse(Config) if __name__ == "__main__" else None  # flags are read before JAX starts

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxperf.chapter import network_size, tracing
from jaxperf.measure import Measurement, Reference, count_ops, measure, stages
from jaxperf.models import MLP, hybridize
from jaxperf.models.export import export_net

BOOK = {"system": "MXNet, the book", "source": "section 8.1.2", "unit": "s"}


def benchmark(net: nnx.Module, x: jax.Array, *, calls: int) -> list[Measurement]:
    """Seconds a call of `net(x)` four ways; a value is `calls` calls and one wait, as the book times it."""
    jitted = nnx.jit(lambda net, x: net(x))
    compiled = hybridize(net)
    ahead = hybridize(net).compile(x)
    options: dict[str, Any] = {"wait": "end", "loops": calls, "min_values": 5, "budget_s": 2.0}
    return [
        measure(net, x, name="eager", **options),
        measure(jitted, net, x, name="nnx.jit", **options),
        measure(compiled, x, name="hybridize", **options),
        measure(ahead, x, name="aot", **options),
    ]


def add(a: Any, b: Any) -> Any:
    return a + b


def fancy_func(a: Any, b: Any, c: Any, d: Any) -> Any:
    e = add(a, b)
    f = add(c, d)
    return add(e, f)


PROGRAM = """
def add(a, b):
    return a + b

def fancy_func(a, b, c, d):
    e = add(a, b)
    f = add(c, d)
    return add(e, f)

result = fancy_func(1, 2, 3, 4)
"""


def imperative_and_symbolic(story: script.Story) -> None:
    """The book's opening: three additions, run line by line, as a string, and as JAX's three programs."""
    story.heading("8.1 Imperative and symbolic programming")
    story.say(f"line by line: fancy_func(1, 2, 3, 4) = {fancy_func(1, 2, 3, 4)}")
    scope: dict[str, Any] = {}
    exec(compile(PROGRAM, "<the program as a string>", "exec"), scope)
    story.say(f"the program as a string, compiled, then executed: {scope['result']}")

    story.say("\nthe same as JAX sees it, traced with four unknown inputs (jaxpr):")
    unknown = [jax.ShapeDtypeStruct((), jnp.float32)] * 4
    traced = jax.jit(fancy_func).trace(*unknown)
    story.say(str(traced.jaxpr))
    story.say("lowered for the compiler (StableHLO):")
    story.say(traced.lower().as_text().strip())

    story.say(
        "\nwith the four inputs known while tracing, the compiler computes the answer (optimised program):"
    )
    constant = jax.jit(lambda: fancy_func(*(jnp.float32(i) for i in (1, 2, 3, 4)))).trace()
    optimised = constant.lower().compile().as_text()
    story.say("\n".join(line for line in optimised.splitlines() if line.startswith(("ENTRY", "  ROOT", "}"))))
    traced_adds = str(constant.jaxpr).count("add ")
    ops = count_ops(optimised)
    story.fact("adds_traced", traced_adds)
    story.fact("adds_in_optimised_program", ops["add"])
    story.claim(
        "The compiler can rewrite the program to print(10)",
        predicted="no addition left, the constant 10",
        observed=f"{traced_adds} additions traced, {ops['add']} compiled, "
        + ("the constant 10 returned" if "constant(10)" in optimised else "no constant 10"),
        held=ops["add"] == 0 and "constant(10)" in optimised,
    )


def mlp_before_and_after(config: Config, story: script.Story) -> None:
    """Section 8.1.2: the MLP on one example, the same output and 1000 calls before and after."""
    story.heading("8.1.2 The MLP 512-256-128-2 before and after hybridize")
    net = MLP((512, 256, 128, 2), rngs=nnx.Rngs(config.seed))
    x = jax.random.normal(jax.random.key(config.seed), (1, 512))
    compiled = hybridize(net)
    before, after = net(x), compiled(x)
    first = compiled.trace_count
    compiled(x)
    story.say(f"before: {before}\nafter:  {after}")
    difference = float(jnp.abs(before - after).max())
    story.fact("outputs_max_abs_diff", difference)
    story.fact("trace_count_first", first)
    story.fact("trace_count_second", compiled.trace_count - first)
    story.claim(
        "After hybridize the output stays the same",
        predicted="equal up to float32 rounding",
        observed=f"largest difference {difference:.1e}",
        held=difference <= 1e-6,
    )

    references = (
        Reference("before hybridizing", 0.4943 / 1000, beside="eager", **BOOK),
        Reference("after hybridizing", 0.2053 / 1000, beside="hybridize", **BOOK),
    )
    rows = benchmark(net, x, calls=config.calls)
    story.measured(*rows, references=references, base="hybridize", title="seconds a call")
    eager, jitted, ours, _ = (m.median for m in rows)
    story.fact("eager_over_hybridize", eager / ours)
    story.fact("nnx_jit_over_hybridize", jitted / ours)
    story.claim(
        "Symbolic execution is faster (the book: 2.4 times)",
        predicted="20 times as fast as eager, 10 times as fast as nnx.jit",
        observed=f"{eager / ours:.0f} times and {jitted / ours:.0f} times",
        held=eager / ours >= 20 and jitted / ours >= 10,
    )
    cost_of_compiling(story, net, x, gain_s=eager - ours)


def cost_of_compiling(story: script.Story, net: nnx.Module, x: jax.Array, *, gain_s: float) -> None:
    """What the first call pays, stage by stage, and after how many calls it has paid for itself."""
    twin = hybridize(net)
    found = stages(twin.function, twin.leaves(), x, name="steady", measure_options={"budget_s": 0.3})
    for stage in ("trace_s", "lower_s", "compile_s", "first_run_s"):
        story.fact(stage, getattr(found, stage), unit="s")
    p = found.program
    story.say(
        f"it became {p.jaxpr_equations} jaxpr equations, {p.stablehlo_bytes} bytes of StableHLO, {p.fusions} "
        f"fusions, {p.dots} dots, {p.convolutions} convolutions; by the compiler's own estimates "
        f"{p.flops:.0f} FLOPs, {p.bytes_accessed:.0f} bytes moved, {p.peak_bytes} bytes at the peak"
    )
    cost_s = found.trace_s + found.lower_s + found.compile_s
    story.fact("break_even_calls", int(np.ceil(cost_s / gain_s)) if gain_s > 0 else None)


LOADER = """
import json, pathlib, sys
import jax, numpy, safetensors.numpy
program, arrays, inputs = map(pathlib.Path, sys.argv[1:])
exported = jax.export.deserialize(bytearray(program.read_bytes()))
output = exported.call(safetensors.numpy.load_file(arrays), numpy.load(inputs))
foreign = [name for name in ("flax", "jaxperf") if name in sys.modules]
print(json.dumps({"output": numpy.asarray(output).tolist(), "model_code": foreign}))
"""


def export_and_reload(config: Config, story: script.Story) -> None:
    """`net.export("my_mlp")`: program and arrays on disk, loaded by a process that knows no model code."""
    story.heading("8.1.2 The symbolic program, exported")
    net = MLP((512, 256, 128, 2), rngs=nnx.Rngs(config.seed))
    x = jax.random.normal(jax.random.key(config.seed), (1, 512))
    with tempfile.TemporaryDirectory() as folder:
        files = export_net(net, Path(folder) / "my_mlp", x)
        for file in files:
            story.say(f"{file.name}: {file.stat().st_size} bytes")
        inputs = Path(folder) / "x.npy"
        np.save(inputs, np.asarray(x))
        command = [sys.executable, "-c", "import jax.export" + LOADER, *map(str, files), str(inputs)]
        done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=True)
    answer = json.loads(done.stdout)
    difference = float(np.abs(np.asarray(answer["output"]) - np.asarray(hybridize(net)(x))).max())
    story.fact("export_max_abs_diff", difference)
    story.claim(
        "Program and parameters can be used without the code that made them",
        predicted="the same output in a fresh process without model code",
        observed=f"largest difference {difference:.1e}; model code loaded: {answer['model_code'] or 'none'}",
        held=difference <= 1e-6 and not answer["model_code"],
    )
    shape = jax.eval_shape(hybridize(net), jax.ShapeDtypeStruct((1, 512), jnp.float32))
    story.say(f"net(sym.var('data')) is a call with a shape in place of an array: {shape}")


def main(config: Config, story: script.Story) -> None:
    """Section 8.1 in the book's order."""
    imperative_and_symbolic(story)
    mlp_before_and_after(config, story)
    network_size.widths_and_batches(story, widths=config.widths, batches=config.batches, seed=config.seed)
    export_and_reload(config, story)
    tracing.prints_fall_silent(story)
    tracing.what_tracing_forbids(story)
    tracing.what_traces_again(story)
    network_size.earlier_networks(story, batch=config.image_batch, seed=config.seed)


if __name__ == "__main__":
    script.run(main, FLAGS)
