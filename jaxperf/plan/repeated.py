"""A program for many nodes is often that of fewer nodes with larger numbers: then it is compiled once.

Compiling ResNet-18's step takes ten seconds of a core. For 64 and for 1,024 devices with the same examples on
each, the lowered programs differ in the number of devices and in the length of the whole batch only, and
every collective is among all devices. What one device runs is then the same.
"""

from __future__ import annotations

import dataclasses
import math
import re
import struct

from jaxperf.plan.collectives import collectives
from jaxperf.plan.hlo import Module

_NUMBER = re.compile(r"0x[0-9A-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")
_FLOATS = {4: ">e", 8: ">f", 16: ">d"}  # by digits of a number in hexadecimal, which is how MLIR prints some
_GROUPS = re.compile(
    r"replica_groups=(?:\{\{[\d,{}]*\}\}|\[[\d,]+\]<=\[[\d,]+\](?:T\([\d,]+\))?|mesh\[[^\]]*\][^{]*\{[^}]*\})"
)
CLOSE = 1e-4  # of a float in a program's text, which has nine digits


def grows(small: str, large: str, times: int) -> bool:
    """Return whether a lowered program is another's with some numbers `times` as large, or as small.

    Args:
      small, large: their texts.
      times: how many times as many devices the second is for.
    """
    if _NUMBER.sub("", small) != _NUMBER.sub("", large):
        return False
    return all(_pair(a, b, times) for a, b in zip(_NUMBER.findall(small), _NUMBER.findall(large)) if a != b)


def _pair(a: str, b: str, times: int) -> bool:
    if a.isdecimal() and b.isdecimal():
        return int(b) == times * int(a)
    before, after = _value(a), _value(b)
    return any(abs(after - value) <= CLOSE * abs(value) for value in (times * before, before / times))


def _value(text: str) -> float:
    if text.startswith("0x"):
        form = _FLOATS.get(len(text) - 2)
        return struct.unpack(form, bytes.fromhex(text[2:]))[0] if form else math.nan
    return float(text)


def among_all(module: Module, devices: int) -> bool:
    """Return whether every collective of a program is among all of its devices."""
    everyone = (tuple(range(devices)),)
    return all(each.groups == everyone for each in collectives(module, devices))


def widened(module: Module) -> Module:
    """Return a program whose collectives are among all devices, however many there are."""
    computations = {
        name: tuple(dataclasses.replace(i, text=_GROUPS.sub("replica_groups={}", i.text)) for i in body)
        for name, body in module.computations.items()
    }
    return dataclasses.replace(module, computations=computations)
