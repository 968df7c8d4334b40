"""What `jaxperf plan` is asked; its flags say more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Plan:
    """The flags of `jaxperf plan`, whose help says what each is."""

    step: str = ""
    for_: str = "h100"
    devices: str = "1,8,64"
    args: Sequence[str] = ()
    setup: str = ""
    npz: Path | None = None
    per_device: int | None = None
    total: int | None = None
    batch: str = ""
    mesh: str = ""
    network: str = "infiniband"
    step_ms: float | None = None
    json: Path | None = None
    validate: bool = False
