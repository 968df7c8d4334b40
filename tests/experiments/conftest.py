"""Starts JAX before any section is loaded: a section would start it with its own number of devices."""

import jax
import pytest


@pytest.fixture(scope="session", autouse=True)
def all_devices():
    """Start JAX with the devices of tests/conftest.py."""
    jax.devices()
