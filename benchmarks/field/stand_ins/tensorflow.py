"""The little of TensorFlow that examples use beside their data."""

from __future__ import annotations

import pathlib
import types
from typing import Any


def _make_folder(path: Any) -> Any:
    pathlib.Path(path).mkdir(parents=True, exist_ok=True)


io = types.SimpleNamespace(gfile=types.SimpleNamespace(makedirs=_make_folder))
