"""What machine, what versions, what settings: the `Environment` that travels with every result."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

import psutil

from jaxperf.result.record import Environment

PACKAGES = ("jaxperf", "jax", "jaxlib", "flax", "optax", "numpy")
FLAG_PREFIXES = ("JAX_", "XLA_", "OMP_", "MALLOC_", "MKL_", "TF_CPU_", "CUDA_VISIBLE", "NVIDIA_TF32", "NCCL_")
JAX_SETTINGS = (
    "jax_default_matmul_precision",
    "jax_enable_x64",
    "jax_cpu_enable_async_dispatch",
    "jax_compilation_cache_dir",
)


def current_environment(*, data_source: str = "") -> Environment:
    """Describe this process; starts the JAX backend, since it lists the devices.

    Args:
      data_source: where the images came from, if any were read.
    """
    import jax

    devices = jax.devices()
    backend = jax.default_backend()
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        cpu=cpu_model(),
        versions=versions(),
        backend=backend,
        devices=tuple(f"{d.platform}:{d.id} {d.device_kind}" for d in devices),
        devices_are_fake=backend == "cpu" and len(jax.local_devices()) > 1,
        cores=cores(),
        threads=threads(),
        memory_bytes=psutil.virtual_memory().total,
        flags={**_variables(), **_settings(jax.config)},
        data_source=data_source,
        commit=commit(),
    )


def versions(packages: tuple[str, ...] = PACKAGES) -> dict[str, str]:
    """Installed versions by package name; what is not installed is left out."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def cores() -> int:
    """Processors this process may run on, which a container or `taskset` may have cut."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """Threads that libraries were told to use by OMP_NUM_THREADS (or its first word); 0 if unset."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def cpu_model() -> str:
    """The processor's own name where the system tells it, else the architecture."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit(root: Path | None = None) -> str:
    """Revision of a checkout, "+dirty" if a file it keeps has changed since; "" where there is none.

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
    """What git says of `root`, whatever checkout a hook's variables point to, without taking git's locks."""
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


def _variables() -> dict[str, str]:
    return {k: v for k, v in sorted(os.environ.items()) if k.startswith(FLAG_PREFIXES)}


def _settings(config: object) -> dict[str, str]:
    values = {name: getattr(config, name, None) for name in JAX_SETTINGS}
    return {name: str(value) for name, value in values.items() if value is not None}
