"""Runs the cell of a claim again with planted values: a claim that nothing makes fail says nothing."""

from __future__ import annotations

import re
from pathlib import Path
from types import ModuleType
from typing import Any

from jaxperf.chapter import cells
from jaxperf.result import Claim


def claim_with(section: ModuleType, script: Path, statement: str, **planted: Any) -> Claim:
    """Run the folded cell that claims `statement` with other values; return the claim.

    Args:
      section: the names of the section, as `cells.load` returns them.
      script: its path.
      statement: the claim's statement, or how it begins.
      **planted: the values that replace those of the section.
    """
    (cell,) = (
        cell
        for cell in cells.read(script)
        if cells.FOLDED in cell.tags and statement in re.sub(r'"\s+f?"', "", cell.source)
    )
    before = section.s.blocks
    section.s.blocks = []
    try:
        cell.run(script, {**vars(section), **planted})
        claims = [block for block in section.s.blocks if isinstance(block, Claim)]
    finally:
        section.s.blocks = before
    (claim,) = (claim for claim in claims if claim.statement.startswith(statement))
    return claim
