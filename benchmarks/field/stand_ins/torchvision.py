"""Images at random of shape [1, 64, 64] and labels, in place of torchvision's MNIST after its transforms."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np


def _mnist(**_: Any) -> Any:
    draw = np.random.default_rng(0)
    return draw.standard_normal((640, 1, 64, 64)).astype(np.float32), draw.integers(0, 10, 640)


datasets = types.SimpleNamespace(MNIST=_mnist)
transforms = types.ModuleType("torchvision.transforms")
for _name in ("Compose", "Resize", "ToTensor", "Normalize"):
    setattr(transforms, _name, lambda *_, **__: None)
sys.modules["torchvision.transforms"] = transforms
