"""Ask JAX what it sees, in a process of its own: a broken installation may raise, crash or hang there."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from jaxperf.launch import child_environment

CHILD = Path(__file__).with_name("probe_child.py")
LIMIT_S = 120.0  # a first start on a GPU takes some ten seconds


@dataclass(frozen=True)
class Probe:
    """What JAX said: its backend, devices and debug settings that are on; or why it did not start."""

    backend: str = ""
    devices: tuple[str, ...] = ()
    debug_flags: tuple[str, ...] = ()
    trouble: str = ""
    warnings: tuple[str, ...] = field(default=())


def ask_jax(environment: Mapping[str, str] | None = None) -> Probe:
    """Start JAX as a section would, compile and run one small program on its first device."""
    # A GPU's memory is not taken in advance: a running experiment is neither disturbed nor in the way.
    env = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} | child_environment(environment or os.environ)
    command = [sys.executable, "-P", str(CHILD)]  # -P: nothing in our folder may shadow a package
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        return Probe(trouble=f"JAX was not ready after {LIMIT_S:.0f} s")
    said = tuple(line.strip() for line in done.stderr.splitlines() if line.strip())
    if done.returncode:
        how = f"was ended by signal {-done.returncode}" if done.returncode < 0 else "does not start"
        wanted = env.get("JAX_PLATFORMS")
        under = f" with JAX_PLATFORMS={wanted}" if wanted else ""
        return Probe(trouble=f"JAX {how}{under}: {said[-1] if said else 'it said nothing'}")
    try:
        seen = json.loads(done.stdout.splitlines()[-1])
        return Probe(seen["backend"], tuple(seen["devices"]), tuple(seen["debug_flags"]), warnings=said)
    except (ValueError, IndexError, KeyError, TypeError):
        return Probe(trouble="JAX started, but what it printed is not understood")
