"""Describe this machine and checkout with the standard library only, so that it works even without JAX."""

import contextlib
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
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            by_package[package] = importlib.metadata.version(package)
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
    """Return the processor's name, or its number on ARM, or the architecture if the system tells neither."""
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    fields = [line.partition(":")[::2] for line in lines]
    # Of ARM's parts, "model name" only says ARMv8 on old kernels; then x86, POWER and RISC-V
    for field in ("CPU part", "model name", "cpu", "uarch"):
        values = dict.fromkeys(value.strip() for name, value in fields if name.strip() == field)
        if values:
            return ("ARM part " if field == "CPU part" else "") + " + ".join(values)
    apple = _printed(["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"], os.environ)
    return apple or platform.processor() or platform.machine()


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
