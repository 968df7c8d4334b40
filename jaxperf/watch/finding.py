"""One cause of lost time, and what to change."""

from __future__ import annotations

from dataclasses import dataclass

from jaxperf.watch.observe.source_location import Place


@dataclass(frozen=True)
class Finding:
    """One cause of lost time.

    Attributes:
      cause: the key of its advice in `TEXTS`.
      at: the line of code.
      seconds: what a change could save in this run.
      reason: what was seen, in one sentence.
      name: the function, call or operation that the advice names.
      memory_bytes: what a change would free; 0 if it frees no memory.
      argument: the {argument} of the advice, such as "rate", "argument 2" or an option of `jit`.
    """

    cause: str
    at: Place
    seconds: float
    reason: str
    name: str = ""
    memory_bytes: int = 0
    argument: str = ""


@dataclass(frozen=True)
class Advice:
    """What to change about a finding.

    Attributes:
      title: the cause in the reader's words.
      change: what to change, "" if the example is enough; a template for {name}, {argument},
        {environment_name} and {wrapper}.
      section: the section of the chapter that explains it.
      example: complete code that shows such a change; "" for none.
    """

    title: str
    change: str
    section: str
    example: str = ""
