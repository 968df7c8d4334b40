"""A story to which a test lets one part of a section tell what it has to tell."""

from pathlib import Path

import jax

from jaxperf import catalogue
from jaxperf.measure import current_environment
from jaxperf.story import Story


def begin(section: str, *, json: Path | None = None, devices: int = 0, verbose: bool = False) -> Story:
    """The story of this section, of which nothing is told yet; raw traces go next to `json`."""
    config = {"devices": devices or len(jax.devices())}
    return Story(catalogue.find(section), current_environment(), config, keep=json, verbose=verbose)
