"""Python and the packages: are they there, and within the bounds that this package states?"""

from __future__ import annotations

import importlib.metadata
import platform
import sys

from packaging.requirements import Requirement

from jaxperf.doctor.finding import Finding, install_self, stated_requirements
from jaxperf.measure.environment import versions

SHOWN = ("jax", "jaxlib", "flax", "optax", "numpy", "jax-cuda12-plugin", "jax-cuda13-plugin")


def package_findings() -> list[Finding]:
    """Versions, then one finding for each package that is missing or out of bounds."""
    found = [Finding("python", "ok", f"{platform.python_version()} at {sys.executable}")]
    shown = ", ".join(f"{name} {version}" for name, version in versions(SHOWN).items())
    problems = [text for r in stated_requirements() if (text := problem(r))]
    if not problems:
        return [*found, Finding("packages", "ok", shown)]
    found.append(Finding("packages", "note", shown or "none of jax, flax, optax, numpy"))
    return found + [Finding("packages", "broken", text, install_self()) for text in problems]


def problem(requirement: Requirement) -> str:
    """What is wrong with an installed package, in one line; "" where nothing is."""
    try:
        version = importlib.metadata.version(requirement.name)
    except importlib.metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed; {requirement} is needed"
    if requirement.specifier.contains(version, prereleases=True):
        return ""
    return f"{requirement.name} is {version}; {requirement} is needed"
