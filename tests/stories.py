"""A story to which a test lets one part of a section tell what it has to tell."""

from dataclasses import dataclass
from pathlib import Path

import jax

from jaxperf import catalogue, script


@dataclass(frozen=True)
class NoFlags:
    """A part takes plain options: the script's own flags are none of its business."""


def begin(section: str, *, json: Path | None = None) -> script.Story:
    """The story of this section, of which nothing is told yet; raw traces lie beside `json`."""
    flags = script.Flags(config=NoFlags(), json=json, devices=len(jax.devices()))
    return script.Story(catalogue.find(section), flags)
