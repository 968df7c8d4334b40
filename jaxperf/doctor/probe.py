"""Start JAX and Flax in a separate process, where a broken installation may raise, crash or hang."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace

from jaxperf.process import child_environment

CHILD = "from jaxperf.doctor.probe import answer; raise SystemExit(answer())"
LIMIT_S = 120.0  # a first start on a GPU takes about ten seconds


@dataclass(frozen=True)
class JaxReport:
    """What JAX reported, or why it did not start.

    Attributes:
      backend: "cpu" or "gpu".
      devices: one line per device.
      debug_flags: JAX's debug settings that are on.
      trouble: why it did not start; "" if it did.
      warnings: what else it printed.
      culprit: the environment variable that keeps it from starting; "" if there is none.
      faults: a line for each known fault of this jaxlib on a GPU.
    """

    backend: str = ""
    devices: tuple[str, ...] = ()
    debug_flags: tuple[str, ...] = ()
    trouble: str = ""
    warnings: tuple[str, ...] = ()
    culprit: str = ""
    faults: tuple[str, ...] = ()


def ask_jax(environment: Mapping[str, str] | None = None) -> JaxReport:
    """Start JAX as a section would, import Flax, compile and run one small program on the first device."""
    # A GPU's memory is not preallocated, so that a running experiment is not disturbed.
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | child_environment(environment or os.environ)
    try:
        report = _start(env)
        # A setting that keeps JAX from starting looks like a broken installation; a second start decides.
        for name in ("XLA_FLAGS", *sorted(n for n in env if n.startswith("JAX_"))):
            if (
                report.trouble
                and name in env
                and not _start({k: v for k, v in env.items() if k != name}).trouble
            ):
                setting = f"{name}={env[name]}"[:100]
                return replace(report, trouble=f"JAX does not start with {setting}", culprit=name)
    except subprocess.TimeoutExpired:
        return JaxReport(trouble=f"JAX was not ready after {LIMIT_S:.0f} s")
    return report


def _start(env: Mapping[str, str]) -> JaxReport:
    command = [sys.executable, "-P", "-c", CHILD]  # -P: nothing in the current folder may shadow a package
    done = subprocess.run(command, env=env, capture_output=True, text=True, errors="replace", timeout=LIMIT_S)
    messages = tuple(line.strip() for line in done.stderr.splitlines() if line.strip())
    if done.returncode:
        how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else "does not start"
        return JaxReport(trouble=f"JAX {how}: {messages[-1] if messages else 'it said nothing'}")
    try:
        report = json.loads(done.stdout.splitlines()[-1])
        return JaxReport(
            report["backend"], tuple(report["devices"]), tuple(report["debug_flags"]), warnings=messages,
            faults=tuple(report["faults"]),
        )  # fmt: skip
    except (ValueError, IndexError, KeyError, TypeError):
        return JaxReport(trouble="JAX started, but what it printed is not understood")


def answer() -> int:
    """Print what JAX sees as JSON, or why it does not start as the last line of standard error.

    Runs in the process that `ask_jax` starts. Returns the exit status.
    """
    try:
        print(json.dumps(_jax_facts()))
    except Exception as e:  # report whatever a broken installation raises
        print(": ".join(filter(None, (type(e).__name__, " ".join(str(e).split())))), file=sys.stderr)
        return 1
    return 0


def _jax_facts() -> dict[str, object]:
    import jax
    import jax.numpy as jnp

    from jaxperf.measure.compile_log import DEBUG_FLAGS
    from jaxperf.plan.faults import installed_faults

    try:
        importlib.import_module("flax.nnx")  # what every section imports; it may not fit this JAX
    except Exception as e:
        raise ImportError(f"flax.nnx cannot be imported with JAX {jax.__version__}: {e}") from e
    total = float(jax.jit(jnp.sum)(jnp.arange(4.0)))
    if total != 6.0:
        raise ArithmeticError(f"0 + 1 + 2 + 3 is {total} on {jax.devices()[0]}")
    return {
        "backend": jax.default_backend(),
        "devices": [f"{d.platform}:{d.id} {d.device_kind}" for d in jax.devices()],
        "debug_flags": [flag for flag in DEBUG_FLAGS if getattr(jax.config, flag, False)],
        "faults": installed_faults(),
    }
