"""Describe this machine and checkout with the standard library only, so that it works even without JAX."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CUDA_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
CUDNN = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
PACKAGES = ("jaxperf", "jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS, *CUDNN)
CPU_INFO = Path("/proc/cpuinfo")


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return versions by package name, for the packages that are installed."""
    by_package = {}
    for package in packages:
        try:
            by_package[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return by_package


def available_cores() -> list[int]:
    """Return the cores that this process may use, which a container or `taskset` may limit."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def cores() -> int:
    return len(available_cores())


def threads() -> int:
    """Return the number of threads in OMP_NUM_THREADS (its first word); 0 if unset."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def cpu_model(info: Path = CPU_INFO) -> str:
    """Return the processor's name, or the architecture if the system does not tell it."""
    fields = _fields(info)
    if "CPU part" in fields:  # before "model name", which only says ARMv8 on old kernels
        numbers = zip(fields.get("CPU implementer", []), fields["CPU part"])  # of large and small cores
        names = dict.fromkeys(f"ARM implementer {maker}, part {part}" for maker, part in numbers)
        return _field_of(["lscpu"], "Model name") or " + ".join(names)
    for field in ("model name", "cpu", "uarch"):  # x86, POWER, RISC-V
        if field in fields:
            return fields[field][0]
    apple = _field_of(["/usr/sbin/sysctl", "machdep.cpu.brand_string"], "machdep.cpu.brand_string")
    return apple or platform.processor() or platform.machine()


def _fields(info: Path) -> dict[str, list[str]]:
    """Return each field's values, one for each core; empty if the system has no such file."""
    return _split(info.read_text(errors="replace")) if info.exists() else {}


def _field_of(command: list[str], field: str) -> str:
    """Return the values of a field in what a program of the system prints; "" if it is not there."""
    printed = _printed(command, {**os.environ, "LC_ALL": "C"}) or ""
    return " + ".join(_split(printed).get(field, []))


def _split(text: str) -> dict[str, list[str]]:
    fields: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, colon, value = line.partition(":")
        if colon:
            fields.setdefault(name.strip(), []).append(value.strip())
    return fields


def commit(root: Path | None = None) -> str:
    """Return the revision of a checkout, "+dirty" if a tracked file has changed; "" without one."""
    root = root or Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    # Without locks, and without the variables of a git hook
    git = ["git", "--no-optional-locks", "-C", str(root)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    revision = _printed([*git, "rev-parse", "--short=12", "HEAD"], environment)
    changed = _printed([*git, "status", "--porcelain", "-uno"], environment)
    if revision is None or changed is None:
        return ""
    return revision + ("+dirty" if changed else "")


def _printed(command: list[str], environment: Mapping[str, str]) -> str | None:
    """Return what a program prints; None if it cannot be started, fails or hangs."""
    options: Any = {"capture_output": True, "text": True, "errors": "replace", "timeout": 10, "check": True}
    try:
        return subprocess.run(command, env=environment, **options).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
