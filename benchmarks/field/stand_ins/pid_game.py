"""Draws nothing, in place of the window of a PID controller's simulation."""

from __future__ import annotations

from typing import Any


def sim_step(state: Any, target: Any) -> None:
    """Read the state, as the window does."""
    float(state)
