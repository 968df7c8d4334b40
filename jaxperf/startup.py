"""Importing and starting JAX: what a user's settings can break there ends in one line."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.metadata
import os

from jaxperf.errors import JaxperfError
from jaxperf.processes.exit_status import USER_MISTAKE, say
from jaxperf.result import Environment

VERSION_NOTED = "JAXPERF_VERSION_NOTED"  # inherited by child processes, which do not repeat the note


def say_if_jax_is_untested() -> None:
    """Say in one line, once in a run, that jaxperf is not tested with the installed JAX; the run goes on."""
    from jaxperf.doctor.check_result import stated_requirements

    if VERSION_NOTED in os.environ:
        return
    (bounds,) = (r.specifier for r in stated_requirements() if r.name == "jax")
    try:
        version = importlib.metadata.version("jax")
    except importlib.metadata.PackageNotFoundError:
        return  # importing it says so
    if not bounds.contains(version, prereleases=True):
        os.environ[VERSION_NOTED] = version
        say(f"note: jaxperf is tested with JAX {bounds}, and this is JAX {version}; it goes on")


def import_jax() -> None:
    """Import JAX; a setting that it rejects (JAX_ENABLE_X64=maybe) ends the process with one line."""
    say_if_jax_is_untested()
    try:
        importlib.import_module("jax")
    except Exception as e:
        reason = " ".join(str(e).split()) or type(e).__name__
        say(f"error: JAX cannot be imported: {reason}; `jaxperf doctor` says why")
        raise SystemExit(USER_MISTAKE) from None


def environment(*, data_source: str = "") -> Environment:
    """Start JAX, and return this process's environment.

    Args:
      data_source: where the images came from, if any were read.

    Raises:
      JaxperfError: JAX cannot start on the requested platform.
    """
    import jax

    say_if_jax_is_untested()
    from jaxperf.doctor.driver import ask_driver
    from jaxperf.measure.environment import current_environment

    platforms = (
        getattr(jax.config, "jax_platforms", None) or os.environ.get("JAX_PLATFORMS") or "any platform"
    )
    gpu = platforms.startswith("cuda")
    missing = "GPU" if gpu else f"device for {platforms}"
    try:
        current = current_environment(data_source=data_source)
    except (RuntimeError, AssertionError):
        current = None
    if current is None or (gpu and current.backend != "gpu"):  # JAX silently takes the next one in the list
        raise JaxperfError(
            f"JAX finds no {missing}; use the CPU (JAX_PLATFORMS=cpu, or a section's --platform cpu), or see "
            "`jaxperf doctor`"
        )
    if current.backend != "gpu":
        return current
    return dataclasses.replace(current, gpus=ask_driver().description())
