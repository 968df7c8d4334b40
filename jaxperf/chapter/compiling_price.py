"""Section 8.1.2: the price of compiling, stage by stage."""

from __future__ import annotations

import math

import jax
from flax import nnx

from jaxperf.measure import stages
from jaxperf.models import hybridize
from jaxperf.result import Measurement
from jaxperf.script import Story


def price_of_compiling(story: Story, net: nnx.Module, x: jax.Array, *, gain_s: float) -> None:
    """Show the cost of the first call, stage by stage, and after how many calls it has paid for itself.

    Facts: `break_even_calls`, None if compiling gains nothing.

    Args:
      story: is told the stages and the program in numbers.
      net, x: what is compiled, and an example of its input.
      gain_s: seconds that a compiled call saves.
    """
    story.text(
        """Compiling has a price, paid at the first call: tracing runs your Python code, lowering writes
        StableHLO, compiling optimizes it. The calls that it takes to earn the price back are few for a
        network that is called a million times, and many for one that is called once."""
    )
    compiled = hybridize(net)
    found = stages(compiled.function, compiled.leaves(), x, measure_options={"budget_s": 0.3})
    paid = found.trace_s, found.lower_s, found.compile_s, found.first_run_s
    names = "trace", "lower", "compile", "first run"
    rows = [Measurement(stage, "s", (seconds,)) for stage, seconds in zip(names, paid, strict=True)]
    story.table(rows, title="What the first call pays", detail=True)
    p = found.program
    story.say(
        f"{p.jaxpr_equations} equations in the jaxpr, {p.stablehlo_bytes} bytes of StableHLO, then "
        f"{p.fusions} fusions and {p.dots} matrix products; the compiler estimates {p.flops:.0f} FLOP, "
        f"{p.bytes_accessed:.0f} bytes moved and {p.peak_bytes} bytes at the peak",
        detail=True,
    )
    earned = math.ceil(sum(paid[:3]) / gain_s) if gain_s > 0 else None
    story.fact("break_even_calls", earned, words="calls that earn back what compiling cost")
