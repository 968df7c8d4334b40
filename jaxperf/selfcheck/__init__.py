"""`jaxperf selfcheck`: do the instruments give the right answers where these are known?"""

from __future__ import annotations

import dataclasses
from pathlib import Path

from jaxperf.jax_internals import import_jax


def main(*, full: bool = False, trials: int | None = None, out: Path) -> int:
    """Check the instruments, print the verdicts, write `out/selfcheck.json`; return the exit status.

    Args:
      full: 400 trials and durations up to 1 s, which take hours on a noisy machine, instead of minutes.
      trials: another number of trials.
      out: folder of the result.

    Raises:
      JaxperfError: JAX cannot start, or the result cannot be written.
    """
    import_jax()
    from jaxperf.selfcheck import checks  # imports JAX

    chosen = checks.FULL if full else checks.Checks()
    if trials:
        chosen = dataclasses.replace(chosen, trials=trials)
    arguments = ["jaxperf", "selfcheck", *["--full"] * full, *([f"--trials={trials}"] if trials else [])]
    return checks.check(chosen, out / f"{checks.SECTION.name}.json", arguments)
