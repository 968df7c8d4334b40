"""What a probe is: one small program, and what is asked of it on each version of JAX."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["time", "compile", "memory", "right", "start"]


@dataclass(frozen=True)
class Probe:
    """One small program.

    Attributes:
      name: the function's name.
      make: makes what its kind needs, as below.
      kind: "time": `make` returns (function, *arguments), whose calls are timed; "compile": the same, whose
        stages are timed; "memory": the same, whose temporary bytes are asked for; "right": `make` returns ""
        or what is wrong with a result; "start": it returns code that a new process runs.
      family: under which heading of the page it stands.
      about: what it does, its docstring's first line.
      issue: the public issue that reports a fault which it shows; "" for none.
      told: what the issue tells, in one line.
      x64: whether it computes in 64 bits.
    """

    name: str
    make: Callable[[], Any]
    kind: Kind
    family: str
    about: str
    issue: str = ""
    told: str = ""
    x64: bool = False


PROBES: dict[str, Probe] = {}


def probe(
    family: str, kind: Kind = "time", *, issue: str = "", told: str = "", x64: bool = False
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """Register a function as a probe."""

    def register(make: Callable[[], Any]) -> Callable[[], Any]:
        about = (make.__doc__ or "").strip().splitlines()[0]
        name = make.__name__
        PROBES[name] = Probe(name, make, kind, family, about.rstrip("."), issue, told, x64)
        return make

    return register
