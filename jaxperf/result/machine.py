"""This machine and checkout, by the standard library alone, so that it works even if JAX is broken."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

CUDA_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
CUDNN = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
PACKAGES = ("jaxperf", "jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS, *CUDNN)


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Return versions by package name, for the packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cores() -> int:
    """Count the cores this process may run on, which a container or `taskset` may limit."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Return the number of threads in OMP_NUM_THREADS (its first word); 0 if unset."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def cpu_model() -> str:
    """Return the processor's name if the system gives it, else the architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def cpu_features() -> str:
    """Return a digest of this processor's features, "" if the system does not list them.

    The same processor may offer fewer in a virtual machine, where code compiled for more would crash.
    """
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return hashlib.sha256(line.encode()).hexdigest()[:16]
    return ""


def commit(root: Path | None = None) -> str:
    """Return the revision of a checkout, "+dirty" if a tracked file has changed; "" without a checkout.

    Args:
      root: its top folder; by default the one this package runs from.
    """
    root = root or Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return ""
    try:
        revision = _git(root, "rev-parse", "--short=12", "HEAD")
        return revision + ("+dirty" if _git(root, "status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.SubprocessError):
        return ""


def _git(root: Path, *args: str) -> str:
    """Run git on `root`, whatever checkout a hook's variables point to, without taking git's locks."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GIT_")}
    done = subprocess.run(
        ["git", "--no-optional-locks", "-C", str(root), *args],
        capture_output=True,
        text=True,
        timeout=10,
        check=True,
        env=clean,
    )
    return done.stdout.strip()
