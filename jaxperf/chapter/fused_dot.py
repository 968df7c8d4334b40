"""A case in which compiling made a program slower, a dot and a sum in one fusion, and how to avoid it."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from jaxperf.measure import block, in_fresh_process, interleaved
from jaxperf.onednn import without_onednn
from jaxperf.result import Measurement, Ratio, ratio
from jaxperf.script import Story

SETTING = "--xla_cpu_experimental_ynn_fusion_type=-reduce"
NO_MORE = 1.2  # times the CPU time; the fault doubles it, noise adds some percent
SLOW_VERSIONS = ("0.10.2",)  # 0.11.2 and 0.12.0.1 make the same fusion and run it in the same time


def dot_and_sum(x: jax.Array) -> jax.Array:
    """A product and its sum: two programs when called op by op, one program when compiled."""
    return jnp.dot(x, x).sum()


def eager_and_compiled(
    fn: Callable[..., jax.Array], args: Sequence[jax.Array], names: tuple[str, str], rounds: int
) -> dict[str, Any]:
    """CPU seconds of `fn(*args)` in this process, op by op and compiled, and the compiled program's lines."""
    compiled = jax.jit(fn)
    parts = {names[0]: lambda: fn(*args), names[1]: lambda: compiled(*args)}
    found = interleaved(parts, count=rounds, clock=time.process_time)
    text = compiled.lower(*args).compile().as_text() or ""
    return {
        "rows": [dataclasses.asdict(m) for m in found.values()],
        "program": [line.split(", metadata=")[0] for line in text[text.index("ENTRY") :].splitlines()],
    }


def compiled_child(size: int, rounds: int) -> dict[str, Any]:
    """CPU seconds of both ways in this process, and the instructions of the compiled program."""
    x = block(jax.random.uniform(jax.random.key(0), (size, size)))
    return eager_and_compiled(dot_and_sum, [x], ("two eager calls", "compiled together"), rounds)


def compiled_is_slower(story: Story, *, size: int, rounds: int) -> None:
    """The dot and its sum, eager and compiled, with XLA's defaults and with reductions outside the fusion."""
    story.heading("8.2.2 A program that compiling slows down")
    story.text(
        """Why were the two calls above not compiled into one? Because here compiling does harm. XLA gives
        products and sums on a CPU to a library, YNNPACK, and puts a product that feeds a sum into one
        `ynn_fusion`, so that the product need not be written to memory. In JAX 0.10.2 the product inside this
        fusion runs at half its speed.""",
        """We compare CPU time, the time that all threads of the process worked, which other programs on the
        machine hardly disturb. It doubles on one core as on two, so the kernel is slower and nothing waits.
        How much depends on the size: on one machine 1.0 times at 256 x 256, 1.2 at 1024, 2.5 at 1500, 2.1 at
        2000, 2.6 at 3000.""",
        f"""The setting `XLA_FLAGS={SETTING}` keeps reductions out of the fusion. XLA reads it when JAX
        starts, so each table below is from a process of its own. JAX 0.11.2 and 0.12.0.1 were tried too: they
        make the same fusion, and there it costs nothing.""",
    )
    story.code(dot_and_sum)
    usual = measured_with("", compiled_child, size, rounds)
    avoided = measured_with(SETTING, compiled_child, size, rounds)
    with story.output(detail=True):
        print("\n".join(["as XLA comes:", *usual[1], "", f"with {SETTING}:", *avoided[1]]))
    tell_rows(story, "as XLA comes", usual[0])
    tell_rows(story, f"with {SETTING}", avoided[0])
    slow = jax.__version__ in SLOW_VERSIONS
    found, without = ratio(usual[0][1], usual[0][0]), ratio(avoided[0][1], avoided[0][0])
    story.fact("fused_dot_cpu_ratio", found.median, words="CPU time compiled over eager")
    story.fact("fused_dot_cpu_ratio_without_reduce", without.median, words="the same with the setting")
    judge(story, found, without, slow=slow)


def measured_with(
    flags: str, child: Callable[..., dict[str, Any]], *args: int
) -> tuple[list[Measurement], list[str]]:
    """`child(*args)`, as from `eager_and_compiled`, in a fresh CPU process with these additional XLA flags.

    The oneDNN flags that `jaxperf run` sets are left out: this is about XLA's defaults.
    """
    given = without_onednn(os.environ.get("XLA_FLAGS", ""))
    environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": f"{given} {flags}".strip()}
    found = in_fresh_process(child, *args, environment=environment)
    return [Measurement(**row) for row in found["rows"]], found["program"]


def tell_rows(story: Story, how: str, rows: list[Measurement]) -> None:
    """Show a table of the two ways in one process."""
    story.table(rows, title=f"CPU seconds per call, {how}", base=rows[0].name, detail=True)


def judge(story: Story, found: Ratio, without: Ratio, *, slow: bool) -> None:
    """Is compiling slower here, and does the setting avoid it?"""
    story.claim(
        ours="Compiled into one program, a dot and a sum take no more CPU time than two eager calls",
        holds=found.at_most(NO_MORE),
        predicted=f"JAX {jax.__version__} takes " + ("1.3 times the time or more" if slow else "as much"),
        right=found.above(1.3) if slow else found.at_most(NO_MORE),
        observed=f"{found} times the CPU time",
    )
    story.claim(
        ours="With reductions kept out of the fusion they take no more",
        holds=without.at_most(NO_MORE),
        predicted=f"at most {NO_MORE} times the CPU time",
        right=without.at_most(NO_MORE),
        observed=f"{without} times the CPU time",
    )
