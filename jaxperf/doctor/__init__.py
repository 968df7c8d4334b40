"""`jaxperf doctor`: what this machine has, what is missing, and the command that fixes it.

JAX starts in a separate process, where a broken installation can crash without ending this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxperf.doctor import checks
from jaxperf.doctor.finding import Finding, show
from jaxperf.doctor.probe import ask_jax
from jaxperf.errors import plain

__all__ = ["Finding", "examine", "main", "verdict"]


def examine() -> list[Finding]:
    """Return every check's findings; takes several seconds, mostly to start JAX."""
    probe = ask_jax()
    return [
        *checks.package_findings(),
        *checks.device_findings(probe),
        *checks.data_findings(),
        *checks.settings_findings(probe),
        *checks.machine_findings(),
    ]


def verdict(findings: Sequence[Finding]) -> tuple[str, int]:
    """Return the last line, and the exit status: 1 if something essential is broken, else 0."""
    broken = sum(f.state == "broken" for f in findings)
    better = sum(f.state == "warn" for f in findings)
    if broken:
        return f"not usable: {broken} problem{'s' * (broken > 1)} must be fixed; see the command above", 1
    return "usable" + (f"; {better} thing{'s' * (better > 1)} could be better" if better else ""), 0


def main() -> int:
    """Print the findings and the verdict; return the exit status."""
    findings = examine()
    for line in show(findings):
        print(plain(line))  # it may quote environment variables
    text, status = verdict(findings)
    print(f"\n{text}")
    return status
