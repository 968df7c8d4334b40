"""Describe this machine and checkout with the standard library only, so that it works even without JAX."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from pathlib import Path

CUDA_PLUGINS = ("jax-cuda12-plugin", "jax-cuda13-plugin")
CUDNN = ("nvidia-cudnn-cu12", "nvidia-cudnn-cu13")
PACKAGES = ("jaxperf", "jax", "jaxlib", "flax", "optax", "numpy", *CUDA_PLUGINS, *CUDNN)
CPU_INFO = Path("/proc/cpuinfo")
# names of cores by implementer and part, as in util-linux's lscpu
ARM = {
    ("0x41", "0xd03"): "ARM Cortex-A53",
    ("0x41", "0xd05"): "ARM Cortex-A55",
    ("0x41", "0xd07"): "ARM Cortex-A57",
    ("0x41", "0xd08"): "ARM Cortex-A72",
    ("0x41", "0xd0b"): "ARM Cortex-A76",
    ("0x41", "0xd42"): "ARM Cortex-A78AE",
    ("0x41", "0xd0c"): "ARM Neoverse-N1",
    ("0x41", "0xd49"): "ARM Neoverse-N2",
    ("0x41", "0xd8e"): "ARM Neoverse-N3",
    ("0x41", "0xd40"): "ARM Neoverse-V1",
    ("0x41", "0xd4f"): "ARM Neoverse-V2",
    ("0x41", "0xd84"): "ARM Neoverse-V3",
    ("0x46", "0x001"): "Fujitsu A64FX",
    ("0x48", "0xd01"): "HiSilicon Kunpeng 920",
    ("0x61", "0x022"): "Apple M1 (Icestorm)",
    ("0x61", "0x023"): "Apple M1 (Firestorm)",
    ("0x61", "0x032"): "Apple M2 (Blizzard)",
    ("0x61", "0x033"): "Apple M2 (Avalanche)",
    ("0x6d", "0xd49"): "Microsoft Azure Cobalt 100",
    ("0xc0", "0xac3"): "Ampere-1",
    ("0xc0", "0xac4"): "Ampere-1A",
}


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
    """Return the number of cores that this process may use."""
    return len(available_cores())


def threads() -> int:
    """Return the number of threads in OMP_NUM_THREADS (its first word); 0 if unset."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() else 0


def cpu_model(info: Path = CPU_INFO) -> str:
    """Return the processor's name, or the architecture if the system does not tell it.

    Args:
      info: Linux's list of processors. On ARM it has numbers instead of names.
    """
    fields = _fields(info)
    if parts := fields.get("CPU part"):  # before "model name", which only says ARMv8 on old kernels
        cores_of = zip(fields.get("CPU implementer", []), parts)  # there may be large and small cores
        return " + ".join(dict.fromkeys(_arm(*core) for core in cores_of))
    for field in ("model name", "cpu", "uarch"):  # x86, POWER, RISC-V
        if names := fields.get(field):
            return names[0]
    return (_apple() if sys.platform == "darwin" else "") or platform.processor() or platform.machine()


def _fields(info: Path) -> dict[str, list[str]]:
    """Return each field's values, one for each core; empty if the system has no such file."""
    fields: dict[str, list[str]] = {}
    if info.exists():
        for line in info.read_text(errors="replace").splitlines():
            name, colon, value = line.partition(":")
            if colon:
                fields.setdefault(name.strip(), []).append(value.strip())
    return fields


def _arm(maker: str, part: str) -> str:
    """Return the name of an ARM core, or its two numbers if it is not in the table."""
    return ARM.get((maker.lower(), part.lower()), f"ARM implementer {maker}, part {part}")


def _apple() -> str:
    """Return the processor's name on macOS ("Apple M2 Pro"); "" if the system does not answer."""
    command = ["/usr/sbin/sysctl", "-n", "machdep.cpu.brand_string"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def commit(root: Path | None = None) -> str:
    """Return the revision of a checkout, with "+dirty" if a tracked file has changed; "" without a checkout.

    Args:
      root: its top folder; by default that of this package.
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
    """Run git on `root` without locks, and without the variables of a git hook; return its output."""
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
