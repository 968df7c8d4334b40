"""Starts JAX before any section is loaded, as for the tests of the sections."""

from tests.experiments.conftest import all_devices

__all__ = ["all_devices"]
