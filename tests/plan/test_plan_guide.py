"""The programs of docs/plan.md, planned as the page shows them; they need JAX's CUDA plugin."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from jaxperf.plan.planning import plan

PAGE = Path(__file__).parents[2] / "docs" / "plan.md"


pytestmark = [
    pytest.mark.real,
    pytest.mark.thorough,
    pytest.mark.usefixtures("compiles_anew", "cuda_plugin"),
]


def program(name: str, number: int, folder: Path) -> Any:
    """The page's program with this number, as a module that was read from a file."""
    path = folder / f"{name}.py"
    path.write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[number])
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(path.read_text(), str(path), "exec"), module.__dict__)
    return module


def test_lenet(tmp_path: Path) -> None:
    lenet = program("lenet", 0, tmp_path)
    one, eight = plan(lenet.step, *lenet.arguments(), devices=(1, 8)).sizes
    assert (one.collectives, eight.collectives) == ({}, {"all-reduce": 1})
    assert eight.exchanges[0].collective.source in ("lenet.py:7", "lenet.py:8")  # as the version merges them


def test_the_transformer(tmp_path: Path) -> None:
    transformer = program("transformer", 2, tmp_path)
    (copied,) = plan(transformer.step, *transformer.arguments(), devices=(8,)).sizes
    assert set(copied.collectives) == {"all-reduce"}
    size = sum(each.count * each.collective.bytes for each in copied.exchanges)
    assert size == pytest.approx(136.3e6, rel=0.01)  # the embedding's gradient twice, in float32 and bfloat16
    (sharded,) = plan(transformer.step, *transformer.sharded_arguments(), devices=(8,)).sizes
    assert {"all-gather", "reduce-scatter"} <= set(sharded.collectives)
    assert "parameters gathered" in {advice.kind for advice in sharded.advice}
