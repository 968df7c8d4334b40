"""Load a program of benchmarks/ as a module."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

STUDIES = Path(__file__).parents[1] / "benchmarks"


def study(name: str) -> ModuleType:
    if str(STUDIES) not in sys.path:
        sys.path.append(str(STUDIES))  # they import one another
    return importlib.import_module(name)
