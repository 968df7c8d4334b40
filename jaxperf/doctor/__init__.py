"""`jaxperf doctor`: what this machine has, what is missing, and the command that fixes it.

JAX starts in a separate process, where a broken installation can crash without ending this one.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxperf.doctor import checks
from jaxperf.doctor.check_result import CheckResult, report_lines
from jaxperf.doctor.probe import ask_jax
from jaxperf.errors import escape_control

__all__ = ["CheckResult", "examine", "main", "verdict"]


def examine() -> list[CheckResult]:
    """Return every check's results; takes several seconds, mostly to start JAX."""
    report = ask_jax()
    return [
        *checks.package_results(),
        *checks.device_results(report),
        *checks.data_results(),
        *checks.settings_results(report),
        *checks.machine_results(),
    ]


def verdict(results: Sequence[CheckResult]) -> tuple[str, int]:
    """Return the last line, and the exit status: 1 if something essential is broken, else 0."""
    broken = sum(f.state == "broken" for f in results)
    better = sum(f.state == "warn" for f in results)
    if broken:
        return f"not usable: {broken} problem{'s' * (broken > 1)} must be fixed; see the command above", 1
    return "usable" + (f"; {better} thing{'s' * (better > 1)} could be better" if better else ""), 0


def main() -> int:
    """Print the results and the verdict; return the exit status."""
    results = examine()
    for line in report_lines(results):
        print(escape_control(line))  # it may quote environment variables
    text, status = verdict(results)
    print(f"\n{text}")
    return status
