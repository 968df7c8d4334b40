"""Run probes in the Python of one version of JAX, as run.py asks for them.

Each line of standard input is a request in JSON, and each line of the answers' stream is its answer:

    {"prepare": NAME}      {"cannot": WHY} if this version cannot run the probe; else what needs no clock:
                           {"bytes": N} or {"wrong": WHAT}, or {} if turns follow
    {"turn": SECONDS}      {"values": {ROW: VALUE}}, the median of the values that took about so many seconds
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[1])]
ANSWERS = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)  # what a library prints is no answer

import jax
import operations  # noqa: F401
import reported  # noqa: F401
from registry import PROBES, Probe

from jaxperf.jax_internals import enable_x64
from jaxperf.measure import measure
from jaxperf.measure.stages import build_program


def main() -> None:
    """Answer requests until the input ends."""
    probe: Probe | None = None
    made: Any = None
    for line in sys.stdin:
        request = json.loads(line)
        try:
            if "prepare" in request:
                probe = PROBES[request["prepare"]]
                jax.clear_caches()
                with _precision(probe):
                    made = probe.make()
                    answer = _prepared(probe, made)
            else:
                assert probe is not None
                with _precision(probe):
                    answer = {"values": _turn(probe, made, float(request["turn"]))}
        except Exception as e:  # whatever a version raises is what it says about the probe
            reason = " ".join(str(e).split())[:200]
            answer = {"cannot": f"{type(e).__name__}: {reason}"}
        print(json.dumps(answer), file=ANSWERS, flush=True)


def _precision(probe: Probe) -> Any:
    return enable_x64(True) if probe.x64 else contextlib.nullcontext()


def _prepared(probe: Probe, made: Any) -> dict[str, Any]:
    """Return what needs no clock, after a first call of what does."""
    if probe.kind == "right":
        return {"wrong": made}
    fn, *arguments = made
    if probe.kind == "memory":
        analysis = fn.lower(*arguments).compile().memory_analysis()
        return {"bytes": int(analysis.temp_size_in_bytes)}
    if probe.kind == "time":
        jax.block_until_ready(fn(*arguments))
    return {}


def _turn(probe: Probe, made: Any, seconds: float) -> dict[str, float]:
    """Return the values of one turn: seconds per call, or of each stage."""
    fn, *arguments = made
    if probe.kind == "compile":
        jax.clear_caches()
        built = build_program(fn, *arguments)
        return {"trace": built.trace_s, "lower": built.lower_s, "compile": built.compile_s}
    timed = measure(
        fn, *arguments, name=probe.name, warmup_calls=1, warmup_s=0.0, min_values=1, least_s=seconds,
        budget_s=seconds,
    )  # fmt: skip
    return {"": timed.median}


if __name__ == "__main__":
    main()
