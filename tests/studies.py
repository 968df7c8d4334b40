"""Load a program of benchmarks/ as a module."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

STUDIES = Path(__file__).parents[1] / "benchmarks"


def study(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, STUDIES / f"{name}.py")
    assert spec and spec.loader
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
