"""Show where a step of ResNet-18 spends its time on this device, kernel by kernel: `profile_step.py FILE`.

Each kernel's arithmetic and traffic come from the compiled program, and its seconds from a profile, in which
CUDA graphs are off, since their kernels have no names. So the table says how far each kind of kernel is from
the card's ceilings.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

from tools.gpu_check.plan_step import SMALL, training_step

STEPS = 20
LARGEST = 15  # kernels in the table


def profile(batch: int, dtype: str) -> dict[str, Any]:
    """Return the seconds of a step, and of its kernels by kind and by name."""
    import jax

    from jaxperf.measure import measure
    from jaxperf.plan.hlo import executed_instructions, parse
    from jaxperf.plan.kernels import kernel_of

    step, arguments = training_step(batch, jax.numpy.dtype(dtype))
    inputs = arguments()
    compiled = step.lower(*inputs).compile()
    module = parse(compiled.as_text())
    work = {
        instruction.name: kernel
        for computation, instruction, _ in executed_instructions(module)
        if (kernel := kernel_of(module, computation, instruction))
    }
    # 20 calls in a row, as in `plan_step`
    measured_s = measure(compiled, *inputs, wait="end", loops=STEPS, budget_s=2).median
    seconds = _kernel_seconds(compiled, inputs)
    kinds: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for name, in_kernel_s in seconds.items():
        kernel = work.get(name)
        kind = "unknown" if kernel is None else "products" if kernel.products else "others"
        kinds[kind]["seconds"] += in_kernel_s
        kinds[kind]["kernels"] += 1
        if kernel:
            kinds[kind]["flops"] += kernel.flops
            kinds[kind]["bytes"] += kernel.bytes
    largest = sorted(seconds.items(), key=lambda item: -item[1])[:LARGEST]
    rows = [
        (name, s, work[name].flops if name in work else 0, work[name].bytes if name in work else 0)
        for name, s in largest
    ]
    return {"batch": batch, "dtype": dtype, "step_s": measured_s, "kinds": kinds, "largest": rows}


def _kernel_seconds(compiled: Any, inputs: tuple[Any, ...]) -> dict[str, float]:
    """Return the seconds of each kernel in a step, by the name of its instruction."""
    import jax
    from jax.profiler import ProfileData

    from jaxperf.measure import trace

    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            for _ in range(STEPS):
                outputs = compiled(*inputs)
            jax.block_until_ready(outputs)
        file = next(Path(folder).rglob("*.xplane.pb"))
        lines = list(trace.lines(ProfileData.from_file(str(file))))
    done, seconds = trace.end_times(lines), defaultdict[str, float](float)
    for line in lines:
        for event in trace.executed_instructions(line, done):
            seconds[event.name] += (event.end - event.start) / 1e9 / STEPS
    return seconds


def main(path: Path, *, rehearse: bool) -> int:
    """Write the profiles of the two steps that have a goal, and print them."""
    if rehearse:
        os.environ[SMALL] = "1"
    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_enable_command_buffer="
    profiles = [profile(1024, "bfloat16"), profile(256, "float32")]
    path.write_text(json.dumps(profiles, indent=1), encoding="utf-8")
    for each in profiles:
        print(f"{each['dtype']}, batch {each['batch']}: {1e3 * each['step_s']:.3f} ms a step")
        for kind, sums in each["kinds"].items():
            s = sums["seconds"]
            rates = f"{sums['flops'] / s / 1e12:.0f} TFLOP/s, {sums['bytes'] / s / 1e12:.2f} TB/s"
            print(f"  {kind}: {sums['kernels']:.0f} kernels, {1e3 * s:.3f} ms, {rates}")
        for name, s, flops, moved in each["largest"]:
            print(
                f"    {1e6 * s:8.1f} us {flops / s / 1e12:6.0f} TFLOP/s {moved / s / 1e12:6.2f} TB/s  {name}"
            )
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1]), rehearse="--rehearse" in sys.argv))
