"""The rules: each module enters its causes, and the functions that find them, into the table."""

from jaxperf.watch.rules import (
    between_devices,
    eager,
    idle,
    known,
    precision,
    programs,
    settings,
    steps,
    traces,
)
from jaxperf.watch.rules.table import CAUSES, RULES, Finding, advice_for, find_causes

__all__ = [
    "CAUSES", "RULES", "Finding", "advice_for", "between_devices", "eager", "find_causes", "idle", "known",
    "precision", "programs", "settings", "steps", "traces",
]  # fmt: skip
