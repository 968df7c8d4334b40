"""Starts JAX before any section is loaded: a section would start it with its own number of devices."""

from __future__ import annotations

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def all_devices() -> None:
    """Start JAX with the devices of tests/conftest.py."""
    jax.devices()
