"""Cores and memory, and whether something else is using them."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from jaxperf.doctor.finding import Finding
from jaxperf.measure.environment import cores, cpu_model
from jaxperf.report.text import quantity

BUSY_SHARE = 0.5  # load average per core above which times scatter
CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def machine_findings() -> list[Finding]:
    """The processor with its cores, their load, and memory."""
    count = cores()
    found = [Finding("cores", "ok", f"{count} usable, {cpu_model()}")]
    quota = cpu_quota()
    if quota and quota < count:
        text = f"this container may use {quota:g} of them at a time, so threads will wait for each other"
        found.append(Finding("cores", "mend", text, _on_fewer_cores(int(quota))))
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if load > BUSY_SHARE * count:
        text = (
            f"load average {load:.1f} on {count} cores: something else runs (see `top`), times will scatter"
        )
        found.append(Finding("load", "mend", text))
    memory = psutil.virtual_memory()
    text = f"{quantity(memory.available, 'bytes')} of {quantity(memory.total, 'bytes')} free"
    return [*found, Finding("memory", "ok", text)]


def _on_fewer_cores(count: int) -> str:
    """The command that runs everything on as many cores as the limit allows."""
    ours = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(cores()))
    return f"taskset -c {','.join(map(str, ours[: max(count, 1)]))} jaxperf run all"


def cpu_quota(path: Path = CPU_QUOTA) -> float:
    """Cores' worth of time that a container's limit allows; 0 where there is none."""
    try:
        allowed, period = path.read_text().split()
        return int(allowed) / int(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max 100000" means no limit
        return 0.0
