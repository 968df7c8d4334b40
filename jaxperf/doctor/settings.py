"""Settings of the environment that change speed: compile cache, allocator, JAX's debugging."""

from __future__ import annotations

import os
import shlex
from pathlib import Path

from jaxperf.doctor.finding import Finding
from jaxperf.doctor.probe import Probe
from jaxperf.launch import ALLOCATOR, uses_glibc
from jaxperf.report.text import quantity

CACHE_VARIABLE = "JAX_COMPILATION_CACHE_DIR"
CACHE_MIN_VARIABLE = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


def settings_findings(probe: Probe) -> list[Finding]:
    """The compile cache, the allocator, and one finding for each debug setting that is on."""
    slow = [
        Finding("debug", "mend", f"{flag} is on: measurements refuse to run", f"unset {flag.upper()}")
        for flag in probe.debug_flags
    ]
    return [_cache(), _allocator(), *slow]


def _cache() -> Finding:
    named = os.environ.get(CACHE_VARIABLE)
    if not named:
        return Finding("cache", "note", "compile cache off: every process compiles anew")
    folder = Path(named)
    if "://" not in named and (not folder.is_dir() or not os.access(folder, os.W_OK)):
        text = f"compile cache {named} is no folder that can be written: nothing is kept"
        return Finding("cache", "mend", text, shlex.join(["mkdir", "-p", named]))
    files = [p for p in folder.iterdir() if p.is_file()] if folder.is_dir() else []
    size = quantity(sum(p.stat().st_size for p in files), "bytes")
    least = os.environ.get(CACHE_MIN_VARIABLE, "1")
    return Finding("cache", "ok", f"{named}: {len(files)} files, {size}; keeps what took over {least} s")


def _allocator() -> Finding:
    if not uses_glibc():
        return Finding("allocator", "note", "not glibc's: its settings are left alone")
    missing = [f"{name}={value}" for name, value in ALLOCATOR.items() if name not in os.environ]
    if not missing:
        return Finding("allocator", "ok", ", ".join(f"{name}={os.environ[name]}" for name in ALLOCATOR))
    text = "`jaxperf run` gives its processes MALLOC_ settings; a script started by hand wants"
    return Finding("allocator", "note", text, "export " + " ".join(missing))
