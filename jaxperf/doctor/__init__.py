"""`jaxperf doctor`: what this machine has, what is missing, and the command that mends it.

Each check looks at one thing and returns `Finding`s; none of them raises, waits for a network or starts JAX
in this process (`probe` uses one of its own, where a broken installation can crash without taking us along).
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxperf.doctor.data import data_findings
from jaxperf.doctor.finding import Finding, show
from jaxperf.doctor.gpu import gpu_findings
from jaxperf.doctor.machine import machine_findings
from jaxperf.doctor.packages import package_findings
from jaxperf.doctor.probe import ask_jax
from jaxperf.doctor.settings import settings_findings

__all__ = ["Finding", "examine", "main", "verdict"]


def examine() -> list[Finding]:
    """Every check's findings; takes some seconds, most of them for starting JAX."""
    probe = ask_jax()
    return [
        *package_findings(),
        *gpu_findings(probe),
        *data_findings(),
        *settings_findings(probe),
        *machine_findings(),
    ]


def verdict(findings: Sequence[Finding]) -> tuple[str, int]:
    """The last line, and the exit status: 1 where something essential is broken, else 0."""
    broken = sum(f.state == "broken" for f in findings)
    better = sum(f.state == "mend" for f in findings)
    if broken:
        return f"not usable: {broken} broken, named above with the command that mends it", 1
    return "usable" + (f"; {better} thing(s) could be better" if better else ""), 0


def main() -> int:
    """Print the findings and the verdict; returns the exit status."""
    findings = examine()
    for line in show(findings):
        print(line)
    text, status = verdict(findings)
    print(f"\n{text}")
    return status
