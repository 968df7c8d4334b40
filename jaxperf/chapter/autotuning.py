"""Autotuning: how much of compiling for a GPU goes into trying kernels."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from jaxperf.parallel import Step
from jaxperf.script import Story

UNTRIED = {"xla_gpu_autotune_level": 0}


def autotuning(story: Story, step: Step, *, batch: int) -> None:
    """Compile a training step without trying kernels and with it, on a GPU.

    Facts: `compile_s_untried`, `compile_s_tried`, `autotuning_share` (on a GPU only).

    Args:
      story: is told the results.
      step: one program on one device, e.g. of the way "jit".
      batch: images of a batch for which this process has compiled nothing: XLA remembers what it has tried.
    """
    story.heading("Autotuning's share of compiling")
    story.text(
        """XLA has several kernels for each product and convolution on a GPU. While it compiles, it runs them
        and keeps the fastest. With `xla_gpu_autotune_level=0` it tries none."""
    )
    story.code(compile_seconds)
    if story.environment.backend == "cpu":
        story.note("not measured: for a CPU no kernels are tried")
        return
    untried, tried = compile_seconds(step, batch)
    share = max(1 - untried / tried, 0.0)
    story.fact("compile_s_untried", untried, unit="s", words="compiling without trying kernels")
    story.fact("compile_s_tried", tried, unit="s", words="compiling with trying kernels")
    story.fact("autotuning_share", share, words="share of compiling that goes into trying kernels")
    story.say(
        f"compiling took {tried:.2f} s, and {untried:.2f} s without trying kernels, once each: "
        f"autotuning is {share:.0%}"
    )


def compile_seconds(step: Step, batch: int) -> tuple[float, float]:
    """Return the seconds of compiling a step without trying kernels, then with it."""
    X, y = np.zeros((batch, 28, 28, 1), np.uint8), np.zeros(batch, np.int32)
    lowered = step.programs["step"].lower(step.init(), *step.load(X, y))

    def seconds(options: Any) -> float:
        began = time.perf_counter()
        lowered.compile(compiler_options=options)
        return time.perf_counter() - began

    return seconds(UNTRIED), seconds(None)
